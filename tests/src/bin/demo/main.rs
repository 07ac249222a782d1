//! Shows the limiter at work: builds a wire between two namespaces, starts the real daemon on it,
//! sets limits with the real client, sends a flood, a source of large frames and some sources that
//! keep to their limits, and compares what got through with what should have.

mod report;
mod traffic;

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use report::Report;
use tests::{Daemon, Lab, Observer, Sender, is_root, observer::Then};

/// Seconds of traffic.
const SECONDS: u64 = 5;

fn main() -> ExitCode {
    let json = match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => false,
        [flag] if flag == "--json" => true,
        other => {
            eprintln!("unknown arguments {other:?}; the demo takes --json or nothing");
            return ExitCode::from(2);
        }
    };
    if !is_root() {
        eprintln!("the demo needs root: run `cargo xtask demo` as root or with sudo");
        return ExitCode::from(4);
    }
    let report = run();
    let ok = report.ok;
    let mut stdout = io::stdout().lock();
    let written = if json { report.print_json(&mut stdout) } else { report.print(&mut stdout) };
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
