//! The limits in force, and which of them a packet meets.

use std::collections::{BTreeMap, HashMap};

use super::{Class, Kind, Policy, class::asked};

/// Whose packets a limit counts together.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum By {
    /// Those of each source by itself.
    Source,
    /// Those of all sources.
    All,
    /// Those to each address by itself, by limits that have a class.
    Destination,
}

/// Whom and what a limit is for.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Target {
    /// Which packets; `None` for all.
    pub class: Option<Class>,
    /// Whose packets it counts together.
    pub by: By,
    /// The first address of a prefix of sources, or of destinations (IPv4 mapped into IPv6).
    pub network: u128,
    /// Its length of 128; 0 for everyone.
    pub length: u32,
}

impl Target {
    /// All packets of everyone, each source by itself.
    pub const DEFAULT: Self = Self { class: None, by: By::Source, network: 0, length: 0 };

    fn covers(&self, address: u128) -> bool {
        (address ^ self.network).checked_shr(128 - self.length).unwrap_or(0) == 0
    }
}

/// The packets of one class from a source, or to a destination, by the class's number; 0 for all packets that are in none
/// with a limit for the source.
pub type Account = (u128, u8);

/// A limit, and what it is for.
type Limit = (Target, Policy);

/// How many classes there are numbers for, of sources; those of destinations are higher.
const NUMBERS: u8 = 64;

/// Whether a class's number is one that destinations have limits of.
#[must_use]
pub fn is_of_destination(number: u8) -> bool {
    number > NUMBERS
}

/// Classes in use.
#[derive(Clone, Debug, Default)]
struct Classes {
    /// Their numbers.
    numbers: BTreeMap<Class, u8>,
    /// They, by their rank.
    ranked: Vec<Class>,
    /// The number given last.
    last: u8,
}

impl Classes {
    fn add(&mut self, class: Class) {
        if self.numbers.contains_key(&class) {
            return;
        }
        // In turn, so that a number that has become free rests.
        let mut number = self.last % NUMBERS + 1;
        while self.numbers.values().any(|used| *used == number) {
            number = number % NUMBERS + 1;
        }
        self.last = number;
        self.numbers.insert(class, number);
        self.ranked.push(class);
        self.ranked.sort_by_key(Class::rank);
    }

    fn remove(&mut self, class: &Class) -> Option<u8> {
        self.ranked.retain(|used| used != class);
        self.numbers.remove(class)
    }
}

/// The limits in force.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// By class and whose packets they count together.
    all: HashMap<(Option<Class>, By), Vec<Limit>>,
    /// The classes of limits for sources, and for destinations.
    of_sources: Classes,
    of_destinations: Classes,
}

/// What a packet meets.
pub(super) struct Met {
    /// The class that its source has a bucket for.
    pub(super) number: u8,
    /// The limit of its source.
    pub(super) own: Policy,
    /// Those that it shares, one after the other.
    pub(super) shared: Vec<Limit>,
    /// The class that its destination has a bucket for, and the limit.
    pub(super) destination: Option<(u8, Policy)>,
}

impl Limits {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.all.values().map(Vec::len).sum()
    }

    /// How many classes they are for.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.of_sources.ranked.len() + self.of_destinations.ranked.len()
    }

    /// What the limits of a class are for.
    #[must_use]
    pub fn of_class(&self, class: &Class) -> Vec<Target> {
        let each = [By::Source, By::All, By::Destination];
        let each = each.into_iter().flat_map(|by| self.of(Some(*class), by));
        each.map(|(target, _)| *target).collect()
    }

    /// Whether there is one for this very target.
    #[must_use]
    pub fn has(&self, target: &Target) -> bool {
        self.of(target.class, target.by).iter().any(|(known, _)| known == target)
    }

    /// Whether there is one that is not enforced.
    #[must_use]
    pub fn any_counts(&self) -> bool {
        self.all.values().flatten().any(|(_, policy)| !policy.enforce)
    }

    fn of(&self, class: Option<Class>, by: By) -> &[Limit] {
        self.all.get(&(class, by)).map_or(&[], Vec::as_slice)
    }

    fn classes_by(&mut self, by: By) -> &mut Classes {
        match by {
            By::Source | By::All => &mut self.of_sources,
            By::Destination => &mut self.of_destinations,
        }
    }

    /// Sets a limit, in the place of another one.
    pub fn set(&mut self, target: Target, policy: Policy) {
        let limits = self.all.entry((target.class, target.by)).or_default();
        match limits.iter_mut().find(|(known, _)| *known == target) {
            Some((_, known)) => *known = policy,
            None => limits.push((target, policy)),
        }
        if let Some(class) = target.class {
            self.classes_by(target.by).add(class);
        }
    }

    /// Removes a limit. The number of its class, if that has none any more.
    pub fn unset(&mut self, target: &Target) -> Option<u8> {
        if let Some(limits) = self.all.get_mut(&(target.class, target.by)) {
            limits.retain(|(known, _)| known != target);
        }
        let class = target.class?;
        let alike: &[By] = match target.by {
            By::Source | By::All => &[By::Source, By::All],
            By::Destination => &[By::Destination],
        };
        if alike.iter().any(|by| !self.of(target.class, *by).is_empty()) {
            return None;
        }
        let number = self.classes_by(target.by).remove(&class)?;
        Some(number_by(target.by, number))
    }

    /// Of a class's limits, that of the longest prefix that covers an address.
    fn longest(&self, class: Option<Class>, by: By, address: u128) -> Option<&Limit> {
        let covering = self.of(class, by).iter().filter(|(target, _)| target.covers(address));
        covering.max_by_key(|(target, _)| target.length)
    }

    /// The class with the slowest limit for everyone: of some alike the first one, and none if that for all packets is
    /// slower.
    fn strictest<'a>(&self, by: By, classes: &[&'a Class]) -> Option<&'a Class> {
        let everyone = |class| {
            let all = self.of(class, by).iter().find(|(target, _)| target.length == 0);
            all.map_or(f64::INFINITY, |(_, policy)| policy.per_second())
        };
        let of_class = |class: &&Class| everyone(Some(**class));
        let first = classes.iter().min_by(|one, other| of_class(one).total_cmp(&of_class(other)));
        first.copied().filter(|class| of_class(class) <= everyone(None))
    }

    /// What a packet of `source` meets.
    pub(super) fn meet(&self, source: u128, kind: &Kind) -> Met {
        let first = |by, address| {
            let (classes, strictest) = match by {
                By::Source | By::All => (&self.of_sources, By::Source),
                By::Destination => (&self.of_destinations, by),
            };
            let mut asked =
                asked(&classes.ranked, kind, |classes| self.strictest(strictest, &classes));
            asked.find_map(|class| {
                let limit = *self.longest(Some(class), by, address)?;
                Some((number_by(by, classes.numbers[&class]), limit))
            })
        };
        let (number, own) = match first(By::Source, source) {
            Some((number, (_, policy))) => (number, policy),
            None => {
                let limit = self.longest(None, By::Source, source);
                (0, limit.map_or(Policy::UNLIMITED, |(_, policy)| *policy))
            }
        };
        let destination = kind.to.and_then(|address| first(By::Destination, address));
        let destination = destination.map(|(number, (_, policy))| (number, policy));
        let mut shared: Vec<_> =
            first(By::All, source).into_iter().map(|(_, limit)| limit).collect();
        // For all packets: that of the longest prefix, then the total.
        let mut all: Vec<_> =
            self.of(None, By::All).iter().filter(|(target, _)| target.covers(source)).collect();
        all.sort_by_key(|(target, _)| target.length);
        shared.extend(all.last().filter(|(target, _)| target.length > 0).copied());
        shared.extend(all.first().filter(|(target, _)| target.length == 0).copied());
        Met { number, own, shared, destination }
    }
}

/// The number that an account has of a class's.
fn number_by(by: By, number: u8) -> u8 {
    match by {
        By::Source | By::All => number,
        By::Destination => number + NUMBERS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Tier;

    const UDP: Class = Class::new("udp", Some(17), None, None);
    const DNS: Class = Class::new("udp:53", Some(17), Some((53, 53)), None);

    const OTHER: Kind = Kind {
        protocol: Some(47),
        port: None,
        from: None,
        icmp: None,
        later: false,
        flags: None,
        to: None,
    };

    fn policy(burst: u64) -> Policy {
        let rate =
            crate::model::Rate { text: "1/s", bytes: false, amount: 1, period: 1_000_000_000 };
        Policy::new(Tier { rate, burst }, None, 1 << 27, 1522)
    }

    #[test]
    fn the_longest_prefix_of_the_narrowest_class_that_covers_a_source() {
        let mut limits = Limits::default();
        let of = |class, length| {
            let network = if length > 0 { 0xfd << 120 } else { 0 };
            Target { class, by: By::Source, network, length }
        };
        limits.set(of(None, 0), policy(1));
        limits.set(of(None, 16), policy(2));
        limits.set(of(Some(UDP), 0), policy(3));
        limits.set(of(Some(DNS), 16), policy(4));
        limits.set(of(Some(UDP), 32), policy(5));
        let dns = Kind { protocol: Some(17), port: Some(53), ..Kind::default() };
        let inside = 0xfd << 120 | 1 << 64;
        let met = |source, kind: &Kind| {
            let met = limits.meet(source, kind);
            (met.number, met.own)
        };
        assert_eq!(met(inside, &dns), (2, policy(4)));
        assert_eq!(met(inside, &Kind { port: None, later: true, ..dns }), (1, policy(5)));
        assert_eq!(met(1, &dns), (1, policy(3)));
        assert_eq!(met(inside, &OTHER), (0, policy(2)));
        assert_eq!(met(1, &OTHER), (0, policy(1)));
    }

    #[test]
    fn shared_limits_come_one_after_the_other() {
        let mut limits = Limits::default();
        let of = |class, length| Target { class, by: By::All, network: 0, length };
        for (class, length) in [(None, 0), (None, 8), (None, 64), (Some(UDP), 0), (Some(DNS), 96)] {
            limits.set(of(class, length), policy(u64::from(length) + 1));
        }
        let dns = Kind { protocol: Some(17), port: Some(53), ..Kind::default() };
        let lengths = |source, kind: &Kind| -> Vec<u32> {
            limits.meet(source, kind).shared.iter().map(|(target, _)| target.length).collect()
        };
        assert_eq!(lengths(1, &dns), [96, 64, 0]);
        assert_eq!(lengths(1 << 40, &dns), [0, 64, 0], "of the next wider class");
        assert_eq!(lengths(1 << 100, &OTHER), [8, 0]);
        assert_eq!(lengths(1 << 127, &OTHER), [0]);
    }

    #[test]
    fn destinations_have_limits_of_their_own() {
        let mut limits = Limits::default();
        let of = |class, network, length| Target {
            class: Some(class),
            by: By::Destination,
            network,
            length,
        };
        let (all, service) = (of(Class::ANY, 0, 0), of(UDP, 7, 128));
        limits.set(all, policy(1));
        limits.set(service, policy(2));
        limits.set(Target { class: Some(UDP), ..Target::DEFAULT }, policy(3));
        let met = |limits: &Limits, to| {
            let kind = Kind { protocol: Some(17), port: Some(53), to, ..Kind::default() };
            let met = limits.meet(9, &kind);
            assert_eq!(met.own, policy(3));
            met.destination
        };
        assert_eq!(met(&limits, Some(7)), Some((66, policy(2))));
        assert_eq!(met(&limits, Some(8)), Some((65, policy(1))));
        assert_eq!(met(&limits, None), None);
        assert_eq!(limits.unset(&service), Some(66), "sources keep the class");
        assert_eq!(met(&limits, Some(7)), Some((65, policy(1))));
    }
}
