//! Limits that many sources share: those of a prefix, of a class, or all of them together.
//!
//! A shared limit is a bucket of its own, without sketch, gate or table: it is charged for every
//! packet that has passed the limit of its source, but for those of sources on the allow list. A packet must pass, one after the other, the
//! shared limit of its class, that of the longest prefix, and the total. What one of them admits
//! stays charged if a later one does not.

use crate::atomic::AtomicU64;
use crate::share::ShareSlot;

/// Bits of [`crate::abi::Config::shared`]: there are limits of prefixes.
// Known apart, so that a packet asks no map of a kind that there is none of.
pub const PREFIX: u64 = 1;
/// Bits of [`crate::abi::Config::shared`]: there are limits of classes.
pub const CLASS: u64 = 2;
/// Bits of [`crate::abi::Config::shared`]: there is a total.
pub const TOTAL: u64 = 4;

/// Shared limits that there may be.
pub const SHARED_SLOTS: u32 = 16_384;

/// The total's place among them.
// A fixed place: the total is found without a lookup.
pub const TOTAL_SLOT: u32 = 0;

/// The bucket of a shared limit and what became of the packets that came to it.
#[derive(Debug, Default)]
// A line each: all CPUs write the bucket of a busy limit, and neighbours must not pay for it.
#[repr(C, align(64))]
pub struct Shared {
    /// The theoretical arrival time.
    pub tat: AtomicU64,
    /// That of the policy's second tier.
    pub second_tat: AtomicU64,
    /// A [`crate::abi::PolicyWord`]: the slot of its policy, and how often that has changed.
    // Not the generation of all policies: with each of those CPUs would forget what they hold.
    pub policy: AtomicU64,
    /// Packets passed, but for those that CPUs have not told yet: see [`crate::batch::pending`].
    pub passed: AtomicU64,
    /// Packets over the limit.
    pub dropped: AtomicU64,
    /// Bytes offered (passed and dropped).
    pub bytes: AtomicU64,
    /// What the host may use of a limit of the cluster.
    pub share: ShareSlot,
}
