//! The page of what the built-in scenarios reach, which a test compares: so a change of what hosts decide is seen in the
//! change of the page, scenario by scenario.

use std::time::Duration;

use super::clock::Span;
use super::nemesis;
use super::outcome::Outcome;
use super::rng::mix;
use super::runs::run;
use super::scenario::Scenario;
use super::scheme::SchemeKind;
use super::suite::suite;
use model::Invalid;

/// What is said before the table of scenarios.
const SCENARIOS: &str = "\
# What the scenarios reach

`cargo xtask docs` writes this page: it runs the built-in scenarios of [`limiter simulate cluster`](../operate/cluster.md#simulate-it) with a coarse tick. Nothing is admitted beyond the limit in any of them.

A digest is of all that hosts decided and told, each other and operators: a change that is to change no decision leaves all digests as they are.

| scenario | hosts | used | most sent by a host, bytes/s | back to 90 %, ms | digest |
|---|---:|---:|---:|---:|---|
";

/// What is said before the table of schedules.
const NEMESIS: &str = "
Random schedules of faults, as `limiter simulate nemesis` has them:

| seeds | hosts | digest |
|---|---:|---|
";

/// Hosts of each scenario.
const HOSTS: usize = 5;
/// The seed of each.
const SEED: u64 = 1;
/// A coarse step of traffic: the page is about hosts.
const TICK: Span = Span(Duration::from_millis(10));
/// Rows of random schedules, and how many are in a row.
const ROWS: u64 = 6;
const IN_A_ROW: u64 = 10;

/// The page.
///
/// # Errors
/// None: a test reads all scenarios.
pub fn page() -> Result<String, Invalid> {
    Ok(lines()?.map(|line| line + "\n").collect())
}

/// Its lines, each of which is worked out when it is asked for.
pub(super) fn lines() -> Result<impl Iterator<Item = String>, Invalid> {
    let scenarios = suite()?.into_iter().filter(|it| !it.is_heavy() && !it.membership);
    let fit = |scenario: Scenario| {
        let hosts = scenario.least_hosts.max(HOSTS);
        Ok(Scenario { tick: TICK, ..scenario.with_hosts(hosts)? })
    };
    let scenarios = scenarios.map(fit).collect::<Result<Vec<_>, Invalid>>()?;
    let first = |number: u64| 1 + number * IN_A_ROW;
    let text = |text: &'static str| text.lines().map(str::to_owned);
    let rows = scenarios.into_iter().map(|it| row(&it, &run(&it, SchemeKind::Escrow, SEED)));
    Ok(text(SCENARIOS).chain(rows).chain(text(NEMESIS)).chain((0..ROWS).map(first).map(schedules)))
}

fn row(scenario: &Scenario, outcome: &Outcome) -> String {
    let worst = outcome.convergence.iter().map(|step| step.unwrap_or(f64::INFINITY));
    let back = match worst.reduce(f64::max) {
        None => String::new(),
        Some(seconds) if seconds.is_finite() => format!("{:.0}", seconds * 1e3),
        Some(_) => "never".to_owned(),
    };
    let (name, hosts, digest) = (&scenario.name, scenario.hosts, outcome.digest);
    let (used, bytes) = (outcome.verdict.utilisation, outcome.bytes);
    format!("| {name} | {hosts} | {used:.3} | {bytes:.0} | {back} | {digest:016x} |")
}

/// The row of random schedules from a seed on.
fn schedules(first: u64) -> String {
    let last = first + IN_A_ROW - 1;
    let digest = (first..=last).fold(0, |all, seed| {
        let schedule = nemesis::schedule(seed, &[HOSTS]);
        mix(all ^ run(&schedule, SchemeKind::Escrow, seed).digest)
    });
    format!("| {first} to {last} | {HOSTS} | {digest:016x} |")
}
