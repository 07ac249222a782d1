//! The allow and deny lists of the daemon.

use std::collections::HashMap;

use ipnet::IpNet;

use super::confirm::{Undo, until_confirmed};
use super::limits::{named, session_of};
use super::{Rules, replicated};
use api::error::{Failure, exit};
use api::requests::ChangeOptions;
use api::{Applied, LimitOrigin, ListChanged, ListDiff, ListDone, ListEntry, ListReport};
use model::lists::{
    Action, ListChanges, Listing, Lists, check_wide, find, find_by, is_wide, now, reach_of_wide,
};
use model::scope::no_cluster;
use model::target::short_prefix;
use telemetry::What;

/// The entries of one list.
pub fn list(rules: &Rules, action: Action) -> ListReport {
    let entries = rules.listed().iter().filter(|(_, listing)| listing.action == action);
    ListReport {
        list: action,
        entries: entries.map(|(net, listing)| rules.entry(*net, listing)).collect(),
    }
}

/// Denies sources as a program asks, and no operator: all of them, or none. Entries that last long enough stay as they
/// are.
///
/// # Errors
/// If an operator has said that one passes, or as [`add`].
pub fn deny_sources(
    rules: &mut Rules,
    sources: &[IpNet],
    listing: &Listing,
    how: &ChangeOptions,
) -> Result<ListChanged, Failure> {
    let mut new = Vec::with_capacity(sources.len());
    for source in sources {
        let known = find(rules.listed(), *source).map(|(_, known)| known);
        // A longer prefix would win over what contains it.
        if known.is_some_and(|known| known.action == Action::Allow) {
            return Err(Failure::new(exit::NEGATIVE, format!("{source} is on the allow list")));
        }
        if rules.management.covering(source.addr()).is_some() {
            let text = format!("{source} is a management address");
            return Err(Failure::new(exit::NEGATIVE, text));
        }
        // For half of the time at least: each change costs a write, and is told.
        let lasts = |until: u32| {
            let left = |until: u32| until.saturating_sub(listing.added);
            listing.until.is_some_and(|end| left(until) >= left(end) / 2)
        };
        if known.is_none_or(|known| known.until.is_some_and(|until| !lasts(until))) {
            new.push(*source);
        }
    }
    if new.is_empty() {
        return Ok(ListChanged { done: ListDone::Added, ..ListChanged::nothing(Action::Deny) });
    }
    add(rules, &new, listing, how)
}

/// Adds entries: all of them, or none.
///
/// # Errors
/// If one is on the other list, or very wide without a yes, there are too many, a change waits to be
/// confirmed, or store or data plane fail; then everything is as it was before.
pub fn add(
    rules: &mut Rules,
    targets: &[IpNet],
    listing: &Listing,
    how: &ChangeOptions,
) -> Result<ListChanged, Failure> {
    rules.unconfirmed.may_change(how)?;
    if listing.cluster && !rules.replicated.is_on() {
        return Err(no_cluster("a denial").into());
    }
    // A dry run tells what it would hit.
    check_wide(listing.action, targets, how.yes || how.dry_run)?;
    for net in targets {
        // What contains management addresses does not hold for them, but a part of them would.
        if listing.action == Action::Deny {
            rules.management.check(&(*net).into())?;
        }
    }
    let lists = rules.store.lists();
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
    let changes: ListChanges = targets.iter().map(|net| (*net, Some(listing.clone()))).collect();
    let changed = request(rules, listing.action, ListDone::Added, &changes, how)?;
    if !how.dry_run {
        let some = named(targets.iter().map(short_prefix), targets.len());
        let what = format!("{some} added to the {} list", listing.action);
        let ttl = listing.until.map(|until| until.saturating_sub(listing.added).into());
        rules.events.tell_policy(what, how, ttl);
    }
    Ok(changed)
}

/// Removes entries: all of them, or none.
///
/// # Errors
/// If one is not on the list, a change waits to be confirmed, or store or data plane fail; then
/// everything is as it was before.
pub fn remove(
    rules: &mut Rules,
    action: Action,
    targets: &[IpNet],
    how: &ChangeOptions,
) -> Result<ListChanged, Failure> {
    rules.unconfirmed.may_change(how)?;
    let lists = rules.store.lists();
    let missing = |net: &&IpNet| lists.get(net).is_none_or(|l| l.action != action);
    if let Some(net) = targets.iter().find(missing) {
        if let Some(file) = rules.file.listing(net, action) {
            let text = format!("{net} is on the {action} list of {file}, not set at run time");
            return Err(Failure::new(exit::NEGATIVE, text)
                .hint("take it out of the file, then run `limiter reload`"));
        }
        return Err(Failure::new(exit::NEGATIVE, format!("{net} is not on the {action} list"))
            .hint(format!("`limiter {action} list` shows what is")));
    }
    let changes =
        targets.iter().map(|net| (*net, replicated::denied_by_cluster(rules, net))).collect();
    let banned = banned(rules, &changes);
    let changed = request(rules, action, ListDone::Removed, &changes, how)?;
    if !how.dry_run {
        let some = named(targets.iter().map(short_prefix), targets.len());
        rules.events.tell_policy(format!("{some} removed from the {action} list"), how, None);
        tell_unbanned(rules, banned, "removed");
    }
    Ok(changed)
}

/// Removes all entries of a list that were set at run time.
///
/// # Errors
/// If there are any and `how` has no yes, and as [`remove`].
pub fn clear(
    rules: &mut Rules,
    action: Action,
    how: &ChangeOptions,
) -> Result<ListChanged, Failure> {
    let all = rules.store.lists().iter().filter(|(_, listing)| listing.action == action);
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
    remove(rules, action, &targets, how)
}

/// Makes changes of one list as `how` says, all of them or none.
fn request(
    rules: &mut Rules,
    list: Action,
    done: ListDone,
    changes: &ListChanges,
    how: &ChangeOptions,
) -> Result<ListChanged, Failure> {
    let effect = rules.lists_beneath(changes);
    let replaced = match done {
        ListDone::Added => {
            effect.iter().filter(|(net, _)| rules.listed().contains_key(net)).count()
        }
        ListDone::Removed => 0,
    };
    let first = diff(rules, &effect[..effect.len().min(ListChanged::NAMED)]);
    let mut applied = Applied::default();
    let needs = match done {
        ListDone::Added if !how.yes => "; without --dry-run it needs --yes",
        _ => "",
    };
    applied.warnings.extend(wide(changes).map(|text| format!("{text}{needs}")));
    applied.warnings.extend(rules.file.lists_meeting(changes));
    applied.warnings.extend(session_denied(rules, &effect, how));
    if how.dry_run {
        let mut after = rules.listed().clone();
        after.apply(&effect);
        rules.plane.check_lists(&after)?;
        applied.dry_run = Some(diff(rules, &effect));
    } else if let Some(period) = how.confirm {
        let undo = Undo { lists: rules.store.lists().undoing(changes), ..Undo::default() };
        let no = |(net, listing): &(IpNet, Option<Listing>)| {
            let no = if listing.is_none() { "no " } else { "" };
            format!("{no}{list} entry for {}", short_prefix(net))
        };
        let what = named(changes.iter().map(no), changes.len());
        until_confirmed(rules, what, undo, period, |rules| rules.change_lists(changes))?;
        applied.confirm = rules.unconfirmed.report();
    } else {
        rules.change_lists(changes)?;
    }
    let (changed, replaced) = (changes.len() as u64, replaced as u64);
    Ok(ListChanged { list, changed, done, replaced, first, applied })
}

/// How the lists in force would differ after `effect`.
pub(super) fn diff(rules: &Rules, effect: &[(IpNet, Option<Listing>)]) -> ListDiff {
    let mut diff = ListDiff::default();
    for (net, new) in effect {
        let file = rules.file.lists.get(net).is_some_and(|file| Some(file) == new.as_ref());
        let origin = if file { LimitOrigin::File } else { LimitOrigin::Runtime };
        let new = new.as_ref().map(|new| ListEntry { origin, ..ListEntry::new(*net, new) });
        diff.note(rules.listed().get(net).map(|old| rules.entry(*net, old)), new);
    }
    diff
}

/// The warning that `effect` shuts out the operator's session.
pub(super) fn session_denied(
    rules: &Rules,
    effect: &ListChanges,
    how: &ChangeOptions,
) -> Option<String> {
    let (address, source) = session_of(rules, how)?;
    let net = shuts_out(effect, rules.listed(), source)?;
    Some(format!(
        "your SSH session comes from {address}, which the deny list shuts out now, by the entry for \
         {}: {}",
        short_prefix(&net),
        how.advice()
    ))
}

/// Removes the entries whose time is over, which the kernel does not heed any more.
pub(crate) fn expire(rules: &mut Rules) {
    let over = rules.store.lists().over(now());
    let changes: ListChanges =
        over.map(|net| (net, replicated::denied_by_cluster(rules, &net))).collect();
    if changes.is_empty() {
        return;
    }
    let banned = banned(rules, &changes);
    match rules.change_lists(&changes) {
        Ok(()) => {
            tracing::info!("{} entries of the lists have expired", changes.len());
            tell_unbanned(rules, banned, "expired");
        }
        Err(error) => tracing::warn!("cannot remove expired entries of the lists: {error}"),
    }
}

/// Those of the targets whose present entries are bans.
fn banned(rules: &Rules, changes: &ListChanges) -> Vec<IpNet> {
    let lists = rules.store.lists();
    let banned = |net: &&IpNet| lists.get(net).is_some_and(|listing| listing.ban);
    changes.iter().map(|(net, _)| net).filter(banned).copied().collect()
}

fn tell_unbanned(rules: &mut Rules, banned: Vec<IpNet>, why: &str) {
    for source in banned {
        rules.events.tell(What::Unban { source, why: why.into() });
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
mod tests;
