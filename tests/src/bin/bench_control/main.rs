//! Time and memory of the control plane, with the real daemon on a wire between two namespaces: from
//! `limiter limit set` to its enforcement, loading many limits, `limiter top` over many sources, and what
//! it costs to watch them.

#[path = "../bench_sketch/arguments.rs"]
mod arguments;
mod enforcement;
mod load;
mod memory;
mod report;
#[path = "../bench_sketch/table.rs"]
mod table;
mod top;
mod watched;

use std::{io, process::ExitCode};

use arguments::Arguments;
use report::Figures;
use tests::{Daemon, Lab, is_root, machine::Machine};

fn main() -> ExitCode {
    let arguments = match Arguments::of_this_process("bench-control") {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    if !is_root() {
        eprintln!(
            "this benchmark needs root: run `cargo xtask bench control` as root or with sudo"
        );
        return ExitCode::from(4);
    }
    let figures = run();
    if let Err(error) = figures.print(&mut io::stdout().lock()) {
        eprintln!("cannot print the result: {error}");
        return ExitCode::FAILURE;
    }
    arguments.write(&figures)
}

fn run() -> Figures {
    let lab = Lab::new(1);
    let mut enforcement = Vec::new();
    let mut loads = Vec::new();
    {
        eprintln!("setting a limit, {} times", enforcement::ROUNDS);
        let daemon = Daemon::start(&lab);
        enforcement.push(enforcement::by_command(&lab, &daemon, "command"));
        enforcement.push(enforcement::by_api(&lab, &daemon));
    }
    for limits in [100_000, 1_000_000] {
        eprintln!("loading {limits} limits");
        let daemon = Daemon::start(&lab);
        loads.push(load::load(&daemon, limits));
        if limits == 1_000_000 {
            eprintln!("setting a limit among them, {} times", enforcement::ROUNDS);
            enforcement.push(enforcement::by_command(&lab, &daemon, "command, 1 M limits loaded"));
        }
    }
    eprintln!("denying a million sources");
    loads.push(load::deny(&Daemon::start(&lab), 1_000_000));
    eprintln!("tracking a million sources");
    let top = top::measure(&lab);
    eprintln!("watching a million sources");
    let watched = watched::measure(&lab);
    Figures { machine: Machine::read(), enforcement, load: loads, top, watched }
}
