//! What the data plane tells of sources, sketch and table.

use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use limiter_common::abi::EventKind;
use limiter_common::hll::Ranks;
use limiter_common::sketch::{Shape, Window};
use model::source::Source;
use model::{Limit, Target, Tier};

/// What the distinct sources of a window are estimated from.
#[derive(Clone, Debug)]
pub struct WindowRanks {
    /// The registers.
    pub ranks: Ranks,
    /// The number of the window, modulo 2^16.
    pub window: u16,
    /// A number that stands for the secret of the hash that has filled them.
    // The secret itself stays here: who knows it can aim at single cells and buckets.
    pub key: u64,
}

/// What the sketch has counted since its present epoch began, packets of sources with a bucket among them.
#[derive(Clone, Debug)]
pub struct SketchCounts {
    /// As in [`WindowRanks::key`].
    pub key: u64,
    /// The size of the sketch.
    pub shape: Shape,
    /// How long its epochs are.
    pub window: Window,
    /// When the present one began.
    pub began: SystemTime,
    /// How much of it had passed.
    pub elapsed: Duration,
    /// Packets by cell, row after row.
    pub cells: Vec<u64>,
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
    pub limit: Option<Limit>,
}

/// A shadow limit, and what it would have dropped.
#[derive(Clone, Debug)]
pub struct ShadowView {
    /// For whom.
    pub target: Target,
    /// What.
    pub tier: Tier,
    /// Sources with a bucket that have sent something since.
    pub sources: u64,
    /// Of those, how many would have lost something.
    pub limited: u64,
    /// Packets that they have sent, from when each had its bucket and was looked at.
    pub packets: u64,
    /// Of those, how many would have been dropped.
    pub would_drop: u64,
    /// Who would have lost most, and of how many packets how many.
    pub most: Vec<(Source, u64, u64)>,
}
