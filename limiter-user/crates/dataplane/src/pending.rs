//! Drops that CPUs have counted for themselves and not added to their sources' slots yet.

use std::collections::HashMap;

use aya::maps::{MapData, PerCpuArray};
use limiter_common::atomic;
use limiter_common::drop_cache::{DROP_CACHE_ENTRIES, DropCacheEntry};
use limiter_common::table::Slot;
use model::source::Counts;

use super::Error;

/// What each CPU remembers, as the kernel gives it away: the words of [`DropCacheEntry`].
pub(super) type DropCaches =
    PerCpuArray<MapData, [[u64; size_of::<DropCacheEntry>() / 8]; DROP_CACHE_ENTRIES]>;

/// What a slot itself says.
pub(super) fn stored_counts(slot: &Slot) -> Counts {
    Counts {
        passed: atomic::load(&slot.passed),
        dropped: atomic::load(&slot.dropped),
        bytes: atomic::load(&slot.bytes),
        since_ns: atomic::load(&slot.first_seen),
    }
}

/// `counts` with dropped packets and their bytes that a slot does not say yet.
pub(super) const fn with_drops(counts: Counts, (packets, bytes): (u64, u64)) -> Counts {
    Counts { dropped: counts.dropped + packets, bytes: counts.bytes + bytes, ..counts }
}

/// Drops to be added to slots, by the slot's index.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// The tag that the slot had, packets, bytes.
    // Many of one index: each CPU has drops of its own, and a slot may have had two sources.
    drops: HashMap<usize, Vec<(u64, u64, u64)>>,
    /// Which indices, modulo its bits, occur: every bucket of the table is asked for, and nearly none has drops, so
    /// most questions end in these 512 bytes, without a hash.
    filter: [[u64; 8]; 8],
}

impl Pending {
    /// Reads them; none if that is not possible.
    pub(super) fn now(drop_caches: &DropCaches) -> Self {
        Self::read(drop_caches).unwrap_or_else(|error| {
            // The other counters are right, and late by a moment.
            tracing::warn!(%error, "drops of the last moments are not counted yet");
            Self::default()
        })
    }

    fn read(drop_caches: &DropCaches) -> Result<Self, Error> {
        // One system call for all CPUs. A drop that is counted meanwhile is found the next time.
        let cpus = drop_caches.get(&0, 0).map_err(Error::map("read the map DROP_CACHE"))?;
        let mut pending = Self::default();
        for [tag, until_ns, basis, drops] in cpus.iter().flatten().copied() {
            let entry = DropCacheEntry {
                tag: tag.into(),
                until_ns: until_ns.into(),
                basis: basis.into(),
                pending: drops.into(),
            };
            let (packets, bytes) = entry.pending();
            // An entry of the cache outlives its drops, which the CPU has then added to the slot itself.
            if packets > 0
                && let Some(slot) = entry.basis().slot()
            {
                pending.add(slot as usize, (tag, packets, bytes));
            }
        }
        Ok(pending)
    }

    /// What a slot counts, with the drops that it does not say yet.
    pub(super) fn counts(&self, bucket: usize, slot: &Slot) -> Counts {
        with_drops(stored_counts(slot), self.of(bucket, atomic::load(&slot.tag)))
    }

    fn bit(index: usize) -> (usize, usize, u64) {
        (index / 512 % 8, index / 64 % 8, 1 << (index % 64))
    }

    fn add(&mut self, index: usize, drops: (u64, u64, u64)) {
        let (row, word, bit) = Self::bit(index);
        self.filter[row][word] |= bit;
        self.drops.entry(index).or_default().push(drops);
    }

    /// All of them, by the slot's index: (index, tag, packets, bytes).
    pub(super) fn in_order(&self) -> Vec<(usize, u64, u64, u64)> {
        let mut all = Vec::new();
        for (&index, drops) in &self.drops {
            all.extend(drops.iter().map(|&(tag, packets, bytes)| (index, tag, packets, bytes)));
        }
        // In the order of memory, in which the table is gone through: then no bucket needs a
        // search.
        all.sort_unstable();
        all
    }

    /// Packets and bytes to add to the slot at `index` that has this tag.
    pub(super) fn of(&self, index: usize, tag: u64) -> (u64, u64) {
        let (row, word, bit) = Self::bit(index);
        if self.filter[row][word] & bit == 0 {
            return (0, 0);
        }
        let drops = self.drops.get(&index).into_iter().flatten();
        drops
            // The slot may be another source's since: the former one's drops are not this one's.
            .filter(|(owner, ..)| *owner == tag)
            .fold((0, 0), |sum, (_, packets, bytes)| (sum.0 + packets, sum.1 + bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_of_all_cpus_are_added_up_for_the_right_source() {
        let mut pending = Pending::default();
        pending.add(70, (7, 10, 1000));
        pending.add(70, (7, 1, 60));
        pending.add(70, (8, 5, 500));
        assert_eq!(pending.of(70, 7), (11, 1060));
        assert_eq!(pending.of(70, 9), (0, 0));
        assert_eq!(pending.of(71, 7), (0, 0));
        assert_eq!(pending.in_order(), [(70, 7, 1, 60), (70, 7, 10, 1000), (70, 8, 5, 500)]);
        // The same bit of the filter.
        assert_eq!(pending.of(70 + 4096, 7), (0, 0));
    }
}
