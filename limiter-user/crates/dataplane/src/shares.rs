//! What the buckets of this host may use of limits of the cluster.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use limiter_common::abi::Policy;
use limiter_common::gcra::{Ticks, ticks};
use limiter_common::share::Multiplier;
use limiter_common::share::change::{Lowered, Outcome};
use limiter_common::share::floor::Floor;

use super::pending::Pending;
use super::view::Tracked;
use super::{Dataplane, Error, ShareMaps, kernel};
use model::Share;
use model::compile::{compile, compile_shared, decompile};
use model::source::{Counts, HeldShare};
use model::{Change, Changes, Class, Limit, Target, Tier, Unit};

/// Which limits are the cluster's, and the share that each bucket has of them without end.
pub(super) struct ClusterLimits {
    pub(super) floor: Floor,
    pub(super) includes: fn(&Limit) -> bool,
}

/// What each bucket has of limits of the cluster without end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClusterTerms {
    /// The part of them, 0 to 1.
    pub floor: f64,
    /// How many hosts have shares.
    pub hosts: u32,
    /// The longest frame, bytes.
    pub frame: u32,
}

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
    pub until_ns: u64,
}

/// What became of changes of shares.
#[derive(Clone, Debug, Default)]
pub struct SharesChanged {
    /// Made.
    pub made: u64,
    /// Not made, as the bucket is another source's, or not under a limit of the cluster, or no packet has come
    /// since it is.
    pub gone: u64,
    /// Not made, as packets came too fast or the daemon was held up: try again.
    pub missed: u64,
    /// The buckets of single changes that were not made, as they are gone.
    pub gone_buckets: Vec<usize>,
    /// The buckets of single changes to be tried again.
    pub missed_buckets: Vec<usize>,
    lowered: Vec<(usize, Lowered)>,
}

impl SharesChanged {
    /// Adds what became of other changes, of which tokens are to be given back, too.
    pub fn merge(&mut self, other: Self) {
        self.made += other.made;
        self.gone += other.gone;
        self.missed += other.missed;
        self.gone_buckets.extend(other.gone_buckets);
        self.missed_buckets.extend(other.missed_buckets);
        self.lowered.extend(other.lowered);
    }

    /// Whether tokens are to be given back by [`ShareMaps::give_back`] when [`crate::wait_for_packets`] has returned.
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
    /// The limit, as if it was set for this source alone: whom it is for, [`Dataplane::target_of`] tells.
    pub limit: Limit,
    /// What it may use of that.
    pub share: HeldShare,
}

impl ClusterMember {
    /// What its source sends, drops included, as a part of the limit, when it had counted `earlier` that
    /// `long` ago.
    pub fn demand(&self, earlier: &Counts, long: Duration) -> Share {
        demand(&self.limit, earlier, &self.bucket.counts, long)
    }
}

/// What was offered between two counts of a bucket that lie `long` apart, as a part of the limit; of that in
/// packets or bytes of which it is more.
fn demand(limit: &Limit, earlier: &Counts, now: &Counts, long: Duration) -> Share {
    let packets = now.packets().saturating_sub(earlier.packets());
    let bytes = now.bytes.saturating_sub(earlier.bytes);
    let part = |tier: &Tier| {
        let offered = if tier.rate.unit() == Unit::Bytes { bytes } else { packets };
        let period_s = tier.rate.period_ns() as f64 / 1e9;
        let allowed = tier.rate.amount() as f64 / period_s * long.as_secs_f64();
        if allowed > 0.0 { offered as f64 / allowed } else { 0.0 }
    };
    let first = part(&limit.tier());
    Share::of(limit.also.as_ref().map_or(first, |also| first.max(part(also))))
}

/// How often floors are renewed of buckets that packets are charged to at the same moment.
const ROUNDS: u32 = 4;

/// What a share costs.
pub(super) fn multiplier(share: Share) -> Multiplier {
    Multiplier::of_units(share.units())
}

impl Dataplane {
    /// Lets each bucket use `floor` of every limit that `includes` says is the cluster's, without end, which so
    /// many `hosts` share. A larger floor than before brings no source any tokens.
    ///
    /// # Errors
    /// As [`Dataplane::publish`], or a limit that cannot be divided; then the former floor stays.
    pub fn set_floor(
        &mut self,
        floor: Share,
        hosts: u32,
        includes: fn(&Limit) -> bool,
    ) -> Result<SharesChanged, Error> {
        self.change_floor(floor, hosts, includes)?;
        Ok(self.renew_floors(0..self.buckets()))
    }

    /// As [`Dataplane::set_floor`], but where the floor becomes larger buckets keep the one that they have
    /// until [`Dataplane::renew_floors`]. A smaller one is in force at once.
    ///
    /// # Errors
    /// As [`Dataplane::set_floor`].
    pub fn change_floor(
        &mut self,
        floor: Share,
        hosts: u32,
        includes: fn(&Limit) -> bool,
    ) -> Result<(), Error> {
        let share = multiplier(floor);
        let at = ticks(kernel::monotonic_ns());
        let former = self.cluster.as_ref().map(|cluster| cluster.floor.clone());
        let former = former.or_else(|| self.pinned_floor());
        let floor = match former {
            Some(former) => former.becoming(share, at),
            None => Floor::new(share, 0),
        };
        let floor = floor.among(hosts);
        let before = self.cluster.replace(ClusterLimits { floor, includes });
        let known = self.publisher.policies();
        let limits = known.filter_map(|(target, policy)| decompile(target, &policy));
        let changes: Changes = limits.filter(includes).map(Change::Set).collect();
        if !changes.is_empty()
            && let Err(error) = self.change(&changes)
        {
            self.cluster = before;
            return Err(error);
        }
        Ok(())
    }

    /// A handle for who gives shares, which waits for no change of limits.
    pub fn share_maps(&self) -> Arc<ShareMaps> {
        Arc::clone(&self.shares)
    }

    /// Whom the limit is for that applies to what a source sends of a class; `None` if that class is not in use.
    pub fn target_of(&self, source: IpNet, class: Class) -> Option<Target> {
        Some(self.publisher.policy_for(source.addr(), self.class_id(class)?).0)
    }

    /// What each bucket has of limits of the cluster without end, if there can be any.
    pub fn cluster_terms(&self) -> Option<ClusterTerms> {
        let floor = &self.cluster.as_ref()?.floor;
        let (part, hosts) = (floor.share().part(), floor.hosts());
        Some(ClusterTerms { floor: part, hosts, frame: self.max_frame })
    }

    /// Whether each bucket may use all of every limit of the cluster without end, as a daemon before this one has
    /// left it: then that one had delegated nothing.
    pub fn has_everything(&self) -> bool {
        let floor = self.cluster.as_ref().map(|cluster| cluster.floor.clone());
        let floor = floor.or_else(|| self.pinned_floor());
        floor.is_some_and(|floor| floor.share() == Multiplier::WHOLE)
    }

    /// The floor that a daemon before this one has left.
    fn pinned_floor(&self) -> Option<Floor> {
        let policies = self.publisher.policies().map(|(_, policy)| policy);
        let shared: Vec<Policy> = policies.filter(Policy::is_shared).collect();
        let least = shared.iter().map(Policy::floor).max()?;
        let filled: Option<Ticks> = shared.iter().flat_map(Policy::filled).max();
        Some(Floor::new(least, filled.unwrap_or_default()))
    }

    /// The policy of a limit.
    pub(super) fn policy_of(&self, limit: &Limit) -> Result<Policy, Error> {
        let shift = self.memory.layout.window_shift;
        Ok(match &self.cluster {
            Some(cluster) if (cluster.includes)(limit) => {
                compile_shared(limit, &cluster.floor, shift, self.max_frame)
            }
            _ => compile(limit, shift, self.max_frame),
        }?)
    }

    /// Lets these buckets have the floor of their policy, and keeps who gives shares waiting meanwhile.
    pub fn renew_floors(&self, buckets: Range<usize>) -> SharesChanged {
        let _alone = self.shares.writing();
        let mut changed = SharesChanged::default();
        let mut slots = ClusterSlots::default();
        let mut missed: Vec<usize> = Vec::new();
        for round in 0..ROUNDS {
            let mut again = std::mem::take(&mut missed).into_iter();
            let mut all = if round == 0 { buckets.clone() } else { 0..0 };
            let buckets = std::iter::from_fn(|| all.next().or_else(|| again.next()));
            self.memory.part(buckets, |bucket, tracked| {
                let Some(policy) = slots.policy(self, tracked) else { return };
                let outcome = tracked.under(&policy).change(tracked.tag(), None, clock);
                if matches!(outcome, Outcome::Missed) && round + 1 < ROUNDS {
                    missed.push(bucket);
                } else {
                    changed.count(bucket, outcome);
                }
            });
        }
        changed
    }
}

impl ClusterBucket {
    pub(super) fn new(tracked: &Tracked<'_>, pending: &Pending) -> Self {
        let (bucket, tag, limited) = (tracked.bucket(), tracked.tag(), tracked.is_denied());
        Self { bucket, tag, counts: tracked.counts(pending), limited }
    }
}

impl SharesChanged {
    pub(super) fn into_lowered(self) -> impl Iterator<Item = (usize, Lowered)> {
        self.lowered.into_iter()
    }

    pub(super) fn count(&mut self, bucket: usize, outcome: Outcome) {
        match outcome {
            Outcome::Done => self.made += 1,
            Outcome::Lowered(lowered) => {
                self.made += 1;
                self.lowered.push((bucket, lowered));
            }
            Outcome::Gone => self.gone += 1,
            Outcome::Missed => self.missed += 1,
        }
    }
}

/// The time in which buckets think, ns since boot.
pub(super) fn clock() -> u64 {
    kernel::monotonic_ns()
}

/// The policy that was asked for last: that of nearly all buckets, one after the other.
#[derive(Default)]
struct ClusterSlots {
    last: Option<(u32, Option<Policy>)>,
}

impl ClusterSlots {
    /// The policy that the next packet of a bucket's source meets, if it is the cluster's.
    fn policy(&mut self, dataplane: &Dataplane, tracked: &Tracked<'_>) -> Option<Policy> {
        let publisher = &dataplane.publisher;
        let resolved = tracked.policy_word();
        if resolved.generation() != publisher.generation() {
            // No packet has come since policies have changed.
            let network = dataplane.memory.network(tracked.key());
            let (_, policy) = publisher.policy_for(network.addr(), tracked.class());
            return policy.filter(Policy::is_shared);
        }
        let slot = resolved.slot();
        if let Some((last, policy)) = self.last
            && last == slot
        {
            return policy;
        }
        let policy = publisher.policy(slot).filter(Policy::is_shared);
        self.last = Some((slot, policy));
        policy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_is_a_part_of_the_unit_that_is_used_most() {
        let mut limit = Limit::new(Target::DEFAULT, "1000pps".parse().unwrap(), None).unwrap();
        let earlier = Counts { passed: 100, dropped: 10, bytes: 1000, since_ns: 1 };
        let now = Counts { passed: 200, dropped: 60, bytes: 101_000, since_ns: 1 };
        let of = |limit: &Limit| demand(limit, &earlier, &now, Duration::from_millis(100)).part();
        // 150 packets where 100 may come.
        assert!((of(&limit) - 1.5).abs() < 1e-6, "{}", of(&limit));
        let bytes = Limit::new(Target::DEFAULT, "250kbyte/s".parse().unwrap(), None).unwrap();
        limit.also = Some(bytes.tier());
        assert!((of(&limit) - 4.0).abs() < 1e-6, "{}", of(&limit));
    }
}
