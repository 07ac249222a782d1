//! The bucket table: sets of four buckets, one cache line each.
//!
//! A bucket is `{tag, tat}`. Tag 0 is an empty way. TAT [`CLAIMED`] is a way that a CPU is filling.
//! A bucket whose TAT is not in the future is full, hence as good as a new one: only such buckets
//! are replaced, and nothing is lost by it. The TAT doubles as the lock of a replacement, because a
//! compare-and-swap on it fails exactly if a packet was charged in between, and a TAT never returns
//! to a value it had.

use core::sync::atomic::AtomicU64;

use crate::atomic;
use crate::gcra::Ticks;
use crate::hash::Hash;

/// Buckets in a set.
pub const WAYS: u32 = 4;

/// The TAT of a way that is being filled.
pub const CLAIMED: Ticks = u64::MAX;

/// One bucket.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Bucket {
    /// The source's hash, 0 if the way is empty.
    pub tag: AtomicU64,
    /// Its theoretical arrival time.
    pub tat: AtomicU64,
}

/// One cache line of buckets.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Set {
    /// The ways, in no order.
    pub ways: [Bucket; WAYS as usize],
}

impl Set {
    /// The way that holds `hash`.
    #[inline(always)]
    pub fn find(&self, hash: Hash) -> Option<u32> {
        let mut way = 0;
        while way < WAYS {
            if atomic::load(&self.bucket(way).tag) == hash.0 {
                return Some(way);
            }
            way += 1;
        }
        None
    }

    /// The bucket of a way, which is taken modulo [`WAYS`].
    #[inline(always)]
    pub fn bucket(&self, way: u32) -> &Bucket {
        &self.ways[(way % WAYS) as usize]
    }

    /// The way to replace: the one that has been full for longest, else the one that will be full
    /// soonest. A way that is being filled comes last.
    #[inline(always)]
    pub fn victim(&self) -> u32 {
        // The way rides in the two lowest bits, an eighth of a nanosecond. So the least of four
        // numbers is all there is to find, and the verifier need not follow what each way means.
        let key = |way: u32| (atomic::load(&self.bucket(way).tat) & !3) | u64::from(way);
        let mut least = key(0);
        let mut way = 1;
        while way < WAYS {
            let other = key(way);
            if other < least {
                least = other;
            }
            way += 1;
        }
        (least & 3) as u32
    }

    /// Whether another way than `way` holds `hash`: two CPUs promoted the source at once.
    #[inline(always)]
    pub fn duplicated(&self, hash: Hash, way: u32) -> bool {
        let mut other = 0;
        while other < WAYS {
            if other != way && atomic::load(&self.bucket(other).tag) == hash.0 {
                return true;
            }
            other += 1;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ways: [(u64, u64); 4]) -> Set {
        let set = Set::default();
        for (bucket, (tag, tat)) in set.ways.iter().zip(ways) {
            atomic::store(&bucket.tag, tag);
            atomic::store(&bucket.tat, tat);
        }
        set
    }

    #[test]
    fn finds_every_way() {
        let set = set([(5, 1), (6, 1), (7, 1), (8, 1)]);
        for way in 0..WAYS {
            assert_eq!(set.find(Hash(5 + u64::from(way))), Some(way));
        }
        assert_eq!(set.find(Hash(9)), None);
        assert!(set.duplicated(Hash(6), 2) && !set.duplicated(Hash(6), 1));
    }

    #[test]
    fn prefers_empty_then_longest_full_then_soonest_full() {
        let victim = |ways| set(ways).victim();
        assert_eq!(victim([(5, 40), (0, 0), (7, 30), (8, 44)]), 1);
        assert_eq!(victim([(5, 40), (6, 90), (7, 30), (8, 400)]), 2);
        assert_eq!(victim([(5, 310), (6, 190), (7, 300), (8, CLAIMED)]), 1);
    }
}
