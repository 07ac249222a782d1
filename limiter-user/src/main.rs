//! The `limiter` binary.

use std::io;
use std::process::ExitCode;

fn main() -> ExitCode {
    limiter::cli::main(std::env::args_os().collect(), &mut io::stdout().lock()).into()
}
