//! Shows the limiter at work: builds a wire between two namespaces, starts the real daemon on it,
//! sets limits with the real client, sends a flood, a source of large frames and some sources that
//! keep to their limits, and compares what got through with what should have. Or several hosts that share
//! one limit.

mod cluster;
mod report;
mod traffic;

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use clap::Parser;
use report::Report;
use tests::{Daemon, Lab, Observer, Sender, is_root, observer::Then};

/// Seconds of traffic.
const SECONDS: u64 = 5;

/// Show the limiter at work
#[derive(Parser)]
#[command(name = "demo")]
struct Arguments {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Show three hosts that share one limit, one of which dies
    #[arg(long)]
    cluster: bool,
}

fn main() -> ExitCode {
    let Arguments { json, cluster } = Arguments::parse();
    if !is_root() {
        eprintln!("the demo needs root: run `cargo xtask demo` as root or with sudo");
        return ExitCode::from(4);
    }
    let mut stdout = io::stdout().lock();
    let (ok, written) = if cluster {
        let report = cluster::run();
        let written = if json { report.print_json(&mut stdout) } else { report.print(&mut stdout) };
        (report.ok, written)
    } else {
        let report = run();
        let written = if json { report.print_json(&mut stdout) } else { report.print(&mut stdout) };
        (report.ok, written)
    };
    if let Err(error) = written.and_then(|()| stdout.flush()) {
        eprintln!("cannot print the result: {error}");
        return ExitCode::FAILURE;
    }
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run() -> Report {
    eprintln!("building two network namespaces and a wire between them");
    let lab = Lab::new(1);
    eprintln!("starting the daemon on the receiving end");
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    let actors = traffic::actors();
    for actor in &actors {
        if let Some(order) = &actor.limit {
            let arguments = order.arguments();
            eprintln!("limiter {}", arguments.join(" "));
            cli.ok(&arguments);
        }
    }
    let observer = Observer::new(&lab, Then::Discard, &[]);
    eprintln!("sending for {SECONDS} s from {} sources", actors.len());
    let sent = Sender::new(&lab).send(actors.iter().map(|actor| actor.stream(SECONDS)).collect());
    let stats = daemon.accounted(&lab);
    let received = daemon.received(&lab);
    let observed = observer.read();
    Report::new(&cli, &actors, &sent, &observed, &stats, received)
}
