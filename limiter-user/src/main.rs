//! The `limiter` binary: the commands, and what works without a daemon.

mod cli;
mod doctor;
mod simulation;

use std::io;
use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main(std::env::args_os().collect(), &mut io::stdout().lock()).into()
}
