//! Shared limits: their buckets, and the maps that lead to them.

use std::collections::HashMap;
use std::sync::Arc;

use aya::Ebpf;
use limiter_common::abi::{Config, Policy, PolicyWord};
use limiter_common::atomic;
use limiter_common::class::ANY;
use limiter_common::gcra::{Ticks, clamped};
use limiter_common::share::Held;
use limiter_common::share_change::Bucket;
use limiter_common::shared::{CLASS, PREFIX, SHARED_SLOTS, TOTAL, TOTAL_SLOT};

use super::super::Error;
use super::super::shared_buckets::SharedBuckets;
use super::super::sources::{Prefixes, Refused};
use super::place::ClassPlace;
use super::slots::Numbers;
use model::source::Counts;

/// The shared limits.
pub(super) struct SharedMaps {
    prefixes: Prefixes<ClassPlace, u32>,
    pub(super) buckets: Arc<SharedBuckets>,
    /// The place of each among the buckets.
    used: HashMap<ClassPlace, u32>,
    numbers: Numbers,
}

impl SharedMaps {
    /// Takes the maps out of a loaded object, with what is in force.
    ///
    /// # Errors
    /// If one is not there, or cannot be read.
    pub(super) fn take(ebpf: &mut Ebpf, config: &Config) -> Result<Self, Error> {
        let buckets = Arc::new(SharedBuckets::take(ebpf)?);
        let prefixes = Prefixes::<ClassPlace, u32>::take(ebpf, ["SHARED4", "SHARED6"])?;
        let present = prefixes.present().map_err(Error::map("read the shared limits in force"))?;
        let mut used: HashMap<_, _> = present.into_iter().collect();
        if atomic::load(&config.shared) & TOTAL != 0 {
            used.insert(ClassPlace::DEFAULT, TOTAL_SLOT);
        }
        let taken: Vec<u32> = used.values().copied().collect();
        let free = (TOTAL_SLOT + 1..SHARED_SLOTS).filter(|number| !taken.contains(number));
        let numbers = Numbers::new(free);
        Ok(Self { prefixes, buckets, used, numbers })
    }

    /// Every place that has one, and the policy's slot.
    pub(super) fn present(&self) -> impl Iterator<Item = (ClassPlace, u32)> {
        self.used.iter().filter_map(|(place, number)| {
            Some((*place, PolicyWord(atomic::load(&self.buckets.get(*number)?.policy)).slot()))
        })
    }

    /// What came to the shared limit of a place.
    pub(super) fn counts(&self, place: &ClassPlace) -> Option<Counts> {
        self.buckets.counts(*self.used.get(place)?)
    }

    /// What the host may use of the shared limit of a place, under the `policy` of a cluster.
    pub(super) fn held(&self, place: &ClassPlace, policy: &Policy) -> Option<Held> {
        let shared = self.buckets.get(*self.used.get(place)?)?;
        Some(Bucket::of_shared(shared, policy).held())
    }

    /// The number of the one of a place.
    pub(super) fn number(&self, place: &ClassPlace) -> Option<u32> {
        self.used.get(place).copied()
    }

    /// Returns what CPUs hold.
    pub(super) fn take_back(&self) {
        if !self.used.is_empty() {
            self.buckets.take_back(|_| true);
        }
    }

    /// Lets a bucket have another policy.
    fn lead(&self, number: u32, policy: u32) {
        let Some(bucket) = self.buckets.get(number) else { return };
        let before = PolicyWord(atomic::load(&bucket.policy));
        if before.slot() == policy {
            return;
        }
        // What CPUs hold is worth something else under the new one. They forget it by the version.
        self.buckets.take_back(|other| other == number);
        let version = before.generation().wrapping_add(1);
        atomic::store(&bucket.policy, PolicyWord::new(version, policy).0);
    }

    /// Has the bucket of a place owe no more than an empty one under `policy`, and have no more without end.
    pub(super) fn clamp(&self, place: &ClassPlace, policy: &Policy, now: Ticks) {
        let Some(bucket) = self.used.get(place).and_then(|number| self.buckets.get(*number)) else {
            return;
        };
        // The greater number is the smaller share. A larger one is given with the buckets of sources: it brings no tokens.
        let floor = atomic::load(&bucket.share.floor);
        if policy.whole().is_cluster() && floor < u64::from(policy.floor().0) {
            atomic::replace(&bucket.share.floor, floor, u64::from(policy.floor().0));
        }
        for (word, tier) in [(&bucket.tat, &policy.first), (&bucket.second_tat, &policy.second)] {
            let tat = atomic::load(word);
            // If this fails a packet was charged, so the bucket did not owe too much.
            atomic::replace(word, tat, clamped(tat, now, tier.tolerance));
        }
    }

    /// Lets the sources of a place share the limit in a policy slot, or none.
    ///
    /// # Errors
    /// If the kernel refuses, or there are too many.
    pub(super) fn write(
        &mut self,
        place: ClassPlace,
        policy: Option<u32>,
    ) -> Result<(), Refused<ClassPlace>> {
        match (policy, self.used.get(&place).copied()) {
            (Some(policy), Some(number)) => {
                // The bucket stays as it is, or each change of the limit would bring a fresh burst (P2).
                self.lead(number, policy);
                Ok(())
            }
            (Some(policy), None) => self.add(place, policy),
            (None, Some(number)) => {
                // The total has a place of its own and no key: packets go by the word that
                // `announce` writes.
                if number != TOTAL_SLOT {
                    // The key first: a number that is given away must not be found under the former place.
                    self.prefixes.remove(&place)?;
                    self.numbers.give_back(number);
                }
                self.used.remove(&place);
                Ok(())
            }
            (None, None) => Ok(()),
        }
    }

    fn add(&mut self, place: ClassPlace, policy: u32) -> Result<(), Refused<ClassPlace>> {
        let total = place == ClassPlace::DEFAULT;
        let full = || {
            (
                place,
                aya::maps::MapError::OutOfBounds { index: SHARED_SLOTS, max_entries: SHARED_SLOTS },
            )
        };
        // The total has its place for good: each packet comes to it, without a lookup.
        let number = if total { TOTAL_SLOT } else { self.numbers.take().ok_or_else(full)? };
        // Nobody comes to the bucket yet.
        if let Some(bucket) = self.buckets.get(number) {
            // What CPUs hold of the number's former limit must not serve this one: its version goes. What they have
            // counted there and not told yet makes up for what is missing here.
            let told = self.buckets.pending(number);
            let version = PolicyWord(atomic::load(&bucket.policy)).generation().wrapping_add(1);
            for (word, told) in
                [&bucket.passed, &bucket.dropped, &bucket.bytes].into_iter().zip(told)
            {
                atomic::store(word, told.wrapping_neg());
            }
            atomic::store(&bucket.tat, 0);
            atomic::store(&bucket.second_tat, 0);
            atomic::store(&bucket.share.grant, 0);
            atomic::store(&bucket.share.floor, 0);
            atomic::store(&bucket.policy, PolicyWord::new(version, policy).0);
        }
        if !total && let Err(refused) = self.prefixes.insert(&place, number) {
            self.numbers.give_back(number);
            return Err(refused);
        }
        self.used.insert(place, number);
        Ok(())
    }

    /// Tells the kernel which kinds there are.
    pub(super) fn announce(&self, config: &Config) {
        let kind = |place: &ClassPlace| match place {
            place if *place == ClassPlace::DEFAULT => TOTAL,
            place if u32::from(place.class) == ANY => PREFIX,
            _ => CLASS,
        };
        let kinds = self.used.keys().map(kind).fold(0, |all, kind| all | kind);
        // A full barrier: a packet that hears of a kind finds its keys and buckets.
        atomic::swap(&config.shared, kinds);
    }
}
