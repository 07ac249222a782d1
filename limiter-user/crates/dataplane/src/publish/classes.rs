//! The tables that tell classes apart.

use model::Invalid;
use std::collections::{BTreeMap, BTreeSet};

use limiter_common::abi::Config;
use limiter_common::atomic;
use limiter_common::class::{
    ASKED_AT, BANKS, COVERS_ALL, Chain, DEFINITION_BYTES, DEFINITIONS_AT, DESTINATION_CHAINS_AT,
    DESTINATIONS, FIRST_AT, FLAG_GROUPS, FLAGS_AT, FRAGMENTS_AT, HIDDEN, ICMP_TABLE, ICMPV6_TABLE,
    LIMITED, MAX_CLASSES, MAX_NESTING, MAX_OF_DESTINATIONS, NAMED, OF_DESTINATIONS, OTHER_TABLE,
    PROTOCOLS_AT, TABLES, TCP_SOURCE_TABLE, Table, UDP_SOURCE_TABLE, UDP_TABLE, WITH_HEADERS,
    chain_at, set_entry,
};
use limiter_common::key::SourceKey;

use super::super::memory::Elements;
use super::super::sources::{key_of, prefix_of};
use super::super::{Error, kernel};
use super::place::ClassPlace;
use ipnet::IpNet;
use model::class::{
    Class, Classes, Destination, Flags, ICMP, ICMPV6, Kind, Ports, Shown, TCP, UDP,
};

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
    /// Which number comes next, of those for sources and of those for destinations.
    last: [u8; 2],
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
        let (first, count) = match class.is_of_destinations() {
            true => (OF_DESTINATIONS as u8, MAX_OF_DESTINATIONS as u8),
            false => (1, MAX_CLASSES as u8),
        };
        // Not the one that has just become free, as long as there are others.
        // Buckets of the former class may still carry its number.
        let last = &mut self.last[usize::from(class.is_of_destinations())];
        let mut all = (0..count).map(|step| first + (*last + step) % count);
        let id = all.find(|id| !self.ids.values().any(|used| used == id))?;
        *last = id - first + 1;
        self.ids.insert(*class, id);
        Some(id)
    }

    /// Whether everyone is limited in some class.
    pub(super) fn limits_everyone(&self) -> bool {
        self.uses.values().any(|used| used.everyone)
    }

    /// Whether classes name prefixes of destinations.
    pub(super) fn names_destinations(&self) -> bool {
        self.ids.keys().any(|class| class.prefix().is_some())
    }

    /// What the kernel asks for packets of which `first` of `classes` is asked first, or only the limits of no class.
    fn chain(&self, classes: &Classes, first: Option<Class>) -> Chain {
        let all = first.into_iter().flat_map(|first| classes.chain(first));
        let bytes = all.map(|class| {
            let id = self.id(&class).unwrap_or(0);
            let covers = self.uses.get(&id).is_some_and(|used| used.everyone);
            u32::from(id) | if covers { COVERS_ALL } else { 0 }
        });
        let steps = bytes.take(MAX_NESTING as usize).zip((0..).step_by(8));
        Chain(steps.fold(0, |chain, (byte, shift)| chain | byte << shift))
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

/// Words of a definition.
const WORDS: usize = DEFINITION_BYTES as usize / 8;

/// A class as words of which the first is never zero.
fn encode(class: &Class) -> [u64; WORDS] {
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
    let (destination, prefix) = match class.destination {
        None => (0, None),
        Some(Destination::Within(net)) => (1, Some(net)),
        Some(Destination::Each) => (2, None),
    };
    // The highest bit is always set: in the maps 0 stands for a number without a class.
    let known = u8::from(class.protocol.is_some())
        | u8::from(class.flags.is_some()) << 1
        | kind << 2
        | destination << 5
        | 1 << 7;
    let first = u64::from_le_bytes([known, class.protocol.unwrap_or(0), a, b, c, d, mask, value]);
    let SourceKey { high, low } = prefix.map_or_else(Default::default, |net| key_of(net.network()));
    [first, prefix.map_or(0, |net| net.prefix_len().into()), high, low]
}

/// The class that was encoded; `None` for 0, and for what no class is encoded as.
fn decode([first, length, high, low]: [u64; WORDS]) -> Option<Class> {
    let [known, protocol, a, b, c, d, mask, value] = first.to_le_bytes();
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
    let destination = match known >> 5 & 3 {
        0 => None,
        1 => {
            let net = prefix_of(SourceKey { high, low }.address(), u32::try_from(length).ok()?)?;
            Some(Destination::Within(net))
        }
        2 => Some(Destination::Each),
        _ => return None,
    };
    let protocol = has(0).then_some(protocol);
    let flags = has(1).then_some(Flags { mask, value });
    if !has(7) {
        return None;
    }
    Some(Class::new(protocol, kind, flags).ok()?.to(destination))
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
        let bank = atomic::load(&config.classes).checked_sub(1);
        let ids = bank.map(|bank| self.defined(bank).collect()).unwrap_or_default();
        ClassUse { ids, ..ClassUse::default() }
    }

    /// What a bank says of numbers.
    fn defined(&self, bank: u64) -> impl Iterator<Item = (Class, u8)> {
        let words = &self.bank(bank)[OTHER_TABLE as usize][DEFINITIONS_AT as usize / 8..];
        let known = (0u8..).zip(words.as_chunks::<WORDS>().0).take(NUMBERS);
        known.filter_map(|(id, words)| {
            Some((decode(std::array::from_fn(|word| atomic::load(&words[word])))?, id))
        })
    }

    /// Puts classes in force, and waits until no packet is judged by others. `name` writes numbers of prefixes to where
    /// packets look for them.
    ///
    /// # Errors
    /// If they do not go together; then nothing has changed. If a prefix cannot be named.
    pub(super) fn publish(
        &self,
        used: &ClassUse,
        config: &Config,
        mut name: impl FnMut(Vec<(ClassPlace, Option<u32>)>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let classes = used.classes()?;
        let next = if classes.is_empty() {
            0
        } else {
            // The one that is not in force; nobody reads it since it was replaced.
            let bank = u64::from(atomic::load(&config.classes) == 1);
            let place = |net| ClassPlace::prefix(net, DESTINATIONS as u8 + bank as u8);
            // Its definitions tell what is named at the least, also if the daemon dies in between.
            let former = self.defined(bank).filter_map(|(class, _)| class.prefix());
            name(former.map(|net| (place(net), None)).collect())?;
            self.write(bank, &classes, used);
            let named = (1..).zip(classes.destinations());
            name(named.map(|(number, net)| (place(net), Some(number))).collect())?;
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
        // Where a packet goes is told apart from the rest.
        let kinds = classes.kinds();
        let kind = |class: Class| {
            kinds.iter().position(|known| known == class).map_or(0, |at| at as u8 + 1)
        };
        let found = |packet: Shown| kind(kinds.find(&packet));
        let ports = || {
            kinds.iter().filter_map(|class| match class.kind {
                Some(Kind::To(ports)) => Some((ports.first, ports.last)),
                _ => None,
            })
        };
        let to = |protocol, port, flags| {
            found(Shown { protocol, port: Some(port), flags, ..Shown::default() })
        };
        let groups = groups(&kinds);
        for ((flags, _), table) in groups.iter().zip(tables) {
            fill(table, ports(), |port| to(TCP, port, Some(*flags)));
        }
        fill(&tables[UDP_TABLE as usize], ports(), |port| to(UDP, port, None));
        let froms = || {
            kinds.iter().filter_map(|class| match class.kind {
                Some(Kind::From(ports)) => Some((class, ports)),
                _ => None,
            })
        };
        for (protocol, table) in [(TCP, TCP_SOURCE_TABLE), (UDP, UDP_SOURCE_TABLE)] {
            let ranges = froms().map(|(_, ports)| (ports.first, ports.last));
            fill(&tables[table as usize], ranges, |port| {
                let packet = Shown { protocol, from: Some(port), ..Shown::default() };
                let class = froms().find(|(class, _)| class.matches(&packet));
                class.map_or(0, |(class, _)| kind(class))
            });
        }
        for (protocol, table) in [(ICMP, ICMP_TABLE), (ICMPV6, ICMPV6_TABLE)] {
            let ranges = kinds.iter().filter_map(|class| match class.kind {
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
            let fulfilled = fulfilled(&kinds, flags);
            let group = groups.iter().position(|(_, known)| *known == fulfilled);
            // Every combination is in a group, and there are few of them.
            set_entry(other, FLAGS_AT + u32::from(flags), group.unwrap_or(0) as u8);
        }
        for protocol in 0..=u8::MAX {
            let [whole, fragment] = [false, true].map(|later_fragment| {
                found(Shown { protocol, later_fragment, ..Shown::default() })
            });
            let hidden = (HIDDEN as u8 + 1..).zip(WITH_HEADERS);
            let hidden = hidden.into_iter().find(|(_, hiding)| *hiding == protocol);
            let whole = hidden.map_or(whole, |(kind, _)| kind);
            set_entry(other, PROTOCOLS_AT + u32::from(protocol), whole);
            set_entry(other, FRAGMENTS_AT + u32::from(protocol), fragment);
        }
        let named = classes.destinations();
        for (number, class) in (0..).zip([Class::ANY].into_iter().chain(kinds.iter())) {
            for (at, destination) in places(&named, number) {
                // Of those that contain all packets of the kind that go there, what goes first.
                let all = class.to(destination);
                let first = classes.iter().find(|class| class.contains(&all));
                used.chain(classes, first).write(other, at);
            }
            let goes_first = u8::from(class.flags.is_some());
            set_entry(other, FIRST_AT + number, goes_first);
        }
        let asked = if named.is_empty() { 0 } else { NAMED }
            | if classes.iter().any(|class| class.is_of_destinations()) { LIMITED } else { 0 };
        set_entry(other, ASKED_AT, asked as u8);
        for (number, words) in
            (0u8..).zip(other[DEFINITIONS_AT as usize / 8..].chunks(WORDS)).take(NUMBERS)
        {
            let class = used.class(number).filter(|class| !class.is_any());
            // The kernel does not read it. A later daemon does, which knows the classes from the
            // maps alone.
            let definition = class.map_or([0; WORDS], |class| encode(&class));
            words.iter().zip(definition).for_each(|(word, value)| atomic::store(word, value));
        }
    }

    /// Has packets that hide what they are asked of the class that `strictest` tells for their protocol, or for any, and
    /// for where they go.
    pub(super) fn hide(
        &self,
        used: &ClassUse,
        config: &Config,
        strictest: impl Fn(Option<u8>, Option<Destination>) -> Class,
    ) {
        let Some(bank) = atomic::load(&config.classes).checked_sub(1) else { return };
        let Ok(classes) = used.classes() else { return };
        // Packets are judged by this bank meanwhile, each by the former chain or by the new one.
        let other = &self.bank(bank)[OTHER_TABLE as usize];
        let hiding = [None].into_iter().chain(WITH_HEADERS.map(Some));
        for (kind, protocol) in (HIDDEN..).zip(hiding) {
            for (at, destination) in places(&classes.destinations(), kind) {
                let class = strictest(protocol, destination);
                used.chain(&classes, (!class.is_any()).then_some(class)).write(other, at);
            }
        }
    }
}

/// Numbers that classes can have.
const NUMBERS: usize = (OF_DESTINATIONS + MAX_OF_DESTINATIONS) as usize;

/// Where the chains of a kind are, and what each is for: packets to nowhere in particular, packets to each prefix that
/// is named, and destinations.
fn places(named: &[IpNet], kind: u32) -> impl Iterator<Item = (u32, Option<Destination>)> {
    let within = named.iter().map(|net| Some(Destination::Within(*net)));
    let of_sources = (0..).zip([None].into_iter().chain(within));
    let of_sources = of_sources.map(move |(number, to)| (chain_at(number, kind), to));
    let of_destinations = DESTINATION_CHAINS_AT + kind * MAX_NESTING;
    of_sources.chain([(of_destinations, Some(Destination::Each))])
}
