//! Loads the real program as the daemon does, and prints what the kernel's verifier made of it as one
//! JSON document.

use std::{fs, os::fd::AsFd as _, process::ExitCode};

use serde_json::{Value, json};
use tests::{
    Daemon, Lab, cost, hosts, is_root,
    lab::{RX, RX_V4, RX2, TX2},
    process, program,
    tun::{TUN, Tun},
};

fn main() -> ExitCode {
    if !is_root() {
        eprintln!("the verifier works for root: run `cargo xtask verifier` as root or with sudo");
        return ExitCode::from(4);
    }
    let lab = Lab::new(1);
    let key = tempfile::tempdir().expect("a temporary folder");
    let (name, least) = measure(&Daemon::start(&lab), RX);
    let mut programs = serde_json::Map::from_iter([(name, least)]);
    let daemon =
        hosts::alone(&lab, RX_V4.into(), &key, &["--kernel-log", "--tunnels", "192.0.2.80"]);
    // The first use of any feature brings all of them.
    daemon.cli().ok(&["deny", "add", "203.0.113.0/24"]);
    let _tun = Tun::new(&lab.receiver);
    daemon.cli().ok(&["attach", TUN, "--mode", "generic"]);
    lab.add_wire();
    for (host, device) in [(&lab.sender, TX2), (&lab.receiver, RX2)] {
        process::run(host.ip(&["link", "set", device, "mtu", "9000"]));
    }
    daemon.cli().ok(&["attach", RX2]);
    for interface in [RX, RX2, TUN] {
        let (name, all) = measure(&daemon, interface);
        programs.insert(format!("{name} +all"), all);
    }
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let document = json!({
        "kernel": kernel.trim(),
        "programs": programs,
    });
    println!("{document}");
    ExitCode::SUCCESS
}

/// The figures of a daemon's program on an interface.
fn measure(daemon: &Daemon, interface: &str) -> (String, Value) {
    let info = program::info_on(daemon, interface);
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
