//! `stores`: the tests of a central store with each version that is promised to work.

use std::{
    fmt::Write as _,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Result;
use clap::builder::PossibleValuesParser;
use tools::{Need, STORE, Store};

use crate::{
    build,
    progress::say,
    setup,
    test::{self, Summary},
};

/// Arguments of `cargo xtask stores`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this version
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(Store::ALL.map(Store::name)))]
    only: Option<String>,
    /// Run the tests whose names begin so
    #[arg(long, value_name = "PREFIX", default_value = "store")]
    tests: String,
}

impl Args {
    fn stores(&self) -> impl Iterator<Item = Store> {
        let is_wanted = |store: &Store| self.only.as_ref().is_none_or(|only| *only == store.name());
        Store::ALL.into_iter().filter(is_wanted)
    }
}

/// What came of one version.
struct Row {
    name: &'static str,
    release: String,
    summary: Summary,
    took: Duration,
}

/// Runs the tests with one version after the other. Last on stdout is a table, and the sum.
pub(crate) fn command(args: &Args) -> Result<ExitCode> {
    setup::ensure(&[Need::Test, Need::Stores])?;
    build::command(false)?;
    let names = test::named(&args.tests)?;
    let rows: Vec<_> = args.stores().map(|store| run(&names, store)).collect();
    let mut total = Summary::default();
    rows.iter().for_each(|row| total.add(&row.summary));
    total.messages().iter().for_each(|line| println!("{line}"));
    println!("{}{total}", table(&rows));
    Ok(if total.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run(names: &[String], store: Store) -> Row {
    let begin = Instant::now();
    let summary = test::run_exactly(names, (STORE, store.name())).unwrap_or_else(|error| {
        // A version that cannot be tried has failed, and the others are tried all the same.
        say(format_args!("{}: {error:#}", store.name()));
        Summary::FAILURE
    });
    let release = store.tool().version().unwrap_or_default();
    Row { name: store.name(), release, summary, took: begin.elapsed() }
}

fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<12}{:<10}{:>8}{:>8}{:>10}\n",
        "store", "release", "passed", "failed", "seconds"
    );
    for Row { name, release, summary, took } in rows {
        let (passed, failed) = summary.counts();
        let seconds = took.as_secs();
        let _infallible =
            writeln!(text, "{name:<12}{release:<10}{passed:>8}{failed:>8}{seconds:>10}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_line_for_each_version() {
        let row = |name, seconds| Row {
            name,
            release: "7.0.15".to_owned(),
            summary: Summary::parse("test result: ok. 12 passed; 3 failed;").unwrap(),
            took: Duration::from_secs(seconds),
        };
        let text = table(&[row("redis", 9), row("valkey-8.0", 100)]);
        assert_eq!(
            text,
            "store       release     passed  failed   seconds\n\
             redis       7.0.15          12       3         9\n\
             valkey-8.0  7.0.15          12       3       100\n"
        );
    }

    #[test]
    fn one_version_can_be_chosen() {
        let stores = |only: Option<&str>| {
            let args = Args { only: only.map(str::to_owned), tests: "store".to_owned() };
            args.stores().collect::<Vec<_>>()
        };
        assert_eq!(stores(None), Store::ALL);
        assert_eq!(stores(Some("redis-6.2")), [Store::Redis6]);
    }
}
