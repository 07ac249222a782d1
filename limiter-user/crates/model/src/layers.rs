//! The layers that the limits of a host come from, and what is in force of them.
//!
//! A target has the limit that was set on this host, or else that of the cluster, or else that of the
//! configuration file. The store keeps one limit a target, the cluster's where this host has none of its own;
//! the file's is never stored, so that it comes to light when the stored one goes.

use std::borrow::Cow;

use ipnet::IpNet;

use crate::class::{Class, ClassError};
use crate::target::prefixes_of;
use crate::{Amount, Change, Changes, Classes, Limit, Limits, Selector, Target};

/// Where a limit comes from, the one that goes before the others first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// It was set on this host at run time.
    Runtime,
    /// It was set for the cluster.
    Cluster,
    /// The configuration file has it.
    File,
}

/// What has one limit a target at the most.
pub trait LimitOf {
    /// The limit for this very target.
    fn limit_of(&self, target: &Target) -> Option<Limit>;
}

impl LimitOf for Limits {
    fn limit_of(&self, target: &Target) -> Option<Limit> {
        self.get(target)
    }
}

/// The limits of a host in their layers.
#[derive(Clone, Copy)]
pub struct LayeredLimits<'a> {
    /// Those of the configuration file.
    pub file: &'a Limits,
    /// Those of the cluster, hidden ones too; `None` for a host in none.
    // A trait, as the replica keeps more than limits and lies in a crate above.
    pub cluster: Option<&'a dyn LimitOf>,
    /// What is stored: limits set on this host, and the cluster's for other targets.
    pub runtime: &'a Limits,
}

impl<'a> LayeredLimits<'a> {
    /// All limits in force.
    pub fn effective(&self) -> Cow<'a, Limits> {
        if self.file.is_empty() {
            // Not a copy: a million limits would take longer to clone than most changes take.
            return Cow::Borrowed(self.runtime);
        }
        let mut all = self.runtime.clone();
        self.only_in_file().for_each(|limit| all.set(limit));
        Cow::Owned(all)
    }

    /// The limit in force for this very target.
    pub fn get(&self, target: &Target) -> Option<Limit> {
        self.runtime.get(target).or_else(|| self.file.get(target))
    }

    /// Where the limit in force for this very target comes from.
    pub fn layer(&self, target: &Target) -> Option<Layer> {
        match self.runtime.get(target) {
            Some(limit) if !limit.scope.is_cluster() => Some(Layer::Runtime),
            // The store has one limit a target. One for the cluster can only have come from the
            // replica.
            Some(_) => Some(Layer::Cluster),
            None => self.file.get(target).map(|_| Layer::File),
        }
    }

    /// How many limits are in force.
    pub fn count(&self) -> usize {
        self.runtime.len() + self.file.len() - self.hidden().count()
    }

    /// Limits of the file that others hide, each with the one that does.
    pub fn hidden(&self) -> impl Iterator<Item = (Limit, Limit)> + use<'a> {
        let runtime = self.runtime;
        self.file.iter().filter_map(|file| Some((file, runtime.get(&file.target)?)))
    }

    /// The first `most` limits in force, without going through all.
    pub fn first(&self, most: usize) -> Vec<Limit> {
        // The first of both are among the first of each.
        let mut some: Vec<_> =
            self.runtime.iter().take(most).chain(self.only_in_file().take(most)).collect();
        some.sort_by_key(|limit| limit.target);
        some.truncate(most);
        some
    }

    fn only_in_file(&self) -> impl Iterator<Item = Limit> + use<'a> {
        let runtime = self.runtime;
        self.file.iter().filter(|limit| runtime.get(&limit.target).is_none())
    }

    /// The amounts of the limits in force; of those, too, that are hidden by others.
    pub fn amounts(&self) -> impl Iterator<Item = Amount> + use<'a> {
        self.runtime.amounts().chain(self.file.amounts()).map(|(amount, _)| amount)
    }

    /// Whether the classes in use go together after `changes` of what is stored.
    ///
    /// # Errors
    /// The first class that does not go with others.
    pub fn check_classes(&self, changes: &Changes) -> Result<(), ClassError> {
        let after = self.runtime.classes_after(changes);
        // The file's first, so that the error blames what was set beside them. Hidden limits count,
        // too: they come to light without another check.
        Classes::new(self.file.classes().chain(after)).map(drop)
    }

    /// `changes` as they are to be stored: the cluster's limit follows on one of this host that is removed.
    pub fn stored(&self, changes: Changes) -> Changes {
        let Some(cluster) = self.cluster else { return changes };
        let follow = |change| match change {
            Change::Unset(target) if self.layer(&target) == Some(Layer::Runtime) => {
                cluster.limit_of(&target).map_or(change, Change::Set)
            }
            _ => change,
        };
        changes.iter().map(follow).collect()
    }

    /// What becomes of the limits in force when what is stored changes.
    pub fn effect<'b>(&self, changes: &'b Changes) -> Cow<'b, Changes> {
        if self.file.is_empty() {
            return Cow::Borrowed(changes);
        }
        let effect = |change| match change {
            // What is set hides the file, and what is removed lets it be seen again.
            Change::Unset(target) => self.file.get(&target).map_or(change, Change::Set),
            Change::Set(_) => change,
        };
        Cow::Owned(changes.iter().map(effect).collect())
    }

    /// What becomes of the limits in force when these layers become `after`.
    pub fn diff(&self, after: &LayeredLimits<'_>) -> Changes {
        // A file that is read again leaves what is stored, maybe a million limits, as it is.
        let stored = !std::ptr::eq(self.runtime, after.runtime);
        let mut targets: Vec<Target> = Vec::new();
        for layers in [self, after] {
            targets.extend(layers.file.iter().map(|limit| limit.target));
            if stored {
                targets.extend(layers.runtime.iter().map(|limit| limit.target));
            }
        }
        targets.sort_unstable();
        targets.dedup();
        let change = |target: Target| match (self.get(&target), after.get(&target)) {
            (old, new) if old == new => None,
            (_, Some(new)) => Some(Change::Set(new)),
            (_, None) => Some(Change::Unset(target)),
        };
        targets.into_iter().filter_map(change).collect()
    }

    /// The limits that packets of `source` may have to get through, and where each comes from: of each class that
    /// of the longest prefix; then those that sources share, likewise, and at last that of all sources.
    pub fn explain(&self, source: IpNet) -> Vec<(Limit, Layer)> {
        let mut classes: Vec<Class> = self.runtime.classes().chain(self.file.classes()).collect();
        // It is about who sends.
        classes.retain(|class| !class.is_of_destinations());
        classes.sort_unstable();
        classes.dedup();
        classes.push(Class::ANY);
        let mut found = Vec::new();
        for aggregate in [false, true] {
            for &class in &classes {
                let whom = prefixes_of(source).map(Selector::Prefix).chain([Selector::Default]);
                let mut all = whom.filter_map(|whom| {
                    let target = Target { whom, class, aggregate };
                    Some((self.get(&target)?, self.layer(&target)?))
                });
                let longest = all.next();
                // The total of all sources holds beside the limit of a prefix.
                let total = all.last().filter(|(limit, _)| {
                    aggregate && class.is_any() && limit.target.prefix().is_none()
                });
                found.extend(longest.into_iter().chain(total));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::{Partition, Scope};

    const TARGETS: [&str; 6] = [
        "default",
        "192.0.2.0/24",
        "192.0.2.1",
        "default udp:53",
        "default aggregate",
        "10.0.0.0/8",
    ];

    fn limit(target: &str, rate: u8, scope: Scope) -> Limit {
        let (target, rate) = (target.parse().unwrap(), format!("{}pps", u16::from(rate) + 1));
        let limit = Limit::new(target, rate.parse().unwrap(), None).unwrap();
        if limit.target.aggregate { limit } else { limit.scoped(scope).unwrap() }
    }

    const WIDE: Scope = Scope::Cluster { partition: Partition::Conservative };

    /// A rate for each target in some layers: of the file, of the cluster, and of this host.
    type Layers = [BTreeMap<usize, u8>; 3];

    fn layers() -> impl Strategy<Value = Layers> {
        let some = || prop::collection::btree_map(0..TARGETS.len(), 0u8..3, 0..TARGETS.len());
        (some(), some(), some()).prop_map(|(file, cluster, own)| [file, cluster, own])
    }

    /// The limits of the file, of the cluster, and what is stored.
    fn limits([file, cluster, own]: &Layers) -> [Limits; 3] {
        let of = |layer: &BTreeMap<usize, u8>, scope| -> Limits {
            layer.iter().map(|(target, rate)| limit(TARGETS[*target], *rate, scope)).collect()
        };
        let (file, own) = (of(file, Scope::Local), of(own, Scope::Local));
        // Limits that sources share are never the cluster's.
        let cluster: Limits =
            of(cluster, WIDE).iter().filter(|limit| limit.scope.is_cluster()).collect();
        let stored = cluster.iter().chain(own.iter()).collect();
        [file, cluster, stored]
    }

    fn layered([file, cluster, runtime]: &[Limits; 3]) -> LayeredLimits<'_> {
        LayeredLimits { file, cluster: Some(cluster), runtime }
    }

    proptest! {
        #[test]
        fn this_host_goes_before_the_cluster_and_both_before_the_file(all in layers()) {
            let [file, cluster, own] = &all;
            let limits = limits(&all);
            let layered = layered(&limits);
            for (number, text) in TARGETS.iter().enumerate() {
                let target = text.parse().unwrap();
                let shared = text.ends_with("aggregate");
                let wanted = match (own.get(&number), cluster.get(&number), file.get(&number)) {
                    (Some(rate), ..) => Some((limit(text, *rate, Scope::Local), Layer::Runtime)),
                    (None, Some(rate), _) if !shared => {
                        Some((limit(text, *rate, WIDE), Layer::Cluster))
                    }
                    (.., Some(rate)) => Some((limit(text, *rate, Scope::Local), Layer::File)),
                    _ => None,
                };
                prop_assert_eq!(layered.get(&target), wanted.map(|(limit, _)| limit));
                prop_assert_eq!(layered.layer(&target), wanted.map(|(_, layer)| layer));
                prop_assert_eq!(layered.effective().get(&target), layered.get(&target));
            }
            let effective: Vec<_> = layered.effective().iter().collect();
            prop_assert_eq!(layered.count(), effective.len());
            prop_assert_eq!(layered.first(2), &effective[..effective.len().min(2)]);
        }

        #[test]
        fn a_diff_leads_from_one_to_the_other(before in layers(), after in layers()) {
            let [before, after] = [limits(&before), limits(&after)];
            let (one, other) = (layered(&before), layered(&after));
            let reread = LayeredLimits { file: other.file, ..one };
            for other in [other, reread] {
                let mut reached = one.effective().into_owned();
                let changes = one.diff(&other);
                reached.apply(&changes);
                prop_assert_eq!(&reached, &*other.effective());
                let differs = changes.iter().all(|change| match change {
                    Change::Set(limit) => one.get(&limit.target) != Some(limit),
                    Change::Unset(target) => one.get(&target).is_some(),
                });
                prop_assert!(differs);
            }
        }

        #[test]
        fn what_is_removed_uncovers_what_is_beneath(all in layers()) {
            let limits = limits(&all);
            let layered = layered(&limits);
            let [file, cluster, runtime] = &limits;
            for text in TARGETS {
                let target: Target = text.parse().unwrap();
                let changes = layered.stored(Change::Unset(target).into());
                let mut stored = runtime.clone();
                stored.apply(&changes);
                let own = layered.layer(&target) == Some(Layer::Runtime);
                prop_assert_eq!(stored.get(&target), cluster.get(&target).filter(|_| own));
                let mut effective = layered.effective().into_owned();
                effective.apply(&layered.effect(&changes));
                let after = LayeredLimits { runtime: &stored, file, ..layered };
                prop_assert_eq!(&effective, &*after.effective());
            }
        }
    }

    #[test]
    fn a_source_has_the_longest_prefix_of_each_class_and_the_total() {
        let of = |texts: &[&str]| -> Limits {
            texts.iter().map(|text| limit(text, 4, Scope::Local)).collect()
        };
        let file = of(&["default", "default udp:53", "default aggregate", "192.0.2.0/24 udp:53"]);
        let runtime =
            of(&["192.0.2.0/24", "192.0.2.0/24 aggregate", "10.0.0.0/8", "default tcp aggregate"]);
        let layered = LayeredLimits { file: &file, cluster: None, runtime: &runtime };
        let explain = |source: &str| -> Vec<_> {
            let found = layered.explain(source.parse().unwrap());
            found.into_iter().map(|(limit, layer)| (limit.target.short(), layer)).collect()
        };
        let told = |texts: &[(&str, Layer)]| -> Vec<_> {
            texts.iter().map(|(text, layer)| ((*text).to_owned(), *layer)).collect()
        };
        assert_eq!(
            explain("192.0.2.1/32"),
            told(&[
                ("192.0.2.0/24 udp:53", Layer::File),
                ("192.0.2.0/24", Layer::Runtime),
                ("default tcp aggregate", Layer::Runtime),
                ("192.0.2.0/24 aggregate", Layer::Runtime),
                ("default aggregate", Layer::File),
            ])
        );
        assert_eq!(
            explain("2001:db8::/64"),
            told(&[
                ("default udp:53", Layer::File),
                ("default", Layer::File),
                ("default tcp aggregate", Layer::Runtime),
                ("default aggregate", Layer::File),
            ])
        );
    }
}
