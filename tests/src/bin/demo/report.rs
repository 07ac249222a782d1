//! Compares what got through with what should have.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use ::tests::{
    Cli, Sent,
    observer::Observed,
    reports::{Limit, Stats},
};
use serde::Serialize;

use crate::{
    picture::{Second, Series, Style, draw, grouped},
    shell,
    traffic::{self, Actor},
};

/// Largest difference between admitted and expected frames of a limited source.
// The sender's clock and the limiter's are read at other moments: a few frames of some thousands.
const TOLERANCE: f64 = 0.005;

/// The result of the demonstration.
#[derive(Serialize)]
pub(crate) struct Report {
    sources: Vec<Row>,
    /// Each second of the flood.
    flood: Vec<Second>,
    /// Each second of all sources together that keep to their limits.
    customers: Vec<Second>,
    /// `verdict.reason`, `total` of all of them, and `received`, the interface's own count.
    counters: BTreeMap<String, u64>,
    /// Whether limited sources got their limit and no other source lost a frame, and every received
    /// frame is in one counter.
    pub(crate) ok: bool,
}

/// One source, in frames.
#[derive(Serialize)]
struct Row {
    source: String,
    conforming: bool,
    offered: u64,
    admitted: u64,
    expected: u64,
    dropped: u64,
    limit: String,
    #[serde(skip)]
    role: &'static str,
}

impl Row {
    /// The limiter is asked only for the limit; the frames were counted by others.
    fn new(cli: &Cli, actor: &Actor, sent: &Sent, observed: &Observed) -> Self {
        let limit = cli.show(actor.source).limit.expect("the default limit is set");
        let offered = sent.packets();
        let admitted = observed.from(actor.source);
        Self {
            source: actor.source.to_string(),
            conforming: actor.conforming,
            offered,
            admitted,
            expected: offered.min(allowed_frames(&limit, sent.seconds(), actor.length)),
            dropped: offered.saturating_sub(admitted),
            limit: format!("{} burst {}", limit.rate, limit.burst),
            role: actor.role,
        }
    }

    fn is_as_expected(&self) -> bool {
        if self.conforming {
            self.admitted == self.offered
        } else {
            // Too few are a fault as well: a source over its limit still gets all of that (P2).
            let difference = self.admitted.abs_diff(self.expected) as f64;
            self.expected < self.offered && difference <= self.expected as f64 * TOLERANCE
        }
    }
}

/// Frames of `length` bytes that a limit lets through in `seconds`.
fn allowed_frames(limit: &Limit, seconds: f64, length: usize) -> u64 {
    let unit = if limit.unit == "bytes" { length as f64 } else { 1.0 };
    (limit.allowance(seconds) / unit) as u64
}

/// Each second of those that are `wanted`, together.
fn seconds(
    actors: &[Actor],
    sent: &[Sent],
    observed: &Observed,
    wanted: impl Fn(&Actor) -> bool,
) -> Vec<Second> {
    let count = traffic::SECONDS as usize;
    let wanted: Vec<_> = actors
        .iter()
        .zip(sent)
        .filter(|(actor, _)| wanted(actor))
        .map(|(actor, sent)| (actor.source, sent.by_second(count)))
        .collect();
    let second = |at: usize| {
        let offered = wanted.iter().map(|(_, offered)| offered[at]).sum();
        let admitted = |source| observed.from_port(source, traffic::port(at));
        Second::new(offered, wanted.iter().map(|(source, _)| admitted(*source)).sum())
    };
    (0..count).map(second).collect()
}

impl Report {
    pub(crate) fn new(
        cli: &Cli,
        actors: &[Actor],
        sent: &[Sent],
        observed: &Observed,
        stats: &Stats,
        received: u64,
    ) -> Self {
        let rows = actors.iter().zip(sent);
        let sources: Vec<_> =
            rows.map(|(actor, sent)| Row::new(cli, actor, sent, observed)).collect();
        let counted =
            |c: &::tests::reports::Counter| (format!("{}.{}", c.verdict, c.reason), c.packets);
        let mut counters: BTreeMap<_, _> = stats.counters.iter().map(counted).collect();
        counters.insert("total".to_owned(), stats.sum());
        // The interface's own count stands beside the sum, so that a reader can check P5.
        counters.insert("received".to_owned(), received);
        let ok = stats.sum() == received && sources.iter().all(Row::is_as_expected);
        let flood = seconds(actors, sent, observed, |actor| actor.source == traffic::flood());
        let customers = seconds(actors, sent, observed, |actor| actor.conforming);
        Self { sources, flood, customers, counters, ok }
    }

    /// Writes one JSON document.
    pub(crate) fn print_json(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, self)?;
        writeln!(out)
    }

    /// Writes a picture and tables for people.
    pub(crate) fn print(&self, out: &mut impl Write, style: Style) -> io::Result<()> {
        let conforming = self.sources.iter().filter(|row| row.conforming).count();
        let flood = format!("flood from {}", traffic::flood());
        let customers = format!("customers: {conforming} sources, each within its limit");
        let all = [
            Series { title: flood, seconds: &self.flood },
            Series { title: customers, seconds: &self.customers },
        ];
        writeln!(out)?;
        draw(out, style, &all)?;
        self.print_sources(out)?;
        writeln!(out, "\nEach packet received is in one counter:")?;
        for (name, count) in self.counters.iter().filter(|(_, count)| **count > 0) {
            writeln!(out, "  {name:<20} {:>9}", grouped(*count))?;
        }
        print_verdict(out, self.ok)
    }

    fn print_sources(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "\nexpected is rate × time + burst, or all that was offered if that is less\n\n\
             {:<44} {:>8} {:>8} {:>8} {:>8}",
            "", "offered", "admitted", "expected", "dropped"
        )?;
        let mut limits: Vec<&str> = Vec::new();
        for row in &self.sources {
            if !limits.contains(&row.limit.as_str()) {
                limits.push(&row.limit);
            }
        }
        for limit in limits {
            writeln!(out, "limit of {limit}")?;
            for row in self.sources.iter().filter(|row| row.limit == limit) {
                writeln!(
                    out,
                    "  {:<17} {:<24} {:>8} {:>8} {:>8} {:>8}{}",
                    row.source,
                    row.role,
                    grouped(row.offered),
                    grouped(row.admitted),
                    grouped(row.expected),
                    grouped(row.dropped),
                    if row.is_as_expected() { "" } else { "  NOT AS EXPECTED" }
                )?;
            }
        }
        Ok(())
    }
}

/// Says whether all is as expected.
pub(crate) fn print_verdict(out: &mut impl Write, ok: bool) -> io::Result<()> {
    let verdict = if ok { "as expected" } else { "NOT as expected" };
    writeln!(out, "\nEverything is {verdict}.")
}

/// Names commands to try in a shell that is not there yet.
pub(crate) fn print_next(out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\nTry next, in a shell beside the same traffic: cargo xtask demo --shell")?;
    shell::print_commands(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(limit: &str, source: &str, (offered, admitted, expected): (u64, u64, u64)) -> Row {
        Row {
            source: source.to_owned(),
            conforming: offered == expected,
            offered,
            admitted,
            expected,
            dropped: offered - admitted,
            limit: limit.to_owned(),
            role: "IPv6 with a higher limit",
        }
    }

    fn printed(admitted: u64) -> String {
        let sources = vec![
            row("1000pps burst 2000 packets", "198.51.100.66", (125_000, admitted, 7000)),
            row("3000pps burst 3000 packets", "2001:db8:7:2::1", (14_500, 14_500, 14_500)),
            row("1000pps burst 2000 packets", "198.51.100.12", (10, 10, 10)),
        ];
        let counters = [("drop.over_limit", 118_000), ("pass.malformed", 0)];
        let counters = counters.map(|(name, count)| (name.to_owned(), count));
        let ok = sources.iter().all(Row::is_as_expected);
        let (flood, customers) = (vec![Second::new(25_000, 3000)], vec![Second::new(12, 12)]);
        let report = Report { sources, flood, customers, counters: counters.into(), ok };
        let mut out = Vec::new();
        report.print(&mut out, Style::Plain).unwrap();
        print_next(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn sources_stand_below_their_limits() {
        let text = printed(7002);
        let table = "
limit of 1000pps burst 2000 packets
  198.51.100.66     IPv6 with a higher limit  125,000    7,002    7,000  117,998
  198.51.100.12     IPv6 with a higher limit       10       10       10        0
limit of 3000pps burst 3000 packets
  2001:db8:7:2::1   IPv6 with a higher limit   14,500   14,500   14,500        0
";
        assert!(text.contains(table), "{text}");
        assert!(text.contains("drop.over_limit        118,000\n\n"), "{text}");
        assert!(text.contains("\nEverything is as expected.\n"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(
            text.ends_with(
                "limiter capture --dropped -c 20    the next packets that are dropped\n"
            )
        );
    }

    #[test]
    fn what_is_not_as_expected_is_named() {
        let text = printed(7100);
        assert!(text.contains("117,900  NOT AS EXPECTED\n"), "{text}");
        assert!(text.contains("\nEverything is NOT as expected.\n"), "{text}");
    }
}
