//! Who keeps a limit on three hosts: each alone, the cluster, or a central store, told later or asked each time. The same load,
//! the same faults and one judge for all four.

mod figures;
mod host;
mod judge;
mod measure;
mod packets;
mod plan;
mod sample;
mod stand;
mod still;
#[path = "../bench_sketch/table.rs"]
mod table;
mod timeline;

use std::{fs, io, path::PathBuf, process::ExitCode};

use clap::Parser as _;
use figures::{Figures, goals};
use measure::{Bench, Times};
use plan::{HOSTS, TASKS};
use stand::Stand;
use tests::machine::Machine;

/// Measures four ways to keep one limit on three hosts.
#[derive(Debug, clap::Parser)]
#[command(name = "bench-modes")]
struct Options {
    /// Where the figures go as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// One round, and short faults: to see that all of it works
    #[arg(long)]
    quick: bool,

    /// Where a picture of each fault goes
    #[arg(long, value_name = "DIR", default_value = "target/bench-modes")]
    timelines: PathBuf,

    /// What is answered while the store does not. `open` keeps no promise
    #[arg(long, value_name = "ANSWER", default_value = "floor", value_parser = ["floor", "closed", "open", "cluster"])]
    on_error: String,

    /// What a host is, which this program starts itself
    #[arg(long, hide = true)]
    host: Option<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(setup) = &options.host {
        return host(setup);
    }
    if !tests::is_root() {
        eprintln!("this benchmark needs root: run `cargo xtask bench modes` as root or with sudo");
        return ExitCode::from(4);
    }
    if let Err(error) = fs::create_dir_all(&options.timelines) {
        eprintln!("cannot make {}: {error}", options.timelines.display());
        return ExitCode::from(2);
    }
    let figures = measure(&options);
    if let Err(error) = figures.print(&mut io::stdout().lock()) {
        eprintln!("cannot print the result: {error}");
        return ExitCode::FAILURE;
    }
    eprintln!("pictures of faults are in {}", options.timelines.display());
    let Some(file) = options.json else { return ExitCode::SUCCESS };
    let text = serde_json::to_vec_pretty(&figures).map_err(io::Error::from);
    match text.and_then(|text| fs::write(&file, text)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot write {}: {error}; name a file that can be", file.display());
            ExitCode::FAILURE
        }
    }
}

fn host(setup: &str) -> ExitCode {
    let served = serde_json::from_str(setup).map_err(io::Error::from);
    match served.and_then(|setup| host::serve(&setup)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("a host has failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Figures {
    let machine = Machine::read();
    let times = if options.quick { Times::QUICK } else { Times::FULL };
    let stand = Stand::start(&options.on_error, options.timelines.join("hosts.log"));
    let store = stand.store.version().name();
    let mut bench = Bench::new(stand, times, &options.timelines);
    let (mut results, contenders) = bench.plain();
    results.extend(bench.faults());
    // It has the machine to itself.
    drop(bench);
    let packets = packets::measure(times.packets);
    let goals = goals(&results, &contenders, &packets);
    Figures {
        machine,
        store,
        on_error: options.on_error.clone(),
        quick: options.quick,
        hosts: HOSTS,
        tasks: TASKS,
        results,
        contenders,
        packets,
        goals,
    }
}
