//! Accuracy and cost of the limiter's sketch against exact counts, beside two peers, and of what the
//! limiter makes of it: the exact counters of the sources that pass the gate.

mod accuracy;
mod arguments;
mod contenders;
mod pipeline;
mod stream;
mod table;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use accuracy::Accuracy;
use arguments::Arguments;
use contenders::Wanted;
use limiter_common::sketch::MAX_COUNT;
use pipeline::Seen;
use serde::Serialize;
use stream::{PACKETS, SOURCES, Stream, TOP};
use tests::machine::Machine;

/// What is asked of the sketches; the second last is the daemon's default.
const WANTED: [Wanted; 6] = [
    Wanted { epsilon: 0.001, delta: 0.02 },
    Wanted { epsilon: 0.000_1, delta: 0.02 },
    Wanted { epsilon: 0.000_1, delta: 0.001 },
    Wanted { epsilon: 0.000_05, delta: 0.02 },
    Wanted { epsilon: 0.000_025, delta: 0.14 },
    Wanted { epsilon: 0.000_01, delta: 0.02 },
];

/// All figures of a run.
#[derive(Debug, Serialize)]
struct Figures {
    machine: Machine,
    packets: usize,
    sources: u32,
    top: usize,
    /// Sketches by themselves.
    results: Vec<Accuracy>,
    /// The limiter's table at 2 Mpps of the Zipf stream.
    limiter: Vec<Seen>,
}

fn main() -> ExitCode {
    let arguments = match Arguments::of_this_process("bench-sketch") {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let figures = run();
    if let Err(error) = print(&mut io::stdout().lock(), &figures) {
        eprintln!("cannot print the result: {error}");
        return ExitCode::FAILURE;
    }
    arguments.write(&figures)
}

fn run() -> Figures {
    eprintln!("making streams of {PACKETS} packets");
    let zipf = Stream::zipf();
    let uniform = Stream::uniform();
    let mut results = Vec::new();
    for stream in [&zipf, &uniform] {
        for wanted in WANTED {
            eprintln!("{}: ε {}, δ {}", stream.name, wanted.epsilon, wanted.delta);
            results.extend(accuracy::measure(stream, wanted));
        }
    }
    eprintln!("sending {} through the limiter's decisions", zipf.name);
    let limiter = pipeline::simulate(&zipf);
    let machine = Machine::read();
    Figures { machine, packets: PACKETS, sources: SOURCES, top: TOP, results, limiter }
}

fn print(out: &mut impl Write, figures: &Figures) -> io::Result<()> {
    figures.machine.print(out)?;
    writeln!(
        out,
        "\nSketches: {PACKETS} packets of {SOURCES} sources, Zipf(1.1) or uniform; the top {TOP}"
    )?;
    let header = [
        "stream",
        "ε",
        "δ",
        "contender",
        "KiB",
        "recall",
        "precision",
        "top error",
        "error",
        "over ε·N",
        "bound",
        "ns/add",
    ];
    let rows: Vec<_> = figures.results.iter().map(accuracy_row).collect();
    table::print(out, header, 4, &rows)?;
    writeln!(
        out,
        "error: average, relative to the exact count; frequent-items has an ε of its own kind (no δ).\n\
         A uniform stream has no heavy sources: who is among its top is chance.\n\
         A cell of the limiter counts up to {MAX_COUNT} packets in a window; {} of the Zipf stream's\n\
         sources sent more, and are underestimated when the whole stream is one window.",
        figures.results.iter().map(|result| result.saturated).max().unwrap_or_default()
    )?;
    writeln!(
        out,
        "\nAs the limiter sees it: the Zipf stream at 2 Mpps; the top {TOP} of the bucket table"
    )?;
    let header = [
        "limit",
        "gate",
        "recall",
        "precision",
        "top error",
        "worst",
        "tracked",
        "promotions",
        "evictions",
        "full",
        "passed",
        "dropped",
        "ns/packet",
        "goal",
    ];
    let rows: Vec<_> = figures.limiter.iter().map(seen_row).collect();
    table::print(out, header, 1, &rows)?;
    writeln!(out, "goal: recall 1.00, top error ≤ 0.5 %")
}

fn percent(share: f64) -> String {
    match share * 100.0 {
        0.0 => "0 %".into(),
        small if small < 0.001 => format!("{small:.0e} %"),
        large if large >= 1000.0 => format!("{large:.0} %"),
        usual => format!("{usual:.3} %"),
    }
}

fn met(met: bool) -> String {
    if met { "met".into() } else { "missed".into() }
}

fn accuracy_row(result: &Accuracy) -> [String; 12] {
    [
        result.stream.to_owned(),
        result.epsilon.to_string(),
        result.delta.to_string(),
        result.contender.to_owned(),
        (result.bytes / 1024).to_string(),
        format!("{:.2}", result.recall),
        format!("{:.2}", result.precision),
        percent(result.top_error),
        percent(result.error),
        percent(result.over_bound),
        met(result.bound_met),
        format!("{:.1}", result.ns_per_add),
    ]
}

fn seen_row(seen: &Seen) -> [String; 14] {
    [
        seen.limit.clone(),
        seen.gate.to_string(),
        format!("{:.2}", seen.recall),
        format!("{:.2}", seen.precision),
        percent(seen.top_error),
        percent(seen.top_error_worst),
        seen.tracked.to_string(),
        seen.promotions.to_string(),
        seen.evictions.to_string(),
        seen.set_full.to_string(),
        seen.passed.to_string(),
        seen.dropped.to_string(),
        format!("{:.1}", seen.ns_per_packet),
        met(seen.goal_met),
    ]
}
