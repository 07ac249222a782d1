//! Sources just found over their limit: each CPU remembers a few and drops their packets at once.
//!
//! A bucket that has denied a packet at an exact time denies everything until its next token. As long
//! as the *coarse* clock, which is never ahead, has not got there, a packet needs neither the exact
//! clock nor the bucket. The coarse clock may be late by a tick, so a source over its limit may
//! get a token a tick after it was due; the bucket keeps it meanwhile. A source that stays within its
//! limit is never denied, hence never remembered. Only buckets that take far longer than a tick to
//! fill are remembered, so that none overflows while it waits.
//!
//! The same is written beside the bucket, in its slot's line ([`crate::table::LastSeen`]): a packet of whom its CPU has
//! forgotten needs neither policy, share nor clock.
//!
//! What a CPU drops from memory is counted here and added to the source's slot later; the daemon adds
//! what is pending.

use crate::atomic::{self, AtomicU64};
use crate::gcra::{TICKS_PER_NS, Ticks};
use crate::hash::Hash;

/// Sources that a CPU remembers, 8 KiB.
// 512 and 1024 were slower with 65,536 sources: 5.6 and 5.0 Mpps in place of 5.9.
pub const DROP_CACHE_ENTRIES: usize = 256;

/// A bucket whose burst takes less than this to earn is not remembered: ten ticks of a kernel with 250
/// ticks a second, four of one with 100.
pub const MIN_TOLERANCE: Ticks = 40_000_000 * TICKS_PER_NS;

/// No source is dropped longer than this without a look at its bucket, ns. Bounds how old its
/// counters and the time of its last packet are.
pub const MAX_NS: u64 = 100_000_000;

/// How long a CPU remembers a source at the most that its bucket knows to be denied, or whose limit is the
/// cluster's: the share of the bucket may have become larger, ns.
pub const MAX_SHARED_NS: u64 = 10_000_000;

/// Bits of [`DropCacheEntry::pending`] below the packets. With [`MAX_NS`] neither part can overflow.
const PACKETS_SHIFT: u32 = 40;

/// What a [`DropCacheEntry`] rests on: `generation:32 | on_deny_list:1 | slot:31`. A word, because entries fill half a
/// cache line each, and larger ones were slower. A table has at most 2^26 slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Basis(pub u64);

impl Basis {
    const ON_DENY_LIST: u64 = 1 << 31;

    /// The bucket in a slot has no token, under the policies of a generation.
    #[inline(always)]
    #[must_use]
    pub const fn over_limit(generation: u32, slot: u32) -> Self {
        Self((generation as u64) << 32 | slot as u64)
    }

    /// The source is on the deny list of a generation.
    #[inline(always)]
    #[must_use]
    pub const fn on_deny_list(generation: u32) -> Self {
        Self((generation as u64) << 32 | Self::ON_DENY_LIST)
    }

    /// The generation of policies and lists.
    #[inline(always)]
    #[must_use]
    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The slot of a source that is over its limit; `None` for one on the deny list, which may have none.
    #[inline(always)]
    #[must_use]
    pub const fn slot(self) -> Option<u32> {
        if self.0 & Self::ON_DENY_LIST != 0 { None } else { Some(self.0 as u32) }
    }
}

/// A source that one CPU remembers, and its packets dropped since.
#[derive(Debug, Default)]
#[repr(C)]
pub struct DropCacheEntry {
    /// The source's hash, 0 for nobody.
    pub tag: AtomicU64,
    /// Its packets are dropped before this, ns since boot.
    pub until_ns: AtomicU64,
    /// Why they are: a [`Basis`].
    pub basis: AtomicU64,
    /// What was dropped and is not in its slot yet: `packets:24 | bytes:40`.
    pub pending: AtomicU64,
}

impl DropCacheEntry {
    /// Whether a packet of `hash` is dropped without a further look.
    #[inline(always)]
    pub fn holds(&self, hash: Hash, coarse_ns: u64, generation: u32) -> bool {
        atomic::load(&self.tag) == hash.0
            && coarse_ns < atomic::load(&self.until_ns)
            // A new policy or list may let the source through; its generation ends all entries at
            // once.
            && self.basis().generation() == generation
    }

    /// Counts a dropped packet.
    #[inline(always)]
    pub fn count(&self, length: u32) {
        // Load and store: the entry is this CPU's alone, so it needs no atomic addition.
        let more = (1 << PACKETS_SHIFT) + u64::from(length);
        atomic::store(&self.pending, atomic::load(&self.pending).wrapping_add(more));
    }

    /// Packets and bytes that are not in the slot yet.
    #[inline(always)]
    pub fn pending(&self) -> (u64, u64) {
        let pending = atomic::load(&self.pending);
        (pending >> PACKETS_SHIFT, pending & ((1 << PACKETS_SHIFT) - 1))
    }

    /// Why its packets are dropped.
    #[inline(always)]
    pub fn basis(&self) -> Basis {
        Basis(atomic::load(&self.basis))
    }

    /// Remembers another source, or the same for longer.
    #[inline(always)]
    pub fn remember(&self, hash: Hash, until_ns: u64, basis: Basis) {
        atomic::store(&self.tag, hash.0);
        atomic::store(&self.until_ns, until_ns);
        atomic::store(&self.basis, basis.0);
        atomic::store(&self.pending, 0);
    }
}

/// How long, in ns, a bucket that owes `debt` will deny packets of cost `least` and more; 0 if it is
/// not to be remembered. `cost` is that of the packet it has just denied.
#[inline(always)]
pub fn lasts(debt: Ticks, cost: Ticks, least: Ticks, tolerance: Ticks) -> u64 {
    // Such a bucket would be full before the coarse clock moves, and lose what it earns meanwhile
    // (P2: no loss).
    if tolerance < cost + MIN_TOLERANCE {
        return 0;
    }
    // By the smallest packet: no other one can conform before.
    ((debt + least).saturating_sub(tolerance) / TICKS_PER_NS).min(MAX_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ticks = 1_000_000 * TICKS_PER_NS;

    #[test]
    fn a_drop_is_cached_until_the_next_token() {
        // A packet a millisecond, 100 at once: empty 3/4 ms ago.
        assert_eq!(lasts(100 * MS - MS / 4, MS, MS, 100 * MS), 750_000);
        // A smaller packet would be admitted.
        assert_eq!(lasts(99 * MS, 2 * MS, MS, 100 * MS), 0);
        // No longer than its counters may be old.
        assert_eq!(lasts(8000 * MS, 4000 * MS, 4000 * MS, 8000 * MS), MAX_NS);
    }

    #[test]
    fn a_bucket_that_could_overflow_is_not_remembered() {
        assert_eq!(lasts(41 * MS, MS, MS, 41 * MS), 1_000_000);
        assert_eq!(lasts(40 * MS, MS, MS, 40 * MS), 0);
    }

    #[test]
    fn packets_and_bytes_are_told_apart() {
        let entry = DropCacheEntry::default();
        entry.remember(Hash(7), 10, Basis::over_limit(3, 9));
        assert!(entry.holds(Hash(7), 9, 3));
        assert!(!entry.holds(Hash(7), 10, 3), "its time has come");
        assert!(!entry.holds(Hash(7), 9, 4), "policies have changed");
        assert!(!entry.holds(Hash(8), 9, 3), "another source");
        for _ in 0..1000 {
            entry.count(9000);
        }
        assert_eq!((entry.pending(), entry.basis().slot()), ((1000, 9_000_000), Some(9)));
        entry.remember(Hash(7), 10, Basis::on_deny_list(u32::MAX));
        assert!(entry.holds(Hash(7), 9, u32::MAX) && entry.basis().slot().is_none());
        assert_eq!(entry.pending(), (0, 0));
    }
}
