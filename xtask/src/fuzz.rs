//! `fuzz`: many more hostile packets than the tests try.

use std::process::ExitCode;

use anyhow::Result;

use crate::build::{self, SKIP};

/// Arguments of `cargo xtask fuzz`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to try
    target: Target,
    /// Packets to try
    #[arg(long, default_value_t = 10_000_000)]
    packets: u64,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Target {
    /// What hosts of a cluster receive from each other
    Wire,
}

/// Runs the same tests with more packets; neither root nor the kernel program
/// is needed.
pub(crate) fn command(args: &Args) -> Result<ExitCode> {
    let Target::Wire = args.target;
    let tests = "link::fuzz::";
    let fuzz = build::cargo(["test", "--package", "cluster", "--lib", tests], SKIP)
        .args(["--", "--nocapture", "--test-threads", "1"])
        .env("LIMITER_FUZZ_PACKETS", args.packets.to_string());
    Err(fuzz.exec())
}
