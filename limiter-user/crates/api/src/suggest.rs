//! Limits that are proposed.

use std::io::{self, Write};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Print, text};
use crate::error::{Failure, exit};
use model::digest::Percentiles;
use model::{Rate, Selector, Target};
use telemetry::compare::Compared;

/// What is to be watched.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// Whose traffic.
    pub whom: Selector,
    /// The share of sources that a limit may touch, 0 to 1.
    pub share: f64,
    /// For how long to watch.
    pub over: Duration,
}

/// `GET /v1/suggest`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SuggestQuery {
    /// `default`, or the prefix whose sources are meant.
    pub target: String,
    /// The share of sources that a limit may touch, above 0 and at most 0.5.
    pub share: f64,
    /// For how long to watch, milliseconds.
    pub over_ms: u64,
}

impl Default for SuggestQuery {
    fn default() -> Self {
        Self { target: "default".into(), share: 0.001, over_ms: 10_000 }
    }
}

impl SuggestQuery {
    /// The shortest and the longest time to watch.
    // Buckets are scanned once a second: in less time there is no second scan to compare with, and
    // no peak.
    pub const TIMES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(600)];

    /// What is asked for.
    ///
    /// # Errors
    /// If the target is neither everyone nor a prefix, or a number is out of its range.
    pub fn question(&self) -> Result<Question, Failure> {
        let target: Target = self.target.parse()?;
        // Sources are watched as a whole: what each sends of a class is not counted apart.
        if target != Target::new(target.whom) {
            return Err(Failure::new(exit::USAGE, "a limit is only suggested for all packets")
                .hint("give --for default, an address or a prefix"));
        }
        if let Selector::Prefix(net) = target.whom
            // Percentiles of one source say nothing, and its limit would be what it happened to
            // send.
            && net.prefix_len() == net.max_prefix_len()
        {
            return Err(Failure::new(exit::USAGE, format!("{} is a single source", net.addr()))
                .hint("`limiter show` tells what it sends; give a prefix of many"));
        }
        // So written that what is no number is refused, too.
        if !(self.share > 0.0 && self.share <= 0.5) {
            let percent = 100.0 * self.share;
            let message = format!("a share of {percent} % of sources cannot be meant");
            return Err(Failure::new(exit::USAGE, message)
                .hint("give more than 0 % and at most 50 %, such as --share 0.1%"));
        }
        let over = Duration::from_millis(self.over_ms);
        let [least, most] = Self::TIMES;
        if !(least..=most).contains(&over) {
            let over = humantime::format_duration(over);
            return Err(Failure::new(exit::USAGE, format!("cannot watch for {over}"))
                .hint("give 1 second to 10 minutes, such as --over 10s"));
        }
        Ok(Question { whom: target.whom, share: self.share, over })
    }
}

/// `suggest`: what sources send, and which limits would leave nearly all of them alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SuggestReport {
    /// Whom it is about: `default` for everyone, or a prefix.
    pub target: String,
    /// When the first look at them was, RFC 3339.
    pub from: String,
    /// When the last one was.
    pub to: String,
    /// For how long they were watched, seconds: what was asked for, or longer if there are very many.
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
    /// The limit of packets by each algorithm.
    pub algorithms: Vec<AlgorithmReport>,
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
    /// The rate, rounded up to two digits in packets or kilobits.
    pub rate: Rate,
    /// The burst as `limit set` takes it.
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

/// A limit by one of the algorithms, on what sources sent second by second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlgorithmReport {
    /// The limit, and what it would have done.
    #[serde(flatten)]
    pub compared: Compared,
    /// The command that sets it.
    pub command: String,
}

fn algorithm_row(
    Compared { algorithm, rate, burst, per_minute, sources, share_of_packets, .. }: &Compared,
) -> [String; 5] {
    let burst = burst.map(|burst| format!(" burst {burst}")).unwrap_or_default();
    [
        algorithm.name().into(),
        format!("{rate}{burst}"),
        text::thousands(*per_minute),
        sources.to_string(),
        percent(*share_of_packets),
    ]
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
pub fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    // Three digits either way: more would claim what a sample cannot know.
    let digits = if percent >= 10.0 { 1 } else { 2 };
    match percent {
        0.0 => "0 %".into(),
        p if p < 0.01 => "less than 0.01 %".into(),
        p => format!("{p:.digits$} %"),
    }
}

fn row(name: &str, of: &Percentiles, factor: f64) -> [String; 6] {
    let number = |value: f64| {
        let value = factor * value;
        if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") }
    };
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
            "{}: {} sources with a bucket sent something within {:.0} s{light} fewer than {:.0}pps each",
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
        let header = ["ALGORITHM", "LIMIT", "IN ANY MINUTE", "SOURCES OVER IT", "DROPS"];
        let mut table = text::table(&header, 2);
        for by in &self.algorithms {
            table.add_row(algorithm_row(&by.compared));
        }
        writeln!(out, "\n{}", table.trim_fmt())?;
        for Compared { algorithm, per_minute, .. } in
            self.algorithms.iter().map(|by| by.compared).filter(|it| it.recommended)
        {
            let most = text::thousands(per_minute);
            writeln!(
                out,
                "recommended: {}, as it lets {most} packets of a source through in any minute at the most",
                algorithm.name()
            )?;
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
    use model::Algorithm;

    #[test]
    fn the_text_has_the_commands() {
        let proposal = |rate: &str, what: &str| ProposalReport {
            rate: rate.parse().unwrap(),
            burst: "240 packets".into(),
            rate_per_second: 200.0,
            burst_amount: 240,
            sources: 1,
            share_of_sources: 0.001,
            share_of_packets: 0.25,
            share_of_bytes: 0.5,
            command: format!("limiter limit set {what}"),
            try_command: format!("limiter limit shadow set {what}"),
        };
        let algorithm = |algorithm, rate: &str, burst: Option<u64>, per_minute| AlgorithmReport {
            compared: Compared {
                algorithm,
                rate: rate.parse().unwrap(),
                burst,
                per_minute,
                sources: 3,
                share_of_packets: 0.25,
                recommended: burst.is_some(),
            },
            command: String::new(),
        };
        let packets = Percentiles { p50: 10.0, p90: 20.0, p99: 30.0, p999: 40.0, max: 5000.0 };
        let report = SuggestReport {
            target: "default".into(),
            from: "2026-01-01T00:00:00.000Z".into(),
            to: "2026-01-01T00:00:10.000Z".into(),
            seconds: 10.0,
            share: 0.001,
            sources: 1000,
            light: LightReport { sources: Some(77), below: 119.2 },
            packets_per_second: packets,
            bytes_per_second: Percentiles { max: 125_000.0, ..packets },
            peak_packets_per_second: packets,
            total_packets_per_second: 10.0,
            total_bytes_per_second: 10.0,
            packets: proposal("200pps", "200pps --burst 240"),
            bytes: proposal("1mbit", "1mbit --burst 150kbyte"),
            algorithms: vec![
                algorithm(Algorithm::TokenBucket, "200pps", Some(240), 12_240),
                algorithm(Algorithm::FixedWindow, "9000/minute", None, 18_000),
            ],
            notes: vec!["something else".into()],
        };
        let mut text = Vec::new();
        report.print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for part in [
            "default: 1000 sources with a bucket sent something within 10 s, and about 77 at a time \
             fewer than 119pps each",
            "packets/s 10.0 20.0 30.0 40.0 5000 ",
            "kbit/s 0.1 0.2 0.2 0.3 1000 ",
            "limiter limit set 200pps --burst 240 touches 1 source (0.10 % of all), drops 25.0 % of packets \
             and 50.0 % of bytes ",
            "limiter limit set 1mbit --burst 150kbyte touches",
            "token-bucket 200pps burst 240 12,240 3 25.0 % fixed-window 9000/minute 18,000 3 25.0 % recommended: \
             token-bucket, as it lets 12,240 packets of a source through in any minute at the most to see",
            "limiter limit shadow set 200pps --burst 240 note: something else",
        ] {
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words.contains(part), "{part}\n{text}");
        }
    }

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

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let question = |change: &dyn Fn(&mut SuggestQuery)| {
            let mut query = SuggestQuery::default();
            change(&mut query);
            query.question()
        };
        assert_eq!(question(&|_| ()).unwrap().over, Duration::from_secs(10));
        assert!(question(&|query| query.target = "10.0.0.0/8".into()).is_ok());
        for share in [0.0, -1.0, 0.51, f64::NAN, f64::INFINITY] {
            let failure = question(&|query| query.share = share).unwrap_err();
            assert!(failure.code == exit::USAGE && failure.hint.is_some(), "{failure}");
        }
        for over_ms in [0, 999, 600_001, u64::MAX] {
            assert!(question(&|query| query.over_ms = over_ms).is_err(), "{over_ms}");
        }
        for target in ["10.0.0.1", "2001:db8::1", "x", "default udp:53", "10.0.0.0/8 aggregate"] {
            assert!(question(&|query| query.target = target.into()).is_err(), "{target}");
        }
    }
}
