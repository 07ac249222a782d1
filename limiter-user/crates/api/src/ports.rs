//! What packets are for: the heaviest destination ports.

use std::collections::HashMap;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::{Print, text};
use model::Class;

/// What was seen of packets to a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Samples of packets that passed.
    pub passed: u64,
    /// Samples of packets that were dropped.
    pub dropped: u64,
    /// Bytes of both.
    pub bytes: u64,
}

/// A line of `top --by port`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortEntry {
    /// Protocol and destination port, as `limit set` would have them; without a port where the protocol has
    /// none, or a later fragment does not tell it.
    pub port: Class,
    /// Packets per second, estimated.
    pub pps: f64,
    /// The standard error of that: of samples, as many are of other ports by chance.
    pub pps_error: f64,
    /// Bits per second, estimated.
    pub bps: f64,
    /// The share of its packets that was dropped, 0 to 1.
    pub dropped: f64,
    /// The share of all packets that are for it, 0 to 1.
    pub share: f64,
}

/// `top --by port`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortsReport {
    /// The heaviest, by packets per second.
    pub ports: Vec<PortEntry>,
    /// How many were seen.
    pub known: u64,
    /// Packets that were looked at.
    pub samples: u64,
    /// Of so many.
    pub packets: u64,
    /// In this time, s.
    pub seconds: f64,
}

impl PortsReport {
    /// The `n` heaviest of what samples were of, taken evenly out of `packets` in `seconds`.
    pub fn new(seen: &HashMap<Class, PortCounts>, packets: u64, seconds: f64, n: usize) -> Self {
        let count = |seen: &PortCounts| seen.passed + seen.dropped;
        let samples: u64 = seen.values().map(count).sum();
        // Samples are taken by chance, so each stands for as many packets as there are to a sample.
        let each = if samples > 0 && seconds > 0.0 {
            packets as f64 / samples as f64 / seconds
        } else {
            0.0
        };
        let mut ports: Vec<_> = seen
            .iter()
            .map(|(port, seen)| {
                let number = count(seen) as f64;
                let share = number / samples as f64;
                PortEntry {
                    port: *port,
                    pps: number * each,
                    // Of a binomial distribution; nothing if all packets were looked at.
                    pps_error: if packets > samples {
                        (number * (1.0 - share)).sqrt() * each
                    } else {
                        0.0
                    },
                    bps: 8.0 * seen.bytes as f64 * each,
                    dropped: seen.dropped as f64 / number,
                    share,
                }
            })
            .collect();
        // As in `groups`: equal ones keep their order.
        ports.sort_by(|a, b| b.pps.total_cmp(&a.pps).then(a.port.cmp(&b.port)));
        // Counted before the list is cut, or every answer would claim to be complete.
        let known = ports.len() as u64;
        ports.truncate(n);
        Self { ports, known, samples, packets, seconds }
    }
}

impl Print for PortsReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { ports, known, samples, packets, seconds } = self;
        if !ports.is_empty() {
            let header = ["PORT", "PPS", "±", "BITS/S", "SHARE", "DROPPED"];
            let mut table = text::table(&header, 1);
            for entry in ports {
                table.add_row([
                    entry.port.to_string(),
                    format!("{:.0}", entry.pps),
                    format!("{:.0}", entry.pps_error),
                    text::si(entry.bps),
                    format!("{:.1} %", 100.0 * entry.share),
                    format!("{:.1} %", 100.0 * entry.dropped),
                ]);
            }
            writeln!(out, "{}", table.trim_fmt())?;
        }
        let shown = ports.len();
        writeln!(
            out,
            "{shown} of {known} ports, {samples} samples of {packets} packets in {seconds:.1} s"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_stand_for_all_packets() {
        let class = |text: &str| text.parse::<Class>().unwrap();
        let seen = HashMap::from([
            (class("udp:53"), PortCounts { passed: 100, dropped: 300, bytes: 40_000 }),
            (class("icmp"), PortCounts { passed: 600, dropped: 0, bytes: 60_000 }),
        ]);
        let report = PortsReport::new(&seen, 10_000, 2.0, 1);
        assert_eq!((report.known, report.samples, report.ports.len()), (2, 1000, 1));
        let icmp = &report.ports[0];
        assert_eq!(
            (icmp.port, icmp.pps, icmp.dropped, icmp.share),
            (class("icmp"), 3000.0, 0.0, 0.6)
        );
        assert_eq!(icmp.bps, 8.0 * 60_000.0 * 10.0 / 2.0);
        let whole = PortsReport::new(&seen, 1000, 2.0, 5);
        assert_eq!((whole.ports[1].dropped, whole.ports[1].pps_error), (0.75, 0.0));
        // √(600 · 0.4) samples, of which each stands for 5 packets per second.
        assert!((icmp.pps_error - 240f64.sqrt() * 5.0).abs() < 1e-9);
        let nothing = PortsReport::new(&HashMap::new(), 0, 1.0, 5);
        assert_eq!((nothing.known, nothing.samples), (0, 0));
    }
}
