//! Limits of single descriptors. The daemon keeps them, and tells whoever follows: `limiter-serve` decides by them.

use std::sync::Arc;

use tokio::sync::broadcast;

use super::confirm::{Undo, until_confirmed};
use super::limits::named;
use super::{Rules, replicated};
use api::error::{Failure, exit};
use api::requests::ChangeOptions;
use api::{Applied, Diff, Followed, ListDone, OverrideEntry, OverridesChanged, OverridesReport};
use model::lists::now;
use model::overrides::{Descriptor, Override, OverrideChanges};
use model::scope::no_cluster;

/// The most that there may be.
const MAX: usize = 4_000_000;

/// Changes that whoever follows may be behind. More, and it begins anew.
pub(super) const BEHIND: usize = 256;

/// Those of a domain, or all.
pub fn list(rules: &Rules, domain: Option<&str>) -> OverridesReport {
    let is_its = |descriptor: &Descriptor| {
        domain.is_none_or(|domain| descriptor.parts().first().is_some_and(|it| it == domain))
    };
    let all = rules.store.overrides().iter().filter(|(descriptor, _)| is_its(descriptor));
    OverridesReport { overrides: all.map(|(it, to)| OverrideEntry::new(it, to)).collect() }
}

/// Sets limits, each of one descriptor: all of them, or none.
///
/// # Errors
/// If one is there twice, there are too many, a change waits to be confirmed, or the store fails; then everything is as
/// it was before.
pub fn set(
    rules: &mut Rules,
    changes: &OverrideChanges,
    how: &ChangeOptions,
) -> Result<OverridesChanged, Failure> {
    rules.unconfirmed.may_change(how)?;
    let in_cluster = |(_, to): &(Descriptor, Option<Override>)| to.is_some_and(|to| to.cluster);
    if changes.iter().any(in_cluster) && !rules.replicated.is_on() {
        return Err(no_cluster("a rule").into());
    }
    check_repetition(changes)?;
    let present = rules.store.overrides();
    let new = changes.iter().filter(|(it, _)| present.get(it).is_none()).count();
    if present.len() + new > MAX {
        let text = format!("there is room for {MAX} limits of descriptors");
        return Err(Failure::new(exit::NEGATIVE, text)
            .hint("remove some with `limiter rule unset`, or give rules in a file"));
    }
    request(rules, ListDone::Added, changes, how)
}

/// Removes the limits of descriptors: all of them, or none.
///
/// # Errors
/// If one has none, a change waits to be confirmed, or the store fails; then everything is as it was before.
pub fn unset(
    rules: &mut Rules,
    descriptors: Vec<Descriptor>,
    how: &ChangeOptions,
) -> Result<OverridesChanged, Failure> {
    rules.unconfirmed.may_change(how)?;
    let present = rules.store.overrides();
    if let Some(missing) = descriptors.iter().find(|it| present.get(it).is_none()) {
        let text = format!("{missing} has no limit of its own");
        return Err(Failure::new(exit::NEGATIVE, text).hint("`limiter rule list` shows who has"));
    }
    let without = |descriptor| {
        let cluster = by_cluster(rules, &descriptor);
        (descriptor, cluster)
    };
    let changes: OverrideChanges = descriptors.into_iter().map(without).collect();
    check_repetition(&changes)?;
    request(rules, ListDone::Removed, &changes, how)
}

fn check_repetition(changes: &OverrideChanges) -> Result<(), Failure> {
    let mut all: Vec<&Descriptor> = changes.iter().map(|(descriptor, _)| descriptor).collect();
    all.sort_unstable();
    let repeated = all.windows(2).find(|pair| pair[0] == pair[1]);
    repeated.map_or(Ok(()), |pair| {
        Err(Failure::new(exit::USAGE, format!("{} is there twice", pair[0])))
    })
}

/// The cluster's limit for a descriptor, which follows on one of this host alone that is removed.
fn by_cluster(rules: &Rules, descriptor: &Descriptor) -> Option<Override> {
    rules.store.overrides().get(descriptor).filter(|set| !set.cluster)?;
    replicated::overridden(rules, descriptor).filter(|set| !set.is_over(now()))
}

fn request(
    rules: &mut Rules,
    done: ListDone,
    changes: &OverrideChanges,
    how: &ChangeOptions,
) -> Result<OverridesChanged, Failure> {
    let first = diff(rules, &changes[..changes.len().min(OverridesChanged::NAMED)]);
    let mut applied = Applied::default();
    let what = || {
        let name = |(descriptor, to): &(Descriptor, Option<Override>)| match to {
            Some(to) => format!("{descriptor}: {}", to.limit),
            None => format!("{descriptor} has no limit of its own"),
        };
        format!("rule {}", named(changes.iter().map(name), changes.len()))
    };
    if how.dry_run {
        applied.dry_run = Some(diff(rules, changes));
    } else if let Some(period) = how.confirm {
        let overrides = rules.store.overrides().undoing(changes);
        let undo = Undo { overrides, ..Undo::default() };
        until_confirmed(rules, what(), undo, period, |rules| rules.change_overrides(changes))?;
        applied.confirm = rules.unconfirmed.report();
    } else {
        rules.change_overrides(changes)?;
    }
    if !how.dry_run {
        let ends = changes.first().and_then(|(_, to)| to.as_ref());
        let ttl = ends.and_then(|to| to.until.map(|until| until.saturating_sub(to.added).into()));
        rules.events.tell_policy(what(), how, ttl);
    }
    Ok(OverridesChanged { changed: changes.len() as u64, done, first, applied })
}

fn diff(rules: &Rules, changes: &[(Descriptor, Option<Override>)]) -> Diff<OverrideEntry> {
    let mut diff = Diff::default();
    for (descriptor, to) in changes {
        let entry = |set: &Override| OverrideEntry::new(descriptor, set);
        let old = rules.store.overrides().get(descriptor).map(entry);
        diff.note(old, to.as_ref().map(entry));
    }
    diff
}

/// Removes those whose time is over, which nobody heeds any more.
pub(crate) fn expire(rules: &mut Rules) {
    let over = rules.store.overrides().over(now());
    let over = over.map(|descriptor| (descriptor.clone(), by_cluster(rules, descriptor)));
    let changes: OverrideChanges = over.collect();
    if changes.is_empty() {
        return;
    }
    match rules.change_overrides(&changes) {
        Ok(()) => tracing::info!("{} limits of descriptors have expired", changes.len()),
        Err(error) => tracing::warn!("cannot remove expired limits of descriptors: {error}"),
    }
}

/// Follows changes from now on. What there is already comes by [`page`].
pub fn follow(rules: &Rules) -> broadcast::Receiver<Arc<OverrideChanges>> {
    rules.followers.subscribe()
}

/// Up to `most` of those that there are, in order, from the one behind `last` on.
pub fn page(rules: &Rules, last: Option<&Descriptor>, most: usize) -> Vec<Followed> {
    let rest = rules.store.overrides().after(last);
    rest.take(most).map(|(descriptor, to)| Followed::new(descriptor, Some(to))).collect()
}

#[cfg(test)]
mod tests;
