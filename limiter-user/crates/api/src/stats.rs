//! Counters.

use std::collections::BTreeMap;
use std::io::{self, Write};

use limiter_common::abi::{Counters, Internal, Reason};
use serde::{Deserialize, Serialize};

use super::{Print, text};
use model::digest::Percentiles;
use telemetry::{Latency, Recorder};

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TallyReport {
    /// Packets.
    pub packets: u64,
    /// Bytes, without the frame check sequence.
    pub bytes: u64,
}

/// The packets of one verdict and reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterReport {
    /// `pass` or `drop`.
    pub verdict: String,
    /// Why, as metrics and `capture --reason` call it.
    pub reason: String,
    /// Packets.
    pub packets: u64,
    /// Bytes, without the frame check sequence.
    pub bytes: u64,
}

/// How long one kind of the control plane's work has taken since the daemon started.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyReport {
    /// How often it was done.
    pub count: u64,
    /// What it took, seconds.
    #[serde(flatten)]
    pub seconds: Percentiles,
}

/// `stats`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatsReport {
    /// Every verdict and reason; every packet is in exactly one of them.
    pub counters: Vec<CounterReport>,
    /// Their sum: every frame that the program has judged.
    pub total: TallyReport,
    /// What happened beside verdicts.
    pub internal: BTreeMap<String, u64>,
    /// How long the control plane takes: `core_wait` until the daemon's core is free, `core_work` while it
    /// is in use, `request` from a request to its answer. No packet waits for any of it.
    #[serde(default)]
    pub latency: BTreeMap<String, LatencyReport>,
}

impl StatsReport {
    /// Tells `counters`.
    pub fn new(counters: &Counters) -> Self {
        let mut total = TallyReport::default();
        let rows = Reason::ALL.map(|reason| {
            // By discriminant, which is what the kernel program counts under.
            let tally = counters.verdicts[reason as usize];
            // The sum is made of the same rows as are shown (P5): a counter read apart would
            // differ while packets come.
            total.packets += tally.packets;
            total.bytes += tally.bytes;
            CounterReport {
                verdict: if reason.passes() { "pass" } else { "drop" }.into(),
                reason: reason.name().into(),
                packets: tally.packets,
                bytes: tally.bytes,
            }
        });
        let internal = Internal::ALL
            .iter()
            .map(|(internal, name)| ((*name).to_owned(), counters.internal[*internal as usize]))
            .collect();
        Self { counters: rows.into(), total, internal, latency: BTreeMap::new() }
    }

    /// Leaves out what is zero. The total stays that of all packets.
    #[must_use]
    pub fn nonzero(mut self) -> Self {
        self.counters.retain(|row| row.packets > 0);
        self.internal.retain(|_, count| *count > 0);
        self
    }

    /// Adds what the control plane takes.
    #[must_use]
    pub fn with(mut self, latency: &Latency) -> Self {
        let kinds: [(&str, &Recorder); 3] = [
            ("core_wait", latency.waiting()),
            ("core_work", latency.working()),
            ("request", latency.requests()),
        ];
        for (name, recorder) in kinds {
            // A kind without a measurement has no percentiles, and zeros would look like very fast
            // ones.
            if let Some((count, seconds)) = recorder.percentiles() {
                self.latency.insert(name.into(), LatencyReport { count, seconds });
            }
        }
        self
    }
}

impl Print for StatsReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = text::table(&["VERDICT", "REASON", "PACKETS", "BYTES"], 2);
        for row in &self.counters {
            table.add_row([
                row.verdict.clone(),
                row.reason.clone(),
                row.packets.to_string(),
                row.bytes.to_string(),
            ]);
        }
        table.add_row([
            "total".to_owned(),
            String::new(),
            self.total.packets.to_string(),
            self.total.bytes.to_string(),
        ]);
        writeln!(out, "{}", table.trim_fmt())?;
        let mut table = text::table(&["INTERNAL", "COUNT"], 1);
        for (name, count) in &self.internal {
            table.add_row([name.clone(), count.to_string()]);
        }
        if !self.internal.is_empty() {
            writeln!(out, "\n{}", table.trim_fmt())?;
        }
        if self.latency.is_empty() {
            return Ok(());
        }
        let header = ["CONTROL PLANE (ms)", "COUNT", "P50", "P90", "P99", "P99.9", "MAX"];
        let mut table = text::table(&header, 1);
        for (name, LatencyReport { count, seconds }) in &self.latency {
            let Percentiles { p50, p90, p99, p999, max } = *seconds;
            let mut row = vec![name.clone(), count.to_string()];
            row.extend([p50, p90, p99, p999, max].map(|seconds| format!("{:.3}", 1e3 * seconds)));
            table.add_row(row);
        }
        writeln!(out, "\n{}", table.trim_fmt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_told_and_summed() {
        let mut counters = Counters::default();
        for (i, tally) in counters.verdicts.iter_mut().enumerate().take(Reason::ALL.len()) {
            tally.packets = 1 << i;
            tally.bytes = 64 << i;
        }
        counters.internal[Internal::Evictions as usize] = 7;
        let report = StatsReport::new(&counters);
        assert_eq!(report.counters.len(), Reason::ALL.len());
        let all = (1 << Reason::ALL.len()) - 1;
        assert_eq!(report.total, TallyReport { packets: all, bytes: all * 64 });
        assert_eq!(report.internal["evictions"], 7);
        let over = report.counters.iter().find(|row| row.reason == "over_limit").unwrap();
        assert_eq!((over.verdict.as_str(), over.packets), ("drop", 256));
        let latency = Latency::default();
        latency.requests().record(std::time::Duration::from_millis(3));
        let report = report.with(&latency);
        let mut text = Vec::new();
        report.print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("request") && text.contains("3.000"), "{text}");
        assert!(!text.contains("core_work"), "nothing was done there");
        let full: Vec<_> = report.counters.iter().filter(|row| row.reason == "set_full").collect();
        assert_eq!((full[0].verdict.as_str(), full[1].verdict.as_str()), ("pass", "drop"));
        let mut counters = Counters::default();
        counters.verdicts[Reason::ALL[0] as usize].packets = 3;
        let few = StatsReport::new(&counters).nonzero();
        assert_eq!((few.counters.len(), few.internal.len(), few.total.packets), (1, 0, 3));
        let mut text = Vec::new();
        few.print(&mut text).unwrap();
        assert_eq!(String::from_utf8(text).unwrap().lines().count(), 3);
    }
}
