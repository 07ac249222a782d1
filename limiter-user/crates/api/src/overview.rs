//! What goes on at present, as the dashboard shows it once a second.

use limiter_common::abi::{Reason, Tally};
use serde::Serialize;

use super::{Health, LimitReport, ListEntry, TopEntry, text};
use model::Distinct;
use model::Unit;
use model::instance::{Instance, address};
use model::tables::{SketchHealth, TableHealth};
use model::target::short_prefix;
use telemetry::Sample;

/// Packets and bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Flow {
    /// Packets per second.
    pub pps: f64,
    /// Bits per second.
    pub bps: f64,
}

/// What met one reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReasonFlow {
    /// `pass` or `drop`.
    pub verdict: &'static str,
    /// As `stats` calls it.
    pub reason: &'static str,
    /// Packets and bits per second.
    #[serde(flatten)]
    pub flow: Flow,
}

/// How much met each reason between two samples; nothing if the later one counts from zero again.
pub fn reasons(earlier: &Sample, now: &Sample) -> Vec<ReasonFlow> {
    // The monotonic clock: a step of the wall clock would make any rate.
    let ns = now.monotonic_ns.saturating_sub(earlier.monotonic_ns).max(1);
    let rate = |count: u64| count as f64 * 1e9 / ns as f64;
    let since = |reason| {
        let (Tally { packets, bytes }, before) = (now.tally(reason), earlier.tally(reason));
        // Counters of fresh maps begin at nothing: a rate across that would be nonsense.
        let flow = packets.checked_sub(before.packets).zip(bytes.checked_sub(before.bytes));
        flow.map_or(Flow::default(), |(packets, bytes)| Flow {
            pps: rate(packets),
            bps: rate(bytes) * 8.0,
        })
    };
    let flow = |reason: Reason| ReasonFlow {
        verdict: if reason.passes() { "pass" } else { "drop" },
        reason: reason.name(),
        flow: since(reason),
    };
    Reason::ALL.into_iter().map(flow).collect()
}

/// Whether anybody is hurt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum VerdictLevel {
    /// Nothing is dropped.
    Quiet,
    /// Sources are limited or denied.
    Limiting,
    /// Packets are dropped of sources that may have kept to their own limits, or the daemon is degraded.
    Attention,
}

/// What goes on, in a sentence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Whether anybody is hurt.
    pub level: VerdictLevel,
    /// The sentence.
    pub text: String,
}

/// A count with its noun, and thousands apart.
fn count(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", text::thousands(n), if n == 1 { "" } else { "s" })
}

/// A share in words: never 100 % of what is less than all.
fn percent(share: f64) -> String {
    // Rounded down: 100 % is only said where it is all.
    if share >= 1.0 { "100 %".into() } else { format!("{:.1} %", (share * 1000.0).floor() / 10.0) }
}

impl Verdict {
    /// Judges `reasons`; `limited` sources are over their limits now, or at least so many if there
    /// are `more`, and `worst` is who most packets are dropped of, with its share of all that are
    /// dropped.
    pub fn new(
        reasons: &[ReasonFlow],
        limited: u64,
        more: bool,
        worst: Option<(&str, f64)>,
        health: Health,
    ) -> Self {
        let sum = |wanted: &dyn Fn(&ReasonFlow) -> bool| {
            reasons.iter().filter(|flow| wanted(flow)).map(|flow| flow.flow.pps).sum::<f64>()
        };
        let passed = sum(&|flow| flow.verdict == "pass");
        let dropped = sum(&|flow| flow.verdict == "drop");
        // Of these the source did not exceed a limit of its own, as far as is known.
        let others = [
            "set_full",
            "malformed",
            "over_shared_limit",
            "over_total_limit",
            "over_peer_budget",
            "over_group_limit",
            "over_destination_limit",
        ];
        let collateral =
            sum(&|flow| flow.verdict == "drop" && others.contains(&flow.reason)).round() as u64;
        let denied = sum(&|flow| flow.verdict == "drop" && flow.reason == "denied").round() as u64;
        let mut parts = Vec::new();
        // Less than half a packet a second is a rounding, not an attack.
        if dropped < 0.5 {
            let passing = count(passed.round() as u64, "packet");
            parts.push(format!("Nothing is dropped: {passing} per second pass"));
        } else {
            // Sources are counted as far as one look goes, so that the page does not cost more the
            // larger an attack is.
            let least = if more { "At least " } else { "" };
            match (limited, denied) {
                (0, 0) => parts.push("No source is over its own limit".into()),
                (0, _) => parts.push(format!(
                    "{} per second of denied sources dropped",
                    count(denied, "packet")
                )),
                (1, _) => parts.push(format!("{least}1 source over its limit")),
                _ => parts.push(format!("{least}{} over their limits", count(limited, "source"))),
            }
            if let Some((source, share)) = worst.filter(|(_, share)| *share > 0.0) {
                let share = percent(share);
                parts.push(format!("{share} of dropped packets are those of {source}"));
            }
            parts.push(match collateral {
                0 => "0 conforming packets dropped".into(),
                n => format!(
                    "{} per second dropped of sources that may keep to their own limits",
                    count(n, "packet")
                ),
            });
        }
        if health == Health::Degraded {
            parts.push("the daemon is degraded".into());
        }
        let level = match (dropped < 0.5, collateral, health) {
            // First: a daemon that lost something may show no drops at all.
            (_, _, Health::Degraded) => VerdictLevel::Attention,
            (true, ..) => VerdictLevel::Quiet,
            (false, 0, _) => VerdictLevel::Limiting,
            _ => VerdictLevel::Attention,
        };
        Self { level, text: parts.join("; ") + "." }
    }
}

/// What an operator may do about a source, to be copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Commands {
    /// Denies it for a while, if it has lost packets.
    pub deny: Option<String>,
    /// Halves its limit, or what it sends if it has none; not of a class of packets.
    pub limit: Option<String>,
    /// The rate in that.
    pub rate: Option<String>,
    /// Tells what is known of it.
    pub show: String,
}

/// Half of what the limit of `entry` allows, or of what it sends.
fn half(entry: &TopEntry) -> String {
    let halved = |per_second: f64| (per_second / 2.0).floor().max(1.0) as u64;
    match &entry.limit {
        // In the unit of the limit, or the command would replace a limit of bytes by one of
        // packets.
        Some(limit) if limit.unit == Unit::Bytes => {
            format!("{}byte/s", halved(limit.rate_per_second))
        }
        Some(limit) => format!("{}pps", halved(limit.rate_per_second)),
        None => format!("{}pps", halved(entry.pps)),
    }
}

impl Commands {
    /// For `entry` of the daemon that is `instance`.
    pub fn new(entry: &TopEntry, instance: Option<&Instance>) -> Self {
        let source = short_prefix(&entry.source);
        // As they stand in texts, so that they are addressed in the same way.
        let command = |text: String| {
            address(&format!("`limiter {text}`"), instance).trim_matches('`').to_owned()
        };
        // A limit for all its packets would not touch those of a class that has one of its own.
        let rate = entry.class.is_none().then(|| half(entry));
        Self {
            // Nothing to deny is offered where nothing was lost: a click must not shut out who
            // keeps to its limit.
            // A denial ends by itself: a command that is copied under attack should not outlive
            // it.
            deny: entry.has_lost().then(|| command(format!("deny add {source} --ttl 10m"))),
            limit: rate.as_ref().map(|rate| command(format!("limit set {rate} --for {source}"))),
            rate,
            // Without the prefix length, which `show` does not take: it asks for the source that
            // an address belongs to.
            show: command(format!("show {}", entry.source.addr())),
        }
    }
}

/// A source, and what to do about it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Offender {
    /// What `top` tells.
    #[serde(flatten)]
    pub entry: TopEntry,
    /// Packets dropped per second at present.
    pub dropped_pps: f64,
    /// What to do about it.
    pub commands: Commands,
}

/// Some of many.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shown<T> {
    /// How many there are.
    pub total: u64,
    /// Some of them.
    pub shown: Vec<T>,
}

/// What a packet costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CostReport {
    /// Mean time in the kernel program, ns; absent while the kernel does not measure it.
    pub ns_per_packet: Option<f64>,
    /// How to let the kernel measure it.
    pub hint: Option<&'static str>,
}

/// What goes on at present.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OverviewReport {
    /// When, RFC 3339.
    pub time: String,
    /// How long a time the rates are the averages of, seconds.
    pub seconds: f64,
    /// In a sentence.
    pub verdict: Verdict,
    /// All that passed.
    pub passed: Flow,
    /// All that was dropped.
    pub dropped: Flow,
    /// The same by reason.
    pub reasons: Vec<ReasonFlow>,
    /// Buckets that sources have.
    pub tracked: u64,
    /// Distinct sources, if they are counted.
    pub distinct: Option<Distinct>,
    /// Sources that have lost packets: most dropped at present first.
    // From the hundred that have lost most: a page must not cost a scan of all.
    pub offenders: Vec<Offender>,
    /// The heaviest sources, where none has lost packets.
    pub heaviest: Vec<Offender>,
    /// Mean packets of others in a cell of the sketch.
    pub noise: f64,
    /// The sketch, as of some seconds ago.
    pub sketch: SketchHealth,
    /// The bucket table, as of some seconds ago.
    pub table: TableHealth,
    /// What a packet costs.
    pub cost: CostReport,
    /// Limits in force.
    pub limits: Shown<LimitReport>,
    /// Sources on the deny list. `total` counts the allow list, too.
    pub denied: Shown<ListEntry>,
    /// Whether all is well, as of some seconds ago.
    pub state: Health,
    /// What the operator should know, as of some seconds ago.
    pub warnings: Vec<String>,
    /// Interfaces and how the program is attached to them, as of some seconds ago.
    pub interfaces: Vec<(String, &'static str)>,
    /// The daemon's version.
    pub version: &'static str,
    /// The host's name.
    // Pages of several hosts lie open beside each other.
    pub host: String,
    /// Which instance it is.
    pub instance: Option<String>,
    /// Since the daemon started.
    pub uptime_seconds: u64,
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use limiter_common::abi::Counters;

    use super::*;
    use model::source::SourceState;
    use model::{Limit, Rate};

    fn sample(ns: u64, over_limit: u64, conforming: u64) -> Sample {
        let mut counters = Counters::default();
        counters.verdicts[Reason::OverLimit as usize] =
            Tally { packets: over_limit, bytes: over_limit * 100 };
        counters.verdicts[Reason::Conforming as usize] =
            Tally { packets: conforming, bytes: conforming * 100 };
        let time = SystemTime::UNIX_EPOCH;
        Sample { time, monotonic_ns: ns, counters, noise: 0.0, distinct: None }
    }

    fn of(flows: &[ReasonFlow], reason: &str) -> Flow {
        flows.iter().find(|flow| flow.reason == reason).unwrap().flow
    }

    #[test]
    fn rates_are_differences_over_time() {
        let flows = reasons(&sample(0, 100, 10), &sample(2_000_000_000, 300, 10));
        assert_eq!(of(&flows, "over_limit"), Flow { pps: 100.0, bps: 80_000.0 });
        assert_eq!(of(&flows, "conforming"), Flow::default());
        // Fresh maps.
        assert_eq!(of(&reasons(&sample(0, 9, 0), &sample(1, 3, 0)), "over_limit"), Flow::default());
    }

    fn flow(verdict: &'static str, reason: &'static str, pps: f64) -> ReasonFlow {
        ReasonFlow { verdict, reason, flow: Flow { pps, bps: 0.0 } }
    }

    #[test]
    fn a_verdict_says_who_and_whether_anybody_is_hurt() {
        let text = |flows: &[ReasonFlow], limited, worst, health| {
            let verdict = Verdict::new(flows, limited, false, worst, health);
            (verdict.level, verdict.text)
        };
        let pass = flow("pass", "conforming", 1_234_567.0);
        assert_eq!(
            text(std::slice::from_ref(&pass), 0, None, Health::Ok),
            (VerdictLevel::Quiet, "Nothing is dropped: 1,234,567 packets per second pass.".into())
        );
        let over = flow("drop", "over_limit", 9000.0);
        let worst = Some(("198.51.100.7", 0.98765));
        assert_eq!(
            text(&[pass.clone(), over.clone()], 12, worst, Health::Ok),
            (
                VerdictLevel::Limiting,
                "12 sources over their limits; 98.7 % of dropped packets are those of \
                 198.51.100.7; 0 conforming packets dropped."
                    .into()
            )
        );
        let full = flow("drop", "set_full", 3.0);
        let (level, said) = text(&[over, full], 1, Some(("192.0.2.1", 0.9999)), Health::Ok);
        assert_eq!(level, VerdictLevel::Attention);
        assert!(said.starts_with("1 source over its limit; 99.9 %"), "{said}");
        assert!(said.contains("3 packets per second dropped of sources that may keep"), "{said}");
        let (_, said) = text(&[flow("drop", "denied", 5.0)], 0, None, Health::Ok);
        assert!(said.starts_with("5 packets per second of denied sources dropped; 0 conf"));
        let (level, said) = text(&[pass], 0, None, Health::Degraded);
        assert!(level == VerdictLevel::Attention && said.ends_with("the daemon is degraded."));
    }

    #[test]
    fn commands_are_those_that_one_would_type() {
        let entry = |source: &str, limit: Option<&str>| TopEntry {
            group: false,
            source: source.parse().unwrap(),
            class: None,
            state: SourceState::Limited,
            limit: limit.map(|rate| {
                let rate: Rate = rate.parse().unwrap();
                let limit = Limit::new("default".parse().unwrap(), rate, None).unwrap();
                LimitReport::new(&limit, 1)
            }),
            passed: 0,
            dropped: 3,
            bytes: 0,
            first_seen: None,
            last_seen: None,
            pps: 777.0,
            pps_seconds: 1.0,
            since_ns: 0,
            bps: 0.0,
            uncounted: 0,
        };
        let plain = Commands::new(&entry("198.51.100.7/32", Some("1000pps")), None);
        assert_eq!(plain.deny.unwrap(), "limiter deny add 198.51.100.7 --ttl 10m");
        let modest = TopEntry { dropped: 0, ..entry("198.51.100.7/32", Some("1000pps")) };
        assert_eq!(Commands::new(&modest, None).deny, None, "it has done nothing");
        assert_eq!(plain.limit.unwrap(), "limiter limit set 500pps --for 198.51.100.7");
        let instance = "edge".parse().unwrap();
        let named = Commands::new(&entry("2001:db8:1:2::/64", None), Some(&instance));
        assert_eq!(named.show, "limiter --instance edge show 2001:db8:1:2::");
        assert_eq!(named.rate.unwrap(), "388pps");
        for (limit, rate) in [("10mbit", "625000byte/s"), ("1/minute", "1pps")] {
            let rate_of = Commands::new(&entry("192.0.2.1/32", Some(limit)), None).rate.unwrap();
            assert_eq!(rate_of, rate);
            rate.parse::<Rate>().unwrap();
        }
    }
}
