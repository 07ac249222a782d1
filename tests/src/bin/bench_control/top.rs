//! The heaviest of very many sources.

use std::{
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;
use tests::{
    Daemon, DaemonOptions, Flood, Lab, Sources,
    machine::{median, percentile},
};

use crate::memory::Memory;

/// Sources that send.
const SOURCES: u32 = 1 << 20;

/// Sources that are tracked at the least.
const WANTED: u64 = 1_000_000;

/// How often each command is run, beside the first time.
const ROUNDS: usize = 20;

/// Between two of them: far enough for `top` to take new counts each time.
const APART: Duration = Duration::from_millis(300);

/// After this the daemon has no counts any more to compare with.
const FORGOTTEN: Duration = Duration::from_secs(12);

/// What a command takes, from its start to its end, ms.
#[derive(Debug, Serialize)]
pub(crate) struct Times {
    /// The first time, when there were no earlier counts to tell rates by.
    pub(crate) first_ms: f64,
    /// Median of those after.
    pub(crate) median_ms: f64,
    /// 99th percentile of those.
    pub(crate) p99_ms: f64,
    /// All but the first.
    pub(crate) rounds: Vec<f64>,
}

/// What commands take that look at all sources.
#[derive(Debug, Serialize)]
pub(crate) struct Top {
    /// Sources that there were.
    pub(crate) tracked: u64,
    /// `top --once -n 20`.
    #[serde(flatten)]
    pub(crate) times: Times,
    /// The same by rates, for which the first one has to wait.
    pub(crate) by_rate: Times,
    /// `status`.
    pub(crate) status: Times,
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
    // Room for twice as many: sources fall on sets by chance, and in a full table many would get no bucket.
    let daemon = Daemon::start_with(lab, DaemonOptions::with(&["--max-sources", "2097152"]));
    let cli = daemon.cli();
    // Too slow for a gate: the first packet of a source gets it a bucket.
    cli.limit("1pps", Some("8"), None);
    let before = Memory::new(daemon.pid());
    // Twice, in case a queue was full.
    let sources = Sources::RoundRobin(Ipv4Addr::new(10, 0, 0, 0).into(), SOURCES);
    let _flooded = Flood::new(sources, 2 * u64::from(SOURCES)).send(lab);
    let mut tracked = 0;
    let mut top = |sort: &str| {
        let answer = cli.ok(&["top", "--once", "-n", "20", "--sort", sort]);
        assert_eq!(answer["sources"].as_array().map(Vec::len), Some(20), "{answer:#}");
        tracked = answer["tracked"].as_u64().expect("a number of tracked sources");
        assert!(tracked >= WANTED, "only {tracked} of {SOURCES} sources are tracked");
    };
    let times = time(|| top("dropped"));
    thread::sleep(FORGOTTEN);
    let by_rate = time(|| top("pps"));
    // Sets are full for a moment after such a flood, which makes status warn: any answer will do.
    let status = time(|| {
        let answer = cli.run(&["status"]);
        let occupied = answer.json["table"]["occupied"].as_u64();
        assert!(occupied.is_some_and(|occupied| occupied >= WANTED), "{answer:#?}");
    });
    let after = Memory::new(daemon.pid());
    Top { tracked, times, by_rate, status, before, after }
}

fn time(mut run: impl FnMut()) -> Times {
    let mut timed = || {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64() * 1e3
    };
    let first_ms = timed();
    let rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            thread::sleep(APART);
            timed()
        })
        .collect();
    let (median_ms, p99_ms) = (median(&rounds), percentile(&rounds, 0.99));
    Times { first_ms, median_ms, p99_ms, rounds }
}
