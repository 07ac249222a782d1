//! A shadow limit: what it would have dropped is counted, nothing else.
//!
//! It has a bucket of its own in the line of [`Identity`], so that it changes no verdict.

use super::State;
use super::draw::decide_by;
use super::lookup::Arrival;
use crate::atomic;
use crate::features::PolicyRef;
use crate::gcra::Ticks;
use crate::share::CostMultiplier;
use crate::table::Identity;

/// Judges a packet of a source with a bucket by the shadow of its policy.
///
/// Two CPUs that meet may count a packet less: a shadow is a sample, not an account.
#[inline(always)]
pub(super) fn shadow<S: State>(
    state: &S,
    policy: PolicyRef<'_>,
    index: u32,
    packet: &Arrival,
    now: Ticks,
) -> Option<()> {
    let identity = state.identity(index)?;
    if atomic::load(&identity.shadow_id) != u64::from(policy.shadow_id) {
        // Another shadow has been set since, for which this source starts with a full bucket.
        begin(identity, policy, 0);
    }
    let tat = atomic::load(&identity.shadow_tat);
    let (tier, price) = (&policy.shadow, CostMultiplier::LOCAL);
    match decide_by(policy, tier, price, tat, now, tier.cost(packet.length)) {
        Some(next) => {
            // Without a second try: a packet that is lost to the race changes a sample, not a
            // verdict.
            atomic::replace(&identity.shadow_tat, tat, next);
        }
        None => {
            atomic::add(&identity.would_drop, 1);
        }
    }
    atomic::add(&identity.shadow_packets, 1);
    Some(())
}

/// Begins to count for the policy's shadow, with a bucket that is at `tat`.
#[inline(always)]
pub(super) fn begin(identity: &Identity, policy: PolicyRef<'_>, tat: Ticks) {
    atomic::store(&identity.shadow_packets, 0);
    atomic::store(&identity.would_drop, 0);
    atomic::store(&identity.shadow_tat, tat);
    // Last, so that what was counted for another shadow is never told as this one's.
    atomic::store(&identity.shadow_id, u64::from(policy.shadow_id));
}
