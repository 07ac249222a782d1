//! The tables that tell classes apart.

use model::Invalid;
use std::collections::{BTreeMap, BTreeSet};

use limiter_common::abi::Config;
use limiter_common::atomic;
use limiter_common::class::{
    BANKS, CHAINS_AT, COVERS_ALL, DEFINITIONS_AT, FIRST_AT, FLAG_GROUPS, FLAGS_AT, FRAGMENTS_AT,
    HIDDEN_AT, ICMP_TABLE, ICMPV6_TABLE, MAX_CLASSES, MAX_NESTING, OTHER_TABLE, PROTOCOLS_AT,
    TABLES, TCP_SOURCE_TABLE, Table, UDP_SOURCE_TABLE, UDP_TABLE, set_entry,
};

use super::super::memory::Elements;
use super::super::{Error, kernel};
use model::class::{Class, Classes, Flags, ICMP, ICMPV6, Kind, Ports, Shown, TCP, UDP};

/// The limits of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Use {
    /// Places whose sources are limited each by itself.
    pub(super) each: usize,
    /// Whether everyone is among them.
    pub(super) everyone: bool,
    /// Places whose sources share a limit.
    pub(super) shared: usize,
}

impl Use {
    const fn is_none(&self) -> bool {
        self.each == 0 && self.shared == 0
    }
}

/// The classes that limits are for, their numbers, and how limits use them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClassUse {
    ids: BTreeMap<Class, u8>,
    uses: BTreeMap<u8, Use>,
    /// The number that was given last.
    last: u8,
}

impl ClassUse {
    /// The number of a class in use; 0 for all packets.
    pub(crate) fn id(&self, class: &Class) -> Option<u8> {
        if class.is_any() { Some(0) } else { self.ids.get(class).copied() }
    }

    /// The class with a number.
    pub(crate) fn class(&self, id: u8) -> Option<Class> {
        if id == 0 {
            return Some(Class::ANY);
        }
        self.ids.iter().find(|(_, known)| **known == id).map(|(class, _)| *class)
    }

    /// The numbers in use.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u8> {
        self.ids.values().copied()
    }

    /// The number of a class, which it is given if it has none.
    pub(super) fn give(&mut self, class: &Class) -> Option<u8> {
        if let Some(id) = self.id(class) {
            return Some(id);
        }
        // Not the one that has just become free, as long as there are others.
        // Buckets of the former class may still carry its number.
        let after = self.last;
        let all =
            (1..=MAX_CLASSES as u8).cycle().skip(usize::from(after)).take(MAX_CLASSES as usize);
        let id = all.into_iter().find(|id| !self.ids.values().any(|used| used == id))?;
        self.last = id;
        self.ids.insert(*class, id);
        Some(id)
    }

    /// Whether everyone is limited in some class.
    pub(super) fn limits_everyone(&self) -> bool {
        self.uses.values().any(|used| used.everyone)
    }

    /// The limits of a class.
    pub(super) fn of(&mut self, id: u8) -> &mut Use {
        self.uses.entry(id).or_default()
    }

    /// Whether packets are told apart as by `other`.
    pub(super) fn tells_as(&self, other: &Self) -> bool {
        let everyone = |used: &Self| -> Vec<u8> {
            used.uses.iter().filter(|(_, used)| used.everyone).map(|(id, _)| *id).collect()
        };
        self.ids == other.ids && everyone(self) == everyone(other)
    }

    /// The classes of this and of `next`, which has the same numbers for those of both. Of none is it said
    /// that everyone is limited, unless that is so all the time.
    pub(super) fn until(&self, next: &Self) -> Self {
        let mut both = next.clone();
        for (class, id) in &self.ids {
            both.ids.insert(*class, *id);
            // Where it is said, a packet looks no further than to the limit for everyone. That must
            // have been written before and be removed later.
            let everyone = self.uses.get(id).is_some_and(|used| used.everyone);
            if let Some(used) = both.uses.get_mut(id) {
                used.everyone &= everyone;
            }
        }
        both
    }

    /// The numbers in use, that of the class that goes first first.
    pub(super) fn by_precedence(&self) -> impl Iterator<Item = u8> {
        let mut classes: Vec<_> = self.ids.iter().collect();
        classes.sort_by(|(one, _), (other, _)| one.cmp_precedence(other));
        classes.into_iter().map(|(_, id)| *id)
    }

    /// Forgets classes without limits.
    pub(super) fn forget_unused(&mut self) {
        self.uses.retain(|_, used| !used.is_none());
        let uses = &self.uses;
        self.ids.retain(|_, id| uses.contains_key(id));
    }

    /// The classes in the order of their precedence.
    ///
    /// # Errors
    /// If they do not go together.
    pub(super) fn classes(&self) -> Result<Classes, Error> {
        let all = Classes::new(self.ids.keys().copied());
        let classes = all.map_err(|error| {
            Invalid::new(format!("limit for a class: {error}")).with_hint(error.hint())
        })?;
        let groups = groups(&classes).len();
        if groups > FLAG_GROUPS as usize {
            return Err(Error::TooMany {
                kind: "combinations of TCP flags",
                wanted: groups,
                room: FLAG_GROUPS as usize,
                hint: "use fewer different conditions on TCP flags",
            });
        }
        Ok(classes)
    }
}

/// The conditions on flags that a combination of flags fulfils.
fn fulfilled(classes: &Classes, flags: u8) -> Vec<Flags> {
    let conditions: BTreeSet<Flags> = classes.iter().filter_map(|class| class.flags).collect();
    conditions.into_iter().filter(|c| flags & c.mask == c.value).collect()
}

/// Combinations of TCP flags, one for each that classes tell apart, and what they fulfil.
fn groups(classes: &Classes) -> Vec<(u8, Vec<Flags>)> {
    let mut groups: Vec<(u8, Vec<Flags>)> = Vec::new();
    for flags in 0..=u8::MAX {
        let fulfilled = fulfilled(classes, flags);
        if !groups.iter().any(|(_, known)| *known == fulfilled) {
            groups.push((flags, fulfilled));
        }
    }
    groups
}

/// Protocols whose packets can hide what a class asks for, in fragments.
const WITH_HEADERS: [u8; 4] = [ICMP, TCP, UDP, ICMPV6];

/// A class as a word that is never zero.
fn encode(class: &Class) -> u64 {
    let [mask, value] = class.flags.map_or([0, 0], |flags| [flags.mask, flags.value]);
    let range = |ports: Ports| {
        let ([a, b], [c, d]) = (ports.first.to_le_bytes(), ports.last.to_le_bytes());
        [a, b, c, d]
    };
    let (kind, [a, b, c, d]) = match class.kind {
        None => (0, [0; 4]),
        Some(Kind::To(ports)) => (1, range(ports)),
        Some(Kind::From(ports)) => (2, range(ports)),
        Some(Kind::Icmp { kind, code: None }) => (3, [kind, 0, 0, 0]),
        Some(Kind::Icmp { kind, code: Some(code) }) => (4, [kind, code, 0, 0]),
        Some(Kind::Fragments) => (5, [0; 4]),
    };
    // The highest bit is always set: in the maps 0 stands for a number without a class.
    let known = u8::from(class.protocol.is_some())
        | u8::from(class.flags.is_some()) << 1
        | kind << 2
        | 1 << 7;
    u64::from_le_bytes([known, class.protocol.unwrap_or(0), a, b, c, d, mask, value])
}

/// The class that was encoded; `None` for 0, and for what no class is encoded as.
fn decode(word: u64) -> Option<Class> {
    let [known, protocol, a, b, c, d, mask, value] = word.to_le_bytes();
    let has = |bit: u8| known & 1 << bit != 0;
    let ports = Ports { first: u16::from_le_bytes([a, b]), last: u16::from_le_bytes([c, d]) };
    let kind = match known >> 2 & 7 {
        0 => None,
        1 => Some(Kind::To(ports)),
        2 => Some(Kind::From(ports)),
        3 => Some(Kind::Icmp { kind: a, code: None }),
        4 => Some(Kind::Icmp { kind: a, code: Some(b) }),
        5 => Some(Kind::Fragments),
        _ => return None,
    };
    let protocol = has(0).then_some(protocol);
    let flags = has(1).then_some(Flags { mask, value });
    if has(7) { Class::new(protocol, kind, flags).ok() } else { None }
}

/// Fills a table that changes only where one of `ranges` begins or ends.
fn fill(table: &Table, ranges: impl Iterator<Item = (u16, u16)>, class_of: impl Fn(u16) -> u8) {
    let mut starts: BTreeSet<u32> = [0].into();
    for (first, last) in ranges {
        starts.extend([u32::from(first), u32::from(last) + 1]);
    }
    let ends = starts.iter().skip(1).copied().chain([65_536]);
    for (start, end) in starts.iter().copied().zip(ends) {
        let Ok(first) = u16::try_from(start) else { break };
        let class = class_of(first);
        let mut at = start;
        while at < end {
            // Eight entries in a store: a table has 65,536, nearly all alike.
            if at % 8 == 0 && at + 8 <= end {
                atomic::store(&table[at as usize / 8], u64::from(class) * 0x0101_0101_0101_0101);
                at += 8;
            } else {
                set_entry(table, at, class);
                at += 1;
            }
        }
    }
}

/// The tables of both banks.
pub(crate) struct ClassTables(Elements<Table>);

impl ClassTables {
    pub(crate) const fn new(tables: Elements<Table>) -> Self {
        Self(tables)
    }

    fn bank(&self, number: u64) -> &[Table] {
        let first = number as usize % BANKS as usize * TABLES as usize;
        &self.0.all()[first..first + TABLES as usize]
    }

    /// The classes in force, and their numbers.
    pub(crate) fn present(&self, config: &Config) -> ClassUse {
        let Some(bank) = atomic::load(&config.classes).checked_sub(1) else {
            return ClassUse::default();
        };
        let words = &self.bank(bank)[OTHER_TABLE as usize][DEFINITIONS_AT as usize / 8..];
        let known = (0u8..).zip(words.iter().take(MAX_CLASSES as usize + 1));
        let ids = known.filter_map(|(id, word)| Some((decode(atomic::load(word))?, id)));
        ClassUse { ids: ids.collect(), ..ClassUse::default() }
    }

    /// Puts classes in force, and waits until no packet is judged by others.
    ///
    /// # Errors
    /// If they do not go together; then nothing has changed.
    pub(super) fn publish(&self, used: &ClassUse, config: &Config) -> Result<(), Error> {
        let classes = used.classes()?;
        let next = if classes.is_empty() {
            0
        } else {
            // The one that is not in force; nobody reads it since it was replaced.
            let bank = u64::from(atomic::load(&config.classes) == 1);
            self.write(bank, &classes, used);
            bank + 1
        };
        atomic::swap(&config.classes, next);
        // The former bank is written with the next change, and keys of former classes are removed
        // before that: no packet may go by them any more.
        kernel::wait_for_packets();
        Ok(())
    }

    fn write(&self, bank: u64, classes: &Classes, used: &ClassUse) {
        let tables = self.bank(bank);
        let id = |class: Class| used.id(&class).unwrap_or(0);
        let found = |packet: Shown| id(classes.find(&packet));
        let ports = || {
            classes.iter().filter_map(|class| match class.kind {
                Some(Kind::To(ports)) => Some((ports.first, ports.last)),
                _ => None,
            })
        };
        let to = |protocol, port, flags| {
            found(Shown { protocol, port: Some(port), flags, ..Shown::default() })
        };
        let groups = groups(classes);
        for ((flags, _), table) in groups.iter().zip(tables) {
            fill(table, ports(), |port| to(TCP, port, Some(*flags)));
        }
        fill(&tables[UDP_TABLE as usize], ports(), |port| to(UDP, port, None));
        let froms = || {
            classes.iter().filter_map(|class| match class.kind {
                Some(Kind::From(ports)) => Some((class, ports)),
                _ => None,
            })
        };
        for (protocol, table) in [(TCP, TCP_SOURCE_TABLE), (UDP, UDP_SOURCE_TABLE)] {
            let ranges = froms().map(|(_, ports)| (ports.first, ports.last));
            fill(&tables[table as usize], ranges, |port| {
                let packet = Shown { protocol, from: Some(port), ..Shown::default() };
                let class = froms().find(|(class, _)| class.matches(&packet));
                class.map_or(0, |(class, _)| id(class))
            });
        }
        for (protocol, table) in [(ICMP, ICMP_TABLE), (ICMPV6, ICMPV6_TABLE)] {
            let ranges = classes.iter().filter_map(|class| match class.kind {
                Some(Kind::Icmp { kind, code }) => Some((
                    u16::from_be_bytes([kind, code.unwrap_or(0)]),
                    u16::from_be_bytes([kind, code.unwrap_or(u8::MAX)]),
                )),
                _ => None,
            });
            fill(&tables[table as usize], ranges, |word| {
                found(Shown { protocol, icmp: Some(word.to_be_bytes()), ..Shown::default() })
            });
        }
        let other = &tables[OTHER_TABLE as usize];
        for flags in 0..=u8::MAX {
            let fulfilled = fulfilled(classes, flags);
            let group = groups.iter().position(|(_, known)| *known == fulfilled);
            // Every combination is in a group, and there are few of them.
            set_entry(other, FLAGS_AT + u32::from(flags), group.unwrap_or(0) as u8);
        }
        for protocol in 0..=u8::MAX {
            let [whole, fragment] = [false, true].map(|later_fragment| {
                found(Shown { protocol, later_fragment, ..Shown::default() })
            });
            // The strictest one, where that is to be, once the limits are known: see `hide`.
            set_entry(other, PROTOCOLS_AT + u32::from(protocol), whole);
            set_entry(other, FRAGMENTS_AT + u32::from(protocol), fragment);
        }
        let asked = |class: Class| {
            let id = id(class);
            let covers = used.uses.get(&id).is_some_and(|used| used.everyone);
            if covers { id | COVERS_ALL as u8 } else { id }
        };
        for number in 0..=MAX_CLASSES {
            let class = used.class(number as u8).filter(|class| !class.is_any());
            let mut chain = class.into_iter().flat_map(|class| classes.chain(class)).map(asked);
            for step in 0..MAX_NESTING {
                let at = CHAINS_AT + number * MAX_NESTING + step;
                set_entry(other, at, chain.next().unwrap_or(0));
            }
            let goes_first = class.is_some_and(|class| class.flags.is_some());
            set_entry(other, FIRST_AT + number, u8::from(goes_first));
            // The kernel does not read it. A later daemon does, which knows the classes from the
            // maps alone.
            let definition = class.map_or(0, |class| encode(&class));
            atomic::store(&other[(DEFINITIONS_AT / 8 + number) as usize], definition);
        }
    }

    /// Puts packets that hide what they are into the class that `strictest` tells for their protocol, or for any.
    pub(super) fn hide(&self, config: &Config, strictest: impl Fn(Option<u8>) -> u8) {
        let Some(bank) = atomic::load(&config.classes).checked_sub(1) else { return };
        // Packets are judged by this bank meanwhile, each by the former byte or by the new one.
        let other = &self.bank(bank)[OTHER_TABLE as usize];
        set_entry(other, HIDDEN_AT, strictest(None));
        for protocol in WITH_HEADERS {
            set_entry(other, PROTOCOLS_AT + u32::from(protocol), strictest(Some(protocol)));
        }
    }
}
