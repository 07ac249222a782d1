//! The figures of a run, as JSON and as tables.

use std::io::{self, Write};

use serde::Serialize;
use tests::machine::Machine;

use crate::{
    enforcement::{Enforcement, ROUNDS},
    load::Load,
    memory::Memory,
    table,
    top::{Times, Top},
    watched::{Span, Watched},
};

/// All figures of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) machine: Machine,
    pub(crate) enforcement: Vec<Enforcement>,
    pub(crate) load: Vec<Load>,
    pub(crate) top: Top,
    pub(crate) watched: Watched,
}

impl Figures {
    /// Prints tables, with the goals beside.
    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        self.machine.print(out)?;
        writeln!(out, "\nFrom setting a limit to a packet judged by it, {ROUNDS} times each")?;
        let rows: Vec<_> = self.enforcement.iter().map(enforcement_row).collect();
        let header = ["way", "median ms", "p99 ms", "answered ms", "goal ≤ 5 ms"];
        table::print(out, header, 1, &rows)?;
        writeln!(out, "\nMany single sources at once")?;
        let rows: Vec<_> = self.load.iter().map(load_row).collect();
        let header = [
            "command",
            "sources",
            "seconds",
            "MB before",
            "MB after",
            "own MB",
            "MB peak",
            "goal ≤ 3 s, peak ≤ 300 MB",
        ];
        table::print(out, header, 1, &rows)?;
        let top = &self.top;
        writeln!(
            out,
            "\nOver {} tracked sources; `first` has no earlier counts for rates",
            top.tracked
        )?;
        let header = ["command", "first ms", "median ms", "p99 ms", "goal ≤ 30 ms"];
        let rows = [
            times_row("top --once -n 20", &top.times),
            times_row("top --once -n 20 --sort pps", &top.by_rate),
            times_row("status", &top.status),
        ];
        table::print(out, header, 1, &rows)?;
        let header = ["MB before", "MB after", "own MB", "MB peak"];
        let Memory { resident, own, peak } = top.after;
        let row = [top.before.resident, resident, own, peak].map(megabytes);
        table::print(out, header, 0, &[row])?;
        writeln!(
            out,
            "MB of the daemon's resident memory, the parts of the kernel's maps that it has looked at\n\
             included; own MB without them."
        )?;
        let Watched { tracked, alone, watched, refreshes: [top, page], .. } = &self.watched;
        writeln!(
            out,
            "\n{tracked} sources that go on sending, while nobody watches and while `top` is refreshed {top:.1} \
             and\na dashboard {page:.1} times a second"
        )?;
        let header = ["", "daemon, % of a CPU", "Mpps", "goal: 2 % more"];
        let share = watched.cpu - alone.cpu;
        let rows = [
            span_row("alone", alone, String::new()),
            span_row("watched", watched, met(share <= 0.02)),
        ];
        table::print(out, header, 1, &rows)
    }
}

fn span_row(who: &str, span: &Span, goal: String) -> [String; 4] {
    [who.to_owned(), format!("{:.2}", 100.0 * span.cpu), format!("{:.2}", span.mpps), goal]
}

fn times_row(command: &str, times: &Times) -> [String; 5] {
    [
        command.to_owned(),
        format!("{:.1}", times.first_ms),
        format!("{:.1}", times.median_ms),
        format!("{:.1}", times.p99_ms),
        met(times.median_ms <= 30.0),
    ]
}

fn enforcement_row(figures: &Enforcement) -> [String; 5] {
    [
        figures.how.to_owned(),
        format!("{:.2}", figures.median_ms),
        format!("{:.2}", figures.p99_ms),
        format!("{:.2}", figures.answered_ms),
        met(figures.median_ms <= 5.0),
    ]
}

fn load_row(load: &Load) -> [String; 8] {
    let Memory { resident, own, peak } = load.after;
    [
        load.command.clone(),
        load.limits.to_string(),
        format!("{:.2}", load.seconds),
        megabytes(load.before.resident),
        megabytes(resident),
        megabytes(own),
        megabytes(peak),
        met(load.seconds <= 3.0 && peak <= 300_000_000),
    ]
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

fn met(met: bool) -> String {
    if met { "met".into() } else { "missed".into() }
}
