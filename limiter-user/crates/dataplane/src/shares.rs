//! Shares of buckets in limits of the cluster, as the daemon speaks of them.

use ipnet::IpNet;
use limiter_common::share::Multiplier;
use limiter_common::share_change::{Lowered, Outcome};

use super::pending::Pending;
use super::view::Tracked;
use model::source::{Counts, HeldShare};
use model::{Class, Limit, Share};

/// A share for a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketShare {
    /// The number of the bucket.
    pub bucket: usize,
    /// The tag that it has as long as it is the same source's and for the same class.
    pub tag: u64,
    /// What it may use in all, of which the floor is a part.
    pub share: Share,
    /// Until when, ns since boot, rounded down to 2^20 of them.
    // Down and not up: a grant may end early, never late (P6).
    pub until_ns: u64,
}

/// What became of changes of shares.
#[derive(Clone, Debug, Default)]
pub struct SharesChanged {
    /// Not made, as the bucket is another source's, or not under a limit of the cluster, or no packet has come
    /// since it is.
    pub gone: u64,
    /// Not made, as packets came too fast or the daemon was held up: try again.
    pub missed: u64,
    /// The buckets of single changes that were not made, as they are gone.
    pub gone_buckets: Vec<usize>,
    /// The buckets of single changes to be tried again.
    pub missed_buckets: Vec<usize>,
    // Given back later: a packet that read the larger share may still be charged by it.
    lowered: Vec<(usize, Lowered)>,
}

impl SharesChanged {
    /// Adds what became of other changes, of which tokens are to be given back, too.
    pub fn merge(&mut self, other: Self) {
        self.gone += other.gone;
        self.missed += other.missed;
        self.gone_buckets.extend(other.gone_buckets);
        self.missed_buckets.extend(other.missed_buckets);
        self.lowered.extend(other.lowered);
    }

    /// Whether tokens are to be given back by [`crate::ShareMaps::give_back`] when [`crate::wait_for_packets`] has returned.
    pub const fn is_lowered(&self) -> bool {
        !self.lowered.is_empty()
    }
}

/// A bucket under a limit of the cluster.
#[derive(Clone, Copy, Debug)]
pub struct ClusterBucket {
    /// Its number.
    pub bucket: usize,
    /// As [`BucketShare::tag`].
    pub tag: u64,
    /// What it counts.
    pub counts: Counts,
    /// Whether its last packet was over the share.
    pub limited: bool,
}

/// The same, and whose it is.
#[derive(Clone, Debug)]
pub struct ClusterMember {
    /// The bucket.
    pub bucket: ClusterBucket,
    /// Its source.
    pub source: IpNet,
    /// The packets that it is for.
    pub class: Class,
    /// The limit, as if it was set for this source alone: whom it is for, [`crate::Policies::target_of`] tells.
    pub limit: Limit,
    /// What it may use of that.
    pub share: HeldShare,
}

/// What a share costs.
pub(super) fn multiplier(share: Share) -> Multiplier {
    Multiplier::from_units(share.units())
}

impl ClusterBucket {
    pub(super) fn new(tracked: &Tracked<'_>, pending: &Pending) -> Self {
        let (bucket, tag, limited) = (tracked.bucket(), tracked.tag(), tracked.is_over_limit());
        Self { bucket, tag, counts: tracked.counts(pending), limited }
    }
}

impl SharesChanged {
    pub(super) fn into_lowered(self) -> impl Iterator<Item = (usize, Lowered)> {
        self.lowered.into_iter()
    }

    pub(super) fn count(&mut self, bucket: usize, outcome: Outcome) {
        match outcome {
            Outcome::Done => {}
            Outcome::Lowered(lowered) => self.lowered.push((bucket, lowered)),
            Outcome::Gone => self.gone += 1,
            Outcome::Missed => self.missed += 1,
        }
    }
}
