//! `fuzz`: many more hostile packets, and other input, than the tests try.

use std::env;
use std::path::{self, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::build::{self, SKIP};

/// Arguments of `cargo xtask fuzz`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to try
    target: Target,
    /// Packets to try, of `frames` and `wire`
    #[arg(long, default_value_t = 10_000_000)]
    packets: u64,
    /// A pcap file whose frames tshark reads as well, of `frames`; may be repeated
    #[arg(long = "capture", value_name = "FILE")]
    captures: Vec<PathBuf>,
    /// How long to try each decoder, s, of `decoders`
    #[arg(long, default_value_t = 600)]
    seconds: u64,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Target {
    /// What the kernel program reads of frames, beside a plain reading of them and that of tshark
    Frames,
    /// What hosts of a cluster receive from each other
    Wire,
    /// What limiter-serve receives from anybody, and reads: RESP, protobuf, JSON, YAML
    Decoders,
}

/// Runs the same tests with more of them; neither root nor the kernel program
/// is needed.
pub(crate) fn command(args: &Args) -> Result<ExitCode> {
    let (package, tests) = match args.target {
        Target::Frames => ("tests", "model::fuzz::"),
        Target::Wire => ("cluster", "link::fuzz::"),
        Target::Decoders => ("serve", "fuzz::"),
    };
    let captures: Vec<_> = args.captures.iter().map(path::absolute).collect::<Result<_, _>>()?;
    let captures = env::join_paths(captures).context("a colon in the name of a file")?;
    let fuzz = build::cargo(["test", "--package", package, "--lib", tests], SKIP)
        .env("LIMITER_FUZZ_CAPTURES", captures)
        .args(["--", "--nocapture", "--test-threads", "1"])
        .env("LIMITER_FUZZ_PACKETS", args.packets.to_string())
        .env("LIMITER_FUZZ_SECONDS", args.seconds.to_string());
    Err(fuzz.exec())
}
