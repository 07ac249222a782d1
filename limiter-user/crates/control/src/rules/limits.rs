//! The one way by which limits change: what is asked for becomes a list of changes, which is vetted,
//! compared with what is in force, and then either told (a dry run) or stored and published.

use api::requests::ChangeOptions;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use super::confirm::{Undo, check_period};
use super::core::Core;
use api::error::Failure;
use api::{Applied, DiffReport, LimitReport};
use model::applying::applying;
use model::class::TCP;
use model::target::source_of;
use model::{Change, Changes, Class, Classes, Limit, Limits, Target};

/// Targets that the name of a change has before it only counts them.
const NAMED: usize = 2;

impl Core {
    /// Whether a change may be made as `how` says.
    ///
    /// # Errors
    /// If it is to be confirmed too soon or too late, or another one waits to be confirmed.
    pub(super) fn may_change(&self, how: &ChangeOptions) -> Result<(), Failure> {
        how.confirm.map_or(Ok(()), check_period)?;
        if how.dry_run { Ok(()) } else { self.nothing_unconfirmed() }
    }

    /// The address of the operator's session, unless it is exempt, and the source that it belongs to.
    pub(super) fn session_of(&self, how: &ChangeOptions) -> Option<(IpAddr, IpNet)> {
        let address = how.session.filter(|address| !address.is_loopback())?;
        if self.management.covering(address).is_some() {
            return None;
        }
        let (ipv4, ipv6) = self.plane.prefixes();
        Some((address, source_of(address, ipv4, ipv6)))
    }

    /// The warning that `effect` limits the operator's session.
    pub(super) fn session_limited(&self, effect: &Changes, how: &ChangeOptions) -> Option<String> {
        let (address, source) = self.session_of(how)?;
        let limit = hits(effect, &self.in_force(), source)?;
        Some(format!(
            "your SSH session comes from {address}, which the limit {} for {} applies to now{}: {}",
            self.report(&limit).rates(),
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
        &mut self,
        mut changes: Changes,
        how: &ChangeOptions,
    ) -> Result<(u64, Applied<LimitReport>), Failure> {
        self.may_change(how)?;
        changes.forget_absent(self.limits_in_store());
        changes = self.layers().stored(changes);
        self.vet(&changes)?;
        changes.forget_present(self.limits_in_store());
        let count = changes.len() as u64;
        let mut applied =
            Applied { warnings: self.warnings_about(&changes, how), ..Applied::default() };
        if how.dry_run {
            self.try_out(&self.layers().effect(&changes))?;
            applied.dry_run = Some(self.diff(&changes));
        } else if count > 0 {
            self.make(&changes, how.confirm)?;
            applied.confirm = self.unconfirmed.report();
        }
        Ok((count, applied))
    }

    fn make(&mut self, changes: &Changes, confirm: Option<Duration>) -> Result<(), Failure> {
        let Some(period) = confirm else { return self.change(changes) };
        let present = self.limits_in_store();
        let undo = Undo { limits: changes.reversed(&changes.former(present)), ..Undo::default() };
        self.until_confirmed(name(changes), undo, period, |core| core.change(changes))
    }

    /// Refuses what could not be enforced as it is.
    fn vet(&self, changes: &Changes) -> Result<(), Failure> {
        let (ipv4, ipv6) = self.plane.prefixes();
        for change in changes.iter() {
            // What should not be there may be removed.
            if let Change::Set(limit) = change {
                limit.check_prefix(ipv4, ipv6)?;
                self.management.check(&limit.target)?;
            }
        }
        self.check_cluster(changes)?;
        Ok(self.layers().check_classes(changes)?)
    }

    /// How limits would differ after `changes`.
    fn diff(&self, changes: &Changes) -> DiffReport {
        let mut diff = DiffReport::default();
        for change in self.layers().effect(changes).iter() {
            let (target, new) = match change {
                Change::Set(limit) => (limit.target, Some(self.report(&limit))),
                Change::Unset(target) => (target, None),
            };
            let old = self.limit_for(&target);
            diff.note(old.map(|limit| self.report(&limit)), new);
        }
        diff
    }

    /// What the operator should know of `changes`.
    fn warnings_about(&self, changes: &Changes, how: &ChangeOptions) -> Vec<String> {
        let mut warnings: Vec<_> = self.meeting(changes).into_iter().collect();
        warnings.extend(self.hides_cluster(changes));
        warnings.extend(self.cold_sources(changes));
        let idle = changes.iter().find_map(|change| match change {
            Change::Set(limit) if self.management.contains(&limit.target) => Some(limit.target),
            _ => None,
        });
        if let Some(target) = idle {
            warnings.push(format!(
                "the limit for {} never applies: that is a management address",
                target.short()
            ));
        }
        warnings.extend(self.session_limited(&self.layers().effect(changes), how));
        warnings
    }
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

/// A limit that `changes` let apply to an SSH session from `source`, and that did not apply before.
fn hits(changes: &Changes, present: &Limits, source: IpNet) -> Option<Limit> {
    let about: HashMap<Target, Option<Limit>> = changes
        .iter()
        .map(|change| match change {
            Change::Set(limit) => (limit.target, Some(limit)),
            Change::Unset(target) => (target, None),
        })
        .filter(|(target, _)| target.prefix().is_none_or(|net| net.contains(&source)))
        .collect();
    // Classes that do not go together are refused before anybody asks.
    let ordered = |classes: Vec<Class>| Classes::new(classes).unwrap_or_default();
    let (before, after) =
        (ordered(present.classes().collect()), ordered(present.classes_after(changes)));
    SESSION.into_iter().find_map(|flags| {
        let applying = |classes: &Classes, limit: &dyn Fn(&Target) -> Option<Limit>| {
            applying(source, classes.find(TCP, Some(SSH), Some(flags)), classes, limit)
        };
        let before = applying(&before, &|target| present.get(target));
        let after = applying(&after, &|target| {
            about.get(target).copied().unwrap_or_else(|| present.get(target))
        });
        after.into_iter().find(|limit| !before.contains(limit))
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
    use api::error::exit;

    #[test]
    fn a_dry_run_tells_all_and_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        let mut core = fake.core(&directory);
        let (all, one) = (limit("default", "1000pps"), limit("192.0.2.1", "5pps"));
        let [asked, done] =
            [true, false].map(|dry_run| ChangeOptions { dry_run, ..ChangeOptions::default() });
        core.set(&all, &done).unwrap();
        let list = [Change::Set(limit("default", "7pps")), Change::Set(one)];
        let diff =
            core.import(list.into_iter().collect(), &asked).unwrap().applied.dry_run.unwrap();
        assert_eq!(diff.summary(), "1 added, 1 changed, 0 removed");
        assert_eq!(diff.changed[0].old.rate, all.rate);
        let removed = core.unset(&Target::DEFAULT, &asked).unwrap().unwrap();
        assert_eq!(removed.applied.dry_run.unwrap().removed.len(), 1);
        let same = core.set(&all, &asked).unwrap();
        assert_eq!((same.changed, same.applied.dry_run), (false, Some(DiffReport::default())));
        // What would be refused is refused, and by the data plane too.
        core.set(&limit("2001:db8::1", "5pps"), &asked).unwrap_err();
        fake.state().fail_publish = true;
        core.set(&one, &asked).unwrap_err();
        assert_eq!(fake.state().limits, [all]);
        assert_eq!(core.limits().limits.len(), 1);
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
        let warned = core.set(&limit("default", "5pps"), &how).unwrap().applied.warnings;
        assert!(warned[0].contains("192.0.2.7") && warned[0].contains("--confirm"), "{warned:?}");
        core.set(&limit("192.0.2.9", "5pps"), &how).unwrap();
        core.protect(&["192.0.2.0/24".parse().unwrap()]);
        assert_eq!(fake.state().exempt, core.management.nets());
        let refused = core.set(&limit("192.0.2.8", "5pps"), &how).unwrap_err();
        assert!(refused.code == exit::USAGE && refused.message.contains("192.0.2.0/24"));
        let equal = core.set(&limit("192.0.2.0/24", "5pps"), &how).unwrap().applied.warnings;
        assert!(equal.len() == 1 && equal[0].contains("never applies"), "{equal:?}");
        assert_eq!(core.set(&limit("default", "9pps"), &how).unwrap().applied.warnings.len(), 0);
        // One that was there before may go.
        let warnings = core.status().unwrap().warnings;
        assert!(warnings.iter().any(|text| text.contains("2 of the limits never")), "{warnings:?}");
        core.unset(&"192.0.2.9".parse().unwrap(), &how).unwrap();
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
