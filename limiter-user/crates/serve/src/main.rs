//! The `limiter-serve` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    serve::main().into()
}
