//! What limits that are tried would have dropped.

use std::io::{self, Write};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{LimitReport, Print, text};
use model::target::short_prefix;
use model::{Rate, Target};

/// `limit try`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialStarted {
    /// What is tried.
    pub trying: LimitReport,
}

impl Print for TrialStarted {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { trying } = self;
        writeln!(
            out,
            "trying {} for {}: nothing is dropped by it",
            trying.summary(),
            trying.target.short()
        )?;
        writeln!(out, "`limiter limit trials` tells what it would drop")
    }
}

/// `limit try --stop`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialStopped {
    /// For whom nothing is tried any more.
    pub stopped: Target,
}

impl Print for TrialStopped {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "nothing is tried for {} any more", self.stopped.short())
    }
}

/// A source that would have lost something.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialSource {
    /// The source.
    pub source: IpNet,
    /// Packets that it has sent.
    pub packets: u64,
    /// Of those, how many would have been dropped.
    pub would_drop: u64,
    /// That part, 0 to 1.
    pub share: f64,
}

impl TrialSource {
    /// A source that has sent `packets`, of which the limit that is tried would have dropped some.
    pub fn new(source: IpNet, packets: u64, would_drop: u64) -> Self {
        Self { source, packets, would_drop, share: Self::share(packets, would_drop) }
    }

    /// Which part of `packets` would have been dropped, 0 to 1.
    pub fn share(packets: u64, would_drop: u64) -> f64 {
        if packets == 0 { 0.0 } else { would_drop as f64 / packets as f64 }
    }
}

/// A limit that is tried, and what it would have dropped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialReport {
    /// For whom and for which packets.
    pub target: Target,
    /// The rate that is tried.
    pub rate: Rate,
    /// Its burst.
    pub burst: String,
    /// The limit that is in force for this very target.
    pub in_force: Option<LimitReport>,
    /// Since when, RFC 3339.
    pub since: String,
    /// For how long.
    pub seconds: f64,
    /// Sources that have sent enough to be looked at one by one.
    pub sources: u64,
    /// Of those, how many would have lost something.
    pub limited: u64,
    /// Packets of those sources.
    pub packets: u64,
    /// Of those, how many would have been dropped.
    pub would_drop: u64,
    /// That part, 0 to 1.
    pub share: f64,
    /// Who would have lost most.
    pub most: Vec<TrialSource>,
}

/// `limit trials`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialsReport {
    /// Each limit that is tried.
    pub trials: Vec<TrialReport>,
}

impl Print for TrialsReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.trials.is_empty() {
            return writeln!(out, "nothing is tried; `limiter limit try 500pps` would");
        }
        for (place, trial) in self.trials.iter().enumerate() {
            if place > 0 {
                writeln!(out)?;
            }
            let TrialReport { rate, burst, packets, would_drop, sources, limited, .. } = trial;
            let target = trial.target.short();
            writeln!(out, "trying     {rate} burst {burst} ({target})")?;
            let in_force = trial.in_force.as_ref().map(LimitReport::summary);
            writeln!(
                out,
                "in force   {}",
                in_force.as_deref().unwrap_or("no limit for this target")
            )?;
            writeln!(out, "since      {} ({:.0} s)", trial.since, trial.seconds)?;
            writeln!(out, "sources    {limited} of {sources} would have lost something")?;
            let share = 100.0 * trial.share;
            writeln!(
                out,
                "packets    {would_drop} of {packets} would have been dropped ({share:.1} %)"
            )?;
            if trial.most.is_empty() {
                continue;
            }
            let mut table = text::table(&["SOURCE", "PACKETS", "WOULD DROP", "SHARE"], 1);
            for source in &trial.most {
                table.add_row([
                    short_prefix(&source.source),
                    source.packets.to_string(),
                    source.would_drop.to_string(),
                    format!("{:.1} %", 100.0 * source.share),
                ]);
            }
            writeln!(out, "{}", table.trim_fmt())?;
        }
        Ok(())
    }
}
