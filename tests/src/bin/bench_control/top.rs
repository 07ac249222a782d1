//! The heaviest of very many sources.

use std::{
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;
use tests::{Daemon, DaemonOptions, Flood, Lab, Sources};

use crate::{
    machine::{median, percentile},
    memory::Memory,
};

/// Sources that send.
const SOURCES: u32 = 1 << 20;

/// Sources that are tracked at the least.
const WANTED: u64 = 1_000_000;

/// How often `top` is asked.
const ROUNDS: usize = 20;

/// Between two of them: `top` compares counts that are half a second apart or more, and waits where
/// they are not.
const APART: Duration = Duration::from_millis(700);

/// What `limiter top --once -n 20` takes.
#[derive(Debug, Serialize)]
pub(crate) struct Top {
    /// Sources that it chose from.
    pub(crate) tracked: u64,
    /// The first time, which may have to wait for rates, ms.
    pub(crate) first_ms: f64,
    /// Median of those after, from the start of the command to its end.
    pub(crate) median_ms: f64,
    /// 99th percentile of those.
    pub(crate) p99_ms: f64,
    /// All but the first.
    pub(crate) rounds: Vec<f64>,
    /// The daemon before the sources sent anything.
    pub(crate) before: Memory,
    /// The daemon after all of it.
    pub(crate) after: Memory,
}

/// Gives a million sources a bucket each and asks for the heaviest.
///
/// # Panics
/// If fewer are tracked.
pub(crate) fn measure(lab: &Lab) -> Top {
    let daemon = Daemon::start_with(lab, DaemonOptions::with(&["--max-sources", "2097152"]));
    let cli = daemon.cli();
    // Too slow for a gate: the first packet of a source gets it a bucket.
    cli.limit("1pps", Some("8"), None);
    let before = Memory::of(daemon.pid());
    // Twice, in case a queue was full.
    let sources = Sources::RoundRobin(Ipv4Addr::new(10, 0, 0, 0).into(), SOURCES);
    let _flooded = Flood::new(sources, 2 * u64::from(SOURCES)).send(lab);
    let mut tracked = 0;
    let mut ask = || {
        let start = Instant::now();
        let answer = cli.ok(&["top", "--once", "-n", "20"]);
        let ms = start.elapsed().as_secs_f64() * 1e3;
        assert_eq!(answer["sources"].as_array().map(Vec::len), Some(20), "{answer:#}");
        tracked = answer["tracked"].as_u64().expect("a number of tracked sources");
        assert!(tracked >= WANTED, "only {tracked} of {SOURCES} sources are tracked");
        ms
    };
    let first_ms = ask();
    let rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            thread::sleep(APART);
            ask()
        })
        .collect();
    Top {
        tracked,
        first_ms,
        median_ms: median(&rounds),
        p99_ms: percentile(&rounds, 0.99),
        rounds,
        before,
        after: Memory::of(daemon.pid()),
    }
}
