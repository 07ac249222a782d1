//! The share that the buckets of this host have of limits of the cluster without end.

use limiter_common::abi::Policy;
use limiter_common::floor::Floor;
use limiter_common::gcra::{Ticks, ticks};
use limiter_common::share::Multiplier;

use super::Error;
use super::kernel::monotonic_ns;
use super::kind::Kind;
use super::publish::InForce;
use super::shares::multiplier;
use model::compile::{compile, compile_leased, compile_shared};
use model::{Limit, Share};

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

/// Whether a limit is the cluster's.
type IsClusters = fn(&Limit) -> bool;

/// Which limits are the cluster's, and the share that each bucket has of them without end. Apart from the limits, which
/// are all compiled anew when this changes: see [`super::Policies::change_floor`].
#[derive(Default)]
pub(super) struct Floors {
    /// `None` outside of a cluster, and before one is known.
    cluster: Option<(Floor, IsClusters)>,
}

impl Floors {
    /// The floor, here or as a daemon before this one has left it.
    fn floor(&self, in_force: &InForce) -> Option<Floor> {
        self.cluster.as_ref().map(|(floor, _)| floor.clone()).or_else(|| pinned(in_force))
    }

    /// Those that follow: buckets have `floor` of the limits that `includes` says are the cluster's.
    pub(super) fn becoming(
        &self,
        in_force: &InForce,
        floor: Share,
        hosts: u32,
        includes: IsClusters,
    ) -> Self {
        let share = multiplier(floor);
        let at = ticks(monotonic_ns());
        // Without the floor before, nobody could tell by how much this one is larger, and buckets
        // that are made now would be too full.
        let floor = match self.floor(in_force) {
            Some(former) => former.becoming(share, at),
            None => Floor::of_boot(share),
        };
        Self { cluster: Some((floor.among(hosts), includes)) }
    }

    /// The policy of a limit, with a sketch whose epochs have 2^`shift` ns and frames of up to `max_frame` bytes.
    ///
    /// # Errors
    /// A limit that cannot be enforced, or divided.
    pub(super) fn compile(
        &self,
        limit: &Limit,
        shift: u32,
        max_frame: u32,
    ) -> Result<Policy, Error> {
        if let Some(on_error) = limit.scope.on_error() {
            return Ok(compile_leased(limit, on_error, shift, max_frame)?);
        }
        Ok(match &self.cluster {
            Some((floor, includes)) if includes(limit) => {
                compile_shared(limit, floor, shift, max_frame)
            }
            _ => compile(limit, shift, max_frame),
        }?)
    }

    /// What each bucket has, if there can be limits of the cluster.
    pub(super) fn terms(&self, frame: u32) -> Option<ClusterTerms> {
        let (floor, _) = self.cluster.as_ref()?;
        Some(ClusterTerms { floor: floor.share().part(), hosts: floor.hosts(), frame })
    }

    /// Whether a limit in force can be compiled again: one of the cluster cannot before its floor is known, and stays
    /// as the daemon before this one has left it.
    // It once had no floor for some ms of each takeover: buckets could use all of it, on every host.
    pub(super) fn knows(&self, limit: &Limit) -> bool {
        self.cluster.is_some() || !limit.scope.is_cluster()
    }

    /// Whether a bucket may use all of every limit of the cluster.
    pub(super) fn has_everything(&self, in_force: &InForce) -> bool {
        self.floor(in_force).is_some_and(|floor| floor.share() == Multiplier::WHOLE)
    }
}

/// The floor that a daemon before this one has left.
fn pinned(in_force: &InForce) -> Option<Floor> {
    let policies = in_force.policies().map(|(_, policy)| policy);
    let shared: Vec<Policy> = policies.filter(|policy| Kind::Cluster.has(policy)).collect();
    // The greater number is the smaller share. A daemon that died within a change has left two
    // floors, of which the smaller one brings nobody tokens.
    let least = shared.iter().map(Policy::floor).max()?;
    let filled: Option<Ticks> = shared.iter().flat_map(Policy::filled).max();
    Some(Floor::new(least, filled.unwrap_or_default()))
}
