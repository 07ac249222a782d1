//! Strict limits of packets: what the store is asked while very many sources send very much, and what the data plane does
//! while the store does not answer.

use std::{
    net::Ipv4Addr,
    thread::sleep,
    time::{Duration, Instant},
};

use serde::Serialize;
use tests::{
    Daemon, DaemonOptions, Flood, Lab, Sources, leases, process::cpu_time, serve::Serve,
    store::Store,
};

/// Sources that send, in turn.
const SOURCES: u32 = 10_000;

/// What each of them may send a second, and all of them send.
const LIMIT: u64 = 50;
const DEMAND: u64 = 1_000_000;

/// Who keeps the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Keeper {
    Host,
    Store,
    PausedStore,
}

impl Keeper {
    const ALL: [Self; 3] = [Self::Host, Self::Store, Self::PausedStore];

    const fn name(self) -> &'static str {
        match self {
            Self::Host => "each host",
            Self::Store => "the store",
            Self::PausedStore => "the store, paused",
        }
    }
}

/// What was measured for a while.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Packets {
    keeper: Keeper,
    /// Packets that were sent a second, by a rate or as fast as the data plane takes them.
    offered: f64,
    fastest: f64,
    /// Sources that have a lease.
    leased: u64,
    /// The part that has passed of what may pass.
    utilisation: f64,
    /// Calls of the store a second, and keys in them.
    calls: f64,
    keys: f64,
    /// Parts of a CPU that the daemon and `limiter-serve` take.
    cpu: [f64; 2],
}

/// A host, its store, and who sends.
struct Bench {
    lab: Lab,
    daemon: Daemon,
    serve: Serve,
    serve_pid: u32,
    store: Store,
    length: Duration,
}

/// Measures all of them in turn.
pub(crate) fn measure(length: Duration) -> Vec<Packets> {
    let lab = Lab::new(1);
    let daemon = Daemon::start_with(&lab, DaemonOptions::default());
    let store = leases::store();
    let mut serve = leases::serve(&daemon, &store);
    let serve_pid = serve.process().pid();
    let bench = Bench { lab, daemon, serve, serve_pid, store, length };
    let measure = |keeper: Keeper| {
        let packets = bench.span(keeper);
        eprintln!("packets, {}: {packets:.3?}", keeper.name());
        packets
    };
    Keeper::ALL.map(measure).into()
}

impl Bench {
    fn span(&self, keeper: Keeper) -> Packets {
        let rate = format!("{LIMIT}pps");
        let scope = if keeper == Keeper::Host { "local" } else { "strict" };
        self.daemon.cli().ok(&["limit", "set", &rate, "--scope", scope]);
        if keeper == Keeper::PausedStore {
            self.store.pause();
        }
        if keeper != Keeper::Host {
            leases::wait(&self.daemon, keeper == Keeper::Store);
        }
        // First all of them get a bucket, and a lease: the daemon takes on more of them as long as it has the time.
        let _ = self.flood(Some(DEMAND), self.length);
        let before = self.counts(keeper);
        let (offered, seconds) = self.flood(Some(DEMAND), self.length);
        let after = self.counts(keeper);
        let status = self.daemon.cli().run(&["status"]).json;
        let leased = status["leases"]["leased"].as_u64().unwrap_or(0);
        let (fastest, _) = self.flood(None, self.length / 2);
        if keeper == Keeper::PausedStore {
            self.store.resume();
            leases::wait(&self.daemon, true);
        }
        let [passed, calls, keys, daemon, serve] =
            std::array::from_fn(|at| (after[at] - before[at]) / seconds);
        Packets {
            keeper,
            offered,
            leased,
            fastest,
            utilisation: passed / (f64::from(SOURCES) * LIMIT as f64),
            calls,
            keys,
            cpu: [daemon, serve],
        }
    }

    /// Sends for a while. Packets a second, and how long that took.
    fn flood(&self, rate: Option<u64>, length: Duration) -> (f64, f64) {
        let sources = Sources::RoundRobin(Ipv4Addr::new(10, 0, 0, 0).into(), SOURCES);
        let flood = Flood::new(sources, u64::MAX).on_cpu(0);
        let begun = Instant::now();
        let flooding = rate.map_or(flood, |rate| flood.at_rate(rate)).start(&self.lab);
        sleep(length);
        let flooded = flooding.stop();
        let seconds = (flooded.last - flooded.first).as_secs_f64();
        (flooded.packets as f64 / seconds, begun.elapsed().as_secs_f64())
    }

    /// Packets that have passed, calls of the store, keys in them, and seconds of both processes.
    fn counts(&self, keeper: Keeper) -> [f64; 5] {
        let stats = self.daemon.cli().stats();
        let passed = stats.counters.iter().filter(|counter| counter.verdict == "pass");
        let passed = passed.map(|counter| counter.packets).sum::<u64>() as f64;
        // One that is paused does not even tell that.
        let calls = if keeper == Keeper::PausedStore { 0 } else { self.store.calls("evalsha") };
        let keys = self.serve.get("/metrics").body;
        let keys =
            keys.lines().find_map(|line| line.strip_prefix("limiter_serve_store_keys_total "));
        let keys = keys.and_then(|count| count.parse().ok()).unwrap_or(0.0);
        let cpu = [self.daemon.pid(), self.serve_pid].map(|pid| cpu_time(pid).as_secs_f64());
        [passed, calls as f64, keys, cpu[0], cpu[1]]
    }
}

impl Packets {
    /// What a line of the table has.
    pub(crate) const HEADER: [&'static str; 9] = [
        "packets: who keeps the limit",
        "offered/s",
        "with a lease",
        "used",
        "calls/s",
        "keys/s",
        "daemon CPU",
        "serve CPU",
        "fastest/s",
    ];

    pub(crate) fn row(&self) -> [String; 9] {
        [
            self.keeper.name().to_owned(),
            format!("{:.0}", self.offered),
            self.leased.to_string(),
            format!("{:.3}", self.utilisation),
            format!("{:.0}", self.calls),
            format!("{:.0}", self.keys),
            format!("{:.1} %", 100.0 * self.cpu[0]),
            format!("{:.1} %", 100.0 * self.cpu[1]),
            format!("{:.0}", self.fastest),
        ]
    }

    /// Calls of the store a second, and how fast the data plane is without its answers, beside the speed with them.
    pub(crate) fn goals(all: &[Self]) -> Option<(f64, f64)> {
        let find = |keeper| all.iter().find(|packets| packets.keeper == keeper);
        let (there, paused) = (find(Keeper::Store)?, find(Keeper::PausedStore)?);
        Some((there.calls, paused.fastest / there.fastest))
    }
}
