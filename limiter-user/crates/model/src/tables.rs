//! The sketch and the bucket table.

use limiter_common::abi::on_full;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What to do with a packet whose source deserves a bucket when its set has no free one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
// `pass` is the default of the settings: under a flood a full set must cost no conforming source a
// packet (P1).
pub enum OnFull {
    /// Pass it unlimited.
    Pass,
    /// Drop it: also packets of sources that keep to their limits. A spoofed flood can cause that.
    Drop,
    /// Give it the least recently used bucket of those that limit nobody; pass it where all do.
    EvictOldest,
}

impl OnFull {
    /// The value in the kernel's configuration.
    pub const fn word(self) -> u64 {
        match self {
            Self::Pass => on_full::PASS,
            Self::Drop => on_full::DROP,
            Self::EvictOldest => on_full::EVICT_OLDEST,
        }
    }
}

/// The sketch's size and state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SketchHealth {
    /// ε of the width that was rounded up: e/width.
    pub epsilon: f64,
    /// δ of the depth: e^−depth.
    pub delta: f64,
    /// ε as asked for.
    pub requested_epsilon: f64,
    /// δ as asked for.
    pub requested_delta: f64,
    /// Columns of each row, a power of two.
    pub width: u32,
    /// Rows, 1 to 8.
    pub depth: u32,
    /// The length of an epoch, ms.
    pub window_ms: f64,
    /// Mean packets per cell in the sliding window: what a new source's estimate is too high by at
    /// the most, on average.
    pub noise: f64,
    /// Memory of the cells.
    pub memory_bytes: u64,
}

/// The bucket table's size and state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableHealth {
    /// Sets, a power of two.
    pub sets: u32,
    /// Buckets in a set.
    pub ways: u32,
    /// Buckets in all sets.
    pub capacity: u32,
    /// Buckets that a source has.
    pub occupied: u64,
    /// Of those, not full: they cannot be given away.
    pub busy: u64,
    /// Of those, held: they have denied packets or admitted several, so no other source gets them.
    pub held: u64,
    /// Sets without room for a new source under a slow limit: six of eight are held.
    pub full_sets: u64,
    /// Memory of buckets and entries.
    pub memory_bytes: u64,
}
