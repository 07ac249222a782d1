//! What the configuration file says of limits and lists, beneath those that were set at run time.
//!
//! It is what was read last and is in force. [`LayeredLimits`](model::LayeredLimits) has the rules of layers.

use std::hash::Hasher as _;
use std::sync::Arc;

use ipnet::IpNet;
use serde_json::Value;
use siphasher::sip::SipHasher24;

use super::refused::Refused;
use api::error::{Failure, exit};
use api::{KeyDiff, LimitOrigin, LimitReport, ListEntry, Shadowed};
use cluster::queries::{FileLimit, MAX_FILE_LIMITS};
use model::lists::{Action, ListChanges, Listing, Lists};
use model::target::short_prefix;
use model::{Change, Changes, Limits, Target};
use settings::{Arguments, Settings};

/// What the daemon was configured with, and the file's limits and lists as they are in force.
#[derive(Default)]
pub(crate) struct FileRules {
    pub(crate) limits: Limits,
    /// Those of them that are for the cluster, as other hosts are told of them.
    clustered: Arc<ClusterLimits>,
    pub(crate) lists: Lists,
    /// The lists in force, if the file has entries; else they are those of the store.
    pub(super) merged: Option<Lists>,
    /// A file that was not confirmed.
    pub(super) refused: Option<Refused>,
    source: Option<Source>,
    /// Why the file could not be read again.
    pub(super) problem: Option<String>,
}

/// The limits of the cluster that a file has.
#[derive(Debug, Default)]
pub(crate) struct ClusterLimits {
    /// Of all of them, whatever their order in the file.
    pub(crate) hash: u64,
    /// In the order of their targets, the first [`MAX_FILE_LIMITS`] at most.
    pub(crate) list: Vec<FileLimit>,
}

impl ClusterLimits {
    fn of(limits: &Limits) -> Self {
        let clustered = limits.iter().filter(|limit| limit.scope.is_cluster());
        let told = clustered.map(|limit| FileLimit {
            target: limit.target.short(),
            limit: LimitReport::new(&limit, 0).summary(),
        });
        let mut list: Vec<_> = told.collect();
        list.sort_by(|one, other| one.target.cmp(&other.target));
        let mut hasher = SipHasher24::new();
        for FileLimit { target, limit } in &list {
            hasher.write(format!("{target}\n{limit}\n").as_bytes());
        }
        list.truncate(MAX_FILE_LIMITS);
        Self { hash: hasher.finish(), list }
    }
}

/// Where the configuration comes from.
pub(super) struct Source {
    pub(super) given: Arguments,
    /// Every key, with the value that it has in this daemon.
    running: Vec<(String, Value)>,
    /// What was read last and is in force, but for what needs a restart.
    pub(super) taken: Settings,
    pub(super) file: Option<String>,
}

impl FileRules {
    /// Takes what `settings`, which came from `given`, say of limits and lists, above those that are `stored`.
    pub(super) fn begin(&mut self, given: Arguments, settings: Settings, stored: &Lists) {
        self.take_limits(settings.file.limits());
        self.lists = settings.file.lists().clone();
        self.merge(stored);
        let file = settings.file.path.as_ref().map(|path| path.display().to_string());
        let running = settings.values();
        self.source = Some(Source { given, running, taken: settings, file });
    }

    /// The limits of the cluster that the file has.
    pub(crate) fn clustered(&self) -> Arc<ClusterLimits> {
        Arc::clone(&self.clustered)
    }

    /// Lays the file's lists beneath those that are `stored`.
    pub(super) fn merge(&mut self, stored: &Lists) {
        self.merged = merged(stored, &self.lists);
    }

    fn take_limits(&mut self, limits: &Limits) {
        self.limits = limits.clone();
        self.clustered = Arc::new(ClusterLimits::of(limits));
    }

    /// Takes the limits and keys of `settings`, of which those in `live` have taken effect.
    pub(super) fn take(&mut self, settings: Settings, live: &[KeyDiff]) {
        self.take_limits(settings.file.limits());
        if let Some(source) = &mut self.source {
            source.file = settings.file.path.as_ref().map(|path| path.display().to_string());
            for KeyDiff { key, file, .. } in live {
                let mut running = source.running.iter_mut();
                if let Some((_, value)) = running.find(|(running, _)| running == key) {
                    *value = file.clone();
                }
            }
            source.taken = settings;
        }
    }

    /// Where the configuration comes from.
    ///
    /// # Errors
    /// If there is none, as in tests.
    pub(super) fn source(&self) -> Result<&Source, Failure> {
        self.source.as_ref().ok_or_else(|| {
            Failure::new(exit::NEGATIVE, "this daemon was started without a configuration")
        })
    }

    /// What was read last.
    pub(crate) fn taken(&self) -> Result<&Settings, Failure> {
        Ok(&self.source()?.taken)
    }

    /// The file's name.
    pub(super) fn name(&self) -> Option<&str> {
        self.source.as_ref()?.file.as_deref()
    }

    /// The file's name, if it has a limit for this very target.
    pub(super) fn with(&self, target: &Target) -> Option<&str> {
        self.limits.get(target)?;
        self.name()
    }

    /// The file's name, if it has this very target on a list.
    pub(super) fn listing(&self, net: &IpNet, action: Action) -> Option<&str> {
        self.lists.get(net).filter(|listing| listing.action == action)?;
        self.name()
    }

    /// Whether the classes of the file's limits go with those of limits that are `stored`.
    ///
    /// # Errors
    /// The first limit of the file whose class does not, by its place.
    pub(super) fn check_classes(&self, stored: &Limits) -> Result<(), Failure> {
        self.source.as_ref().map_or(Ok(()), |source| source.taken.check_classes(stored))
    }

    /// The keys whose values in `settings` are others than this daemon's.
    pub(super) fn key_changes(&self, settings: &Settings) -> Vec<KeyDiff> {
        let Some(source) = &self.source else { return Vec::new() };
        let pairs = source.running.iter().zip(settings.values());
        pairs
            .filter(|(running, new)| running.1 != new.1)
            .map(|((key, running), (_, file))| KeyDiff {
                key: key.clone(),
                running: running.clone(),
                file,
            })
            .collect()
    }

    /// How changes of the limits set at run time meet those of the file.
    pub(super) fn meeting(&self, changes: &Changes) -> Option<String> {
        let (mut hidden, mut back) = (None, None);
        for change in changes.iter() {
            let (target, place) = match change {
                Change::Set(limit) => (limit.target, &mut hidden),
                Change::Unset(target) => (target, &mut back),
            };
            if self.limits.get(&target).is_some() {
                place.get_or_insert(target);
            }
        }
        let file = self.name()?;
        match (hidden, back) {
            (_, Some(target)) => {
                Some(format!("{file} has a limit for {}, which is in force then", target.short()))
            }
            (Some(target), None) => Some(format!(
                "{file} has a limit for {}, which this one wins over until `limiter limit unset`",
                target.short()
            )),
            (None, None) => None,
        }
    }

    /// How changes of the lists set at run time meet those of the file.
    pub(super) fn lists_meeting(&self, changes: &ListChanges) -> Option<String> {
        let of = |removed: bool| {
            let mut all = changes.iter().filter(|(_, listing)| listing.is_none() == removed);
            all.find_map(|(net, _)| Some((net, self.lists.get(net)?)))
        };
        let name = self.name()?;
        let entry = |net: &IpNet, listing: &Listing| {
            format!("{name} has {} on the {} list", short_prefix(net), listing.action)
        };
        if let Some((net, listing)) = of(true) {
            return Some(format!("{}, which is in force then", entry(net, listing)));
        }
        let (net, listing) = of(false)?;
        Some(format!("{}, which this one wins over until it is removed", entry(net, listing)))
    }

    /// How many entries of the file are hidden by ones that are `stored`.
    pub(super) fn hidden_entries(&self, stored: &Lists) -> usize {
        self.lists.keys().filter(|net| stored.contains_key(net)).count()
    }

    /// What the lists of the file, once they are `new`, change of those in force.
    pub(super) fn list_changes_to(&self, new: &Lists, stored: &Lists) -> ListChanges {
        let old = &self.lists;
        let gone = old.keys().filter(|net| !new.contains_key(net)).map(|net| (*net, None));
        let set = new.iter().filter(|(net, listing)| old.get(net) != Some(*listing));
        let set = set.map(|(net, listing)| (*net, Some(listing.clone())));
        gone.chain(set).filter(|(net, _)| !stored.contains_key(net)).collect()
    }
}

/// `file` with what `stored` has in the place of its entries; nothing if there is none of it.
pub(super) fn merged(stored: &Lists, file: &Lists) -> Option<Lists> {
    if file.is_empty() {
        return None;
    }
    let mut merged = stored.clone();
    for (net, listing) in file.iter().filter(|(net, _)| !stored.contains_key(net)) {
        merged.insert(*net, listing.clone());
    }
    Some(merged)
}

/// Whether two entries say the same, whenever they were made.
fn alike(one: &Listing, other: &Listing) -> bool {
    (one.action, &one.reason, one.until) == (other.action, &other.reason, other.until)
}

/// `new`, where what has not changed is as old as in `old`.
pub(super) fn aged(new: &Lists, old: &Lists) -> Lists {
    let age = |(net, new): (&IpNet, &Listing)| {
        let former = old.get(net).filter(|old| alike(old, new));
        (*net, former.unwrap_or(new).clone())
    };
    new.iter().map(age).collect()
}

/// The file's entry as it is told.
pub(super) fn entry_of_file(net: IpNet, listing: &Listing) -> ListEntry {
    ListEntry { origin: LimitOrigin::File, ..ListEntry::new(net, listing) }
}

/// Entries of `file` that others, which are `stored`, hide.
pub(super) fn shadowed_entries(file: &Lists, stored: &Lists) -> Vec<Shadowed<ListEntry>> {
    let hidden = file.iter().filter_map(|(net, file)| {
        let runtime = stored.get(net).filter(|runtime| !alike(runtime, file))?;
        let runtime = ListEntry::new(*net, runtime);
        Some(Shadowed { target: *net, file: entry_of_file(*net, file), runtime })
    });
    hidden.collect()
}
