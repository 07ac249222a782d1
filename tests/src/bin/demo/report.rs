//! Compares what got through with what should have.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use serde::Serialize;
use tests::{
    Cli, Sent,
    observer::Observed,
    reports::{Limit, Stats},
};

use crate::traffic::Actor;

/// Largest difference between admitted and expected frames of a limited source.
const TOLERANCE: f64 = 0.005;

/// The result of the demonstration.
#[derive(Serialize)]
pub(crate) struct Report {
    sources: Vec<Row>,
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
    #[serde(skip)]
    state: String,
}

impl Row {
    /// The limiter is asked only for the limit and the state; the frames were counted by others.
    fn new(cli: &Cli, actor: &Actor, sent: &Sent, observed: &Observed) -> Self {
        let show = cli.show(actor.source);
        let limit = show.limit.expect("the default limit is set");
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
            state: show.state,
        }
    }

    fn is_as_expected(&self) -> bool {
        if self.conforming {
            self.admitted == self.offered
        } else {
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
            |c: &tests::reports::Counter| (format!("{}.{}", c.verdict, c.reason), c.packets);
        let mut counters: BTreeMap<_, _> = stats.counters.iter().map(counted).collect();
        counters.insert("total".to_owned(), stats.sum());
        counters.insert("received".to_owned(), received);
        let ok = stats.sum() == received && sources.iter().all(Row::is_as_expected);
        Self { sources, counters, ok }
    }

    /// Writes one JSON document.
    pub(crate) fn print_json(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, self)?;
        writeln!(out)
    }

    /// Writes tables for people.
    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "\n{:<20} {:<24} {:<28} {:>8} {:>8} {:>8} {:>8}  the limiter says",
            "source", "sends", "limit", "offered", "admitted", "expected", "dropped"
        )?;
        for row in &self.sources {
            writeln!(
                out,
                "{:<20} {:<24} {:<28} {:>8} {:>8} {:>8} {:>8}  {}{}",
                row.source,
                row.role,
                row.limit,
                row.offered,
                row.admitted,
                row.expected,
                row.dropped,
                row.state,
                if row.is_as_expected() { "" } else { "  NOT AS EXPECTED" }
            )?;
        }
        writeln!(out)?;
        for (name, count) in self.counters.iter().filter(|(_, count)| **count > 0) {
            writeln!(out, "{name:<24} {count:>8}")?;
        }
        let verdict = if self.ok { "as expected" } else { "NOT as expected" };
        writeln!(out, "\nEverything is {verdict}.")
    }
}
