//! Shows the limiter at work: builds a wire between two namespaces, starts the real daemon on it,
//! sets limits with the real client, sends a flood, a source of large frames and some sources that
//! keep to their limits, and compares what got through with what should have. Or several hosts that share
//! one limit.

mod cluster;
mod picture;
mod progress;
mod report;
mod shell;
mod supervisor;
mod traffic;

use std::{
    any::Any,
    io::{self, Write as _},
    panic,
    process::ExitCode,
};

use clap::Parser;
use picture::{Style, grouped};
use progress::{Progress, say};
use report::Report;
use tests::{
    Daemon, DaemonOptions, Lab, Observer, Sender, is_root, leftovers, observer::Observed,
    sender::Sending,
};
use traffic::{Actor, SECONDS};

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
    /// Go on with a shell in the receiving network namespace, and some traffic
    ///
    /// Its exit status is that of the shell, which reads commands from stdin if that is not a terminal.
    #[arg(long, conflicts_with_all = ["json", "cluster"])]
    shell: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if !is_root() {
        say("the demo needs root: run `cargo xtask demo` as root or with sudo");
        return ExitCode::from(4);
    }
    let done = supervisor::supervise(|| {
        // The harness panics where it cannot go on. Its message is for people; where that was is not.
        panic::set_hook(Box::new(|info| say(format_args!("error: {}", message(info.payload())))));
        let done = panic::catch_unwind(|| demonstrate(&arguments));
        done.unwrap_or(Ok(ExitCode::FAILURE)).unwrap_or_else(|error| {
            say(format_args!("error: {error}"));
            ExitCode::FAILURE
        })
    });
    done.unwrap_or_else(|error| {
        say(format_args!("error: cannot start the demo: {error}"));
        ExitCode::FAILURE
    })
}

/// What a panic says.
fn message(payload: &dyn Any) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("the demo cannot go on")
}

fn demonstrate(arguments: &Arguments) -> io::Result<ExitCode> {
    // A demo that was killed could remove nothing: its namespaces and pins are still there.
    leftovers::remove_stale();
    let progress = Progress::new();
    let mut stdout = io::stdout();
    let style = Style::new(&stdout);
    if arguments.cluster {
        let report = cluster::run(&progress);
        // Its thread writes to the same terminal as the report.
        drop(progress);
        if arguments.json {
            report.print_json(&mut stdout)?;
        } else {
            report.print(&mut stdout, style)?;
            report::print_next(&mut stdout)?;
        }
        return Ok(exit_code(report.ok));
    }
    let lab = build(&progress);
    let daemon = start(&progress, &lab, arguments.shell);
    let report = run(&progress, &lab, &daemon);
    drop(progress);
    if arguments.json {
        report.print_json(&mut stdout)?;
    } else {
        report.print(&mut stdout, style)?;
    }
    if arguments.shell {
        stdout.flush()?;
        return shell::run(&lab, &daemon);
    }
    if !arguments.json {
        report::print_next(&mut stdout)?;
    }
    Ok(exit_code(report.ok))
}

fn exit_code(ok: bool) -> ExitCode {
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn build(progress: &Progress) -> Lab {
    progress.step("building two network namespaces and a wire between them");
    Lab::new(1)
}

fn start(progress: &Progress, lab: &Lab, dashboard: bool) -> Daemon {
    progress.step("starting the daemon on the receiving end");
    let address = shell::DASHBOARD.to_string();
    let options: &[&str] = if dashboard { &["--http-listen", &address] } else { &[] };
    Daemon::start_with(lab, DaemonOptions::with(options))
}

fn run(progress: &Progress, lab: &Lab, daemon: &Daemon) -> Report {
    let cli = daemon.cli();
    let actors = traffic::actors();
    for actor in &actors {
        if let Some(order) = &actor.limit {
            let arguments = order.arguments();
            progress.step(format_args!("limiter {}", arguments.join(" ")));
            cli.ok(&arguments);
        }
    }
    let observer = Observer::by_port(lab);
    progress.step(format_args!("sending for {SECONDS} s from {} sources", actors.len()));
    let sending = Sender::new(lab).start(actors.iter().map(Actor::stream).collect());
    if progress.is_live() {
        follow(progress, &actors, &sending, &observer);
    }
    let sent = sending.join();
    let (received, stats) = daemon.accounted(lab);
    Report::new(&cli, &actors, &sent, &observer.read(), &stats, received)
}

/// Tells what becomes of the flood, second by second.
fn follow(progress: &Progress, actors: &[Actor], sending: &Sending, observer: &Observer<'_>) {
    let flood = actors.iter().position(|actor| actor.source == traffic::flood());
    let (flood, mut before) = (flood.expect("there is a flood"), 0);
    for second in 1..=SECONDS {
        let Some(sent) = sending.next_second() else { return };
        let offered = sent[flood] - before;
        before = sent[flood];
        let admitted = admitted(&observer.read(), second as usize - 1);
        progress.step(format_args!(
            "second {second} of {SECONDS}: flood offered {}, admitted {}, dropped {}",
            grouped(offered),
            grouped(admitted),
            grouped(offered.saturating_sub(admitted))
        ));
    }
}

/// Frames of the flood that got through of those sent in a second.
fn admitted(observed: &Observed, second: usize) -> u64 {
    observed.from_port(traffic::flood(), traffic::port(second))
}
