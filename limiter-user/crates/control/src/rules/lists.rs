//! The allow and deny lists of the daemon.

use std::borrow::Cow;
use std::collections::HashMap;

use ipnet::IpNet;

use super::change::named;
use super::confirm::Undo;
use super::core::Core;
use api::error::{Failure, exit};
use api::requests::ChangeOptions;
use api::{Applied, LimitOrigin, ListChanged, ListDiff, ListDone, ListEntry, ListReport};
use model::lists::{
    Action, ListChanges, Listing, Lists, check_wide, find, find_by, is_wide, now, reach_of_wide,
};
use model::record::Row;
use model::scope::no_cluster;
use model::target::short_prefix;

impl Core {
    /// The entries of one list.
    pub fn list(&self, action: Action) -> ListReport {
        let entries = self.listed().iter().filter(|(_, listing)| listing.action == action);
        ListReport {
            list: action,
            entries: entries.map(|(net, listing)| self.entry(*net, listing)).collect(),
        }
    }

    /// An entry that is in force, with where it comes from.
    pub(super) fn entry(&self, net: IpNet, listing: &Listing) -> ListEntry {
        let origin = match self.store.lists().contains_key(&net) {
            true => LimitOrigin::Runtime,
            false => LimitOrigin::File,
        };
        ListEntry { origin, ..ListEntry::new(net, listing) }
    }

    /// Adds entries: all of them, or none.
    ///
    /// # Errors
    /// If one is on the other list, or very wide without a yes, there are too many, a change waits to be
    /// confirmed, or store or data plane fail; then everything is as it was before.
    pub fn list_add(
        &mut self,
        targets: &[IpNet],
        listing: &Listing,
        how: &ChangeOptions,
    ) -> Result<ListChanged, Failure> {
        self.may_change(how)?;
        if listing.cluster && self.replicated.is_none() {
            return Err(no_cluster("a denial").into());
        }
        // A dry run tells what it would hit.
        check_wide(listing.action, targets, how.yes || how.dry_run)?;
        for net in targets {
            // What contains management addresses does not hold for them, but a part of them would.
            if listing.action == Action::Deny {
                self.management.check(&(*net).into())?;
            }
        }
        let lists = self.store.lists();
        let other = |net: &&IpNet| lists.get(net).is_some_and(|l| l.action != listing.action);
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
        let changed = self.request_lists(listing.action, ListDone::Added, &changes, how)?;
        if !how.dry_run {
            let some = named(targets.iter().map(short_prefix), targets.len());
            let what = format!("{some} added to the {} list", listing.action);
            let ttl = listing.until.map(|until| until.saturating_sub(listing.added).into());
            self.tell_policy(what, how, ttl);
        }
        Ok(changed)
    }

    /// Removes entries: all of them, or none.
    ///
    /// # Errors
    /// If one is not on the list, a change waits to be confirmed, or store or data plane fail; then
    /// everything is as it was before.
    pub fn list_remove(
        &mut self,
        action: Action,
        targets: &[IpNet],
        how: &ChangeOptions,
    ) -> Result<ListChanged, Failure> {
        self.may_change(how)?;
        let lists = self.store.lists();
        let missing = |net: &&IpNet| lists.get(net).is_none_or(|l| l.action != action);
        if let Some(net) = targets.iter().find(missing) {
            if let Some(file) = self.file_listing(net, action) {
                let text = format!("{net} is on the {action} list of {file}, not set at run time");
                return Err(Failure::new(exit::NEGATIVE, text)
                    .hint("take it out of the file, then run `limiter reload`"));
            }
            return Err(Failure::new(exit::NEGATIVE, format!("{net} is not on the {action} list"))
                .hint(format!("`limiter {action} list` shows what is")));
        }
        let changes = targets.iter().map(|net| (*net, self.denied_by_cluster(net))).collect();
        let banned = self.banned(&changes);
        let changed = self.request_lists(action, ListDone::Removed, &changes, how)?;
        if !how.dry_run {
            let some = named(targets.iter().map(short_prefix), targets.len());
            self.tell_policy(format!("{some} removed from the {action} list"), how, None);
            self.tell_unbanned(banned, "removed");
        }
        Ok(changed)
    }

    /// Removes all entries of a list that were set at run time.
    ///
    /// # Errors
    /// If there are any and `how` has no yes, and as [`Core::list_remove`].
    pub fn list_clear(
        &mut self,
        action: Action,
        how: &ChangeOptions,
    ) -> Result<ListChanged, Failure> {
        let all = self.store.lists().iter().filter(|(_, listing)| listing.action == action);
        let targets: Vec<IpNet> = all.map(|(net, _)| *net).collect();
        if targets.is_empty() {
            return Ok(ListChanged::nothing(action));
        }
        if !how.yes && !how.dry_run {
            let count = targets.len();
            let entries = if count == 1 { "entry" } else { "entries" };
            let text = format!("this removes {count} {entries}, the whole {action} list");
            return Err(Failure::new(exit::USAGE, text).hint(format!(
                "add --yes if that is meant (over the API: yes=true); `limiter {action} list` shows them"
            )));
        }
        self.list_remove(action, &targets, how)
    }

    /// Makes changes of one list as `how` says, all of them or none.
    fn request_lists(
        &mut self,
        list: Action,
        done: ListDone,
        changes: &ListChanges,
        how: &ChangeOptions,
    ) -> Result<ListChanged, Failure> {
        let effect = self.lists_beneath(changes);
        let replaced = match done {
            ListDone::Added => {
                effect.iter().filter(|(net, _)| self.listed().contains_key(net)).count()
            }
            ListDone::Removed => 0,
        };
        let first = self.list_diff(&effect[..effect.len().min(ListChanged::NAMED)]);
        let mut applied = Applied::default();
        let needs = match done {
            ListDone::Added if !how.yes => "; without --dry-run it needs --yes",
            _ => "",
        };
        applied.warnings.extend(wide(changes).map(|text| format!("{text}{needs}")));
        applied.warnings.extend(self.lists_meeting(changes));
        applied.warnings.extend(self.session_denied(&effect, how));
        if how.dry_run {
            let mut after = self.listed().clone();
            after.apply(&effect);
            self.plane.check_lists(&after)?;
            applied.dry_run = Some(self.list_diff(&effect));
        } else if let Some(period) = how.confirm {
            let undo = Undo { lists: self.store.lists().undoing(changes), ..Undo::default() };
            let no = |(net, listing): &(IpNet, Option<Listing>)| {
                let no = if listing.is_none() { "no " } else { "" };
                format!("{no}{list} entry for {}", short_prefix(net))
            };
            let what = named(changes.iter().map(no), changes.len());
            self.until_confirmed(what, undo, period, |core| core.change_lists(changes))?;
            applied.confirm = self.unconfirmed.report();
        } else {
            self.change_lists(changes)?;
        }
        let (changed, replaced) = (changes.len() as u64, replaced as u64);
        Ok(ListChanged { list, changed, done, replaced, first, applied })
    }

    /// How the lists in force would differ after `effect`.
    pub(super) fn list_diff(&self, effect: &[(IpNet, Option<Listing>)]) -> ListDiff {
        let mut diff = ListDiff::default();
        for (net, new) in effect {
            let file = self.file_lists().get(net).is_some_and(|file| Some(file) == new.as_ref());
            let origin = if file { LimitOrigin::File } else { LimitOrigin::Runtime };
            let new = new.as_ref().map(|new| ListEntry { origin, ..ListEntry::new(*net, new) });
            diff.note(self.listed().get(net).map(|old| self.entry(*net, old)), new);
        }
        diff
    }

    /// The warning that `effect` shuts out the operator's session.
    pub(super) fn session_denied(
        &self,
        effect: &ListChanges,
        how: &ChangeOptions,
    ) -> Option<String> {
        let (address, source) = self.session_of(how)?;
        let net = shuts_out(effect, self.listed(), source)?;
        Some(format!(
            "your SSH session comes from {address}, which the deny list shuts out now, by the entry for \
             {}: {}",
            short_prefix(&net),
            how.advice()
        ))
    }

    /// Removes the entries whose time is over, which the kernel does not heed any more.
    pub(super) fn expire_lists(&mut self) {
        let over = self.store.lists().over(now());
        let changes: ListChanges = over.map(|net| (net, self.denied_by_cluster(&net))).collect();
        if changes.is_empty() {
            return;
        }
        let banned = self.banned(&changes);
        match self.change_lists(&changes) {
            Ok(()) => {
                tracing::info!("{} entries of the lists have expired", changes.len());
                self.tell_unbanned(banned, "expired");
            }
            Err(error) => tracing::warn!("cannot remove expired entries of the lists: {error}"),
        }
    }

    /// Stores changes, then puts them in force; undoes them in the store if that fails.
    pub(super) fn change_lists(&mut self, changes: &ListChanges) -> Result<(), Failure> {
        let rows = self.replicate_lists(changes)?;
        self.change_lists_with(changes, &rows)
    }

    /// As [`Core::change_lists`], where `rows` are what the replica has changed and is to be durable with it.
    pub(super) fn change_lists_with(
        &mut self,
        changes: &ListChanges,
        rows: &[Row],
    ) -> Result<(), Failure> {
        let former = self.store.lists().undoing(changes);
        let former_rows = self.undoing_rows(rows);
        let effect = self.lists_beneath(changes).into_owned();
        let (plane, merged) = (&mut self.plane, &mut self.file.merged);
        let published = self.store.list_with(changes, rows, |stored| match merged {
            None => plane.change_lists(&effect, stored),
            Some(merged) => {
                merged.apply(&effect);
                plane.change_lists(&effect, merged)
            }
        });
        if !rows.is_empty() {
            self.replicated(matches!(published, Ok(Ok(()))));
        }
        let Err(error) = published? else { return Ok(()) };
        let failure = Failure::from(error).context("the lists stay as they were");
        let restored = self.store.list_with(&former, &former_rows, |_| ()).map_err(Failure::from);
        let back = self.lists_beneath(&former).into_owned();
        if let Some(merged) = &mut self.file.merged {
            merged.apply(&back);
        }
        self.publish_lists_again(restored);
        Err(failure)
    }

    /// Tells the data plane all entries after a change has failed and was `undone`.
    pub(super) fn publish_lists_again(&mut self, undone: Result<(), Failure>) {
        let lists = self.file.merged.as_ref().unwrap_or(self.store.lists());
        let plane = &mut self.plane;
        let restored = undone.and_then(|()| plane.publish_lists(lists).map_err(Failure::from));
        if let Err(error) = restored {
            tracing::error!("cannot undo a change that failed: {error}");
            self.fault = Some(format!("a change of the lists was half undone: {error}"));
        }
    }

    /// What becomes of the lists in force when those set at run time change.
    fn lists_beneath<'a>(&self, changes: &'a ListChanges) -> Cow<'a, ListChanges> {
        let file = self.file_lists();
        if file.is_empty() {
            return Cow::Borrowed(changes);
        }
        let effect = |(net, listing): &(IpNet, Option<Listing>)| {
            (*net, listing.clone().or_else(|| file.get(net).cloned()))
        };
        Cow::Owned(changes.iter().map(effect).collect())
    }
}

/// What `changes` hit that add entries for very many sources.
pub(super) fn wide(changes: &[(IpNet, Option<Listing>)]) -> impl Iterator<Item = String> {
    let added = changes.iter().filter_map(|(net, listing)| Some((net, listing.as_ref()?.action)));
    let wide = added.filter(|(net, _)| is_wide(net));
    wide.map(|(net, action)| format!("this {}", reach_of_wide(action, net)))
}

/// The deny entry that comes to shut out `source` by `changes`, and did not before.
fn shuts_out(changes: &ListChanges, present: &Lists, source: IpNet) -> Option<IpNet> {
    let about: HashMap<&IpNet, Option<&Listing>> = changes
        .iter()
        .filter(|(net, _)| net.contains(&source))
        .map(|(net, listing)| (net, listing.as_ref()))
        .collect();
    let after = find_by(source, |net| match about.get(net) {
        Some(listing) => *listing,
        None => present.get(net),
    });
    let denied = |found: Option<(IpNet, &Listing)>| {
        found.filter(|(_, listing)| listing.action == Action::Deny).map(|(net, _)| net)
    };
    let was_denied = denied(find(present, source)).is_some();
    denied(after).filter(|_| !was_denied)
}

#[cfg(test)]
#[path = "lists/tests.rs"]
mod tests;
