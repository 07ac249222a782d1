//! Limits of which buckets have shares: the cluster's, and those that a central store leases.

use limiter_common::abi::Policy;

/// Which limits a handle is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Those of the cluster.
    Cluster,
    /// Those that a central store leases.
    Leased,
}

impl Kind {
    /// Whether a policy is of this kind.
    pub(super) const fn has(self, policy: &Policy) -> bool {
        policy.whole().is_cluster() && (policy.leased() > 0) == matches!(self, Self::Leased)
    }
}
