//! What shadow limits would have dropped.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use limiter_common::atomic;

use super::publish::ShadowLimit;
use super::view::Now;
use super::{Dataplane, Error};
use model::compile::compile_tier;
use model::source::Source;
use model::{Target, Tier};

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

impl Dataplane {
    /// Sets a shadow limit, which touches no packet.
    ///
    /// # Errors
    /// A limit that cannot be enforced, or a target that it cannot have without changing what
    /// applies; or the kernel refuses.
    pub fn set_shadow(&mut self, target: &Target, tier: &Tier) -> Result<(), Error> {
        let shift = self.memory.layout.window_shift;
        let compiled = compile_tier(target, tier, shift, self.max_frame)?;
        self.publisher.set_shadow(target, (compiled, *tier), self.memory.config()).map(drop)
    }

    /// Removes the shadow limit of a target. Whether there was one.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn unset_shadow(&mut self, target: &Target) -> Result<bool, Error> {
        self.publisher.unset_shadow(target, self.memory.config())
    }

    /// All shadow limits, and the `n` sources of each that would have lost most.
    pub fn shadows(&self, n: usize) -> Vec<ShadowView> {
        self.publisher.shadows().map(|shadow| self.shadow(&shadow, n)).collect()
    }

    fn shadow(&self, shadow: &ShadowLimit, n: usize) -> ShadowView {
        let ShadowLimit { target, tier, number } = *shadow;
        let mut view = ShadowView {
            target,
            tier,
            sources: 0,
            limited: 0,
            packets: 0,
            would_drop: 0,
            most: Vec::new(),
        };
        let identities = self.memory.identities.all();
        let mut most = BinaryHeap::new();
        self.memory.occupied(|bucket, _| {
            let Some(identity) = identities.get(bucket) else { return };
            if atomic::load(&identity.shadow_id) != u64::from(number) {
                return;
            }
            let would_drop = atomic::load(&identity.would_drop);
            view.sources += 1;
            view.limited += u64::from(would_drop > 0);
            view.packets += atomic::load(&identity.shadow_packets);
            view.would_drop += would_drop;
            if would_drop > 0 {
                // The heap has the least of them on top, so that `n` are kept of however many
                // buckets there are.
                most.push(Reverse((would_drop, bucket)));
                if most.len() > n {
                    most.pop();
                }
            }
        });
        let (pending, now) = (self.pending(), Now::take());
        for Reverse((would_drop, bucket)) in most.into_sorted_vec() {
            // Another source may have got the bucket since.
            let Some(tracked) = self.memory.at(bucket) else { continue };
            let packets =
                identities.get(bucket).map_or(0, |identity| atomic::load(&identity.shadow_packets));
            let counts = tracked.counts(&pending);
            if let Some(source) = self.view(&tracked, counts, now) {
                view.most.push((source, packets, would_drop));
            }
        }
        view
    }
}
