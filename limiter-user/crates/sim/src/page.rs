//! The page of what the built-in scenarios reach, which a test compares: so a change of what hosts decide is seen in the
//! change of the page, scenario by scenario.

use std::fmt::Write as _;
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

/// What the page says before its tables.
const ABOUT: &str = "\
# What the scenarios reach

`cargo xtask docs` writes this page: it runs the built-in scenarios of [`limiter simulate cluster`](../operate/cluster.md#simulate-it) with a coarse tick. Nothing is admitted beyond the limit in any of them.

A digest is of all that hosts decided and told each other: a change that is to change no decision leaves all digests as they are.

";

/// Hosts of each scenario.
const HOSTS: usize = 5;
/// The seed of each.
const SEED: u64 = 1;
/// A coarse step of traffic: the page is about hosts.
const TICK: Span = Span(Duration::from_millis(10));
/// Random schedules of faults, and how many of them are in a row.
const SCHEDULES: u64 = 60;
const IN_A_ROW: u64 = 10;

/// The page.
///
/// # Errors
/// None: a test reads all scenarios.
pub fn page() -> Result<String, Invalid> {
    let mut page = ABOUT.to_owned();
    page.push_str(
        "| scenario | hosts | used | most sent by a host, bytes/s | back to 90 %, ms | digest |\n",
    );
    page.push_str("|---|---:|---:|---:|---:|---|\n");
    for scenario in suite()?.iter().filter(|it| !it.is_heavy() && !it.membership) {
        let hosts = scenario.least_hosts.max(HOSTS);
        let scenario = Scenario { tick: TICK, ..scenario.with_hosts(hosts)? };
        row(&mut page, &scenario, &run(&scenario, SchemeKind::Escrow, SEED));
    }
    page.push_str("\nRandom schedules of faults, as `limiter simulate nemesis` has them:\n\n");
    page.push_str("| seeds | hosts | digest |\n|---|---:|---|\n");
    for first in (1..=SCHEDULES).step_by(IN_A_ROW as usize) {
        let last = first + IN_A_ROW - 1;
        let digest = (first..=last).fold(0, |all, seed| {
            let schedule = nemesis::schedule(seed, &[HOSTS]);
            mix(all ^ run(&schedule, SchemeKind::Escrow, seed).digest)
        });
        let _ = writeln!(page, "| {first} to {last} | {HOSTS} | {digest:016x} |");
    }
    Ok(page)
}

fn row(page: &mut String, scenario: &Scenario, outcome: &Outcome) {
    let worst = outcome.convergence.iter().map(|step| step.unwrap_or(f64::INFINITY));
    let back = match worst.reduce(f64::max) {
        None => String::new(),
        Some(seconds) if seconds.is_finite() => format!("{:.0}", seconds * 1e3),
        Some(_) => "never".to_owned(),
    };
    let (name, hosts, digest) = (&scenario.name, scenario.hosts, outcome.digest);
    let (used, bytes) = (outcome.verdict.utilisation, outcome.bytes);
    let _ =
        writeln!(page, "| {name} | {hosts} | {used:.3} | {bytes:.0} | {back} | {digest:016x} |");
}
