//! `bench`: the limiter beside what it competes with, its sketch, its control plane, its hash, a fleet of it, its decisions on any key, and who keeps
//! their limits.

use std::process::ExitCode;

use anyhow::Result;
use tools::Need;

use crate::{build, run::Cmd, setup, workspace};

/// Arguments of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// `sketch`, `control`, `hash`, `fleet`, `decide` or `modes` to measure that, then options of the benchmark, which are
    /// handed on: --json FILE, --chart FILE, --rounds N, --quick
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "sketch|control|hash|fleet|decide|modes] [OPTIONS"
    )]
    args: Vec<String>,
}

impl Args {
    /// The program that measures, and its arguments.
    fn split(&self) -> (&'static str, &[String]) {
        match self.args.split_first() {
            Some((what, rest)) if what == "sketch" => ("bench-sketch", rest),
            Some((what, rest)) if what == "control" => ("bench-control", rest),
            Some((what, rest)) if what == "hash" => ("bench-hash", rest),
            Some((what, rest)) if what == "fleet" => ("bench-fleet", rest),
            Some((what, rest)) if what == "decide" => ("bench-decide", rest),
            Some((what, rest)) if what == "modes" => ("bench-modes", rest),
            _ => ("bench", &self.args),
        }
    }
}

/// Sets up, builds with optimisation and becomes the benchmark, as root.
pub(crate) fn command(args: &Args) -> Result<ExitCode> {
    let (name, args) = args.split();
    let program = workspace::target_dir()?.join("release").join(name);
    // Before the build, so that nobody waits for it only to hear that root is needed.
    let bench = Cmd::own(program).args(args).into_root()?;
    let needs = [Need::Bench, Need::Decide];
    // Others need none of its peers, of which one takes minutes to build.
    setup::ensure(if name == "bench-decide" { &needs } else { &needs[..1] })?;
    build::command(true)?;
    Err(bench.exec())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn assert_split(line: &[&str], program: &str, rest: &[&str]) {
        let args = Line::try_parse_from([&["bench"], line].concat()).unwrap().args;
        let (name, handed_on) = args.split();
        assert_eq!(
            (name, handed_on.iter().map(String::as_str).collect()),
            (program, rest.to_vec())
        );
    }

    #[test]
    fn options_are_handed_on() {
        assert_split(&["--json", "file", "--quick"], "bench", &["--json", "file", "--quick"]);
        assert_split(&["sketch", "--json", "file"], "bench-sketch", &["--json", "file"]);
        assert_split(&["control"], "bench-control", &[]);
        assert_split(&["hash", "--json", "file"], "bench-hash", &["--json", "file"]);
        assert_split(&["fleet", "--json", "file"], "bench-fleet", &["--json", "file"]);
        assert_split(&["decide"], "bench-decide", &[]);
        assert_split(&["modes", "--quick"], "bench-modes", &["--quick"]);
        assert_split(&[], "bench", &[]);
    }
}
