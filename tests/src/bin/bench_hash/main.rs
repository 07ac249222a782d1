//! What the limiter's hash costs in the kernel beside SipHash-1-3, in one run on the machine at hand.

#[path = "../bench_sketch/arguments.rs"]
mod arguments;
mod hash;
mod programs;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use arguments::Arguments;
use hash::Hash;
use programs::{HASHES, Programs};
use serde::Serialize;
use tests::machine::{Machine, median};

/// Rounds; each measures every hash once.
const ROUNDS: usize = 15;
/// Runs of one measurement.
const RUNS: u32 = 1 << 20;

/// All figures of a run.
#[derive(Debug, Serialize)]
struct Figures {
    machine: Machine,
    /// Runs in a round.
    runs: u32,
    /// Hashes in a run.
    hashes: u32,
    results: Vec<Cost>,
}

/// What one hash costs.
#[derive(Debug, Serialize)]
struct Cost {
    hash: Hash,
    /// ns per hash: of the median run, beyond the median run without a hash.
    ns: f64,
    /// BPF instructions of the whole program.
    instructions: usize,
    /// ns per run in each round.
    rounds: Vec<f64>,
}

fn main() -> ExitCode {
    let arguments = match Arguments::of_this_process("bench-hash") {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    if !tests::is_root() {
        eprintln!("this benchmark needs root: run `cargo xtask bench hash` as root or with sudo");
        return ExitCode::from(4);
    }
    let figures = measure();
    if let Err(error) = figures.print(&mut io::stdout().lock()) {
        eprintln!("cannot print the result: {error}");
        return ExitCode::FAILURE;
    }
    arguments.write(&figures)
}

fn measure() -> Figures {
    // Before this thread is kept on one CPU, and sees but one.
    let machine = Machine::read();
    let mut programs = Programs::load();
    let mut results: Vec<Cost> = Hash::ALL.map(|hash| Cost::new(hash, &mut programs)).into();
    for _ in 0..ROUNDS {
        // In turn: a machine that slows down meanwhile slows all of them.
        for cost in &mut results {
            cost.rounds.push(programs.run(cost.hash, RUNS));
        }
    }
    // The call, the loop and the writing of a frame are no hash's.
    let nothing = median(&results[0].rounds);
    for cost in &mut results {
        cost.ns = (median(&cost.rounds) - nothing) / f64::from(HASHES);
    }
    Figures { machine, runs: RUNS, hashes: HASHES, results }
}

impl Cost {
    /// Has its result checked, and nothing measured yet.
    fn new(hash: Hash, programs: &mut Programs) -> Self {
        programs.check(hash);
        let instructions = programs.instructions(hash);
        Self { hash, ns: 0.0, instructions, rounds: Vec::new() }
    }
}

impl Figures {
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        self.machine.print(out)?;
        let costs = self.results.iter().map(|cost| {
            let (name, ns, run) = (cost.hash.name(), cost.ns, median(&cost.rounds));
            format!("{name} {ns:.1} (a run {run:.1})")
        });
        let costs: Vec<_> = costs.collect();
        writeln!(
            out,
            "ns per hash in BPF_PROG_TEST_RUN, medians of {ROUNDS} rounds of {RUNS} runs of {HASHES} \
             hashes, each waiting for the one before: {}",
            costs.join(", ")
        )
    }
}
