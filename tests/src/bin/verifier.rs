//! Loads the real program as the daemon does, and prints what the kernel's verifier made of it as one
//! JSON document.

use std::{fs, os::fd::AsFd as _, process::ExitCode};

use aya::programs::loaded_programs;
use serde_json::json;
use tests::{Daemon, Lab, cost, is_root, program};

fn main() -> ExitCode {
    if !is_root() {
        eprintln!("the verifier works for root: run `cargo xtask verifier` as root or with sudo");
        return ExitCode::from(4);
    }
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let id = program::id(&daemon);
    let info = loaded_programs()
        .filter_map(Result::ok)
        .find(|info| info.id() == id)
        .unwrap_or_else(|| panic!("the kernel has no program {id}"));
    let fd = info.fd().unwrap_or_else(|error| panic!("cannot open program {id}: {error}"));
    let code = cost::instructions(fd.as_fd());
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let document = json!({
        "kernel": kernel.trim(),
        "programs": {
            info.name_as_str().unwrap_or("?"): {
                "verified_instructions": info.verified_instruction_count(),
                "instructions": code.len(),
                "machine_code_bytes": info.size_jitted(),
                "stack_bytes": cost::stack_bytes(&code),
            },
        },
    });
    println!("{document}");
    ExitCode::SUCCESS
}
