//! What limits that are tried would have dropped.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use limiter_common::atomic;

use super::publish::Trying;
use super::view::Now;
use super::{Dataplane, Error};
use model::compile::compile_tier;
use model::source::Source;
use model::{Target, Tier};

/// A limit that is tried, and what came of it.
#[derive(Clone, Debug)]
pub struct TrialView {
    /// For whom.
    pub target: Target,
    /// What.
    pub tier: Tier,
    /// Sources with a bucket that have sent something since.
    pub sources: u64,
    /// Of those, how many would have lost something.
    pub limited: u64,
    /// Packets that they have sent, from when each had its bucket and was looked at.
    pub tried: u64,
    /// Of those, how many would have been dropped.
    pub would_drop: u64,
    /// Who would have lost most, and of how many packets how many.
    pub most: Vec<(Source, u64, u64)>,
}

impl Dataplane {
    /// Tries a limit beside those in force, without touching a packet.
    ///
    /// # Errors
    /// A limit that cannot be enforced, or a target for which nothing can be tried without changing what
    /// applies; or the kernel refuses.
    pub fn start_trial(&mut self, target: &Target, tier: &Tier) -> Result<(), Error> {
        let shift = self.memory.layout.window_shift;
        let compiled = compile_tier(target, tier, shift, self.max_frame)?;
        self.publisher.start_trial(target, (compiled, *tier), self.memory.config()).map(drop)
    }

    /// Ends what is tried for a target. Whether something was.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn stop_trial(&mut self, target: &Target) -> Result<bool, Error> {
        self.publisher.stop_trial(target, self.memory.config())
    }

    /// What is tried, and the `n` sources of each that would have lost most.
    pub fn trials(&self, n: usize) -> Vec<TrialView> {
        self.publisher.trials().map(|trying| self.trial(&trying, n)).collect()
    }

    fn trial(&self, trying: &Trying, n: usize) -> TrialView {
        let Trying { target, tier, number } = *trying;
        let mut view = TrialView {
            target,
            tier,
            sources: 0,
            limited: 0,
            tried: 0,
            would_drop: 0,
            most: Vec::new(),
        };
        let identities = self.memory.identities.all();
        let mut most = BinaryHeap::new();
        self.memory.occupied(|bucket, _| {
            let Some(identity) = identities.get(bucket) else { return };
            if atomic::load(&identity.trial) != u64::from(number) {
                return;
            }
            let would_drop = atomic::load(&identity.would_drop);
            view.sources += 1;
            view.limited += u64::from(would_drop > 0);
            view.tried += atomic::load(&identity.tried);
            view.would_drop += would_drop;
            if would_drop > 0 {
                most.push(Reverse((would_drop, bucket)));
                if most.len() > n {
                    most.pop();
                }
            }
        });
        let (pending, now) = (self.pending(), Now::take());
        for Reverse((would_drop, bucket)) in most.into_sorted_vec() {
            let Some(tracked) = self.memory.at(bucket) else { continue };
            let tried = identities.get(bucket).map_or(0, |identity| atomic::load(&identity.tried));
            let counts = tracked.counts(&pending);
            if let Some(source) = self.view(&tracked, counts, now) {
                view.most.push((source, tried, would_drop));
            }
        }
        view
    }
}
