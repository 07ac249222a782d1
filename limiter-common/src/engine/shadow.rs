//! A shadow limit: what it would have dropped is counted, nothing else.
//!
//! It has a bucket of its own in the line of [`Identity`], so that it changes no verdict.

use super::lookup::Arrival;
use super::steps::Steps;
use super::windows::{DENIED, Question};
use crate::atomic;
use crate::features::{PolicyRef, Which};
use crate::gcra::{Ticks, decide};
use crate::table::Identity;

/// Judges a packet of a source with a bucket by the shadow of its policy.
///
/// Two CPUs that meet may count a packet less: a shadow is a sample, not an account.
#[inline(always)]
pub(super) fn shadow<S: Steps>(
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
    let tier = policy.tier(Which::Shadow);
    let cost = tier.cost(packet.length);
    let next = if tier.is_window() {
        Some(tier.ask(state, Question::Decide, tat, now, cost)).filter(|next| *next != DENIED)
    } else {
        decide(tat, now, cost, tier.tolerance)
    };
    match next {
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
