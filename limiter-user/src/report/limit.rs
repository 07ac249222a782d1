//! Limits.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::{Print, text};
use crate::policy::{LimitSpec, Rate, Target, Unit};

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
}

impl LimitReport {
    /// Tells `limit`, whose gate is `gate`.
    pub fn new(limit: &LimitSpec, gate: u32) -> Self {
        Self {
            target: limit.target,
            rate: limit.rate,
            burst: limit.burst_text(),
            rate_per_second: limit.rate.per_second(),
            burst_amount: limit.burst,
            unit: limit.unit(),
            gate,
        }
    }

    /// The limit in a few words.
    pub fn summary(&self) -> String {
        format!("{} burst {}", self.rate, self.burst)
    }
}

/// `limit import`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitsImported {
    /// Limits in the list.
    pub read: u64,
    /// Of those, new or different from before.
    pub changed: u64,
}

impl Print for LimitsImported {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{} limits read, {} new or changed", self.read, self.changed)
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
        let mut table = text::table(&["TARGET", "RATE", "BURST", "GATE"], 1);
        for limit in &self.limits {
            table.add_row([
                limit.target.short(),
                limit.rate.to_string(),
                limit.burst.clone(),
                limit.gate.to_string(),
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
}

impl Print for LimitSet {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let note = if self.changed { "" } else { " (as before)" };
        writeln!(out, "{}: {}{note}", self.limit.target.short(), self.limit.summary())
    }
}

/// `limit unset`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitRemoved {
    /// The limit that was in force.
    pub removed: LimitReport,
}

impl Print for LimitRemoved {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}: removed {}", self.removed.target.short(), self.removed.summary())
    }
}
