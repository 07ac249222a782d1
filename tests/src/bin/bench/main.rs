//! Measures the limiter beside what it competes with, in one run on the machine at hand: a bare XDP
//! drop, the least that a limiter can do, a textbook limiter on an LRU hash map, nftables and iptables.
//! All of them limit the same traffic per source at the same rate, and all that they let through is
//! dropped next.

mod arguments;
mod cell;
mod chart;
mod contender;
mod firewall;
mod forced;
#[path = "../../../ebpf/src/bench/layout.rs"]
mod layout;
mod measure;
mod object;
mod outcome;
mod stand;
mod table;
mod traffic;

use std::{
    fs,
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
};

use arguments::Arguments;
use clap::Parser as _;
use outcome::Outcome;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if !tests::is_root() {
        eprintln!("the benchmark needs root: run `cargo xtask bench` as root or with sudo");
        return ExitCode::from(4);
    }
    let outcome = measure::run(&arguments);
    match publish(&arguments, &outcome) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints and writes what was asked for.
fn publish(arguments: &Arguments, outcome: &Outcome) -> Result<(), String> {
    let mut stdout = io::stdout().lock();
    table::print(&mut stdout, outcome)
        .and_then(|()| stdout.flush())
        .map_err(|error| format!("cannot print the result: {error}"))?;
    if let Some(path) = &arguments.json {
        let json = serde_json::to_string_pretty(outcome).map_err(|error| error.to_string())?;
        write(path, &(json + "\n"))?;
    }
    if let Some(path) = &arguments.chart {
        write(path, &chart::svg(outcome)?)?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}
