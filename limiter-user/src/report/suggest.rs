//! Limits that are proposed.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::{Print, text};
use crate::observe::Percentiles;
use crate::policy::Rate;

/// `suggest`: what sources send, and which limits would leave nearly all of them alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SuggestReport {
    /// Whom it is about: `default` for everyone, or a prefix.
    pub target: String,
    /// When the first look at them was, RFC 3339.
    pub from: String,
    /// When the last one was.
    pub to: String,
    /// For how long they were watched.
    pub seconds: f64,
    /// The share of sources that a limit may touch, 0 to 1.
    pub share: f64,
    /// Sources that sent something and have a bucket.
    pub sources: u64,
    /// Sources that are too light for a bucket.
    pub light: LightReport,
    /// Percentiles over those with a bucket: packets per second, over all the time.
    pub packets_per_second: Percentiles,
    /// Bytes per second, likewise.
    pub bytes_per_second: Percentiles,
    /// The most packets of a source in any one second.
    pub peak_packets_per_second: Percentiles,
    /// All packets that came, per second; of a prefix, those of sources with a bucket.
    pub total_packets_per_second: f64,
    /// The same of bytes.
    pub total_bytes_per_second: f64,
    /// A limit of packets.
    pub packets: ProposalReport,
    /// A limit of bytes.
    pub bytes: ProposalReport,
    /// What else is to be known.
    pub notes: Vec<String>,
}

/// Sources that are too light for a bucket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LightReport {
    /// How many send at a time, estimated; not known of a prefix.
    pub sources: Option<u64>,
    /// Each sends fewer packets per second than this.
    pub below: f64,
}

/// A limit that is proposed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProposalReport {
    /// The rate.
    pub rate: Rate,
    /// The burst.
    pub burst: String,
    /// The rate as a number: packets or bytes per second.
    pub rate_per_second: f64,
    /// The burst as a number: packets or bytes.
    pub burst_amount: u64,
    /// Sources over it, in the long run.
    pub sources: u64,
    /// Of all sources, 0 to 1.
    pub share_of_sources: f64,
    /// The share of all packets that it would drop in the long run, 0 to 1.
    pub share_of_packets: f64,
    /// The same of bytes.
    pub share_of_bytes: f64,
    /// The command that sets it.
    pub command: String,
    /// The command that tries it, which drops nothing.
    pub try_command: String,
}

impl ProposalReport {
    fn touches(&self) -> String {
        format!(
            "touches {} ({} of all), drops {} of packets and {} of bytes",
            if self.sources == 1 { "1 source".into() } else { format!("{} sources", self.sources) },
            percent(self.share_of_sources),
            percent(self.share_of_packets),
            percent(self.share_of_bytes)
        )
    }
}

/// A share as a percentage with two figures that count.
fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    let digits = if percent >= 10.0 { 1 } else { 2 };
    match percent {
        0.0 => "0 %".into(),
        p if p < 0.01 => "less than 0.01 %".into(),
        p => format!("{p:.digits$} %"),
    }
}

fn row(name: &str, of: &Percentiles, factor: f64) -> [String; 6] {
    let number = |value: f64| format!("{:.0}", factor * value);
    let Percentiles { p50, p90, p99, p999, max } = *of;
    [name.into(), number(p50), number(p90), number(p99), number(p999), number(max)]
}

impl Print for SuggestReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let light = match self.light.sources {
            Some(light) => format!(", and about {light} at a time"),
            None => ", and an unknown number".into(),
        };
        writeln!(
            out,
            "{}: {} sources with a bucket sent something within {} s{light} fewer than {:.0}pps each",
            self.target, self.sources, self.seconds, self.light.below
        )?;
        let mut table = text::table(&["PER SOURCE", "P50", "P90", "P99", "P99.9", "MAX"], 1);
        table.add_row(row("packets/s", &self.packets_per_second, 1.0));
        table.add_row(row("most in 1 s", &self.peak_packets_per_second, 1.0));
        table.add_row(row("kbit/s", &self.bytes_per_second, 8.0 / 1000.0));
        writeln!(out, "{}\n", table.trim_fmt())?;
        for proposal in [&self.packets, &self.bytes] {
            writeln!(out, "{}", proposal.command)?;
            writeln!(out, "    {}", proposal.touches())?;
        }
        writeln!(out, "\nto see first what it would drop, without dropping anything:")?;
        writeln!(out, "{}", self.packets.try_command)?;
        for note in &self.notes {
            writeln!(out, "note: {note}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_told_with_two_figures() {
        for (share, text) in [
            (0.0, "0 %"),
            (0.000_01, "less than 0.01 %"),
            (0.001, "0.10 %"),
            (0.0123, "1.23 %"),
            (0.987, "98.7 %"),
        ] {
            assert_eq!(percent(share), text);
        }
    }
}
