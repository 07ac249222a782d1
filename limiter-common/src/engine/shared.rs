//! The limits that many sources share.

use super::State;
use super::Steps;
use super::draw::{BucketRef, Charge};
use super::lookup::Arrival;
use crate::abi::Reason;
use crate::atomic;
use crate::class::ANY;
use crate::gcra::ticks;
use crate::share::{CostMultiplier, Lapse};
use crate::shared::{CLASS, PREFIX, TOTAL, TOTAL_SLOT};

/// Judges a packet that has `passed` the limit of its source by those that it shares.
#[inline(always)]
pub fn shared_limits<S: Steps>(state: &S, packet: &Arrival, passed: Reason) -> Option<Reason> {
    let kinds = atomic::load(&state.config()?.shared);
    let mut reason = passed;
    if kinds & CLASS != 0
        && let Some(slot) = packet.classified.shared(state, packet.source)?
    {
        reason = state.charge_shared(packet, slot, reason)?;
    }
    if kinds & PREFIX != 0
        && reason.passes()
        && let Some(slot) = state.shared_by(ANY, packet.source)
    {
        reason = state.charge_shared(packet, slot, reason)?;
    }
    if kinds & TOTAL != 0 && reason.passes() {
        reason = state.charge_shared(packet, TOTAL_SLOT, reason)?;
    }
    Some(reason)
}

/// Charges a packet that has `passed` all limits before to one that it shares; what it meets there.
#[inline(always)]
pub fn charge_shared<S: State>(
    state: &S,
    packet: &Arrival,
    slot: u32,
    passed: Reason,
) -> Option<Reason> {
    let shared = state.shared(slot)?;
    let policy = state.active(atomic::load(&shared.policy) as u32)?;
    let (price, lapse) = (CostMultiplier::LOCAL, Lapse::NONE);
    let bucket = BucketRef { price, lapse, first: &shared.tat, second: &shared.second_tat };
    // The exact clock: many sources share the bucket, so it is charged far more often than the
    // coarse one ticks.
    let now = ticks(state.now());
    let tat = atomic::load(&shared.tat);
    // These buckets are never another's while a packet may know of them, so nothing is asked again.
    let charged = bucket.charge(state, policy, tat, packet.length, now, || true);
    atomic::add(&shared.bytes, u64::from(packet.length));
    if charged == Charge::Admitted {
        atomic::add(&shared.passed, 1);
        return Some(passed);
    }
    atomic::add(&shared.dropped, 1);
    Some(match slot {
        _ if policy.observes() => Reason::WouldDrop,
        TOTAL_SLOT => Reason::OverTotal,
        _ => Reason::OverShared,
    })
}
