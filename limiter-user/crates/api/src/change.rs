//! What a change of limits or lists does, did, or would do.

use std::fmt;
use std::io::{self, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Print, text};

/// What there is one of for each target: a limit, or an entry of the lists.
pub trait Rule {
    /// Its target.
    type Target: Clone + fmt::Debug + PartialEq + Serialize + DeserializeOwned;

    /// Its target.
    fn target(&self) -> Self::Target;

    /// Its target, in short.
    fn name(&self) -> String;

    /// What it says, in a line.
    fn summary(&self) -> String;
}

/// A rule that another one takes the place of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound(serialize = "R: Serialize", deserialize = "R: DeserializeOwned"))]
pub struct Replaced<R: Rule> {
    /// The target of both.
    pub target: R::Target,
    /// The rule before.
    pub old: R,
    /// The rule after.
    pub new: R,
}

/// How rules differ after a change from those before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound(serialize = "R: Serialize", deserialize = "R: DeserializeOwned"))]
pub struct Diff<R: Rule> {
    /// Rules for targets that had none.
    pub added: Vec<R>,
    /// Rules in the place of others.
    pub changed: Vec<Replaced<R>>,
    /// Rules that are gone.
    pub removed: Vec<R>,
}

impl<R: Rule> Default for Diff<R> {
    fn default() -> Self {
        // Not derived, which would ask the same of `R`.
        Self { added: Vec::new(), changed: Vec::new(), removed: Vec::new() }
    }
}

impl<R: Rule> Diff<R> {
    /// Whether nothing differs.
    pub const fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }

    /// How many rules differ.
    pub const fn len(&self) -> usize {
        self.added.len() + self.changed.len() + self.removed.len()
    }

    /// Notes what becomes of a target's rule.
    // One rule a target: so "changed" is decided by whether both are there, and no caller has to
    // say it.
    pub fn note(&mut self, old: Option<R>, new: Option<R>) {
        match (old, new) {
            (None, Some(new)) => self.added.push(new),
            (Some(old), Some(new)) => {
                self.changed.push(Replaced { target: old.target(), old, new });
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

impl<R: Rule> Print for Diff<R> {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        for rule in &self.added {
            writeln!(out, "+ {}: {}", rule.name(), rule.summary())?;
        }
        // Both: a rule is replaced as a whole, and what the new one does not say is gone.
        for Replaced { old, new, .. } in &self.changed {
            writeln!(out, "~ {}: {} → {}", old.name(), old.summary(), new.summary())?;
        }
        for rule in &self.removed {
            writeln!(out, "- {}: {}", rule.name(), rule.summary())?;
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
    // A full disk or the kernel may refuse the way back. It is tried again, and must not look
    // confirmed meanwhile.
    pub problem: Option<String>,
}

impl PendingReport {
    /// The change and the time it has left, in a few words.
    pub fn summary(&self) -> String {
        let left = text::seconds(self.seconds_left.ceil() as u64);
        format!("{}: reverted in {left} unless `limiter confirm` comes before", self.what)
    }

    /// Writes what is waited for.
    pub(super) fn print_left(&self, out: &mut dyn Write) -> io::Result<()> {
        let left = text::seconds(self.seconds_left.ceil() as u64);
        writeln!(out, "reverted in {left} unless `limiter confirm` comes before")
    }
}

/// What every change tells beside its own outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound(serialize = "R: Serialize", deserialize = "R: DeserializeOwned"))]
pub struct Applied<R: Rule> {
    /// What would change; only where nothing was changed because of `--dry-run`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<Diff<R>>,
    /// The confirmation that is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm: Option<PendingReport>,
    /// What the operator should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl<R: Rule> Default for Applied<R> {
    fn default() -> Self {
        Self { dry_run: None, confirm: None, warnings: Vec::new() }
    }
}

impl<R: Rule> Applied<R> {
    /// Writes a dry run's differences and says that it was one. Returns whether it was one.
    fn print_dry_run(&self, out: &mut dyn Write) -> io::Result<bool> {
        let Some(diff) = &self.dry_run else { return Ok(false) };
        diff.print(out)?;
        writeln!(out, "{}; dry run, nothing was changed", diff.summary())?;
        Ok(true)
    }

    /// Writes what was `done` and what is waited for, or what would change if it was a dry run.
    pub(super) fn print(
        &self,
        out: &mut dyn Write,
        done: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        if self.print_dry_run(out)? {
            return Ok(());
        }
        done(out)?;
        self.confirm.as_ref().map_or(Ok(()), |confirm| confirm.print_left(out))
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
    use crate::{DiffReport, LimitReport};
    use model::Limit;

    fn limit(target: &str, rate: &str) -> Option<LimitReport> {
        let limit = Limit::new(target.parse().unwrap(), rate.parse().unwrap(), None).unwrap();
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
        assert!(!Applied::<LimitReport>::default().print_dry_run(&mut Vec::new()).unwrap());
    }
}
