//! What becomes of limits while hosts are lost, as it is set.

use std::collections::HashMap;

use crate::core::Core;
use model::{Limits, Partition, Target};

/// Of limits of the cluster that sources are under. The data plane does not know it.
#[derive(Debug, Default)]
pub(super) struct Partitions {
    /// Some limit has another one than what is usual.
    any: bool,
    majority: bool,
    /// What was looked up since [`Partitions::begin`].
    known: HashMap<Target, Partition>,
}

impl Partitions {
    /// Forgets what was looked up: limits may have changed.
    pub(super) fn begin(&mut self, core: &Core) {
        self.begin_with(&[core.limits_in_store(), core.limits_in_file()]);
    }

    fn begin_with(&mut self, limits: &[&Limits]) {
        self.known.clear();
        let amounts = limits.iter().flat_map(|limits| limits.amounts());
        let all: Vec<_> = amounts.filter_map(|(amount, _)| amount.scope.partition()).collect();
        self.any = all.iter().any(|partition| *partition != Partition::default());
        self.majority = all.contains(&Partition::MajorityReclaim);
    }

    /// Whether there are limits that a majority decides about.
    pub(super) const fn by_majority(&self) -> bool {
        self.majority
    }

    /// Looks up the limits of these targets.
    pub(super) fn learn(&mut self, core: &Core, targets: impl Iterator<Item = Target>) {
        self.learn_from(targets, |target| {
            core.limit_for(target).and_then(|limit| limit.scope.partition())
        });
    }

    fn learn_from(
        &mut self,
        targets: impl Iterator<Item = Target>,
        look_up: impl Fn(&Target) -> Option<Partition>,
    ) {
        if !self.any {
            return;
        }
        for target in targets {
            self.known.entry(target).or_insert_with(|| look_up(&target).unwrap_or_default());
        }
    }

    /// What was looked up of a target.
    pub(super) fn of(&self, target: &Target) -> Partition {
        self.known.get(target).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{Changes, Limit, Scope};

    fn limits(all: &[(&str, Scope)]) -> Limits {
        let limit = |(target, scope): &(&str, Scope)| {
            let limit = Limit::new(target.parse().unwrap(), "5pps".parse().unwrap(), None);
            model::Change::Set(limit.unwrap().scoped(*scope).unwrap())
        };
        let mut limits = Limits::default();
        limits.apply(&all.iter().map(limit).collect::<Changes>());
        limits
    }

    fn learn(partitions: &mut Partitions, limits: &Limits) {
        partitions.begin_with(&[limits]);
        let targets: Vec<Target> = limits.iter().map(|limit| limit.target).collect();
        partitions.learn_from(targets.into_iter(), |target| limits.get(target)?.scope.partition());
    }

    #[test]
    fn each_target_has_its_own_until_limits_change() {
        let [default, net]: [Target; 2] = ["default", "10.0.0.0/8"].map(|it| it.parse().unwrap());
        let cluster = |partition| Scope::Cluster { partition };
        let mut partitions = Partitions::default();
        learn(
            &mut partitions,
            &limits(&[
                ("default", cluster(Partition::MajorityReclaim)),
                ("10.0.0.0/8", cluster(Partition::Available)),
            ]),
        );
        assert!(partitions.by_majority());
        assert_eq!(partitions.of(&default), Partition::MajorityReclaim);
        assert_eq!(partitions.of(&net), Partition::Available);
        let fewer = [("default", Scope::Local), ("10.0.0.0/8", cluster(Partition::Conservative))];
        learn(&mut partitions, &limits(&fewer));
        assert!(!partitions.by_majority() && partitions.known.is_empty());
        assert_eq!([&default, &net].map(|it| partitions.of(it)), [Partition::Conservative; 2]);
    }
}
