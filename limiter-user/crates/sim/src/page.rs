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

/// What is said before the table of schedules with coarse clocks.
const COARSE_NEMESIS: &str = "
Others with clocks that go on in steps of 1.25 ms: what ends at one moment and what begins meet.

| seeds | hosts | digest |
|---|---:|---|
";

/// Hosts of each scenario.
const HOSTS: usize = 5;
/// The seed of each.
const SEED: u64 = 1;
/// A coarse step of traffic: the page is about hosts.
const TICK: Span = Span(Duration::from_millis(10));
/// Random schedules in a row.
const IN_A_ROW: usize = 10;
/// Hosts of each row of them.
const ROWS: [usize; 10] = [HOSTS, HOSTS, HOSTS, HOSTS, HOSTS, HOSTS, 3, 3, 9, 9];
/// The same of those with coarse clocks.
const COARSE_ROWS: [usize; 6] = [3, 3, HOSTS, HOSTS, 9, 9];
/// Leases are whole numbers of it, and what is used of a lease, too.
const COARSE: Span = Span(Duration::from_micros(1_250));

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
    let text = |text: &'static str| text.lines().map(str::to_owned);
    let scenarios = scenarios.into_iter().map(|it| row(&it, &run(&it, SchemeKind::Escrow, SEED)));
    let firsts = (1_u64..).step_by(IN_A_ROW);
    let rows = firsts.clone().zip(ROWS).map(|(first, hosts)| schedules(first, hosts, |it| it));
    let coarse = firsts.skip(ROWS.len()).zip(COARSE_ROWS);
    let coarse = coarse.map(|(first, hosts)| schedules(first, hosts, coarsen));
    let scenarios = text(SCENARIOS).chain(scenarios);
    Ok(scenarios.chain(text(NEMESIS)).chain(rows).chain(text(COARSE_NEMESIS)).chain(coarse))
}

fn coarsen(scenario: Scenario) -> Scenario {
    // A clock that is wrong as well would leave nothing of what leases allow for.
    Scenario { resolution: COARSE, drift: 0.0, ..scenario }
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
fn schedules(first: u64, hosts: usize, with: fn(Scenario) -> Scenario) -> String {
    let last = first + IN_A_ROW as u64 - 1;
    let digest = (first..=last).fold(0, |all, seed| {
        let schedule = with(nemesis::schedule(seed, &[hosts]));
        mix(all ^ run(&schedule, SchemeKind::Escrow, seed).digest)
    });
    format!("| {first} to {last} | {hosts} | {digest:016x} |")
}
