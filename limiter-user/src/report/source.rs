//! Sources: one of them, and the heaviest.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use clap::ValueEnum;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{LimitReport, ListEntry, Print, text};
use crate::dataplane::{Source, SourceState};
use crate::policy::Unit;
use crate::policy::lists::Action;
use crate::policy::model::short_prefix;

fn state_name(state: SourceState) -> &'static str {
    match state {
        SourceState::Light => "light",
        SourceState::Conforming => "conforming",
        SourceState::Limited => "limited",
    }
}

fn moment(at: Option<SystemTime>) -> Option<String> {
    at.map(text::time)
}

/// `show IP`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourceReport {
    /// The source that the address belongs to.
    pub source: IpNet,
    /// Whether it has a bucket.
    pub tracked: bool,
    /// `limited` (dropped within the last second), `conforming`, or `light` (without a bucket).
    pub state: SourceState,
    /// The limit in force for it.
    pub limit: Option<LimitReport>,
    /// The management addresses that it belongs to, for which no limit applies.
    pub management: Option<IpNet>,
    /// Packets or bytes it may send at once.
    pub tokens: Option<f64>,
    /// Packets in the sketch's window.
    pub estimate: u32,
    /// Packets passed since it got its bucket.
    pub passed: u64,
    /// Packets dropped since then.
    pub dropped: u64,
    /// Bytes offered since then.
    pub bytes: u64,
    /// When it got its bucket, RFC 3339.
    pub first_seen: Option<String>,
    /// Its last packet, RFC 3339.
    pub last_seen: Option<String>,
    /// What the allow or deny list says of it, which goes before its limit.
    #[serde(default)]
    pub listed: Option<ListEntry>,
}

impl SourceReport {
    /// Tells `source`, the gate of whose limit is `gate`.
    pub fn new(source: &Source, gate: u32) -> Self {
        Self {
            source: source.source,
            tracked: source.state != SourceState::Light,
            state: source.state,
            limit: source.limit.as_ref().map(|limit| LimitReport::new(limit, gate)),
            management: None,
            tokens: source.tokens,
            estimate: source.estimate,
            passed: source.passed,
            dropped: source.dropped,
            bytes: source.bytes,
            first_seen: moment(source.first_seen),
            last_seen: moment(source.last_seen),
            listed: None,
        }
    }
}

impl Print for SourceReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "source     {}", short_prefix(&self.source))?;
        if let Some(entry) = &self.listed {
            let fate = match entry.action {
                Action::Allow => "allowed, whatever it sends",
                Action::Deny => "denied, whatever it sends",
            };
            writeln!(out, "listed     {fate} ({})", short_prefix(&entry.target))?;
            writeln!(out, "           {}", entry.summary())?;
        }
        writeln!(out, "state      {}", state_name(self.state))?;
        match &self.limit {
            Some(limit) => {
                writeln!(out, "limit      {} ({})", limit.summary(), limit.target.short())?;
            }
            None => match &self.management {
                Some(net) => writeln!(out, "limit      none, management ({})", short_prefix(net))?,
                None => writeln!(out, "limit      none")?,
            },
        }
        if !self.tracked {
            return writeln!(out, "estimate   {} packets in the window, no bucket", self.estimate);
        }
        if let (Some(tokens), Some(limit)) = (self.tokens, &self.limit) {
            let unit = if limit.unit == Unit::Packets { "packets" } else { "bytes" };
            writeln!(out, "tokens     {tokens:.1} of {} {unit}", limit.burst_amount)?;
        }
        writeln!(out, "passed     {} packets", self.passed)?;
        writeln!(out, "dropped    {} packets", self.dropped)?;
        writeln!(out, "offered    {} bytes", self.bytes)?;
        for (name, at) in [("first seen", &self.first_seen), ("last seen ", &self.last_seen)] {
            if let Some(at) = at {
                writeln!(out, "{name} {at}")?;
            }
        }
        Ok(())
    }
}

/// What `top` sorts by, the most first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sort {
    /// Packets dropped.
    #[default]
    Dropped,
    /// Packets per second at present.
    Pps,
    /// Packets passed and dropped.
    Packets,
    /// Bytes offered.
    Bytes,
}

impl Sort {
    /// The name in options and queries.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dropped => "dropped",
            Self::Pps => "pps",
            Self::Packets => "packets",
            Self::Bytes => "bytes",
        }
    }
}

/// A line of `top`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopEntry {
    /// The source.
    pub source: IpNet,
    /// As in [`SourceReport::state`].
    pub state: SourceState,
    /// The limit in force for it.
    pub limit: Option<LimitReport>,
    /// Packets passed since it got its bucket.
    pub passed: u64,
    /// Packets dropped since then.
    pub dropped: u64,
    /// Bytes offered since then.
    pub bytes: u64,
    /// When it got its bucket, RFC 3339.
    pub first_seen: Option<String>,
    /// Its last packet, RFC 3339.
    pub last_seen: Option<String>,
    /// Packets per second since an earlier look; where there was none in the last ten seconds, on
    /// average since it got its bucket.
    pub pps: f64,
    /// How long a time `pps` is the average of, seconds.
    pub pps_seconds: f64,
}

/// Packets per second, over some time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Average {
    pps: f64,
    seconds: f64,
}

impl Average {
    /// The average of `packets` in `time`, which must not be zero.
    pub fn new(packets: u64, time: Duration) -> Self {
        let seconds = time.as_secs_f64();
        Self { pps: packets as f64 / seconds, seconds }
    }
}

impl TopEntry {
    /// Tells `source`, the gate of whose limit is `gate`, and its rate.
    pub fn new(source: &Source, gate: u32, average: Average) -> Self {
        Self {
            source: source.source,
            state: source.state,
            limit: source.limit.as_ref().map(|limit| LimitReport::new(limit, gate)),
            passed: source.passed,
            dropped: source.dropped,
            bytes: source.bytes,
            first_seen: moment(source.first_seen),
            last_seen: moment(source.last_seen),
            pps: average.pps,
            pps_seconds: average.seconds,
        }
    }
}

/// `top --once`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopReport {
    /// The heaviest sources.
    pub sources: Vec<TopEntry>,
    /// Sources with a bucket, these among them.
    pub tracked: u64,
}

impl Print for TopReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        if !self.sources.is_empty() {
            let header = ["SOURCE", "STATE", "LIMIT", "PPS", "PASSED", "DROPPED", "BYTES"];
            let mut table = text::table(&header, 3);
            for entry in &self.sources {
                table.add_row([
                    short_prefix(&entry.source),
                    state_name(entry.state).to_owned(),
                    entry.limit.as_ref().map_or("none".into(), |limit| limit.rate.to_string()),
                    format!("{:.0}", entry.pps),
                    entry.passed.to_string(),
                    entry.dropped.to_string(),
                    entry.bytes.to_string(),
                ]);
            }
            writeln!(out, "{}", table.trim_fmt())?;
        }
        writeln!(out, "{} of {} tracked sources", self.sources.len(), self.tracked)
    }
}
