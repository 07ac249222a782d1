//! Whole packets, judged by the kernel program's own code.

use std::fmt;

use cluster::Moment;
use limiter_common::abi::Policy;
use limiter_common::engine::memory::Memory;
use limiter_common::floor::Floor;
use limiter_common::gcra::ticks;
use limiter_common::hash::HashKey;
use limiter_common::key::SourceKey;
use limiter_common::share::{Grant, Multiplier};
use limiter_common::share_change::Outcome;
use limiter_common::sketch::{Shape, Window};
use limiter_common::table::WAYS;
use model::compile::compile_shared;
use model::{Invalid, Limit, Share};

/// The length of all packets.
const LENGTH: u32 = 100;
/// The sketch's window, as a power of two in ns.
const WINDOW_SHIFT: u32 = 27;

/// What happened to a kernel.
#[derive(Clone, Copy)]
enum Event {
    Packets(usize, u64),
    Share(usize, Share, Moment),
    Floor(Share),
}

/// A kernel whose sources have numbers.
pub(in super::super) struct Packets {
    memory: Memory,
    floor: Floor,
    /// What it has been told to keep.
    limit: Limit,
    hosts: u32,
    generation: u32,
    /// Packets that have begun to come, by source, as parts.
    begun: Vec<f64>,
    /// All that happened, where a copy is to be made.
    record: Option<Vec<(Moment, Event)>>,
}

fn multiplier(share: Share) -> Multiplier {
    Multiplier::from_units(share.units())
}

fn address(source: usize) -> SourceKey {
    SourceKey::from_ipv4((source as u32 + 1).to_be_bytes())
}

impl Packets {
    /// Whether hosts can share this limit.
    pub(in super::super) fn can_share(limit: &Limit) -> bool {
        policy(limit, &Floor::new(multiplier(Share::NONE), 0)).is_ok()
    }

    pub(super) fn new(limit: Limit, hosts: usize, sources: usize, records: bool) -> Self {
        let hosts = hosts as u32;
        // Nothing until the daemon says what the floor is.
        let floor = Floor::new(multiplier(Share::NONE), 0).among(hosts);
        let sets = (sources as u32).div_ceil(WAYS).next_power_of_two();
        let shape = Shape { mask: (1 << 10) - 1, depth: 2 };
        let words = std::array::from_fn(|n| (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let policy = checked(&limit, &floor);
        Self {
            memory: Memory::new(
                policy,
                2 * sets,
                shape,
                Window { shift: WINDOW_SHIFT },
                HashKey { words },
                1,
            ),
            floor,
            limit,
            hosts,
            generation: 1,
            begun: vec![0.0; sources],
            record: records.then(Vec::new),
        }
    }

    /// The same with nothing in it.
    pub(super) fn anew(&self) -> Self {
        Self::new(self.limit, self.hosts as usize, self.begun.len(), self.record.is_some())
    }

    fn happens(&mut self, now: Moment, event: Event) -> u64 {
        if let Some(record) = &mut self.record {
            record.push((now, event));
        }
        self.memory.set_time(now.0);
        match event {
            Event::Packets(source, count) => {
                let passes = |_: &u64| self.memory.packet(address(source), LENGTH).passes();
                return (0..count).filter(passes).count() as u64;
            }
            Event::Share(source, share, until) => {
                self.change(source, Some(Grant::new(multiplier(share), until.0)));
            }
            Event::Floor(share) => {
                self.floor = self.floor.clone().becoming(multiplier(share), ticks(now.0));
                self.memory.policies.push(checked(&self.limit, &self.floor));
                self.generation += 1;
                self.memory.publish(self.generation, self.memory.policies.len() as u32 - 1);
                (0..self.begun.len()).for_each(|source| self.change(source, None));
            }
        }
        0
    }

    /// Changes what a source may use, if it has a bucket, as the daemon does.
    fn change(&self, source: usize, grant: Option<Grant>) {
        let Some((tag, bucket)) = self.memory.bucket(address(source)) else { return };
        // It is never missed: no packet is in the way of it.
        if let Outcome::Lowered(lowered) = bucket.change(tag, grant, || self.memory.time()) {
            lowered.give_back(&bucket);
        }
    }

    pub(super) fn admit(&mut self, source: usize, now: Moment, offered: f64) -> (f64, f64) {
        let rate = self.limit.rate.per_second();
        let begun = self.begun[source] + offered * rate;
        // What adds up to a packet may miss it by rounding.
        let whole = (begun + 1e-9).floor();
        self.begun[source] = begun - whole;
        let passed = self.happens(now, Event::Packets(source, whole as u64));
        (whole / rate, passed as f64 / rate)
    }

    pub(super) fn share(&self, source: usize, now: Moment) -> f64 {
        let floor = self.floor.share().part();
        let bucket = self.memory.bucket(address(source));
        // Where the daemon has lowered the floor since, the bucket was changed with it.
        bucket.map_or(floor, |(_, bucket)| floor.max(bucket.price(now.0).multiplier().part()))
    }

    pub(super) fn set(&mut self, source: usize, now: Moment, share: Share, until: Moment) {
        self.happens(now, Event::Share(source, share, until));
    }

    pub(super) fn set_floor(&mut self, now: Moment, share: Share) {
        self.happens(now, Event::Floor(share));
    }
}

/// The limit with a floor, as the daemon compiles it.
fn policy(limit: &Limit, floor: &Floor) -> Result<Policy, Invalid> {
    compile_shared(limit, floor, WINDOW_SHIFT, LENGTH)
}

/// The same of a scenario.
fn checked(limit: &Limit, floor: &Floor) -> Policy {
    policy(limit, floor).expect("a scenario's limit was checked when it was read")
}

// Its words are atomic, as a kernel's are, and are copied by what has made them what they are.
impl Clone for Packets {
    fn clone(&self) -> Self {
        let mut copy = self.anew();
        for (now, event) in self.record.iter().flatten() {
            copy.happens(*now, *event);
        }
        copy.begun.clone_from(&self.begun);
        copy
    }
}

impl fmt::Debug for Packets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packets").field("floor", &self.floor).finish_non_exhaustive()
    }
}
