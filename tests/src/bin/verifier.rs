//! Loads the real program as the daemon does, and prints what the kernel's verifier made of it as one
//! JSON document.

use std::{fs, os::fd::AsFd as _, process::ExitCode};

use serde_json::{Value, json};
use tests::{Daemon, Lab, cost, hosts, is_root, lab::RX_V4, program};

fn main() -> ExitCode {
    if !is_root() {
        eprintln!("the verifier works for root: run `cargo xtask verifier` as root or with sudo");
        return ExitCode::from(4);
    }
    let lab = Lab::new(1);
    let key = tempfile::tempdir().expect("a temporary folder");
    let (name, least) = measure(&Daemon::start(&lab));
    // Who wants the kernel's log gets all features at once.
    let (_, all) = measure(&hosts::alone(&lab, RX_V4.into(), &key, &["--kernel-log"]));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let document = json!({
        "kernel": kernel.trim(),
        "programs": { (name.clone()): least, (format!("{name} +all")): all },
    });
    println!("{document}");
    ExitCode::SUCCESS
}

/// The figures of a daemon's program.
fn measure(daemon: &Daemon) -> (String, Value) {
    let info = program::info(daemon);
    let fd = info.fd().unwrap_or_else(|error| panic!("cannot open {}: {error}", info.id()));
    let code = cost::instructions(fd.as_fd());
    let figures = json!({
        "verified_instructions": info.verified_instruction_count(),
        "instructions": code.len(),
        "machine_code_bytes": info.size_jitted(),
        "stack_bytes": cost::stack_bytes(&code),
    });
    (info.name_as_str().unwrap_or("?").to_owned(), figures)
}
