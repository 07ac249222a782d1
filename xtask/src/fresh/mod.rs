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
    progress::{Step, read_span, say, span},
    setup,
};
use readme::Readme;
use root::Root;

/// The README's commands, after `cargo xtask`.
const NAMES: [&str; 2] = ["demo", "test"];
/// Releases of Debian; the first is the usual one.
const SUITES: [&str; 2] = ["bookworm", "trixie"];

/// Arguments of `cargo xtask fresh`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which of the README's commands to try
    #[arg(long = "command", value_name = "NAME", default_values = NAMES, value_parser = NAMES)]
    commands: Vec<String>,
    /// Debian's release
    #[arg(long, default_value = SUITES[0], value_parser = SUITES)]
    suite: String,
    /// Start a shell in the root that a failed run has kept, instead
    #[arg(long, conflicts_with = "commands")]
    enter: bool,
}

/// Tries the commands, each in a root of its own.
pub(crate) fn command(args: &Args) -> Result<ExitCode> {
    setup::ensure(&[Need::Fresh])?;
    if args.enter {
        return Err(Root::kept(&args.suite)?.enter()?.exec());
    }
    let readme = Readme::committed()?;
    let prerequisites = readme.prerequisites()?;
    let mut lines = Vec::new();
    // A root for each: the second command would find what the first has installed.
    for command in &args.commands {
        let line = readme.command(&format!("cargo xtask {command}"))?;
        lines.push(attempt(&args.suite, &prerequisites, &line)?);
    }
    // Once more at the end, as a build's whole output lies between.
    for line in lines {
        println!("{line}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `line` in a new root, and returns the closing line.
fn attempt(suite: &str, prerequisites: &str, line: &str) -> Result<String> {
    // A root for each command: what one of them installs must not help the next.
    let root = Root::make(suite)?;
    let step = Step::begin(format!("fresh: {prerequisites}"), None);
    let log = step.log("fresh")?;
    let hint = || {
        let option = if suite == SUITES[0] { String::new() } else { format!(" --suite {suite}") };
        format!("the root is kept: `cargo xtask fresh --enter{option}` starts a shell in it")
    };
    root.run(prerequisites)?.log(&log).with_context(hint)?;
    step.done();
    say(format_args!("fresh: {line}"));
    let started = Instant::now();
    let mut parts = Parts::default();
    // What the command says comes on stdout here, so that it can be read.
    let status = root.run(&format!("{line} 2>&1"))?.stream(|line| {
        println!("{line}");
        parts.hear(started.elapsed(), line);
    })?;
    let total = started.elapsed();
    if !status.success() {
        bail!("fresh: {line}: failed ({status}) after {}\n{}", span(total), hint());
    }
    // Only where all went well: a root that is kept is what a failure is looked for in.
    root.remove()?;
    Ok(parts.closing(line, total))
}

/// What a command has spent its time on, as its steps tell.
#[derive(Default)]
struct Parts {
    known: Vec<(String, Duration)>,
    /// When the latest of them had ended.
    at: Duration,
}

impl Parts {
    /// Takes a line that the command has printed `at` this time after its start.
    fn hear(&mut self, at: Duration, line: &str) {
        let Some(message) = line.strip_prefix("xtask: ") else { return };
        if self.known.is_empty() {
            // Until xtask speaks, cargo compiles it.
            self.known.push(("xtask".to_owned(), at));
        }
        let Some((name, time)) = message.rsplit_once(": ") else { return };
        let Some(time) = read_span(time) else { return };
        let number = name.split_once(' ').filter(|(number, _)| number.contains('/'));
        let name = number.map_or(name, |(_, name)| name);
        // Which tools were installed is a long list.
        let name = if name.starts_with("installing ") { "installing" } else { name };
        self.known.push((name.to_owned(), time));
        self.at = at;
    }

    /// `fresh: cargo xtask demo: ok in 5 min 10 s (xtask 30 s, …, demo 8 s)`; what comes after the last
    /// step has the command's name.
    fn closing(self, line: &str, total: Duration) -> String {
        let name = line.rsplit(' ').next().unwrap_or_default().to_owned();
        let last = (name, total.saturating_sub(self.at));
        let parts = self.known.into_iter().chain([last]);
        let parts: Vec<_> = parts.map(|(name, time)| format!("{name} {}", span(time))).collect();
        format!("fresh: {line}: ok in {} ({})", span(total), parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_has_each_step() {
        let mut parts = Parts::default();
        for (second, line) in [
            (20, "   Compiling xtask"),
            (21, "xtask: 1/3 tools, about 2 min"),
            (90, "xtask: 1/3 tools: 1 min 9 s"),
            (91, "1 of 3: 4 s"),
            (140, "xtask: 2/3 build: 50 s"),
            (141, "xtask: x: y"),
        ] {
            parts.hear(Duration::from_secs(second), line);
        }
        assert_eq!(
            parts.closing("cargo xtask demo", Duration::from_secs(170)),
            "fresh: cargo xtask demo: ok in 2 min 50 s (xtask 21 s, tools 1 min 9 s, build 50 s, demo 30 s)"
        );
    }
}
