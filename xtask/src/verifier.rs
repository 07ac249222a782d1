//! `verifier`: what the kernel's verifier makes of the program, against a table that is kept with the
//! source, so that a jump is noticed.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};
use serde_json::Value;
use tools::Need;

use crate::{build, progress::say, run::Cmd, setup, workspace};

/// How much a figure may grow before that is an error, percent.
// The nightly compiler is not pinned: figures move a little with the same source.
const MAX_GROWTH: f64 = 10.0;

/// Arguments of `cargo xtask verifier`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write today's figures into the table
    #[arg(long)]
    update: bool,
}

/// One figure, then and now.
#[derive(Debug, PartialEq)]
struct Row {
    program: String,
    figure: String,
    kept: Option<u64>,
    now: u64,
}

impl Row {
    /// Growth in percent, negative if it shrank; `None` if there is nothing to compare with.
    fn growth(&self) -> Option<f64> {
        let kept = self.kept? as f64;
        let now = self.now as f64;
        if kept == now { Some(0.0) } else { Some((now - kept) / kept * 100.0) }
    }

    fn has_jumped(&self) -> bool {
        self.growth().is_some_and(|growth| growth > MAX_GROWTH)
    }
}

/// Loads the program as root, prints the comparison; a failure if a figure has grown too much.
pub(crate) fn command(args: &Args) -> Result<ExitCode> {
    let program = workspace::target_dir()?.join("debug").join("verifier");
    // First, so that nobody waits for the build only to hear that root is needed.
    let measure = Cmd::own(program).into_root()?;
    setup::ensure(&[Need::Demo])?;
    build::command(false)?;
    let text = measure.capture()?;
    let now: Value = serde_json::from_str(&text).context("the figures are not JSON")?;
    let path = table();
    if args.update {
        let text = format!("{now:#}\n");
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        say(format_args!("{} is up to date", path.display()));
    }
    let kept = fs::read_to_string(&path).with_context(|| {
        format!("cannot read {}: `cargo xtask verifier --update` makes it", path.display())
    })?;
    let kept: Value =
        serde_json::from_str(&kept).with_context(|| format!("{} is not JSON", path.display()))?;
    let rows = compare(&kept, &now);
    println!("{:<12} {:<22} {:>9} {:>9} {:>8}", "program", "figure", "kept", "now", "change");
    for row in &rows {
        let kept = row.kept.map_or_else(|| "-".to_owned(), |kept| kept.to_string());
        let growth =
            row.growth().map_or_else(|| "new".to_owned(), |growth| format!("{growth:+.1}%"));
        println!("{:<12} {:<22} {kept:>9} {:>9} {growth:>8}", row.program, row.figure, row.now);
    }
    // Another verifier counts otherwise: figures of two kernels tell little of a change to the
    // program.
    if kept["kernel"] != now["kernel"] {
        say(format_args!("the table is from Linux {}, this is {}", kept["kernel"], now["kernel"]));
    }
    let jumped: Vec<_> = rows.iter().filter(|row| row.has_jumped()).collect();
    for row in &jumped {
        say(format_args!(
            "{} of {} has grown by more than {MAX_GROWTH} %: make the program simpler, or accept \
             it with --update",
            row.figure, row.program
        ));
    }
    Ok(if jumped.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn table() -> PathBuf {
    workspace::root().join("xtask").join("verifier.json")
}

/// Every figure of `now`, with what was kept of it.
fn compare(kept: &Value, now: &Value) -> Vec<Row> {
    let programs = now["programs"].as_object().into_iter().flatten();
    programs
        .flat_map(|(program, figures)| {
            let figures = figures.as_object().into_iter().flatten();
            figures.filter_map(move |(figure, value)| {
                Some(Row {
                    program: program.clone(),
                    figure: figure.clone(),
                    // A new program or figure has nothing to grow from: it is told as new, not as
                    // a failure.
                    kept: kept["programs"][program][figure].as_u64(),
                    now: value.as_u64()?,
                })
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_jump_is_an_error() {
        let document =
            |verified, stack| json!({"programs": {"p": {"verified": verified, "stack": stack}}});
        let rows = compare(&document(1000, 0), &document(1100, 8));
        let jumped =
            |figure: &str| rows.iter().find(|row| row.figure == figure).map(Row::has_jumped);
        assert_eq!(rows.len(), 2);
        assert_eq!(jumped("verified"), Some(false));
        assert_eq!(jumped("stack"), Some(true));
        assert!(compare(&document(1000, 8), &document(1101, 8)).iter().any(Row::has_jumped));
        assert!(!compare(&document(1000, 8), &document(10, 8)).iter().any(Row::has_jumped));
        let new = compare(&json!({}), &document(1, 1));
        assert!(new.iter().all(|row| row.growth().is_none() && !row.has_jumped()));
    }
}
