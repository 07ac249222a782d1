//! Limits.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::{Applied, Print, text};
use crate::policy::{LimitSpec, Rate, Target, Unit};

/// Where a limit comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitOrigin {
    /// It was set at run time, and is stored.
    #[default]
    Runtime,
    /// The configuration file has it.
    File,
}

impl LimitOrigin {
    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Runtime => "runtime",
            Self::File => "file",
        }
    }
}

/// A limit as it is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitReport {
    /// Whom it is for: `default` or a prefix.
    pub target: Target,
    /// The rate in its largest exact unit.
    pub rate: Rate,
    /// The burst as it is written.
    pub burst: String,
    /// Packets or bytes per second.
    pub rate_per_second: f64,
    /// Packets or bytes at once.
    pub burst_amount: u64,
    /// What is counted.
    pub unit: Unit,
    /// Packets in a sketch window below which a source needs no bucket.
    pub gate: u32,
    /// Whether what is over it is dropped, rather than only counted.
    pub enforce: bool,
    /// Where it comes from.
    #[serde(default)]
    pub origin: LimitOrigin,
}

impl LimitReport {
    /// Tells `limit`, which was set at run time and whose gate is `gate`.
    pub fn new(limit: &LimitSpec, gate: u32) -> Self {
        Self {
            target: limit.target,
            rate: limit.rate,
            burst: limit.burst_text(),
            rate_per_second: limit.rate.per_second(),
            burst_amount: limit.burst,
            unit: limit.unit(),
            gate,
            enforce: limit.enforce,
            origin: LimitOrigin::Runtime,
        }
    }

    /// The limit in a few words.
    pub fn summary(&self) -> String {
        let enforced = if self.enforce { "" } else { ", not enforced" };
        format!("{} burst {}{enforced}", self.rate, self.burst)
    }
}

/// `limit import`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitsImported {
    /// Limits in the list.
    pub read: u64,
    /// Of those, new or different from before.
    pub changed: u64,
    /// What every change tells.
    #[serde(flatten)]
    pub applied: Applied,
}

impl Print for LimitsImported {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.applied.print_dry_run(out)? {
            return Ok(());
        }
        writeln!(out, "{} limits read, {} new or changed", self.read, self.changed)?;
        self.applied.print_confirm(out)
    }
}

/// `limit list`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitList {
    /// All limits, the default first.
    pub limits: Vec<LimitReport>,
}

impl Print for LimitList {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.limits.is_empty() {
            return writeln!(out, "no limits are set");
        }
        let mut table = text::table(&["TARGET", "RATE", "BURST", "GATE", "ENFORCED", "FROM"], 1);
        for limit in &self.limits {
            table.add_row([
                limit.target.short(),
                limit.rate.to_string(),
                limit.burst.clone(),
                limit.gate.to_string(),
                if limit.enforce { "yes" } else { "no" }.to_owned(),
                limit.origin.name().to_owned(),
            ]);
        }
        writeln!(out, "{}", table.trim_fmt())
    }
}

/// `limit set`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitSet {
    /// The limit in force now.
    pub limit: LimitReport,
    /// Whether it was another one before.
    pub changed: bool,
    /// What every change tells.
    #[serde(flatten)]
    pub applied: Applied,
}

impl Print for LimitSet {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.applied.print_dry_run(out)? {
            return Ok(());
        }
        let note = if self.changed { "" } else { " (as before)" };
        writeln!(out, "{}: {}{note}", self.limit.target.short(), self.limit.summary())?;
        self.applied.print_confirm(out)
    }
}

/// `limit unset`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitRemoved {
    /// The limit that was in force.
    pub removed: LimitReport,
    /// What every change tells.
    #[serde(flatten)]
    pub applied: Applied,
}

impl Print for LimitRemoved {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.applied.print_dry_run(out)? {
            return Ok(());
        }
        writeln!(out, "{}: removed {}", self.removed.target.short(), self.removed.summary())?;
        self.applied.print_confirm(out)
    }
}
