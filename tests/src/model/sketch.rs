//! What the sketch should know of each source, counted exactly.

use std::collections::HashMap;

use super::Account;

/// Packets of one source.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    epoch: u64,
    previous: u64,
    current: u64,
    /// In which part of its epoch it was first seen.
    first: u64,
}

/// Packets of every source that has no bucket, in the present epoch and the one before.
#[derive(Clone, Debug, Default)]
pub struct Sketch {
    counts: HashMap<Account, Count>,
    /// Packets counted altogether.
    pub adds: u64,
    total: (u64, u64),
}

/// What the sketch says of a source with its packet counted.
#[derive(Clone, Copy, Debug)]
pub struct Estimate {
    /// Packets in the sliding window.
    pub window: u64,
    /// Packets in the epoch.
    pub current: u64,
    /// In which part of it the first came.
    pub first: u64,
}

/// Parts that an epoch is told apart in.
pub(super) const PARTS: u64 = 256;
/// A CPU tells the total in steps of this many packets.
const STEP: u64 = 64;

impl Sketch {
    /// Counts a packet of `source` in this part of this epoch.
    pub fn add(&mut self, source: Account, epoch: u64, part: u64) -> Estimate {
        let count = self.counts.entry(source).or_default();
        if count.epoch != epoch {
            let follows = count.epoch + 1 == epoch;
            let previous = if follows { count.current } else { 0 };
            *count = Count { epoch, previous, current: 0, first: part };
        }
        count.current += 1;
        self.adds += 1;
        if self.adds.is_multiple_of(STEP) {
            let before = if self.total.0 == epoch { self.total.1 } else { 0 };
            self.total = (epoch, before + STEP);
        }
        let remembered = (count.previous * (PARTS - part)).div_ceil(PARTS);
        Estimate { window: count.current + remembered, current: count.current, first: count.first }
    }

    /// How many packets of an estimate may be others': so many times what the mean cell holds that a
    /// cell in every row holds more once in 65,536 times at the most, and what other CPUs have in
    /// flight.
    #[must_use]
    pub fn noise(&self, epoch: u64, cpus: u64, (width, depth): (u64, u64)) -> u64 {
        let margin = [65_536, 256, 64, 16, 16, 8, 8, 4][depth as usize - 1];
        let total = if self.total.0 == epoch { self.total.1 } else { 0 };
        (total + cpus * STEP) * margin / width + cpus - 1
    }

    /// Forgets a source.
    pub fn forget(&mut self, source: Account) {
        self.counts.remove(&source);
    }

    /// Forgets all sources, which whoever drives the clock must make true.
    pub fn forget_all(&mut self) {
        self.counts.clear();
    }
}
