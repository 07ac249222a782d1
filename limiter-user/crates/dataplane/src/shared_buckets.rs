//! The buckets of limits that sources share, as who changes limits and who gives shares see them.

use std::sync::{Mutex, PoisonError};

use aya::Ebpf;
use limiter_common::abi::Policy;
use limiter_common::atomic;
use limiter_common::batch::{Batch, pending, take_back};
use limiter_common::gate::MIN_FRAME;
use limiter_common::gcra::{decide, ticks};
use limiter_common::share_change::Bucket;
use limiter_common::shared::Shared;

use super::memory::Elements;
use super::{Error, elements};
use model::Target;
use model::source::Counts;

/// Their memory, which all handles have in common.
pub(super) struct SharedBuckets {
    buckets: Elements<Shared>,
    /// What CPUs hold of them.
    batches: Elements<Batch>,
    /// Those whose limits are the cluster's, by number.
    cluster: Mutex<Vec<(u32, Target)>>,
}

impl SharedBuckets {
    /// Takes the maps out of a loaded object.
    ///
    /// # Errors
    /// If one is not there.
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Self, Error> {
        let (buckets, batches) = (elements(ebpf, "SHARED")?, elements(ebpf, "BATCHES")?);
        Ok(Self { buckets, batches, cluster: Mutex::default() })
    }

    pub(super) fn get(&self, number: u32) -> Option<&Shared> {
        self.buckets.all().get(number as usize)
    }

    /// What came to one since its limit is set.
    pub(super) fn counts(&self, number: u32) -> Option<Counts> {
        let bucket = self.get(number)?;
        let [passed, dropped, bytes] = self.pending(number);
        let total = |word, more| atomic::load(word).wrapping_add(more);
        Some(Counts {
            passed: total(&bucket.passed, passed),
            dropped: total(&bucket.dropped, dropped),
            bytes: total(&bucket.bytes, bytes),
            since_ns: 0,
        })
    }

    /// What CPUs have counted of it and not told.
    pub(super) fn pending(&self, number: u32) -> [u64; 3] {
        pending(self.batches.all(), number)
    }

    /// Returns what CPUs hold of those that `includes` names.
    pub(super) fn take_back(&self, includes: impl Fn(u32) -> bool) {
        take_back(self.batches.all(), self.buckets.all(), includes);
    }

    /// Says which limits are the cluster's.
    pub(super) fn set_cluster(&self, all: Vec<(u32, Target)>) {
        *self.cluster.lock().unwrap_or_else(PoisonError::into_inner) = all;
    }

    /// Those whose limits are the cluster's, and whom these are for.
    pub(super) fn cluster(&self) -> Vec<(u32, Target)> {
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Whether a bucket owes something, and has nothing for a small packet of sources that are not known. One that never has
/// room, because of its share, is at rest: its drops are counted.
pub(super) fn is_empty(shared: &Shared, policy: &Policy, now_ns: u64) -> bool {
    let price = Bucket::of_shared(shared, policy).price(now_ns);
    let sharing = &policy.sharing;
    let first = (&shared.tat, &policy.first, sharing.first_common);
    let second = (&shared.second_tat, &policy.second, sharing.second_common);
    let second = policy.whole().has_second().then_some(second);
    [first].into_iter().chain(second).any(|(word, tier, tolerance)| {
        let cost = price.cost(tier.cost(MIN_FRAME));
        let (tat, now) = (atomic::load(word), ticks(now_ns));
        tat > now && decide(tat, now, cost, tolerance).is_none()
    })
}
