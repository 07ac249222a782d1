//! What becomes of limits while hosts are lost, as it is set, and what else the share loop has to know of limits.
//!
//! The core tells when limits have changed ([`LimitFacts`]). Whose limit is whose only the core knows: it is asked
//! where some limit has another partition than what is usual. Until it answers a source keeps the one that it had; a
//! new one has the usual one, under which nobody gets more than the limit.

use std::collections::HashMap;

use super::core_worker::Question;
use super::watched::packets_a_second;
use cluster::KeyId;
use model::{Limits, Partition, Target};

/// What limits of the cluster there are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LimitFacts {
    /// The least that they let through whole, packets a second, if there are any.
    pub(super) slowest: Option<f64>,
    /// Some have another partition than what is usual.
    unusual: bool,
    /// A majority decides about some.
    majority: bool,
}

impl LimitFacts {
    pub(super) fn new(limits: &[&Limits]) -> Self {
        let amounts = limits.iter().flat_map(|limits| limits.amounts());
        let mut facts = Self::default();
        for (amount, _) in amounts {
            let Some(partition) = amount.scope.partition() else { continue };
            // Nearly always there is none, and then the core is never asked.
            facts.unusual |= partition != Partition::default();
            facts.majority |= partition.may_ask_majority();
            let limit = amount.of(Target::DEFAULT);
            // The slower tier decides how few packets of a source already matter.
            for tier in limit.tiers() {
                let rate = packets_a_second(&tier);
                facts.slowest = Some(facts.slowest.map_or(rate, |least| least.min(rate)));
            }
        }
        facts
    }

    /// Whether who has heard of `former` has to hear of these: where partitions differ each of them may have changed.
    pub(super) fn is_news(&self, former: &Self) -> bool {
        // The facts do not say which target has which policy, so equal facts may hide a change.
        self.unusual || self != former
    }
}

/// Of limits of the cluster that sources are under. The data plane does not know it.
#[derive(Debug, Default)]
pub(super) struct Partitions {
    facts: LimitFacts,
    /// How often limits have changed.
    round: u64,
    /// What the core has said, and in which round it was asked.
    // Kept over rounds: a source must not fall back to the default while the core is busy.
    known: HashMap<KeyId, (Partition, u64)>,
    /// What it is to be asked.
    unknown: Vec<(KeyId, Target)>,
    /// It has not answered yet.
    asked: bool,
}

impl Partitions {
    /// Limits have changed.
    pub(super) fn begin(&mut self, facts: LimitFacts) {
        (self.facts, self.round) = (facts, self.round + 1);
        // No source needs an answer any more, and the memory is freed.
        if !facts.unusual {
            self.known.clear();
        }
    }

    /// Whether there are limits that a majority decides about.
    pub(super) const fn by_majority(&self) -> bool {
        self.facts.majority
    }

    /// What is known of a source; it is asked for if it is not, or may have changed.
    pub(super) fn of(&mut self, key: KeyId, target: Target) -> Option<Partition> {
        if !self.facts.unusual {
            return Some(Partition::default());
        }
        let known = self.known.get(&key).copied();
        // While a question is open nothing is noted: each scan would note the same sources again.
        if !self.asked && known.is_none_or(|(_, round)| round != self.round) {
            self.unknown.push((key, target));
        }
        known.map(|(partition, _)| partition)
    }

    /// A source is tracked no more.
    pub(super) fn forget(&mut self, key: KeyId) {
        self.known.remove(&key);
    }

    /// What the core is to be asked now.
    pub(super) fn ask(&mut self) -> Option<Question> {
        if self.unknown.is_empty() {
            return None;
        }
        self.asked = true;
        Some(Question { round: self.round, targets: std::mem::take(&mut self.unknown) })
    }

    /// The core has answered.
    pub(super) fn learn(&mut self, round: u64, found: Vec<(KeyId, Partition)>) {
        // Sources that were not noted meanwhile come with the next scan.
        self.asked = false;
        self.known.extend(found.into_iter().map(|(key, partition)| (key, (partition, round))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{Changes, Limit, Scope};

    fn facts(all: &[(&str, &str, Scope)]) -> LimitFacts {
        let limit = |(target, rate, scope): &(&str, &str, Scope)| {
            let limit = Limit::new(target.parse().unwrap(), rate.parse().unwrap(), None);
            model::Change::Set(limit.unwrap().scoped(*scope).unwrap())
        };
        let mut limits = Limits::default();
        limits.apply(&all.iter().map(limit).collect::<Changes>());
        LimitFacts::new(&[&limits, &Limits::default()])
    }

    const fn cluster(partition: Partition) -> Scope {
        Scope::Cluster { partition }
    }

    #[test]
    fn the_slowest_limit_of_the_cluster_counts() {
        let usual = cluster(Partition::Auto);
        let found = facts(&[
            ("default", "50pps", usual),
            ("10.0.0.0/8", "5pps", Scope::Local),
            ("10.1.0.0/16", "20pps", usual),
        ]);
        assert_eq!(found.slowest, Some(20.0));
        assert!(!found.is_news(&found) && found.is_news(&LimitFacts::default()));
        assert_eq!(facts(&[("default", "5pps", Scope::Local)]), LimitFacts::default());
    }

    #[test]
    fn each_source_keeps_its_own_until_the_core_has_answered_again() {
        let source = |n: u8| {
            let address = std::net::IpAddr::from([10, 0, 0, n]);
            (KeyId::from_hash(u64::from(n)), Target::from(ipnet::IpNet::from(address)))
        };
        let [(first, a), (second, b)] = [source(1), source(2)];
        let mut partitions = Partitions::default();
        assert_eq!(partitions.of(first, a), Some(Partition::Auto));
        assert_eq!(partitions.ask(), None);
        let unusual = facts(&[
            ("default", "5pps", cluster(Partition::MajorityReclaim)),
            ("10.0.0.2", "5pps", cluster(Partition::Available)),
        ]);
        // It may be that only whose limit is whose has changed.
        assert!(unusual.is_news(&unusual));
        partitions.begin(unusual);
        assert!(partitions.by_majority());
        assert_eq!(
            [(first, a), (second, b)].map(|(key, target)| partitions.of(key, target)),
            [None; 2]
        );
        let asked = partitions.ask().unwrap();
        assert_eq!((asked.round, asked.targets.len()), (1, 2));
        // Not again while it has not answered.
        assert_eq!((partitions.of(first, a), partitions.ask()), (None, None));
        partitions
            .learn(1, vec![(first, Partition::MajorityReclaim), (second, Partition::Available)]);
        assert_eq!(partitions.of(first, a), Some(Partition::MajorityReclaim));
        assert_eq!(partitions.ask(), None);
        partitions.begin(unusual);
        assert_eq!(partitions.of(second, b), Some(Partition::Available));
        assert_eq!(partitions.ask().unwrap().targets, [(second, b)]);
        partitions.learn(2, vec![(second, Partition::Conservative)]);
        assert_eq!(partitions.of(second, b), Some(Partition::Conservative));
        partitions.forget(second);
        assert_eq!(partitions.of(second, b), None);
        partitions.begin(facts(&[("default", "5pps", cluster(Partition::Conservative))]));
        assert!(!partitions.by_majority());
        partitions.begin(facts(&[("default", "5pps", cluster(Partition::Auto))]));
        assert!(partitions.by_majority() && partitions.known.is_empty());
        assert_eq!(partitions.of(first, a), Some(Partition::Auto));
    }
}
