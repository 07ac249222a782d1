//! What the kernel program is loaded for.
//!
//! The features in use are a read-only global. The verifier takes it for a constant, and removes what serves the
//! others: a host pays neither instructions nor a branch for what it does not use. At the first use of another
//! feature the program with all of them takes the place of the one at work, between two packets.

use core::ops::Deref;

use crate::abi::{Policy, Tier, UNLIMITED_SLOT};

/// A set of features: bits that the program is loaded with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u32);

impl Features {
    /// What no host can do without.
    pub const NONE: Self = Self(0);
    /// Everything.
    pub const ALL: Self = Self(u32::MAX);
    /// Limits of packets and bytes at once. This and the next four are a policy's own flags.
    pub const SECOND_TIERS: Self = Self(Policy::SECOND);
    /// Shadow limits.
    pub const SHADOWS: Self = Self(Policy::SHADOW);
    /// Limits of the cluster.
    pub const CLUSTER: Self = Self(Policy::CLUSTER);
    /// Bans that ask for evidence.
    pub const EVIDENCE: Self = Self(Policy::EVIDENCE);
    /// Fixed and sliding windows.
    pub const WINDOWS: Self = Self(Policy::WINDOWS);
    /// Limits for classes of traffic.
    pub const CLASSES: Self = Self(1 << 16);
    /// Allow and deny lists.
    pub const LISTS: Self = Self(1 << 17);
    /// Limits that sources share.
    pub const AGGREGATES: Self = Self(1 << 18);
    /// A limit for groups of sources.
    pub const GROUPS: Self = Self(1 << 19);
    /// Where packets go: classes that name it, and limits of destinations.
    pub const DESTINATIONS: Self = Self(1 << 20);

    /// The features that a policy needs.
    #[must_use]
    pub const fn of_policy(policy: &Policy) -> Self {
        Self(policy.flags & !(Policy::OBSERVE | Policy::LEASED))
    }

    /// Whether all of `others` are among these.
    #[inline(always)]
    #[must_use]
    pub const fn has(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// These, and others.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }
}

impl Policy {
    /// As a program sees it that is loaded for everything, in no slot.
    #[must_use]
    pub const fn whole(&self) -> PolicyRef<'_> {
        PolicyRef::new(self, UNLIMITED_SLOT, Features::ALL)
    }
}

/// A policy as a program sees it that is loaded for certain features: without the flags of others.
#[derive(Clone, Copy, Debug)]
pub struct PolicyRef<'a> {
    policy: &'a Policy,
    flags: u32,
    slot: u32,
}

impl<'a> PolicyRef<'a> {
    /// The `policy` in a slot by the program that has these `features`.
    #[inline(always)]
    #[must_use]
    // To the verifier the mask is a constant, so it knows the flags that are off.
    pub const fn new(policy: &'a Policy, slot: u32, features: Features) -> Self {
        Self { policy, flags: policy.flags & (features.0 | Policy::OBSERVE), slot }
    }

    /// Whether packets over the limit pass.
    #[inline(always)]
    #[must_use]
    pub const fn observes(self) -> bool {
        self.flags & Policy::OBSERVE != 0
    }

    /// Whether there is a second tier.
    #[inline(always)]
    #[must_use]
    pub const fn has_second(self) -> bool {
        self.flags & Policy::SECOND != 0
    }

    /// Whether there is a shadow.
    #[inline(always)]
    #[must_use]
    pub const fn has_shadow(self) -> bool {
        self.flags & Policy::SHADOW != 0
    }

    /// Whether the limit bans, and only on evidence.
    #[inline(always)]
    #[must_use]
    pub const fn seeks_evidence(self) -> bool {
        self.flags & Policy::EVIDENCE != 0
    }

    /// One of its tiers.
    #[inline(always)]
    #[must_use]
    pub const fn tier(self, which: Which) -> TierRef<'a> {
        let tier = match which {
            Which::First => &self.policy.first,
            Which::Second => &self.policy.second,
            Which::Shadow => &self.policy.shadow,
        };
        TierRef {
            tier,
            at: self.slot << 2 | which as u32,
            has_windows: self.flags & Policy::WINDOWS != 0,
        }
    }

    /// Whether its tiers count in windows. Both are by one algorithm.
    #[inline(always)]
    #[must_use]
    pub const fn counts_in_windows(self) -> bool {
        self.tier(Which::First).is_window()
    }

    /// Whether the limit is the cluster's.
    #[inline(always)]
    #[must_use]
    pub const fn is_cluster(self) -> bool {
        self.flags & Policy::CLUSTER != 0
    }
}

/// Which tier of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Which {
    /// The limit.
    First = 0,
    /// The limit in the other unit.
    Second = 1,
    /// The shadow.
    Shadow = 2,
}

/// A tier of a policy, as a program sees it that is loaded for certain features.
#[derive(Clone, Copy, Debug)]
pub struct TierRef<'a> {
    tier: &'a Tier,
    at: u32,
    has_windows: bool,
}

impl TierRef<'_> {
    /// Whether it counts in windows.
    #[inline(always)]
    #[must_use]
    pub const fn is_window(&self) -> bool {
        self.has_windows && self.tier.limit != 0
    }

    /// Where it is, as a number: the policy's slot and which of its tiers.
    #[inline(always)]
    #[must_use]
    pub const fn at(&self) -> u32 {
        self.at
    }

    /// The slot of such a number.
    #[inline(always)]
    #[must_use]
    pub const fn slot(at: u32) -> u32 {
        at >> 2
    }

    /// The tier of such a number.
    #[inline(always)]
    #[must_use]
    pub const fn which(at: u32) -> Which {
        match at & 3 {
            1 => Which::Second,
            2 => Which::Shadow,
            _ => Which::First,
        }
    }
}

impl Deref for TierRef<'_> {
    type Target = Tier;

    #[inline(always)]
    fn deref(&self) -> &Tier {
        self.tier
    }
}

impl Deref for PolicyRef<'_> {
    type Target = Policy;

    #[inline(always)]
    fn deref(&self) -> &Policy {
        self.policy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_is_one_of_its_own() {
        let each = [
            Features::SECOND_TIERS,
            Features::SHADOWS,
            Features::CLUSTER,
            Features::EVIDENCE,
            Features::WINDOWS,
            Features::CLASSES,
            Features::LISTS,
            Features::AGGREGATES,
            Features::GROUPS,
            Features::DESTINATIONS,
        ];
        for (at, feature) in each.into_iter().enumerate() {
            assert_eq!(feature.0.count_ones(), 1, "{at}");
            assert_eq!(feature.and(feature), feature);
            assert!(Features::ALL.has(feature) && !Features::NONE.has(feature));
            assert!(each[..at].iter().all(|other| !other.has(feature)), "{at}");
        }
    }
}
