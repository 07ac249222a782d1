//! The allow and deny lists of the configuration file, beneath those that were set at run time.

use ipnet::IpNet;

use super::core::Core;
use api::{LimitOrigin, ListEntry, Shadowed};
use model::lists::{Action, ListChanges, Listing, Lists};
use model::target::short_prefix;

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
pub(super) fn of_file(net: IpNet, listing: &Listing) -> ListEntry {
    ListEntry { origin: LimitOrigin::File, ..ListEntry::new(net, listing) }
}

impl Core {
    /// All entries in force.
    pub(super) fn listed(&self) -> &Lists {
        self.file.merged.as_ref().unwrap_or(self.store.lists())
    }

    /// Whether the file has this very target on a list, and what the file is called.
    pub(super) fn file_listing(&self, net: &IpNet, action: Action) -> Option<String> {
        self.file_lists().get(net).filter(|listing| listing.action == action)?;
        self.file_name()
    }

    /// How many entries of the file are hidden by ones set at run time.
    pub(super) fn count_shadowed_entries(&self) -> usize {
        let stored = self.store.lists();
        self.file_lists().keys().filter(|net| stored.contains_key(net)).count()
    }

    /// How changes of the lists set at run time meet those of the file.
    pub(super) fn lists_meeting(&self, changes: &ListChanges) -> Option<String> {
        let file = self.file_lists();
        let of = |removed: bool| {
            let mut all = changes.iter().filter(|(_, listing)| listing.is_none() == removed);
            all.find_map(|(net, _)| Some((net, file.get(net)?)))
        };
        let name = self.file_name()?;
        let entry = |net: &IpNet, listing: &Listing| {
            format!("{name} has {} on the {} list", short_prefix(net), listing.action)
        };
        if let Some((net, listing)) = of(true) {
            return Some(format!("{}, which is in force then", entry(net, listing)));
        }
        let (net, listing) = of(false)?;
        Some(format!("{}, which this one wins over until it is removed", entry(net, listing)))
    }

    /// What the lists of the file, once they are `new`, change of those in force.
    pub(super) fn list_changes_to(&self, new: &Lists) -> ListChanges {
        let (old, stored) = (self.file_lists(), self.store.lists());
        let gone = old.keys().filter(|net| !new.contains_key(net)).map(|net| (*net, None));
        let set = new.iter().filter(|(net, listing)| old.get(net) != Some(*listing));
        let set = set.map(|(net, listing)| (*net, Some(listing.clone())));
        gone.chain(set).filter(|(net, _)| !stored.contains_key(net)).collect()
    }

    /// Entries of `file` that others, which were set at run time, hide.
    pub(super) fn shadowed_entries(&self, file: &Lists) -> Vec<Shadowed<ListEntry>> {
        let stored = self.store.lists();
        let hidden = file.iter().filter_map(|(net, file)| {
            let runtime = stored.get(net).filter(|runtime| !alike(runtime, file))?;
            let runtime = ListEntry::new(*net, runtime);
            Some(Shadowed { target: *net, file: of_file(*net, file), runtime })
        });
        hidden.collect()
    }
}
