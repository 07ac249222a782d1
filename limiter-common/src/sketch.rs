//! The Count-Min Sketch (Cormode and Muthukrishnan, 2005) that rotates by itself.
//!
//! A cell is one word: `epoch:16 | first:8 | seen:16 | previous:4 | current:20`. Whoever touches a cell
//! rolls it to the present epoch first, so no sweep and no daemon is needed to forget. The estimate of a
//! sliding window is `current + previous · (1 − elapsed fraction)`, the least over all rows. Of the epoch
//! before no more is kept than a gate can ask for ([`crate::gate::MAX_GATE`]).
//!
//! `seen` has a bit for each sixteenth of the sources that share the cell, set when a packet of one of them
//! comes. A source whose bit is not set in some row has sent nothing before in this epoch, however
//! many packets of others its cells count: a flood of random sources is told apart from sources that come
//! back at sixteen times the speed at which it fills the counts. It costs no memory and no access.
//!
//! `first` is when, in 1/256 of an epoch, the cell was first touched in its current epoch. It lets
//! a promotion charge a source only for what it cannot have earned back since (see [`crate::gate`]).
//!
//! A cell that is not touched for exactly a multiple of 65,536 epochs (2.4 hours at 134 ms), or one
//! less, looks current again. That can only raise an estimate, and an estimate alone never drops a packet.

use crate::atomic::{self, AtomicU64};
use crate::hash::Hash;

/// The most rows a sketch may have: δ ≥ e⁻⁸ ≈ 0.0003.
// Also the bound that the verifier needs for the loop over rows.
pub const MAX_DEPTH: u32 = 8;

/// The highest count a cell holds in an epoch. Saturation leaves room for CPUs that add at once.
pub const MAX_COUNT: u32 = (1 << COUNT_BITS) - 1 - 4096;

/// The highest count of the epoch before that a cell remembers: a source that had no bucket then has sent
/// less than the largest gate.
pub const MAX_PREVIOUS: u32 = (1 << PREVIOUS_BITS) - 1;

// A million in 134 ms is 7.8 Mpps to one cell. What is beyond saturates, far above any gate.
const COUNT_BITS: u32 = 20;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
const PREVIOUS_BITS: u32 = 4;
const SEEN_SHIFT: u32 = COUNT_BITS + PREVIOUS_BITS;
const SEEN_BITS: u32 = 16;
const FIRST_SHIFT: u32 = SEEN_SHIFT + SEEN_BITS;
const EPOCH_SHIFT: u32 = FIRST_SHIFT + 8;

const _: () = assert!(EPOCH_SHIFT == 48);

/// How long an epoch is: 2^`shift` ns of wall-clock time, so that hosts agree on its edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// log2 of the epoch in ns, 20..=36 (1 ms to 69 s).
    pub shift: u32,
}

/// Where a moment lies in its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The epoch's number, modulo 2^16.
    pub epoch: u16,
    /// How much of it has passed, in 1/256.
    pub fraction: u8,
}

impl Window {
    /// The length of an epoch in ns.
    #[inline(always)]
    pub const fn ns(&self) -> u64 {
        1 << (self.shift & 63)
    }

    /// Where `wall_ns` (nanoseconds since 1970) lies.
    #[inline(always)]
    pub const fn position(&self, wall_ns: u64) -> Position {
        let shift = self.shift & 63;
        Position {
            epoch: (wall_ns >> shift) as u16,
            fraction: (wall_ns >> ((shift - 8) & 63)) as u8,
        }
    }

    /// How many ns before `wall_ns` a cell's `first` of the same epoch may lie at the most.
    #[inline(always)]
    pub const fn since(&self, first: u8, wall_ns: u64) -> u64 {
        let into_epoch = wall_ns & (self.ns() - 1);
        // Saturating: a CPU whose coarse clock lags may look before the first touch.
        into_epoch.saturating_sub((first as u64) << ((self.shift - 8) & 63))
    }
}

/// The content of one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell(pub u64);

impl Cell {
    /// A cell whose epoch begins.
    #[inline(always)]
    const fn new(epoch: u16, first: u8, previous: u32) -> Self {
        let previous = if previous > MAX_PREVIOUS { MAX_PREVIOUS } else { previous };
        Self(
            (epoch as u64) << EPOCH_SHIFT
                | (first as u64) << FIRST_SHIFT
                | (previous as u64) << COUNT_BITS,
        )
    }

    /// The epoch of the last touch.
    #[inline(always)]
    pub const fn epoch(&self) -> u16 {
        (self.0 >> EPOCH_SHIFT) as u16
    }

    /// When in that epoch the first touch was, in 1/256.
    #[inline(always)]
    pub const fn first(&self) -> u8 {
        (self.0 >> FIRST_SHIFT) as u8
    }

    /// The count of the epoch before, [`MAX_PREVIOUS`] at the most.
    #[inline(always)]
    pub const fn previous(&self) -> u32 {
        self.0 as u32 >> COUNT_BITS & MAX_PREVIOUS
    }

    /// The count of the epoch.
    #[inline(always)]
    pub const fn current(&self) -> u32 {
        (self.0 & COUNT_MASK) as u32
    }

    /// The cell as it is at `now`, with stale counts moved or forgotten.
    ///
    /// A cell one epoch ahead stays as it is: another CPU read the clock later and was faster. Rolling
    /// it back would forget what it counts.
    #[inline(always)]
    pub const fn rolled(self, now: Position) -> Self {
        match now.epoch.wrapping_sub(self.epoch()) {
            0 | u16::MAX => self,
            1 => Self::new(now.epoch, now.fraction, self.current()),
            _ => Self::new(now.epoch, now.fraction, 0),
        }
    }

    /// The sliding-window count at `now`, of a cell that has been rolled to it. Rounded up.
    #[inline(always)]
    pub const fn estimate(&self, now: Position) -> u32 {
        let remaining = 256 - now.fraction as u32;
        self.current() + (self.previous() * remaining).div_ceil(256)
    }
}

/// Rolls a cell to `now`.
#[inline(always)]
fn roll(word: &AtomicU64, now: Position) {
    let seen = Cell(atomic::load(word));
    let rolled = seen.rolled(now);
    if rolled.0 != seen.0 {
        // If this fails, another CPU rolled it first, or added to the old epoch a moment before it is
        // forgotten; then the next touch rolls.
        atomic::replace(word, seen.0, rolled.0);
    }
}

/// The cell at `now`, without counting anything.
#[inline(always)]
pub fn touch(word: &AtomicU64, now: Position) -> Cell {
    roll(word, now);
    // Read again: a number that the verifier knows nothing of. It would otherwise follow every way of
    // rolling through every row.
    Cell(atomic::load(word))
}

/// A cell with a packet, and whether its source is new to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The cell.
    pub cell: Cell,
    /// −1 if no packet of the source has come before in this epoch, else 0. 0 too if one of a source with the
    /// same bit has.
    pub fresh: i64,
}

/// Counts a packet in a cell at `now`, of a source with this `bit` (below 16) there. No packet is lost to other
/// CPUs, and of those that come at once one at the most is the first of its source.
#[inline(always)]
pub fn count(word: &AtomicU64, now: Position, bit: u64) -> Counted {
    let Cell(before) = touch(word, now);
    let shift = u64::from(SEEN_SHIFT) + (bit & (u64::from(SEEN_BITS) - 1));
    let seen = 1u64 << shift;
    // 1 as long as there is room; without a branch, as in `fresh`.
    let one = (before & COUNT_MASK).wrapping_sub(u64::from(MAX_COUNT)) >> 63;
    let next = (before | seen) + one;
    // Bit and count in one step: where CPUs do not meet, a row costs one atomic instruction.
    if atomic::replace(word, before, next) {
        return Counted { cell: Cell(next), fresh: (before >> shift & 1) as i64 - 1 };
    }
    // Another CPU was faster. The bit first: of two that count the same source at once only one may
    // find it clear.
    let found = atomic::or(word, seen);
    let counted = atomic::add(word, one) + one;
    Counted { cell: Cell(counted), fresh: (found >> shift & 1) as i64 - 1 }
}

/// All packets of the sketch, as a word that rolls like a cell: `epoch:16 | previous:24 | current:24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Total(u64);

impl Total {
    // 16 million packets in an epoch of 134 ms are 117 Mpps, more than one host receives.
    const BITS: u32 = 24;
    const MASK: u64 = (1 << Self::BITS) - 1;
    /// The highest count of an epoch, as [`MAX_COUNT`].
    const MAX: u64 = Self::MASK - (1 << 20);

    /// What a word says at `now`.
    #[inline(always)]
    #[must_use]
    pub fn at(word: &AtomicU64, now: Position) -> Self {
        Self(atomic::load(word)).rolled(now)
    }

    #[inline(always)]
    const fn rolled(self, now: Position) -> Self {
        let fresh = (now.epoch as u64) << EPOCH_SHIFT;
        match now.epoch.wrapping_sub((self.0 >> EPOCH_SHIFT) as u16) {
            0 | u16::MAX => self,
            1 => Self(fresh | (self.0 & Self::MASK) << Self::BITS),
            _ => Self(fresh),
        }
    }

    /// Adds packets to a word at `now`.
    #[inline(always)]
    pub fn add(word: &AtomicU64, now: Position, packets: u64) {
        let seen = atomic::load(word);
        let rolled = Self(seen).rolled(now).0;
        if rolled != seen {
            // If this fails, another CPU has rolled it: the packets are added to its word all the
            // same.
            atomic::replace(word, seen, rolled);
        }
        // It stops at the end rather than running into the count of the epoch before.
        if rolled & Self::MASK < Self::MAX {
            atomic::add(word, packets);
        }
    }

    /// Packets in the epoch.
    #[inline(always)]
    #[must_use]
    pub const fn current(&self) -> u32 {
        (self.0 & Self::MASK) as u32
    }

    /// Packets in the sliding window at `now`, which it was made at. Rounded up.
    #[must_use]
    pub const fn estimate(&self, now: Position) -> u32 {
        let previous = (self.0 >> Self::BITS & Self::MASK) as u32;
        self.current() + (previous as u64 * (256 - now.fraction as u64)).div_ceil(256) as u32
    }
}

/// What the sketch knows of a source after its packet was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Packets in the sliding window; never too low within the epoch, too high by collisions.
    pub window: u32,
    /// Packets in the current epoch; likewise.
    pub current: u32,
    /// No packet that `current` counts came earlier than this fraction of the epoch.
    pub first: u8,
}

impl Estimate {
    /// The neutral element of [`Estimate::and`].
    pub const NOTHING: Self = Self { window: u32::MAX, current: u32::MAX, first: 0 };

    /// Narrows the estimate by another row's cell.
    #[inline(always)]
    pub fn and(self, cell: Cell, now: Position) -> Self {
        Self {
            window: self.window.min(cell.estimate(now)),
            current: self.current.min(cell.current()),
            // Each row's cell was touched first by the source's first packet or before. So the latest of
            // them is the closest bound.
            first: self.first.max(cell.first()),
        }
    }
}

/// The size of a sketch: `depth` rows of `mask + 1` cells, row after row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Shape {
    /// Width − 1; the width is a power of two.
    pub mask: u32,
    /// Rows, 1..=[`MAX_DEPTH`].
    pub depth: u32,
}

impl Shape {
    /// Cells in a row.
    pub const fn width(&self) -> u32 {
        self.mask + 1
    }

    /// Cells altogether.
    pub const fn cells(&self) -> u32 {
        self.width() * self.depth
    }

    /// The cell of `hash` in `row`: multiply-shift with an odd number for each row (Dietzfelbinger et
    /// al., 1997). The hash is 64 random bits, so each row is uniform, and two sources that share a
    /// cell in one row share one in another no more often than others do.
    #[inline(always)]
    pub const fn index(&self, hash: Hash, row: u32) -> u32 {
        let column = (hash.0.wrapping_mul(multiplier(row)) >> 32) as u32;
        (column & self.mask) + row * (self.mask + 1)
    }

    /// The bit of `hash` in that cell: from other bits of the same product than the column, for widths of up
    /// to 2^24.
    #[inline(always)]
    pub const fn bit(hash: Hash, row: u32) -> u64 {
        hash.0.wrapping_mul(multiplier(row)) >> 60
    }
}

/// Odd numbers without structure: from the fractional parts of the square roots of the first primes.
#[inline(always)]
const fn multiplier(row: u32) -> u64 {
    match row {
        0 => 0x6a09_e667_f3bc_c909,
        1 => 0xbb67_ae85_84ca_a73b,
        2 => 0x3c6e_f372_fe94_f82b,
        3 => 0xa54f_f53a_5f1d_36f1,
        4 => 0x510e_527f_ade6_82d1,
        5 => 0x9b05_688c_2b3e_6c1f,
        6 => 0x1f83_d9ab_fb41_bd6b,
        _ => 0x5be0_cd19_137e_2179,
    }
}

/// A sketch in memory, for the daemon's view of the map, the simulator and the tests.
#[cfg(any(test, feature = "user"))]
#[derive(Clone, Copy, Debug)]
pub struct Sketch<'a> {
    /// The cells, row after row.
    pub cells: &'a [AtomicU64],
    /// Its size.
    pub shape: Shape,
}

#[cfg(any(test, feature = "user"))]
impl Sketch<'_> {
    fn fold(&self, hash: Hash, now: Position, visit: impl Fn(u32, &AtomicU64) -> Cell) -> Estimate {
        (0..self.shape.depth).fold(Estimate::NOTHING, |estimate, row| {
            match self.cells.get(self.shape.index(hash, row) as usize) {
                Some(word) => estimate.and(visit(row, word), now),
                None => estimate,
            }
        })
    }

    /// Counts a packet and returns the estimate with it.
    pub fn add(&self, hash: Hash, now: Position) -> Estimate {
        self.fold(hash, now, |row, word| count(word, now, Shape::bit(hash, row)).cell)
    }

    /// The estimate without counting anything.
    pub fn estimate(&self, hash: Hash, now: Position) -> Estimate {
        self.fold(hash, now, |_, word| Cell(atomic::load(word)).rolled(now))
    }
}

#[cfg(test)]
mod tests;
