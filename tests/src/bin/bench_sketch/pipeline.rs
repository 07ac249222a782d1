//! The heaviest sources as the limiter sees them: those that pass the gate have exact counters.

use std::{cmp::Reverse, collections::HashMap, time::Instant};

use limiter_common::{
    abi::{CompiledTier, Internal, Policy, Terms, Tier},
    engine::memory::Memory,
    gate::{MAX_GATE, gate},
    gcra::TICKS_PER_NS,
    key::SourceKey,
    sketch::Window,
    table::WAYS,
};
use serde::Serialize;

use crate::{
    accuracy::{found, mean},
    contenders::{Wanted, hash_key},
    stream::{PACKETS, Stream, TOP},
};

/// Packets arrive this far apart: 2 Mpps.
const GAP_NS: u64 = 500;

/// When the first one does, ns since boot.
const START_NS: u64 = 5_000_000_000;

/// The daemon's default window.
const WINDOW: Window = Window { shift: 27 };

/// The daemon's default number of places.
const PLACES: u32 = 524_288;

/// The daemon's default sketch.
const SKETCH: Wanted = Wanted { epsilon: 0.000_025, delta: 0.14 };

/// CPUs of the simulated machine, of which one judges.
const CPUS: u32 = 2;

/// Limits that are tried: packets per second, burst.
const LIMITS: [Option<(u64, u64)>; 3] = [Some((1000, 2000)), Some((100_000, 120_000)), None];

/// What the table knows after the stream.
#[derive(Debug, Serialize)]
pub(crate) struct Seen {
    /// The limit of every source.
    pub(crate) limit: String,
    pub(crate) gate: u32,
    /// As in [`crate::accuracy::Accuracy`].
    pub(crate) recall: f64,
    pub(crate) precision: f64,
    /// Average relative error of the heaviest sources' counts; 1 for one that is not in the table.
    pub(crate) top_error: f64,
    /// The worst of them.
    pub(crate) top_error_worst: f64,
    /// Sources with a bucket at the end.
    pub(crate) tracked: usize,
    pub(crate) promotions: u64,
    pub(crate) evictions: u64,
    pub(crate) set_full: u64,
    pub(crate) events: u64,
    pub(crate) passed: u64,
    pub(crate) dropped: u64,
    /// Time of a verdict in userspace; the kernel's is measured elsewhere.
    pub(crate) ns_per_packet: f64,
    /// Recall 1.00 and an average error of at most 0.5 %.
    pub(crate) goal_met: bool,
}

/// Sends `stream` through a limiter with each of the limits.
pub(crate) fn simulate(stream: &Stream) -> Vec<Seen> {
    LIMITS.into_iter().map(|limit| run(stream, limit)).collect()
}

fn policy(limit: Option<(u64, u64)>) -> Policy {
    let Some((rate, burst)) = limit else { return Policy::unlimited(MAX_GATE) };
    let fixed = (1_000_000_000 * TICKS_PER_NS).div_ceil(rate);
    Policy::new(CompiledTier {
        tier: Tier::of_packets(fixed, fixed * burst),
        terms: Terms::of_bucket(rate, 1_000_000_000, burst, Terms::PACKETS),
        gate: gate(burst, rate * WINDOW.ns() / 1_000_000_000),
    })
}

fn run(stream: &Stream, per_source: Option<(u64, u64)>) -> Seen {
    let policy = policy(per_source);
    let memory = Memory::new(policy, PLACES / WAYS, SKETCH.shape(), WINDOW, hash_key(), CPUS);
    let mut passed = 0;
    let mut now = START_NS;
    let start = Instant::now();
    for &source in &stream.packets {
        memory.set_time(now);
        // The stream's own clock: verdicts must not depend on the machine's speed.
        now += GAP_NS;
        let reason = memory.packet(SourceKey::from_ipv4(source.to_be_bytes()), 64);
        passed += u64::from(reason.passes());
    }
    let ns_per_packet = start.elapsed().as_nanos() as f64 / PACKETS as f64;

    let counts: HashMap<u32, u64> = memory
        .tracked()
        .filter_map(|(key, passed, dropped)| Some((key.ipv4()?, passed + dropped)))
        .collect();
    let mut named: Vec<(u32, u64)> = counts.iter().map(|(&source, &n)| (source, n)).collect();
    named.sort_unstable_by_key(|&(source, count)| (Reverse(count), source));
    named.truncate(TOP);
    let named: Vec<u32> = named.into_iter().map(|(source, _)| source).collect();
    let (recall, precision) = found(stream, &named);
    let error = |&(source, exact): &(u32, u64)| {
        let count = counts.get(&source).copied().unwrap_or(0);
        count.abs_diff(exact) as f64 / exact as f64
    };
    let errors: Vec<f64> = stream.exact.iter().take(TOP).map(error).collect();
    let top_error = mean(&errors);
    Seen {
        limit: per_source.map_or("none".to_owned(), |(rate, burst)| format!("{rate}pps/{burst}")),
        gate: policy.gate,
        recall,
        precision,
        top_error,
        top_error_worst: errors.iter().copied().fold(0.0, f64::max),
        tracked: counts.len(),
        promotions: memory.internal(Internal::Promotions),
        evictions: memory.internal(Internal::Evictions),
        set_full: memory.internal(Internal::SetFull),
        events: memory.events(),
        passed,
        dropped: PACKETS as u64 - passed,
        ns_per_packet,
        goal_met: recall >= 1.0 && top_error <= 0.005,
    }
}
