//! `fresh`: tries the README's commands on a machine that has nothing yet.
//!
//! The machine is a bare Debian root with the caller's rustup toolchains and what the README tells to
//! install, in namespaces of its own but for the network, which the package indices are on. The tree
//! in it is the committed one, and the commands are taken out of its README.

mod readme;
mod root;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use tools::Need;

use crate::{
    progress::{Step, read_span, span},
    run::say,
    setup,
};
use readme::Readme;
use root::Root;

/// Arguments of `cargo xtask fresh`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which of the README's commands to try
    #[arg(long = "command", value_name = "NAME", default_values = ["demo", "test"])]
    commands: Vec<Name>,
    /// Debian's release
    #[arg(long, default_value = "bookworm")]
    suite: Suite,
    /// Start a shell in the root that a failed run has kept, instead
    #[arg(long, conflicts_with = "commands")]
    enter: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Name {
    Demo,
    Test,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Suite {
    Bookworm,
    Trixie,
}

impl Name {
    /// The command as the README has it.
    fn line(self) -> &'static str {
        match self {
            Self::Demo => "cargo xtask demo",
            Self::Test => "cargo xtask test",
        }
    }
}

impl Suite {
    fn name(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
        }
    }
}

/// Tries the commands, each in a root of its own.
pub(crate) fn command(args: &Args) -> Result<ExitCode> {
    setup::ensure(&[Need::Fresh])?;
    if args.enter {
        return Err(Root::kept(args.suite.name())?.enter()?.exec());
    }
    let readme = Readme::committed()?;
    let prerequisites = readme.prerequisites()?;
    let mut lines = Vec::new();
    for command in &args.commands {
        let line = readme.command(command.line())?;
        lines.push(attempt(args.suite, &prerequisites, &line)?);
    }
    for line in lines {
        println!("{line}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `line` in a new root, and returns the closing line.
fn attempt(suite: Suite, prerequisites: &str, line: &str) -> Result<String> {
    let root = Root::make(suite.name())?;
    let step = Step::begin(format!("fresh: {prerequisites}"), None);
    let log = step.log("fresh")?;
    let hint = || {
        let option = if suite == Suite::Bookworm { "" } else { " --suite trixie" };
        format!("the root is kept: `cargo xtask fresh --enter{option}` starts a shell in it")
    };
    root.run(prerequisites)?.log(&log).with_context(hint)?;
    step.done();
    say(format_args!("fresh: {line}"));
    let started = Instant::now();
    let mut parts = Vec::new();
    // What the command says comes on stdout here, so that it can be read.
    let status = root.run(&format!("{line} 2>&1"))?.stream(|line| {
        println!("{line}");
        parts.extend(part(line));
    })?;
    let total = started.elapsed();
    if !status.success() {
        bail!("fresh: {line}: failed ({status}) after {}\n{}", span(total), hint());
    }
    root.remove()?;
    Ok(closing(line, total, &parts))
}

/// The step that `line` says has ended, and its time.
fn part(line: &str) -> Option<(String, Duration)> {
    let (name, time) = line.strip_prefix("xtask: ")?.rsplit_once(": ")?;
    let name =
        name.split_once(' ').filter(|(number, _)| number.contains('/')).map_or(name, |it| it.1);
    Some((name.to_owned(), read_span(time)?))
}

/// `fresh: cargo xtask demo: ok in 5 min 10 s (start 30 s, … , rest 8 s)`; what is before the first
/// step, in which cargo compiles xtask, and after the last one is the rest.
fn closing(line: &str, total: Duration, parts: &[(String, Duration)]) -> String {
    let known: Duration = parts.iter().map(|(_, time)| *time).sum();
    let parts = parts.iter().map(|(name, time)| format!("{name} {}, ", span(*time)));
    let rest = span(total.saturating_sub(known));
    format!("fresh: {line}: ok in {} ({}all else {rest})", span(total), parts.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_has_each_step() {
        let lines = [
            "xtask: 1/3 tools: 1 min 52 s",
            "xtask: 2/3 build: 50 s",
            "1 of 3: 4 s",
            "xtask: x: y",
        ];
        let parts: Vec<_> = lines.iter().filter_map(|line| part(line)).collect();
        assert_eq!(
            closing("cargo xtask demo", Duration::from_secs(170), &parts),
            "fresh: cargo xtask demo: ok in 2 min 50 s (tools 1 min 52 s, build 50 s, all else 8 s)"
        );
    }
}
