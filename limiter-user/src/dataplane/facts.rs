//! What the data plane tells of sources, sketch and table.

use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use limiter_common::abi::EventKind;
use limiter_common::atomic;
use limiter_common::hll::Ranks;
use limiter_common::table::Slot;

use super::pending::Pending;
use crate::policy::{Class, LimitSpec, Tier as Spec};

/// What the distinct sources of a window are estimated from.
#[derive(Clone, Debug)]
pub struct WindowRanks {
    /// The registers.
    pub ranks: Ranks,
    /// The number of the window, modulo 2^16.
    pub window: u16,
    /// A number that stands for the secret of the hash that has filled them.
    pub key: u64,
}

/// How a source fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceState {
    /// It sends too little to deserve a bucket.
    Light,
    /// It has a bucket and stays within its limit.
    Conforming,
    /// It has used its bucket up, and packets were dropped.
    Limited,
}

/// A source as the kernel knows it.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its address and how many bits of it count.
    pub source: IpNet,
    /// The packets that this is about; [`Class::ANY`] for those that no limit of a class applies to.
    pub class: Class,
    /// How it fares.
    pub state: SourceState,
    /// The limit in force for it.
    pub limit: Option<LimitSpec>,
    /// Packets or bytes it may send at once; `None` without bucket or limit.
    pub tokens: Option<f64>,
    /// Bytes it may send at once, where packets and bytes are limited.
    pub also_tokens: Option<f64>,
    /// Packets in the sketch's window; a source with a bucket is no longer counted there.
    pub estimate: u32,
    /// Packets passed since it got its bucket.
    pub passed: u64,
    /// Packets dropped since then.
    pub dropped: u64,
    /// Bytes offered since then.
    pub bytes: u64,
    /// What a limit that is tried would have dropped of it.
    pub trial: Option<Tried>,
    /// What this host may use of a limit of the cluster.
    pub share: Option<HeldShare>,
    /// When it got its bucket, ns since boot; 0 without one. Tells whether it is still the same bucket.
    pub since_ns: u64,
    /// The same as wall-clock time.
    pub first_seen: Option<SystemTime>,
    /// Its last packet since then.
    pub last_seen: Option<SystemTime>,
}

/// What a limit that is tried would have dropped of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tried {
    /// The limit.
    pub tier: Spec,
    /// Packets that it has judged.
    pub packets: u64,
    /// Of those, how many it would have dropped.
    pub would_drop: u64,
}

/// What a bucket may use of a limit of the cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeldShare {
    /// At present, as a part of the limit.
    pub share: f64,
    /// The least of it, which does not end.
    pub floor: f64,
    /// When it falls to the floor, if it is more.
    pub until: Option<SystemTime>,
}

/// What a bucket counts of its source, since the source got it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Packets passed.
    pub passed: u64,
    /// Packets dropped.
    pub dropped: u64,
    /// Bytes offered.
    pub bytes: u64,
    /// When the source got the bucket, ns since boot; tells whether it is still the same one.
    pub since_ns: u64,
}

impl Counts {
    pub(super) fn of(bucket: usize, slot: &Slot, pending: &Pending) -> Self {
        Self::stored(slot).and(pending.of(bucket, atomic::load(&slot.tag)))
    }

    /// What the slot itself says.
    pub(super) fn stored(slot: &Slot) -> Self {
        Self {
            passed: atomic::load(&slot.passed),
            dropped: atomic::load(&slot.dropped),
            bytes: atomic::load(&slot.bytes),
            since_ns: atomic::load(&slot.first_seen),
        }
    }

    /// With drops, packets and bytes, that the slot does not say yet.
    pub(super) const fn and(self, (packets, bytes): (u64, u64)) -> Self {
        Self { dropped: self.dropped + packets, bytes: self.bytes + bytes, ..self }
    }

    /// Packets offered.
    pub const fn packets(&self) -> u64 {
        self.passed + self.dropped
    }
}

/// A source with a bucket, as far as sums over many need it.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// Its address and how many bits of it count.
    pub source: IpNet,
    /// As [`Source::class`].
    pub class: Class,
    /// What its bucket counts.
    pub counts: Counts,
    /// When it got its bucket.
    pub first_seen: SystemTime,
    /// Its last packet since then.
    pub last_seen: SystemTime,
}

/// The sketch's size and state.
#[derive(Clone, Copy, Debug)]
pub struct SketchHealth {
    /// ε as asked for.
    pub requested_epsilon: f64,
    /// δ as asked for.
    pub requested_delta: f64,
    /// ε of the width that was rounded up: e/width.
    pub epsilon: f64,
    /// δ of the depth: e^−depth.
    pub delta: f64,
    /// Columns.
    pub width: u32,
    /// Rows.
    pub depth: u32,
    /// The length of an epoch.
    pub window: Duration,
    /// Mean packets per cell in the sliding window: what a new source's estimate is too high by at
    /// the most, on average.
    pub noise: f64,
    /// Memory of the cells.
    pub memory_bytes: u64,
}

/// The bucket table's size and state.
#[derive(Clone, Copy, Debug)]
pub struct TableHealth {
    /// Sets.
    pub sets: u32,
    /// Buckets in a set.
    pub ways: u32,
    /// Buckets.
    pub capacity: u32,
    /// Buckets that a source has.
    pub occupied: u64,
    /// Of those, not full: they cannot be given away.
    pub busy: u64,
    /// Sets in which all are busy.
    pub full_sets: u64,
    /// Memory of buckets and entries.
    pub memory_bytes: u64,
}

/// Something that happened in the data plane.
#[derive(Clone, Debug)]
pub struct Event {
    /// When.
    pub time: SystemTime,
    /// To whom.
    pub source: IpNet,
    /// What.
    pub kind: EventKind,
    /// The limit in force for the source now.
    pub limit: Option<LimitSpec>,
}
