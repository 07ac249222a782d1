//! The share that a host's buckets have without end, and how it becomes larger without bringing tokens.
//!
//! Buckets that are there keep the floor that they have until [`crate::share_change`] raises it. But most sources
//! have none, and are as if theirs was full. When the floor becomes larger, a full bucket has fewer tokens than
//! the larger share could hold; so whoever gets a bucket soon after finds it as full as that one would be.

use std::vec::Vec;

use crate::gcra::{MAX_TOLERANCE, Ticks};
use crate::share::{CostMultiplier, Multiplier, burst_floor};
use crate::share_change::converted;

/// The share of every limit of the cluster that each bucket of this host has without end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Floor {
    share: Multiplier,
    /// When it became larger, and what it was before; and what became of it since.
    changes: Vec<(Ticks, Multiplier, Multiplier)>,
    /// Before this no bucket that is made is full.
    filled: Ticks,
    /// Hosts with shares, each of which has a packet of the burst.
    hosts: u32,
}

/// Changes of the floor that are remembered one by one.
const MAX_CHANGES: usize = 256;

impl Floor {
    /// The floor of a host that has always had it. No bucket that is made is full before `filled`.
    #[must_use]
    pub const fn new(share: Multiplier, filled: Ticks) -> Self {
        Self { share, changes: Vec::new(), filled, hosts: 1 }
    }

    /// The floor of a host that has started, with empty buckets.
    // What they were before it started nobody knows. Full ones would let the burst through once more.
    #[must_use]
    pub fn of_boot(share: Multiplier) -> Self {
        Self::new(Multiplier::NOTHING, 0).becoming(share, 0)
    }

    /// What it is.
    #[must_use]
    pub const fn share(&self) -> Multiplier {
        self.share
    }

    /// The same, where so many hosts have shares.
    #[must_use]
    pub fn among(self, hosts: u32) -> Self {
        Self { hosts, ..self }
    }

    /// How many hosts have shares.
    #[must_use]
    pub const fn hosts(&self) -> u32 {
        self.hosts
    }

    /// The floor when it becomes another one, `at` ticks since boot.
    #[must_use]
    pub fn becoming(mut self, share: Multiplier, at: Ticks) -> Self {
        // Older changes have been earned back by now, under any policy.
        self.changes.retain(|(changed, ..)| at.saturating_sub(*changed) < 2 * MAX_TOLERANCE);
        // The smaller number is the larger share. Only a raise makes a full bucket less than full, and at a smaller share
        // that lasts for longer.
        if share < self.share || !self.changes.is_empty() || self.filled > at {
            self.changes.push((at, self.share, share));
        }
        // A fleet whose hosts come and go for days would otherwise fill memory. Fewer tokens is
        // the safe error (P6).
        if self.changes.len() > MAX_CHANGES {
            // As if both had happened at the later time.
            let (_, from, _) = self.changes.remove(0);
            let (_, second, _) = &mut self.changes[0];
            *second = from.max(*second);
        }
        Self { share, ..self }
    }

    /// When a bucket with a `tolerance` that nobody has used is full: what the raises leave of it.
    #[must_use]
    pub fn filled(&self, tolerance: Ticks) -> Ticks {
        self.changes.iter().fold(self.filled, |tat, &(at, from, to)| {
            let [had, has] = [from, to].map(|floor| burst_floor(floor.home(), tolerance));
            let tat = converted(tat, at, tolerance, from, to).max(at);
            // A smaller burst floor takes no tokens that there is still room for.
            let fewer = to.cost(had.saturating_sub(has)).saturating_sub(1);
            let tat = tat.saturating_sub(fewer).max(at) + to.cost(has.saturating_sub(had));
            // Nor does a bucket lack more than it has room for: `filled` may be that of a longer one.
            tat.min(at + CostMultiplier::from_share(to, to.home()).room(tolerance))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_remembered_until_it_is_earned_back_and_the_latest_at_most() {
        let (small, large) = (Multiplier(1 << 20), Multiplier(1 << 19));
        // A smaller share changes only a bucket that is not full.
        let lowered = |at| Floor::new(large, 7).becoming(small, at).changes.len();
        assert_eq!([6, 7].map(lowered), [1, 0]);
        let raised = Floor::new(small, 0).becoming(large, 5);
        assert_eq!(raised.changes, [(5, small, large)]);
        // What is no change makes the older ones be looked at.
        let kept =
            |after| raised.clone().becoming(large, 5 + after).changes.contains(&(5, small, large));
        assert!(kept(2 * MAX_TOLERANCE - 1));
        assert!(!kept(2 * MAX_TOLERANCE));
        let (mut floor, mut most) = (Floor::new(small, 0), 0);
        for at in 0..2 * MAX_CHANGES as u64 {
            floor = floor.becoming(if at % 2 == 0 { large } else { small }, 10 + at);
            most = most.max(floor.changes.len());
        }
        assert_eq!(most, MAX_CHANGES);
    }
}
