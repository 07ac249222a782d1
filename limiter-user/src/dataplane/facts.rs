//! What the data plane tells of sources, sketch and table.

use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use limiter_common::abi::EventKind;
use limiter_common::hll::Ranks;
use model::LimitSpec;

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
