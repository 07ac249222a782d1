//! `test`: unit tests, then end-to-end tests as root, then a look at what they left behind.

mod leftovers;
mod summary;

use std::process::ExitCode;
use std::thread;

use anyhow::{Context as _, Result, ensure};
use tools::Need;

use crate::{
    build::{self, REQUIRE, SKIP},
    progress::say,
    run::{self, Cmd},
    setup,
};
use leftovers::Leftovers;
pub(crate) use summary::Summary;

/// End-to-end tests that run at once, beyond one for each processor: they wait for daemons and packets half of the
/// time.
// Two for each processor took 15 min in place of 21, but a test that times a share's end to the
// millisecond failed.
const MORE_THREADS: usize = 1;

/// Arguments of `cargo xtask test`; without `--unit` and `--e2e` both kinds run.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run the unit tests, on stable alone
    #[arg(long)]
    unit: bool,
    /// Run the end-to-end tests, which need root
    #[arg(long)]
    e2e: bool,
    /// Run only the tests whose name contains one of these; after `--`, options of the test runner
    filter: Vec<String>,
}

impl Args {
    /// Whether the unit tests, and whether the end-to-end tests are to run.
    fn kinds(&self) -> (bool, bool) {
        if self.unit == self.e2e { (true, true) } else { (self.unit, self.e2e) }
    }
}

/// Runs what is asked for. Last on stdout is what the failed tests said, once more, and the sum over all tests.
pub(crate) fn command(args: &Args) -> Result<ExitCode> {
    let (unit, e2e) = args.kinds();
    let mut total = Summary::default();
    if unit {
        // With end-to-end tests to follow, the same artefacts serve both.
        let ebpf = if e2e { REQUIRE } else { SKIP };
        record(&mut total, "unit tests", |total| run_unit(args, ebpf, total));
    }
    if e2e {
        record(&mut total, "end-to-end tests", |total| run_e2e(args, total));
    }
    if total.is_empty() {
        say("no test ran: does the filter match any?");
    }
    // Thousands of lines ago, perhaps, and whoever reads the end of a log has no more.
    total.messages().iter().for_each(|line| println!("{line}"));
    println!("{total}");
    Ok(if total.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs a suite; if it could not be run to its end, that counts as a failed test.
fn record(total: &mut Summary, name: &str, suite: impl FnOnce(&mut Summary) -> Result<()>) {
    if let Err(error) = suite(total) {
        say(format_args!("{name}: {error:#}"));
        total.add(&Summary::FAILURE);
    }
}

/// Builds the end-to-end tests, and returns the names that begin so.
pub(crate) fn named(start: &str) -> Result<Vec<String>> {
    // The test runner's own filter takes a name that has it anywhere.
    let mut names = Vec::new();
    let status = e2e()?.args(["--", "--list", "--format", "terse"]).stream(|line| {
        let name = line.strip_suffix(": test").filter(|name| name.starts_with(start));
        names.extend(name.map(str::to_owned));
    })?;
    ensure!(status.success(), "cannot list the end-to-end tests ({status})");
    ensure!(!names.is_empty(), "no end-to-end test has a name that begins with `{start}`");
    Ok(names)
}

/// Runs the end-to-end tests of these names with a variable set; returns what came of them.
pub(crate) fn run_exactly(names: &[String], variable: (&str, &str)) -> Result<Summary> {
    let options = ["--exact", "--quiet"].map(str::to_owned);
    let filter = names.iter().cloned().chain(options).collect();
    let mut total = Summary::default();
    let title = format!("{}={} cargo test, {} tests", variable.0, variable.1, names.len());
    let test = e2e()?.env(variable.0, variable.1).title(title);
    run_tests(test, &Args { unit: false, e2e: true, filter }, &mut total)?;
    Ok(total)
}

/// Cargo for the end-to-end tests that run beside each other.
fn e2e() -> Result<Cmd> {
    let runner = root_runner().context("end-to-end tests need root")?;
    let test = build::cargo(&runner, REQUIRE);
    Ok(test.args(["test", "--no-fail-fast", "--test=e2e"]))
}

fn run_unit(args: &Args, ebpf: &str, total: &mut Summary) -> Result<()> {
    if ebpf == REQUIRE {
        setup::ensure(&[Need::Kernel, Need::Charts])?;
    }
    // All of the default members, as everywhere: for another selection cargo would compile dependencies anew.
    for kind in [["--lib", "--bins"].as_slice(), &["--doc"]] {
        // One failure must not hide the others: a run takes minutes.
        let test = build::cargo(["test", "--no-fail-fast"], ebpf).args(kind);
        record(total, "unit tests", |total| run_tests(test, args, total));
    }
    Ok(())
}

fn run_e2e(args: &Args, total: &mut Summary) -> Result<()> {
    let runner = root_runner().context("end-to-end tests need root")?;
    setup::ensure(&[Need::Test])?;
    build::command(false)?;
    // An earlier run may have left something, which is not this one's fault.
    let before = Leftovers::find()?;
    for old in before.iter() {
        say(format_args!("there before the tests: {old}"));
    }
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    for (kind, threads) in [
        ("--test=e2e", cpus + MORE_THREADS),
        // Floods want all processors: beside them, tests of time would fail by chance.
        ("--test=alone", 1),
    ] {
        let test = build::cargo(&runner, REQUIRE)
            .env("RUST_TEST_THREADS", threads.to_string())
            .args(["test", "--no-fail-fast", kind]);
        record(total, "end-to-end tests", |total| run_tests(test, args, total));
    }
    for new in Leftovers::find()?.since(&before) {
        say(format_args!("left behind by the tests: {new}"));
        total.add(&Summary::FAILURE);
    }
    Ok(())
}

/// Cargo's options that run test programs, but not cargo itself, as root.
fn root_runner() -> Result<Vec<String>> {
    if run::is_root()? {
        return Ok(Vec::new());
    }
    let mut sudo = vec!["sudo".to_owned()];
    sudo.extend(run::sudo_args()?.iter().map(|arg| arg.to_string_lossy().into_owned()));
    // A list of strings is written alike in JSON and in TOML.
    let list = serde_json::to_string(&sudo).context("cannot quote the sudo command line")?;
    // The test programs alone: cargo as root would leave root's files in the build output and in
    // its cache.
    Ok(vec!["--config".to_owned(), format!("target.'cfg(all())'.runner = {list}")])
}

/// Runs one `cargo test`, passes its output on, and adds up its results.
fn run_tests(test: Cmd, args: &Args, total: &mut Summary) -> Result<()> {
    let test = test.args(["--"]).args(&args.filter);
    let (mut sum, mut said) = (Summary::default(), Vec::new());
    let status = test.stream(|line| {
        println!("{line}");
        if let Some(result) = Summary::parse(line) {
            sum.add(&result.saying(std::mem::take(&mut said)));
        } else if line == "failures:" || !said.is_empty() {
            said.push(line.to_owned());
        }
    })?;
    total.add(&sum);
    // Each failed test is counted already; a crash or a failed build is not.
    if !status.success() && sum.is_success_or_empty() {
        anyhow::bail!("`{test}` failed ({status}) without naming a failed test");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_choice_everything_runs() {
        let kinds = |unit, e2e| Args { unit, e2e, filter: Vec::new() }.kinds();
        assert_eq!(kinds(false, false), (true, true));
        assert_eq!(kinds(true, true), (true, true));
        assert_eq!(kinds(true, false), (true, false));
        assert_eq!(kinds(false, true), (false, true));
    }

    #[test]
    fn a_suite_that_cannot_run_is_a_failure() {
        let mut total = Summary::parse("test result: ok. 3 passed; 0 failed; 0 ignored;").unwrap();
        record(&mut total, "suite", |_| anyhow::bail!("cannot run"));
        assert!(!total.is_success());
        assert_eq!(total.to_string(), "3 passed, 1 failed");
    }

    #[test]
    fn a_crash_is_an_error_but_a_counted_failure_is_not() {
        let args = Args { unit: false, e2e: false, filter: Vec::new() };
        let mut total = Summary::default();
        // `sh -c SCRIPT --` takes the `--` for its name.
        let script = |text| Cmd::new(&tools::SH).args(["-c", text]);
        assert!(run_tests(script("exit 101"), &args, &mut total).is_err());
        let counted = "echo 'running 3 tests
failures:
why
test result: FAILED. 1 passed; 2 failed; 0 ignored;
other'; exit 101";
        run_tests(script(counted), &args, &mut total).unwrap();
        assert_eq!(total.to_string(), "1 passed, 2 failed");
        assert_eq!(total.messages(), ["failures:", "why"]);
    }
}
