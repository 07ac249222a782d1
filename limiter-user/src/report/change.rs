//! What a change of limits does, did, or would do.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::{LimitReport, Print, text};
use crate::policy::Target;

/// A limit that another one takes the place of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Replaced {
    /// Whom both are for.
    pub target: Target,
    /// The limit before.
    pub old: LimitReport,
    /// The limit after.
    pub new: LimitReport,
}

/// How limits differ after a change from those before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiffReport {
    /// Limits for targets that had none.
    pub added: Vec<LimitReport>,
    /// Limits in the place of others.
    pub changed: Vec<Replaced>,
    /// Limits that are gone.
    pub removed: Vec<LimitReport>,
}

impl DiffReport {
    /// Notes what becomes of a target's limit.
    pub fn note(&mut self, old: Option<LimitReport>, new: Option<LimitReport>) {
        match (old, new) {
            (None, Some(new)) => self.added.push(new),
            (Some(old), Some(new)) => {
                self.changed.push(Replaced { target: old.target, old, new });
            }
            (Some(old), None) => self.removed.push(old),
            (None, None) => {}
        }
    }

    /// The numbers of each kind in a few words.
    pub fn summary(&self) -> String {
        let (added, changed) = (self.added.len(), self.changed.len());
        format!("{added} added, {changed} changed, {} removed", self.removed.len())
    }
}

impl Print for DiffReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        for limit in &self.added {
            writeln!(out, "+ {}: {}", limit.target.short(), limit.summary())?;
        }
        for Replaced { target, old, new } in &self.changed {
            writeln!(out, "~ {}: {} → {}", target.short(), old.summary(), new.summary())?;
        }
        for limit in &self.removed {
            writeln!(out, "- {}: {}", limit.target.short(), limit.summary())?;
        }
        Ok(())
    }
}

/// A change that is reverted unless it is confirmed in time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PendingReport {
    /// What was changed, in a few words.
    pub what: String,
    /// Targets that are changed.
    pub targets: u64,
    /// Time left to confirm it.
    pub seconds_left: f64,
    /// When it is reverted, RFC 3339.
    pub reverts_at: String,
    /// Why it could not be reverted so far, though it is due.
    pub problem: Option<String>,
}

impl PendingReport {
    /// The change and the time it has left, in a few words.
    pub fn summary(&self) -> String {
        let left = text::seconds(self.seconds_left.ceil() as u64);
        format!("{}: reverted in {left} unless `limiter confirm` comes before", self.what)
    }
}

/// What every change tells beside its own outcome.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Applied {
    /// What would change; only where nothing was changed because of `--dry-run`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<DiffReport>,
    /// The confirmation that is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm: Option<PendingReport>,
    /// What the operator should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl Applied {
    /// Writes a dry run's differences and says that it was one. Returns whether it was one.
    pub(super) fn print_dry_run(&self, out: &mut dyn Write) -> io::Result<bool> {
        let Some(diff) = &self.dry_run else { return Ok(false) };
        diff.print(out)?;
        writeln!(out, "{}; dry run, nothing was changed", diff.summary())?;
        Ok(true)
    }

    /// Writes what is waited for.
    pub(super) fn print_confirm(&self, out: &mut dyn Write) -> io::Result<()> {
        let Some(confirm) = &self.confirm else { return Ok(()) };
        let left = text::seconds(confirm.seconds_left.ceil() as u64);
        writeln!(out, "reverted in {left} unless `limiter confirm` comes before")
    }
}

/// `confirm`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfirmReport {
    /// `confirmed` or `reverted`.
    pub outcome: String,
    /// What had been changed, in a few words.
    pub what: String,
    /// Targets that it was about.
    pub targets: u64,
}

impl Print for ConfirmReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{} ({})", self.outcome, self.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::LimitSpec;

    fn limit(target: &str, rate: &str) -> Option<LimitReport> {
        let limit = LimitSpec::new(target.parse().unwrap(), rate.parse().unwrap(), None).unwrap();
        Some(LimitReport::new(&limit, 1))
    }

    #[test]
    fn a_diff_says_what_comes_and_goes() {
        let mut diff = DiffReport::default();
        diff.note(None, limit("198.51.100.7", "10kpps"));
        diff.note(limit("default", "1000pps"), limit("default", "5pps"));
        diff.note(limit("192.0.2.0/24", "10mbit"), None);
        let applied = Applied { dry_run: Some(diff), ..Applied::default() };
        let mut text = Vec::new();
        assert!(applied.print_dry_run(&mut text).unwrap());
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "+ 198.51.100.7: 10kpps burst 12000 packets\n\
             ~ default: 1000pps burst 1200 packets → 5pps burst 6 packets\n\
             - 192.0.2.0/24: 10mbit burst 1500 kbyte\n\
             1 added, 1 changed, 1 removed; dry run, nothing was changed\n"
        );
        assert!(!Applied::default().print_dry_run(&mut Vec::new()).unwrap());
    }
}
