//! Counters.

use std::collections::BTreeMap;
use std::io::{self, Write};

use limiter_common::abi::{Counters, Internal, Reason};
use serde::{Deserialize, Serialize};

use super::{Print, text};

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
    /// Why.
    pub reason: String,
    /// Packets.
    pub packets: u64,
    /// Bytes, without the frame check sequence.
    pub bytes: u64,
}

/// `stats`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatsReport {
    /// Every verdict and reason; every packet is in exactly one of them.
    pub counters: Vec<CounterReport>,
    /// Their sum.
    pub total: TallyReport,
    /// What happened beside verdicts.
    pub internal: BTreeMap<String, u64>,
}

impl StatsReport {
    /// Tells `counters`.
    pub fn new(counters: &Counters) -> Self {
        let mut total = TallyReport::default();
        let rows = Reason::ALL.map(|reason| {
            let tally = counters.verdicts[reason as usize];
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
        Self { counters: rows.into(), total, internal }
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
        writeln!(out, "{}\n", table.trim_fmt())?;
        let mut table = text::table(&["INTERNAL", "COUNT"], 1);
        for (name, count) in &self.internal {
            table.add_row([name.clone(), count.to_string()]);
        }
        writeln!(out, "{}", table.trim_fmt())
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
        assert_eq!(report.total, TallyReport { packets: 16_383, bytes: 16_383 * 64 });
        assert_eq!(report.internal["evictions"], 7);
        let over = report.counters.iter().find(|row| row.reason == "over_limit").unwrap();
        assert_eq!((over.verdict.as_str(), over.packets), ("drop", 256));
        let full: Vec<_> = report.counters.iter().filter(|row| row.reason == "set_full").collect();
        assert_eq!((full[0].verdict.as_str(), full[1].verdict.as_str()), ("pass", "drop"));
    }
}
