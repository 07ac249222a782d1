//! The limits in force, and which of them a packet meets.

use std::collections::{BTreeMap, HashMap};

use super::{Class, Kind, Policy, class::asked};

/// Whom and what a limit is for.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Target {
    /// Which packets; `None` for all.
    pub class: Option<Class>,
    /// Whether all sources share it.
    pub aggregate: bool,
    /// The first address of a prefix (IPv4 mapped into IPv6).
    pub network: u128,
    /// Its length of 128; 0 for everyone.
    pub length: u32,
}

impl Target {
    /// All packets of everyone, each source by itself.
    pub const DEFAULT: Self = Self { class: None, aggregate: false, network: 0, length: 0 };

    fn covers(&self, source: u128) -> bool {
        (source ^ self.network).checked_shr(128 - self.length).unwrap_or(0) == 0
    }
}

/// A source's packets of one class, by the class's number; 0 for all packets that are in none with a limit
/// for the source.
pub type Account = (u128, u8);

/// A limit, and what it is for.
type Limit = (Target, Policy);

/// How many classes there are numbers for.
const NUMBERS: u8 = 64;

/// The limits in force.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// By class and whether they are shared.
    all: HashMap<(Option<Class>, bool), Vec<Limit>>,
    /// The numbers of the classes that limits are for.
    numbers: BTreeMap<Class, u8>,
    /// Those classes by their rank.
    classes: Vec<Class>,
    /// The one given last.
    last: u8,
}

/// What a packet meets.
pub(super) struct Met {
    /// The class that its source has a bucket for.
    pub(super) number: u8,
    /// The limit of its source.
    pub(super) own: Policy,
    /// Those that it shares, one after the other.
    pub(super) shared: Vec<Limit>,
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
        self.numbers.len()
    }

    /// What the limits of a class are for.
    #[must_use]
    pub fn of_class(&self, class: &Class) -> Vec<Target> {
        let each = [false, true].iter().flat_map(|aggregate| self.of(Some(*class), *aggregate));
        each.map(|(target, _)| *target).collect()
    }

    /// Whether there is one for this very target.
    #[must_use]
    pub fn has(&self, target: &Target) -> bool {
        self.of(target.class, target.aggregate).iter().any(|(known, _)| known == target)
    }

    /// Whether there is one that is not enforced.
    #[must_use]
    pub fn any_counts(&self) -> bool {
        self.all.values().flatten().any(|(_, policy)| !policy.enforce)
    }

    fn of(&self, class: Option<Class>, aggregate: bool) -> &[Limit] {
        self.all.get(&(class, aggregate)).map_or(&[], Vec::as_slice)
    }

    /// Sets a limit, in the place of another one.
    pub fn set(&mut self, target: Target, policy: Policy) {
        let limits = self.all.entry((target.class, target.aggregate)).or_default();
        match limits.iter_mut().find(|(known, _)| *known == target) {
            Some((_, known)) => *known = policy,
            None => limits.push((target, policy)),
        }
        if let Some(class) = target.class
            && !self.numbers.contains_key(&class)
        {
            // In turn, so that a number that has become free rests.
            let mut number = self.last % NUMBERS + 1;
            while self.numbers.values().any(|used| *used == number) {
                number = number % NUMBERS + 1;
            }
            self.last = number;
            self.numbers.insert(class, number);
            self.classes.push(class);
            self.classes.sort_by_key(Class::rank);
        }
    }

    /// Removes a limit. The number of its class, if that has none any more.
    pub fn unset(&mut self, target: &Target) -> Option<u8> {
        if let Some(limits) = self.all.get_mut(&(target.class, target.aggregate)) {
            limits.retain(|(known, _)| known != target);
        }
        let class = target.class?;
        if [false, true].iter().any(|aggregate| !self.of(target.class, *aggregate).is_empty()) {
            return None;
        }
        self.classes.retain(|used| *used != class);
        self.numbers.remove(&class)
    }

    /// Of a class's limits, that of the longest prefix that covers a source.
    fn longest(&self, class: Option<Class>, aggregate: bool, source: u128) -> Option<&Limit> {
        let covering = self.of(class, aggregate).iter().filter(|(target, _)| target.covers(source));
        covering.max_by_key(|(target, _)| target.length)
    }

    /// The class with the slowest limit for everyone: of some alike the first one, and none if that for all packets is
    /// slower.
    fn strictest<'a>(&self, classes: &[&'a Class]) -> Option<&'a Class> {
        let everyone = |class| {
            let all = self.of(class, false).iter().find(|(target, _)| target.length == 0);
            all.map_or(f64::INFINITY, |(_, policy)| policy.per_second())
        };
        let of_class = |class: &&Class| everyone(Some(**class));
        let first = classes.iter().min_by(|one, other| of_class(one).total_cmp(&of_class(other)));
        first.copied().filter(|class| of_class(class) <= everyone(None))
    }

    /// What a packet of `source` meets.
    pub(super) fn meet(&self, source: u128, kind: &Kind) -> Met {
        let asked = asked(&self.classes, kind, |classes| self.strictest(&classes));
        let first = |aggregate| {
            let mut asked = asked.clone();
            asked.find_map(|class| Some((class, *self.longest(Some(class), aggregate, source)?)))
        };
        let (number, own) = match first(false) {
            Some((class, (_, policy))) => (self.numbers[&class], policy),
            None => {
                let limit = self.longest(None, false, source);
                (0, limit.map_or(Policy::UNLIMITED, |(_, policy)| *policy))
            }
        };
        let mut shared: Vec<_> = first(true).into_iter().map(|(_, limit)| limit).collect();
        // For all packets: that of the longest prefix, then the total.
        let mut all: Vec<_> =
            self.of(None, true).iter().filter(|(target, _)| target.covers(source)).collect();
        all.sort_by_key(|(target, _)| target.length);
        shared.extend(all.last().filter(|(target, _)| target.length > 0).copied());
        shared.extend(all.first().filter(|(target, _)| target.length == 0).copied());
        Met { number, own, shared }
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
        let of =
            |class, aggregate, length| Target { class, aggregate, network: 0xfd << 120, length };
        let everyone = |class, aggregate| Target { network: 0, ..of(class, aggregate, 0) };
        limits.set(everyone(None, false), policy(1));
        limits.set(of(None, false, 16), policy(2));
        limits.set(everyone(Some(UDP), false), policy(3));
        limits.set(of(Some(DNS), false, 16), policy(4));
        limits.set(of(Some(UDP), false, 32), policy(5));
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
        let of = |class, length| Target { class, aggregate: true, network: 0, length };
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
}
