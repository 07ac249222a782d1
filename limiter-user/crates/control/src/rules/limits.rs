//! Limits that are set at run time.
//!
//! All change in one way: what is asked for becomes a list of changes, which is vetted, compared with what is in force,
//! and then either told (a dry run) or stored and published.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use super::confirm::{Undo, until_confirmed};
use super::{Rules, replicated};
use api::error::{Failure, exit};
use api::requests::ChangeOptions;
use api::{Applied, DiffReport, LimitList, LimitRemoved, LimitReport, LimitSet, LimitsImported};
use model::applying::applying;
use model::class::{Shown, TCP};
use model::target::source_of;
use model::{Change, Changes, Class, Classes, Limit, Limits, Target};

/// Targets that the name of a change has before it only counts them.
const NAMED: usize = 2;

/// All limits in force.
pub fn list(rules: &Rules) -> LimitList {
    let in_force = rules.in_force();
    LimitList { limits: in_force.iter().map(|limit| rules.report_in_force(&limit)).collect() }
}

/// Sets a limit: stored first, then in force.
///
/// # Errors
/// If it is refused, or either fails; then everything is as it was before.
pub fn set(rules: &mut Rules, limit: &Limit, how: &ChangeOptions) -> Result<LimitSet, Failure> {
    let previous = rules.limit_for(&limit.target).map(|limit| rules.report_in_force(&limit));
    let (count, applied) = request(rules, Change::Set(*limit).into(), how)?;
    let changed = count > 0;
    if changed && !how.dry_run {
        let report = rules.report(limit);
        let what = format!("limit for {}: {}", limit.target.short(), report.summary());
        rules.events.tell_policy(what, how, None);
    }
    Ok(LimitSet { limit: rules.report(limit), changed, previous, applied })
}

/// Sets many limits at once: all of them, or none.
///
/// # Errors
/// If one is refused, or store or data plane fail; then everything is as it was before.
pub fn import(
    rules: &mut Rules,
    limits: Changes,
    how: &ChangeOptions,
) -> Result<LimitsImported, Failure> {
    let read = limits.len() as u64;
    let is_new = |change: &Change| rules.limit_for(&change.target()).is_none();
    let added = limits.iter().filter(is_new).count();
    let (changed, applied) = request(rules, limits, how)?;
    if changed > 0 && !how.dry_run {
        rules.events.tell_policy(format!("{changed} limits imported"), how, None);
    }
    give_memory_back();
    Ok(LimitsImported { read, changed, added: added as u64, applied })
}

/// Removes a limit that was set at run time. `None` if there is none for this very target.
///
/// # Errors
/// If the file has it, or store or data plane fail; then everything is as it was before.
pub fn unset(
    rules: &mut Rules,
    target: &Target,
    how: &ChangeOptions,
) -> Result<Option<LimitRemoved>, Failure> {
    let Some(limit) = rules.store.limits().get(target) else {
        return rules.file.with(target).map_or(Ok(None), |file| Err(in_file(target, file)));
    };
    let removed = rules.report(&limit);
    let (_, applied) = request(rules, Change::Unset(*target).into(), how)?;
    if !how.dry_run {
        rules.events.tell_policy(format!("limit for {} removed", target.short()), how, None);
    }
    Ok(Some(LimitRemoved { removed, applied }))
}

/// Returns what a large change needed for a moment. glibc would keep it for the next one, which may
/// never come.
fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes a number and may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The failure that removing a limit of the configuration file gets.
fn in_file(target: &Target, file: &str) -> Failure {
    let message = format!("the limit for {} is in {file}, not set at run time", target.short());
    Failure::new(exit::NEGATIVE, message)
        .hint("take it out of the file, then run `limiter reload`; or set another limit for now")
}

/// The failure that asking for a limit that is not set gets.
pub fn no_such_limit(target: &Target) -> Failure {
    Failure::new(exit::NEGATIVE, format!("no limit is set for {}", target.short()))
        .hint("`limiter limit list` shows the limits that are set")
}

/// The address of the operator's session, unless it is exempt, and the source that it belongs to.
pub(super) fn session_of(rules: &Rules, how: &ChangeOptions) -> Option<(IpAddr, IpNet)> {
    let address = how.session.filter(|address| !address.is_loopback())?;
    if rules.management.covering(address).is_some() {
        return None;
    }
    let (ipv4, ipv6) = rules.plane.prefixes();
    Some((address, source_of(address, ipv4, ipv6)))
}

/// The warning that `effect` limits the operator's session.
pub(super) fn session_limited(
    rules: &Rules,
    effect: &Changes,
    how: &ChangeOptions,
) -> Option<String> {
    let (address, source) = session_of(rules, how)?;
    let limit = hits(effect, &rules.in_force(), source)?;
    Some(format!(
        "your SSH session comes from {address}, which the limit {} for {} applies to now{}: {}",
        rules.report(&limit).rates(),
        limit.target.short(),
        if limit.ban.is_some() { ", and may ban" } else { "" },
        how.advice()
    ))
}

/// Makes changes as `how` says, all of them or none. Returns how many there are, those that would
/// change nothing left out.
///
/// # Errors
/// If one is refused, a change waits to be confirmed, or store or data plane fail; then
/// everything is as it was before.
pub(super) fn request(
    rules: &mut Rules,
    mut changes: Changes,
    how: &ChangeOptions,
) -> Result<(u64, Applied<LimitReport>), Failure> {
    rules.unconfirmed.may_change(how)?;
    changes.forget_absent(rules.store.limits());
    changes = rules.layers().stored(changes);
    vet(rules, &changes)?;
    changes.forget_present(rules.store.limits());
    let count = changes.len() as u64;
    let mut applied =
        Applied { warnings: warnings_about(rules, &changes, how), ..Applied::default() };
    if how.dry_run {
        rules.plane.try_out(&rules.layers().effect(&changes))?;
        applied.dry_run = Some(diff(rules, &changes));
    } else if count > 0 {
        make(rules, &changes, how.confirm)?;
        applied.confirm = rules.unconfirmed.report();
    }
    Ok((count, applied))
}

fn make(rules: &mut Rules, changes: &Changes, confirm: Option<Duration>) -> Result<(), Failure> {
    let Some(period) = confirm else { return rules.change(changes) };
    let present = rules.store.limits();
    let undo = Undo { limits: changes.reversed(&changes.former(present)), ..Undo::default() };
    until_confirmed(rules, name(changes), undo, period, |rules| rules.change(changes))
}

/// Refuses what could not be enforced as it is.
fn vet(rules: &Rules, changes: &Changes) -> Result<(), Failure> {
    let (ipv4, ipv6) = rules.plane.prefixes();
    for change in changes.iter() {
        // What should not be there may be removed.
        if let Change::Set(limit) = change {
            limit.check_prefix(ipv4, ipv6)?;
            rules.management.check(&limit.target)?;
        }
    }
    rules.replicated.check(changes)?;
    Ok(rules.layers().check_classes(changes)?)
}

/// How limits would differ after `changes`.
fn diff(rules: &Rules, changes: &Changes) -> DiffReport {
    let mut diff = DiffReport::default();
    for change in rules.layers().effect(changes).iter() {
        let (target, new) = match change {
            Change::Set(limit) => (limit.target, Some(rules.report(&limit))),
            Change::Unset(target) => (target, None),
        };
        let old = rules.limit_for(&target);
        diff.note(old.map(|limit| rules.report(&limit)), new);
    }
    diff
}

/// What the operator should know of `changes`.
fn warnings_about(rules: &Rules, changes: &Changes, how: &ChangeOptions) -> Vec<String> {
    let mut warnings: Vec<_> = rules.file.meeting(changes).into_iter().collect();
    warnings.extend(replicated::hides_cluster(rules, changes));
    warnings.extend(replicated::cold_sources(rules, changes));
    let idle = changes.iter().find_map(|change| match change {
        Change::Set(limit) if rules.management.contains(&limit.target) => Some(limit.target),
        _ => None,
    });
    if let Some(target) = idle {
        warnings.push(format!(
            "the limit for {} never applies: that is a management address",
            target.short()
        ));
    }
    warnings.extend(session_limited(rules, &rules.layers().effect(changes), how));
    warnings
}

/// A change in a few words: its targets.
fn name(changes: &Changes) -> String {
    let targets = changes.iter().map(|change| match change {
        Change::Set(limit) => format!("limit for {}", limit.target.short()),
        Change::Unset(target) => format!("no limit for {}", target.short()),
    });
    named(targets, changes.len())
}

/// The first of `count` targets, and how many more there are.
pub(super) fn named(targets: impl Iterator<Item = String>, count: usize) -> String {
    let named = targets.take(NAMED).collect::<Vec<_>>().join(", ");
    match count.saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// A limit that `changes` let apply to an SSH session from `source`, wherever it goes, and that did not apply before.
fn hits(changes: &Changes, present: &Limits, source: IpNet) -> Option<Limit> {
    let about: HashMap<Target, Option<Limit>> = changes
        .iter()
        .map(|change| match change {
            Change::Set(limit) => (limit.target, Some(limit)),
            Change::Unset(target) => (target, None),
        })
        .filter(|(target, _)| target.sources().is_none_or(|net| net.contains(&source)))
        .collect();
    // Classes that do not go together are refused before anybody asks.
    let ordered = |classes: Vec<Class>| Classes::new(classes).unwrap_or_default();
    let (before, after) =
        (ordered(present.classes().collect()), ordered(present.classes_after(changes)));
    // This host may have any of the addresses that classes name.
    let named = after.destinations().into_iter().map(|net| Some(net.network()));
    let sessions = [None].into_iter().chain(named).flat_map(|to| SESSION.map(|flags| (to, flags)));
    sessions.into_iter().find_map(|(destination, flags)| {
        let (port, flags) = (Some(SSH), Some(flags));
        let packet = Shown { protocol: TCP, port, flags, destination, ..Shown::default() };
        let of_destination = |limit: &Limit| {
            let class = limit.target.class;
            class.is_of_destinations()
                && class.matches(&packet)
                && present.get(&limit.target) != Some(*limit)
        };
        let applying = |classes: &Classes, limit: &dyn Fn(&Target) -> Option<Limit>| {
            applying(source, classes.find(&packet), classes, limit)
        };
        let before = applying(&before, &|target| present.get(target));
        let after = applying(&after, &|target| {
            about.get(target).copied().unwrap_or_else(|| present.get(target))
        });
        let hit = after.into_iter().find(|limit| !before.contains(limit));
        hit.or_else(|| about.values().flatten().copied().find(of_destination))
    })
}

/// The port that sessions are taken to come to.
const SSH: u16 = 22;

/// TCP flags of the packets that a session is made of: SYN, ACK, PSH with ACK, and FIN with ACK.
const SESSION: [u8; 4] = [0b0_0010, 0b1_0000, 0b1_1000, 0b1_0001];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn a_dry_run_tells_all_and_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        let mut core = fake.core(&directory);
        let (all, one) = (limit("default", "1000pps"), limit("192.0.2.1", "5pps"));
        let [asked, done] =
            [true, false].map(|dry_run| ChangeOptions { dry_run, ..ChangeOptions::default() });
        set(&mut core.rules, &all, &done).unwrap();
        let both = [Change::Set(limit("default", "7pps")), Change::Set(one)];
        let diff = import(&mut core.rules, both.into_iter().collect(), &asked)
            .unwrap()
            .applied
            .dry_run
            .unwrap();
        assert_eq!(diff.summary(), "1 added, 1 changed, 0 removed");
        assert_eq!(diff.changed[0].old.rate, all.rate);
        let removed = unset(&mut core.rules, &Target::DEFAULT, &asked).unwrap().unwrap();
        assert_eq!(removed.applied.dry_run.unwrap().removed.len(), 1);
        let same = set(&mut core.rules, &all, &asked).unwrap();
        assert_eq!((same.changed, same.applied.dry_run), (false, Some(DiffReport::default())));
        // What would be refused is refused, and by the data plane too.
        set(&mut core.rules, &limit("2001:db8::1", "5pps"), &asked).unwrap_err();
        fake.state().fail_publish = true;
        set(&mut core.rules, &one, &asked).unwrap_err();
        assert_eq!(fake.state().limits, [all]);
        assert_eq!(list(&core.rules).limits.len(), 1);
    }

    #[test]
    fn a_session_is_warned_of_what_its_destination_gets() {
        let directory = tempfile::tempdir().unwrap();
        let mut core = Fake::default().core(&directory);
        let session = Some("192.0.2.7".parse().unwrap());
        let how = ChangeOptions { session, ..ChangeOptions::default() };
        let mut warned = |target: &str, rate: &str| {
            set(&mut core.rules, &limit(target, rate), &how).unwrap().applied.warnings
        };
        for target in ["203.0.113.0/24 any@each", "default tcp@203.0.113.9"] {
            let warnings = warned(target, "5pps");
            assert!(warnings.len() == 1 && warnings[0].contains(target), "{warnings:?}");
        }
        // It holds already, or is for other packets.
        assert_eq!(warned("203.0.113.0/24 any@each", "5pps"), [""; 0]);
        assert_eq!(warned("default udp:53@each", "5pps"), [""; 0]);
        // As a destination, a management address has the limit of any other.
        core.rules.protect(&["192.0.2.0/24".parse().unwrap()]);
        set(&mut core.rules, &limit("192.0.2.8 any@each", "5pps"), &how).unwrap();
    }

    #[test]
    fn management_addresses_are_exempt() {
        let directory = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        let mut core = fake.core(&directory);
        let how = ChangeOptions {
            session: Some("192.0.2.7".parse().unwrap()),
            ..ChangeOptions::default()
        };
        let warned =
            set(&mut core.rules, &limit("default", "5pps"), &how).unwrap().applied.warnings;
        assert!(warned[0].contains("192.0.2.7") && warned[0].contains("--confirm"), "{warned:?}");
        set(&mut core.rules, &limit("192.0.2.9", "5pps"), &how).unwrap();
        core.rules.protect(&["192.0.2.0/24".parse().unwrap()]);
        assert_eq!(fake.state().exempt, core.rules.management.nets());
        let refused = set(&mut core.rules, &limit("192.0.2.8", "5pps"), &how).unwrap_err();
        assert!(refused.code == exit::USAGE && refused.message.contains("192.0.2.0/24"));
        let equal =
            set(&mut core.rules, &limit("192.0.2.0/24", "5pps"), &how).unwrap().applied.warnings;
        assert!(equal.len() == 1 && equal[0].contains("never applies"), "{equal:?}");
        assert_eq!(
            set(&mut core.rules, &limit("default", "9pps"), &how).unwrap().applied.warnings.len(),
            0
        );
        // One that was there before may go.
        let warnings = core.status().unwrap().warnings;
        assert!(warnings.iter().any(|text| text.contains("2 of the limits never")), "{warnings:?}");
        unset(&mut core.rules, &"192.0.2.9".parse().unwrap(), &how).unwrap();
        let shown = core.source("192.0.2.7".parse().unwrap()).unwrap();
        assert_eq!(shown.management.unwrap().to_string(), "192.0.2.0/24");
    }

    fn limit(target: &str, rate: &str) -> Limit {
        Limit::new(target.parse().unwrap(), rate.parse().unwrap(), None).unwrap()
    }

    fn hit(present: &[Limit], changes: &[Change], address: &str) -> Option<String> {
        let changes: Changes = changes.iter().copied().collect();
        let present: Limits = present.iter().copied().collect();
        let hit = hits(&changes, &present, source_of(address.parse().unwrap(), 32, 64));
        hit.map(|limit| format!("{} {}", limit.target.short(), limit.rate))
    }

    #[test]
    fn a_session_is_hit_by_what_comes_to_apply_to_it() {
        let (all, net) = (limit("default", "1000pps"), limit("192.0.2.0/24", "5pps"));
        let (set, unset) = (Change::Set, Change::Unset);
        let here = "192.0.2.7";
        assert_eq!(hit(&[], &[set(all)], here).as_deref(), Some("default 1000pps"));
        assert_eq!(hit(&[], &[set(net)], "192.0.3.7"), None);
        assert_eq!(hit(&[net], &[set(all)], here), None, "the prefix goes on to apply");
        assert_eq!(hit(&[all], &[set(net)], here).as_deref(), Some("192.0.2.0/24 5pps"));
        // Without the limit of the prefix, that of everyone applies.
        let removed = hit(&[all, net], &[unset(net.target)], here);
        assert_eq!(removed.as_deref(), Some("default 1000pps"));
        assert_eq!(hit(&[net], &[unset(net.target)], here), None, "nothing applies");
        // What sources share applies beside it; classes that a session has no packets of do not.
        let shared = limit("192.0.2.0/24 aggregate", "5pps");
        let hit_by_shared = hit(&[net], &[set(shared)], here);
        assert_eq!(hit_by_shared.as_deref(), Some("192.0.2.0/24 aggregate 5pps"));
        for class in ["tcp", "tcp:1-1000", "*:22", "tcp/syn,!ack", "tcp:22/fin"] {
            let (all, target) = (limit("default", "1000pps"), format!("default {class}"));
            let found = hit(&[all], &[set(limit(&target, "5pps"))], here);
            assert_eq!(found, Some(format!("{target} 5pps")));
        }
        for class in ["udp", "tcp:80", "*:53", "tcp/rst", "icmp"] {
            let target = format!("default {class}");
            assert_eq!(hit(&[], &[set(limit(&target, "5pps"))], here), None, "{class}");
        }
        // Without the class that was in its way, another one applies.
        let (syn, tcp) = (limit("default tcp/syn,!ack", "9pps"), limit("default tcp/syn", "5pps"));
        let uncovered = hit(&[syn, tcp], &[unset(syn.target)], here);
        assert_eq!(uncovered.as_deref(), Some("default tcp/syn 5pps"));
        let wide = limit("2001:db8::/48", "5pps");
        assert_eq!(hit(&[], &[set(wide)], "2001:db8::5").as_deref(), Some("2001:db8::/48 5pps"));
        assert_eq!(hit(&[], &[set(net)], "::ffff:192.0.2.9").as_deref(), Some("192.0.2.0/24 5pps"));
    }

    #[test]
    fn a_change_is_named_by_its_targets() {
        let list: Changes = ["default", "192.0.2.1", "192.0.2.2"]
            .map(|t| Change::Set(limit(t, "5pps")))
            .into_iter()
            .collect();
        assert_eq!(name(&list), "limit for default, limit for 192.0.2.1 and 1 more");
        let unset = Change::Unset("192.0.2.1".parse().unwrap());
        assert_eq!(name(&unset.into()), "no limit for 192.0.2.1");
    }
}
