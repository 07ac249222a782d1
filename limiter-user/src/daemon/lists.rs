//! The allow and deny lists of the daemon.

use ipnet::IpNet;

use super::core::Core;
use crate::error::{Failure, exit};
use crate::policy::Target;
use crate::policy::lists::{Action, ListChanges, Listing, now};
use crate::report::{ListChanged, ListEntry, ListReport};

impl Core {
    /// The entries of one list.
    pub fn list(&self, action: Action) -> ListReport {
        let entries = self.store.lists().iter().filter(|(_, listing)| listing.action == action);
        ListReport {
            list: action,
            entries: entries.map(|(net, listing)| ListEntry::new(*net, listing)).collect(),
        }
    }

    /// Adds entries: all of them, or none.
    ///
    /// # Errors
    /// If one is on the other list, or there are too many, or store or data plane fail; then
    /// everything is as it was before.
    pub fn list_add(
        &mut self,
        targets: &[IpNet],
        listing: &Listing,
    ) -> Result<ListChanged, Failure> {
        for net in targets {
            // What contains management addresses does not hold for them, but a part of them would.
            if listing.action == Action::Deny {
                self.management.check(&Target::Prefix(*net))?;
            }
        }
        let lists = self.store.lists();
        let other = |net: &&IpNet| lists.get(*net).is_some_and(|l| l.action != listing.action);
        if let Some(net) = targets.iter().find(other) {
            let (list, other) = match listing.action {
                Action::Allow => (Action::Allow, Action::Deny),
                Action::Deny => (Action::Deny, Action::Allow),
            };
            let text = format!("{net} is on the {other} list: it cannot be on the {list} list too");
            return Err(Failure::new(exit::NEGATIVE, text)
                .hint(format!("remove it first: limiter {other} del {net}")));
        }
        let changes: ListChanges =
            targets.iter().map(|net| (*net, Some(listing.clone()))).collect();
        self.change_lists(&changes)?;
        tracing::info!("{} added to the {} list", changes.len(), listing.action);
        Ok(ListChanged { list: listing.action, changed: changes.len() as u64 })
    }

    /// Removes entries: all of them, or none.
    ///
    /// # Errors
    /// If one is not on the list, or store or data plane fail; then everything is as it was before.
    pub fn list_remove(
        &mut self,
        action: Action,
        targets: &[IpNet],
    ) -> Result<ListChanged, Failure> {
        let lists = self.store.lists();
        let missing = |net: &&IpNet| lists.get(*net).is_none_or(|l| l.action != action);
        if let Some(net) = targets.iter().find(missing) {
            return Err(Failure::new(exit::NEGATIVE, format!("{net} is not on the {action} list"))
                .hint(format!("`limiter {action} list` shows what is")));
        }
        let changes: ListChanges = targets.iter().map(|net| (*net, None)).collect();
        self.change_lists(&changes)?;
        tracing::info!("{} removed from the {action} list", changes.len());
        Ok(ListChanged { list: action, changed: changes.len() as u64 })
    }

    /// Removes the entries whose time is over, which the kernel does not heed any more.
    pub(super) fn expire_lists(&mut self) {
        let now = now();
        let over = self.store.lists().iter().filter(|(_, listing)| listing.is_over(now));
        let changes: ListChanges = over.map(|(net, _)| (*net, None)).collect();
        if changes.is_empty() {
            return;
        }
        match self.change_lists(&changes) {
            Ok(()) => tracing::info!("{} entries of the lists have expired", changes.len()),
            Err(error) => tracing::warn!("cannot remove expired entries of the lists: {error}"),
        }
    }

    /// Stores changes, then puts them in force; undoes them in the store if that fails.
    fn change_lists(&mut self, changes: &ListChanges) -> Result<(), Failure> {
        let lists = self.store.lists();
        let former: ListChanges =
            changes.iter().map(|(net, _)| (*net, lists.get(net).cloned())).collect();
        let plane = &mut self.plane;
        let published =
            self.store.list_then(changes, |after| plane.change_lists(changes, after))?;
        let Err(error) = published else { return Ok(()) };
        let failure = Failure::from(error).context("the lists stay as they were");
        let restored = self.store.list_then(&former, |after| plane.publish_lists(after));
        let restored = restored.map_err(Failure::from).and_then(|done| done.map_err(Failure::from));
        if let Err(error) = restored {
            tracing::error!("cannot undo a change that failed: {error}");
            self.fault = Some(format!("a change of the lists was half undone: {error}"));
        }
        Err(failure)
    }
}
