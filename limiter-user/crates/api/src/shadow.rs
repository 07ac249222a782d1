//! What shadow limits would have dropped.

use std::io::{self, Write};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::limit::amount;
use super::{LimitReport, Print, text};
use model::target::short_prefix;
use model::{Algorithm, Rate, Target};

/// `limit shadow set`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShadowSet {
    /// The limit.
    // The key keeps its first name: scripts read it.
    #[serde(rename = "trying")]
    pub shadow: LimitReport,
}

impl Print for ShadowSet {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { shadow } = self;
        writeln!(
            out,
            "shadow limit {} for {}: nothing is dropped by it",
            shadow.summary(),
            shadow.target.short()
        )?;
        writeln!(out, "`limiter limit shadow list` shows what it would drop")
    }
}

/// `limit shadow unset`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShadowUnset {
    /// Its target.
    pub stopped: Target,
}

impl Print for ShadowUnset {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "no shadow limit for {} any more", self.stopped.short())
    }
}

/// A source that would have lost something.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShadowSource {
    /// The source, cut to its prefix.
    pub source: IpNet,
    /// Packets that it has sent.
    pub packets: u64,
    /// Of those, how many would have been dropped.
    pub would_drop: u64,
    /// That part, 0 to 1.
    pub share: f64,
}

impl ShadowSource {
    /// A source that has sent `packets`, of which the shadow limit would have dropped some.
    pub fn new(source: IpNet, packets: u64, would_drop: u64) -> Self {
        Self { source, packets, would_drop, share: Self::share(packets, would_drop) }
    }

    /// Which part of `packets` would have been dropped, 0 to 1.
    pub fn share(packets: u64, would_drop: u64) -> f64 {
        // A shadow limit that no source has met yet is shown, too, and NaN is no JSON.
        if packets == 0 { 0.0 } else { would_drop as f64 / packets as f64 }
    }
}

/// A shadow limit, and what it would have dropped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShadowReport {
    /// For whom and for which packets.
    pub target: Target,
    /// Its rate in the largest exact unit.
    pub rate: Rate,
    /// Its burst as it is written.
    pub burst: String,
    /// How it is kept.
    #[serde(default, skip_serializing_if = "Algorithm::is_bucket")]
    pub algorithm: Algorithm,
    /// The limit that is in force for this very target.
    pub in_force: Option<LimitReport>,
    /// Since when, RFC 3339.
    pub since: String,
    /// For how long.
    pub seconds: f64,
    /// Sources that have sent enough to be looked at one by one.
    // Sources below the gate have no bucket, and the shadow does not see them. So all counts are
    // of a part.
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
    pub most: Vec<ShadowSource>,
}

/// `limit shadow list`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShadowsReport {
    /// Each of them.
    // As above.
    #[serde(rename = "trials")]
    pub shadows: Vec<ShadowReport>,
}

impl Print for ShadowsReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.shadows.is_empty() {
            return writeln!(out, "no shadow limits; `limiter limit shadow set 500pps` sets one");
        }
        for (place, shadow) in self.shadows.iter().enumerate() {
            if place > 0 {
                writeln!(out)?;
            }
            let ShadowReport { rate, burst, packets, would_drop, sources, limited, .. } = shadow;
            let target = shadow.target.short();
            let amount = amount(&rate.to_string(), burst, None, shadow.algorithm);
            writeln!(out, "shadow     {amount} ({target})")?;
            let in_force = shadow.in_force.as_ref().map(LimitReport::summary);
            writeln!(
                out,
                "in force   {}",
                in_force.as_deref().unwrap_or("no limit for this target")
            )?;
            writeln!(out, "since      {} ({:.0} s)", shadow.since, shadow.seconds)?;
            writeln!(out, "sources    {limited} of {sources} would have lost something")?;
            let share = 100.0 * shadow.share;
            writeln!(
                out,
                "packets    {would_drop} of {packets} would have been dropped ({share:.1} %)"
            )?;
            if shadow.most.is_empty() {
                continue;
            }
            let mut table = text::table(&["SOURCE", "PACKETS", "WOULD DROP", "SHARE"], 1);
            for source in &shadow.most {
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
