//! Loads the real program as the daemon does, and prints what the kernel's verifier made of it as one
//! JSON document.

use std::{fs, net::SocketAddr, os::fd::AsFd as _, process::ExitCode};

use aya::programs::loaded_programs;
use serde_json::{Value, json};
use tests::{
    Daemon, DaemonOptions, Lab, cli::limiter_binary, cost, hosts::PORT, is_root, lab::RX_V4,
    process, program,
};

fn main() -> ExitCode {
    if !is_root() {
        eprintln!("the verifier works for root: run `cargo xtask verifier` as root or with sudo");
        return ExitCode::from(4);
    }
    let lab = Lab::new(1);
    let (name, off) = measure(&Daemon::start(&lab), None);
    let (_, peers) = measure(&in_cluster(&lab), None);
    let logging = Daemon::start_with(&lab, DaemonOptions::with(&["--kernel-log"]));
    let (_, on) = measure(&logging, None);
    let (logger, lines) = measure(&logging, Some("logger"));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let document = json!({
        "kernel": kernel.trim(),
        "programs": {
            (name.clone()): off,
            (format!("{name} +cluster")): peers,
            (format!("{name} +log")): on,
            (logger): lines,
        },
    });
    println!("{document}");
    ExitCode::SUCCESS
}

/// A daemon of a cluster, so that its program knows frames of other hosts.
fn in_cluster(lab: &Lab) -> Daemon {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let key = folder.path().join("cluster.key");
    process::run(tools::own(limiter_binary()).args(["cluster", "key", "generate"]).arg(&key));
    let listen = SocketAddr::from((RX_V4, PORT)).to_string();
    let key = key.display().to_string();
    let arguments = ["--cluster-listen", &listen, "--cluster-key-file", &key];
    Daemon::start_with(lab, DaemonOptions::with(&arguments))
}

/// The figures of a daemon's program; or of the first one called `other` that was loaded after that.
fn measure(daemon: &Daemon, other: Option<&str>) -> (String, Value) {
    let id = program::id(daemon);
    let info = loaded_programs()
        .filter_map(Result::ok)
        .find(|info| match other {
            // Ids grow: one before the daemon's own program is of another daemon.
            Some(name) => info.id() > id && info.name_as_str() == Some(name),
            None => info.id() == id,
        })
        .unwrap_or_else(|| {
            panic!("the kernel has no program {}", other.unwrap_or("of the daemon"))
        });
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
