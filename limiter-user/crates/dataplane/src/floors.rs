//! The share that the buckets of this host have of limits of the cluster without end.

use std::ops::Range;
use std::sync::Arc;

use ipnet::IpNet;
use limiter_common::abi::Policy;
use limiter_common::floor::Floor;
use limiter_common::gcra::{Ticks, ticks};
use limiter_common::share::Multiplier;
use limiter_common::share_change::Outcome;

use super::kernel::monotonic_ns;
use super::share_maps::ShareMaps;
use super::shares::{SharesChanged, multiplier};
use super::view::Tracked;
use super::{Dataplane, Error};
use model::compile::{compile, compile_shared, decompile};
use model::{Change, Changes, Class, Limit, Share, Target};

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

/// How often floors are renewed of buckets that packets are charged to at the same moment.
const ROUNDS: u32 = 4;

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
        let at = ticks(monotonic_ns());
        let former = self.cluster.as_ref().map(|cluster| cluster.floor.clone());
        // Without the floor before, nobody could tell by how much this one is larger, and buckets
        // that are made now would be too full.
        let former = former.or_else(|| self.pinned_floor());
        let floor = match former {
            Some(former) => former.becoming(share, at),
            None => Floor::new(share, 0),
        };
        let floor = floor.among(hosts);
        // Before the policies are compiled, which takes the floor from here.
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
        let shared: Vec<Policy> = policies.filter(Policy::is_cluster).collect();
        // The greater number is the smaller share. A daemon that died within a change has left two
        // floors, of which the smaller one brings nobody tokens.
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
        // A share that is given meanwhile would be converted from a floor that is about to change.
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
                let outcome = tracked.under(&policy).change(tracked.tag(), None, monotonic_ns);
                // Tried again after all the others, when the flood on this bucket may have paused;
                // at once it would only be met again.
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
            return policy.filter(Policy::is_cluster);
        }
        let slot = resolved.slot();
        if let Some((last, policy)) = self.last
            && last == slot
        {
            return policy;
        }
        let policy = publisher.policy(slot).filter(Policy::is_cluster);
        self.last = Some((slot, policy));
        policy
    }
}
