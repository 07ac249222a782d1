//! The one way by which limits change: what is asked for becomes a list of changes, which is vetted,
//! compared with what is in force, and then either told (a dry run) or stored and published.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use super::confirm::check_period;
use super::core::Core;
use crate::error::Failure;
use crate::policy::model::source_of;
use crate::policy::{Change, Changes, LimitSpec, Limits, Target};
use crate::report::{Applied, DiffReport};

/// Targets that the name of a change has before it only counts them.
const NAMED: usize = 2;

/// How a change is to be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// Only tell what it would change.
    pub dry_run: bool,
    /// Revert it after this time unless it is confirmed.
    pub confirm: Option<Duration>,
    /// Where the operator is logged in from, whom a change could shut out.
    pub session: Option<IpAddr>,
}

impl Core {
    /// Makes changes as `how` says, all of them or none. Returns how many there are, those that would
    /// change nothing left out.
    ///
    /// # Errors
    /// If one is refused, a change waits to be confirmed, or store or data plane fail; then
    /// everything is as it was before.
    pub(super) fn request(
        &mut self,
        mut changes: Changes,
        how: &How,
    ) -> Result<(u64, Applied), Failure> {
        how.confirm.map_or(Ok(()), check_period)?;
        if !how.dry_run {
            self.nothing_unconfirmed()?;
        }
        self.vet(&changes)?;
        changes.forget_present(self.limits_in_store());
        changes.forget_absent(self.limits_in_store());
        let count = changes.len() as u64;
        let mut applied =
            Applied { warnings: self.warnings_about(&changes, how), ..Applied::default() };
        if how.dry_run {
            self.try_out(&self.beneath(&changes))?;
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
        let undo = changes.reversed(&changes.former(present));
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
        Ok(())
    }

    /// How limits would differ after `changes`.
    fn diff(&self, changes: &Changes) -> DiffReport {
        let mut diff = DiffReport::default();
        for change in self.beneath(changes).iter() {
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
    fn warnings_about(&self, changes: &Changes, how: &How) -> Vec<String> {
        let mut warnings: Vec<_> = self.meeting(changes).into_iter().collect();
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
        let session = how.session.filter(|address| !address.is_loopback());
        if let Some(address) = session
            && self.management.covering(address).is_none()
            && let Some(limit) =
                hits(&self.beneath(changes), &self.in_force(), address, self.plane.prefixes())
        {
            let advice = match how.confirm {
                Some(_) => "confirm it only if you still get through",
                None => "with --confirm 60s it would be reverted if you no longer get through",
            };
            warnings.push(format!(
                "your SSH session comes from {address}, which the limit {} for {} applies to now: \
                 {advice}",
                limit.rate,
                limit.target.short()
            ));
        }
        warnings
    }
}

/// A change in a few words: its targets.
fn name(changes: &Changes) -> String {
    let targets = changes.iter().take(NAMED).map(|change| match change {
        Change::Set(limit) => format!("limit for {}", limit.target.short()),
        Change::Unset(target) => format!("no limit for {}", target.short()),
    });
    let named = targets.collect::<Vec<_>>().join(", ");
    match changes.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// The limit that `changes` let apply to `address`, if that is another one than before.
fn hits(
    changes: &Changes,
    present: &Limits,
    address: IpAddr,
    lengths: (u8, u8),
) -> Option<LimitSpec> {
    let source = source_of(address, lengths.0, lengths.1);
    let about: HashMap<Target, Option<LimitSpec>> = changes
        .iter()
        .map(|change| match change {
            Change::Set(limit) => (limit.target, Some(limit)),
            Change::Unset(target) => (target, None),
        })
        .filter(|(target, _)| match target {
            Target::Default => true,
            Target::Prefix(net) => net.contains(&source),
        })
        .collect();
    let after = applying(&source, |target| {
        about.get(target).copied().unwrap_or_else(|| present.get(target))
    });
    let before = applying(&source, |target| present.get(target));
    after.filter(|_| after != before)
}

/// The limit of the longest prefix that covers `source`.
fn applying(source: &IpNet, limit: impl Fn(&Target) -> Option<LimitSpec>) -> Option<LimitSpec> {
    (0..=source.prefix_len())
        .rev()
        .filter_map(|length| IpNet::new(source.addr(), length).ok())
        .map(|net| Target::Prefix(net.trunc()))
        .chain([Target::Default])
        .find_map(|target| limit(&target))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::fake::Fake;
    use crate::error::exit;

    #[test]
    fn a_dry_run_tells_all_and_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        let mut core = fake.core(&directory);
        let (all, one) = (limit("default", "1000pps"), limit("192.0.2.1", "5pps"));
        let [asked, done] = [true, false].map(|dry_run| How { dry_run, ..How::default() });
        core.set(&all, &done).unwrap();
        let list = [Change::Set(limit("default", "7pps")), Change::Set(one)];
        let diff =
            core.import(list.into_iter().collect(), &asked).unwrap().applied.dry_run.unwrap();
        assert_eq!(diff.summary(), "1 added, 1 changed, 0 removed");
        assert_eq!(diff.changed[0].old.rate, all.rate);
        let removed = core.unset(&Target::Default, &asked).unwrap().unwrap();
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
        let how = How { session: Some("192.0.2.7".parse().unwrap()), ..How::default() };
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

    fn limit(target: &str, rate: &str) -> LimitSpec {
        LimitSpec::new(target.parse().unwrap(), rate.parse().unwrap(), None).unwrap()
    }

    fn hit(present: &[LimitSpec], changes: &[Change], address: &str) -> Option<String> {
        let changes: Changes = changes.iter().copied().collect();
        let present: Limits = present.iter().copied().collect();
        let hit = hits(&changes, &present, address.parse().unwrap(), (32, 64));
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
