//! `cargo xtask`: brings a machine to the point where the workspace builds, and builds, lints,
//! tests, demonstrates and measures it.
//!
//! What this program has to say goes to stderr; stdout belongs to the tests, the demo and the
//! benchmarks.

mod bench;
mod build;
mod conformance;
#[cfg(test)]
mod cycle_tests;
mod demo;
mod dist;
mod docs;
mod fresh;
mod fuzz;
mod guest;
mod guests;
mod kernels;
mod lines;
mod lint;
mod progress;
mod run;
mod schedules;
mod setup;
mod stores;
mod test;
mod verifier;
mod words;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Set-up, build, lint, test, demo and benchmarks of the limiter workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what building and testing need: nightly parts, bpf-linker, cargo-deny, packages
    Setup {
        /// Only report what is there and what is missing
        #[arg(long)]
        check: bool,
    },
    /// Build the programs with the kernel program embedded
    Build {
        /// Build with optimisation
        #[arg(long)]
        release: bool,
    },
    /// Check formatting, lints, documentation, licences and sources of dependencies
    Lint {
        /// Print the production lines of each crate instead
        #[arg(long)]
        lines: bool,
    },
    /// Run the unit and the end-to-end tests
    Test(test::Args),
    /// Limit a flood on a veth pair with the real daemon and show who was limited
    Demo(demo::Args),
    /// Measure the limiter beside its competitors, or its sketch, or its control plane
    Bench(bench::Args),
    /// Run what others have written to test a rate limiter with limiter-serve
    Conformance,
    /// Try hostile packets, many more than the tests do
    Fuzz(fuzz::Args),
    /// Try the README's commands on a bare Debian, made for it
    Fresh(fresh::Args),
    /// Build a Debian package: binary, unit, configuration, manual pages, completions
    Dist(dist::Args),
    /// Write the reference pages of docs/reference from the program
    Docs,
    /// Try the limiter in emulated machines, with kernels and numbers of CPUs that this one has not
    Kernels(kernels::Args),
    /// Try a cluster of emulated machines: a clock that is slewed, a pause, a snapshot
    Guests(guests::Args),
    /// Try every order in which two CPUs can meet in one decision
    Schedules,
    /// Run the tests of a central store with each version of Redis and Valkey
    Stores(stores::Args),
    /// Print what the kernel's verifier makes of the program, and whether that has grown
    Verifier(verifier::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Setup { check } => setup::command(check).map(|()| ExitCode::SUCCESS),
        Command::Build { release } => build::command(release).map(|()| ExitCode::SUCCESS),
        Command::Lint { lines: true } => lines::print().map(|()| ExitCode::SUCCESS),
        Command::Lint { lines: false } => lint::command().map(|()| ExitCode::SUCCESS),
        Command::Test(args) => test::command(&args),
        Command::Demo(args) => demo::command(&args),
        Command::Bench(args) => bench::command(&args),
        Command::Conformance => conformance::command(),
        Command::Fresh(args) => fresh::command(&args),
        Command::Fuzz(args) => fuzz::command(&args),
        Command::Kernels(args) => kernels::command(&args),
        Command::Guests(args) => guests::command(&args),
        Command::Schedules => schedules::command(),
        Command::Stores(args) => stores::command(&args),
        Command::Dist(args) => dist::command(&args).map(|()| ExitCode::SUCCESS),
        Command::Docs => docs::command().map(|()| ExitCode::SUCCESS),
        Command::Verifier(args) => verifier::command(&args),
    };
    outcome.unwrap_or_else(|error| {
        progress::say(format_args!("error: {error:#}"));
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::Cli;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
