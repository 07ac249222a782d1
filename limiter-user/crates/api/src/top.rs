//! The heaviest sources.

use model::traffic::Totals;
use std::io::{self, Write};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::source::{Average, moment};
use super::{LimitReport, Print, Terminal, text};
use model::Class;
use model::Distinct;
use model::source::{Source, SourceState};
use model::target::short_prefix;

/// A line of `top`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopEntry {
    /// The source, cut to its prefix.
    pub source: IpNet,
    /// Whether it is a group: a prefix whose sources without a bucket are limited together.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub group: bool,
    /// As in [`super::SourceReport::class`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
    /// As in [`super::SourceReport::state`].
    pub state: SourceState,
    /// The limit in force for it.
    pub limit: Option<LimitReport>,
    /// Packets passed since it got its bucket.
    pub passed: u64,
    /// Packets dropped since then.
    pub dropped: u64,
    /// Bytes offered since then.
    pub bytes: u64,
    /// What `passed` may be too low by: packets that passed below the gate in the two windows of the
    /// sketch before the source got its bucket. What it sent below the gate before that is not counted
    /// by source.
    #[serde(default)]
    pub uncounted: u64,
    /// When it got its bucket, RFC 3339.
    pub first_seen: Option<String>,
    /// Its last packet, RFC 3339.
    pub last_seen: Option<String>,
    /// Packets per second in the last moments, 5 s at the most.
    pub pps: f64,
    /// Bits per second, likewise; give or take 16 bytes in all.
    #[serde(default)]
    pub bps: f64,
    /// How long a time the rates are the average of, seconds.
    pub pps_seconds: f64,
    /// When it got its bucket, ns since boot: two counts with different ones are of different buckets.
    // For comparisons within the daemon alone: a bucket's slot is used again, and its counts begin
    // anew.
    #[serde(skip)]
    pub since_ns: u64,
}

impl TopEntry {
    /// Whether packets of it were dropped, not only counted as what a limit would have dropped.
    pub fn has_lost(&self) -> bool {
        // Under a limit that is not enforced a bucket counts drops that were none.
        self.dropped > 0 && self.limit.as_ref().is_none_or(|limit| limit.enforce)
    }

    /// The packets that it is about, as tables have them.
    pub fn class_name(&self) -> String {
        if self.group { "group".into() } else { self.class.unwrap_or_default().to_string() }
    }

    /// Tells `source`, the gate of whose limit is `gate`, and its rates.
    pub fn new(source: &Source, gate: u32, average: Average) -> Self {
        Self {
            source: source.source,
            group: source.is_group,
            class: (!source.class.is_any()).then_some(source.class),
            state: source.state,
            limit: source.limit.as_ref().map(|limit| LimitReport::new(limit, gate)),
            passed: source.passed,
            dropped: source.dropped,
            bytes: source.bytes,
            // Each of the two windows that an estimate is made from can hold all but one of the gate.
            uncounted: 2 * u64::from(gate.saturating_sub(1)),
            first_seen: moment(source.first_seen),
            last_seen: moment(source.last_seen),
            pps: average.pps,
            bps: average.bps,
            pps_seconds: average.seconds,
            since_ns: source.since_ns,
        }
    }
}

/// `top`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopReport {
    /// The heaviest sources, in the order of `sort`.
    pub sources: Vec<TopEntry>,
    /// Sources with a bucket, these among them.
    pub tracked: u64,
    /// How long ago the heaviest were found, seconds; what is told of each is of the present.
    #[serde(default)]
    pub age_seconds: f64,
    /// What all sources together got since an earlier look, if there was one.
    #[serde(default)]
    pub totals: Option<Totals>,
    /// Distinct sources in the last full window, if that is counted.
    #[serde(default)]
    pub distinct: Option<Distinct>,
}

impl Print for TopReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        self.print_on(out, None)
    }

    fn print_on(&self, out: &mut dyn Write, terminal: Option<&Terminal>) -> io::Result<()> {
        if !self.sources.is_empty() {
            let [first, last] = text::seen_headers(terminal);
            // The ranks are those of the live list.
            let columns = [
                ("SOURCE", text::KEEP),
                ("CLASS", 10),
                ("STATE", 3),
                ("LIMIT", 6),
                (first, 9),
                (last, 8),
                ("PPS", 2),
                ("BITS/S", 4),
                ("PASSED", 5),
                ("ERROR", 7),
                ("DROPPED", 1),
                ("BYTES", 11),
            ];
            let row = |entry: &TopEntry| {
                [
                    short_prefix(&entry.source),
                    entry.class_name(),
                    entry.state.name().to_owned(),
                    entry.limit.as_ref().map_or("none".into(), LimitReport::rates),
                    text::since(entry.first_seen.as_ref(), terminal),
                    text::since(entry.last_seen.as_ref(), terminal),
                    format!("{:.0}", entry.pps),
                    text::si(entry.bps),
                    entry.passed.to_string(),
                    // One-sided: a bucket counts each packet after its promotion, so it can only
                    // have missed earlier ones.
                    format!("+{}", entry.uncounted),
                    entry.dropped.to_string(),
                    entry.bytes.to_string(),
                ]
            };
            let rows = self.sources.iter().map(row);
            writeln!(out, "{}", text::fitted(&columns, 6, rows, terminal))?;
        }
        write!(out, "{} of {} tracked sources", self.sources.len(), self.tracked)?;
        if let Some(totals) = &self.totals {
            let Totals { passed_pps, dropped_pps, .. } = totals;
            write!(out, ", {passed_pps:.0} packets/s passed, {dropped_pps:.0} dropped")?;
        }
        if let Some(distinct) = &self.distinct {
            write!(out, ", {}", distinct.summary())?;
        }
        writeln!(out)
    }
}
