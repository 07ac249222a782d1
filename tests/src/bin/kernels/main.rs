//! Runs in a guest of `cargo xtask kernels`: floods limits of the real daemon from all CPUs, and prints one
//! line of JSON for each scenario.

mod links;
mod scenario;

use std::{fs, process::ExitCode};

use clap::Parser;
use links::Link;
use scenario::{Outcome, Scenario};
use tests::{Lab, Observer, hosts, is_root, lab::RX_V4, observer::Then, program};

/// Flood limits from all CPUs, and print what was admitted
#[derive(Parser)]
#[command(name = "kernels")]
struct Arguments {
    /// Sources that the table has room for
    #[arg(long, default_value_t = 1024)]
    table: u32,
    /// What to try, in this order
    #[arg(required = true)]
    scenarios: Vec<Scenario>,
    /// Afterwards, a limit on such an interface; may be repeated
    #[arg(long = "link", value_name = "LINK")]
    links: Vec<Link>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if !is_root() {
        eprintln!(
            "this needs root and changes the machine: `cargo xtask kernels` runs it in guests"
        );
        return ExitCode::from(4);
    }
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let lab = Lab::new(u32::try_from(cpus).expect("few CPUs"));
    // With everything that makes its program larger.
    let (key, table) =
        (tempfile::tempdir().expect("a temporary folder"), arguments.table.to_string());
    let mut daemon = hosts::alone(
        &lab,
        RX_V4.into(),
        &key,
        &["--kernel-log", "--max-sources", &table, "--tunnels", "192.0.2.80"],
    );
    // The first use of any feature brings all of them.
    daemon.cli().ok(&["deny", "add", "192.0.0.0/24"]);
    let verified = program::info(&daemon).verified_instruction_count();
    let read = |path| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let (release, jit) =
        (read("/proc/sys/kernel/osrelease"), read("/proc/sys/net/core/bpf_jit_enable") != "0");
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let print = |name: &str, outcome: Outcome| {
        let row = serde_json::json!({
            "release": release,
            "cpus": cpus,
            "jit": jit,
            "scenario": name,
            "table": arguments.table,
            "loads": true,
            "verified_instructions": verified,
            "admitted": outcome.admitted,
            "expected": outcome.expected,
            "offered": outcome.offered,
            "seconds": outcome.seconds,
            "conforming_dropped": outcome.conforming_dropped,
        });
        println!("{row}");
    };
    for scenario in arguments.scenarios {
        print(scenario.name(), scenario.run(&lab, &mut daemon, &observer, cpus));
    }
    observer.end();
    for link in arguments.links {
        print(link.name(), link.run(&lab, &daemon));
    }
    ExitCode::SUCCESS
}
