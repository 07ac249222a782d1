//! The share that a host's buckets have without end, and how it becomes larger without bringing tokens.
//!
//! Buckets that are there keep the floor that they have until [`crate::share_change`] raises it. But most sources
//! have none, and are as if theirs was full. When the floor becomes larger, a full bucket has fewer tokens than
//! the larger share could hold; so whoever gets a bucket soon after finds it as full as that one would be.

use std::vec::Vec;

use crate::gcra::{MAX_TOLERANCE, Ticks};
use crate::share::Multiplier;
use crate::share_change::converted;

/// The share of every limit of the cluster that each bucket of this host has without end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Floor {
    share: Multiplier,
    /// When it became larger, and what it was before.
    raised: Vec<(Ticks, Multiplier, Multiplier)>,
    /// Before this no bucket that is made is full.
    filled: Ticks,
    /// Hosts with shares, each of which has a packet of the burst.
    hosts: u32,
}

/// Raises of the floor that are remembered one by one.
const MAX_RAISED: usize = 256;

impl Floor {
    /// The floor of a host that has always had it. No bucket that is made is full before `filled`.
    #[must_use]
    pub const fn new(share: Multiplier, filled: Ticks) -> Self {
        Self { share, raised: Vec::new(), filled, hosts: 1 }
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
        // Older raises have been earned back by now, under any policy.
        self.raised.retain(|(raised, ..)| at.saturating_sub(*raised) < MAX_TOLERANCE);
        // The smaller number is the larger share. Only a raise makes a full bucket less than full.
        if share < self.share {
            self.raised.push((at, self.share, share));
        }
        // A fleet whose hosts come and go for days would otherwise fill memory. Fewer tokens is
        // the safe error (P6).
        if self.raised.len() > MAX_RAISED {
            // As if both had happened at the later time.
            let (_, from, _) = self.raised.remove(0);
            let (_, second, _) = &mut self.raised[0];
            *second = from.max(*second);
        }
        Self { share, ..self }
    }

    /// When a bucket with a `tolerance` that nobody has used is full: what the raises leave of it.
    #[must_use]
    pub fn filled(&self, tolerance: Ticks) -> Ticks {
        let raised = self.raised.iter();
        let full = raised.fold(0, |tat, (at, from, to)| converted(tat, *at, tolerance, *from, *to));
        full.max(self.filled)
    }
}
