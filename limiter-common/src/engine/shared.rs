//! The limits that many sources share.

use super::State;
use super::classes::Classified;
use super::draw::{BucketRef, Charge};
use crate::abi::{Config, Reason};
use crate::atomic;
use crate::class::ANY;
use crate::gcra::ticks;
use crate::key::SourceKey;
use crate::share::{CostMultiplier, Lapse};
use crate::shared::{CLASS, PREFIX, Shared, TOTAL, TOTAL_SLOT};

/// Not a shared limit.
const NONE: u64 = u64::MAX;

/// Judges a packet that has `passed` the limit of its source by those that it shares.
#[inline(always)]
pub(super) fn shared<S: State>(
    state: &S,
    config: &Config,
    classified: Classified,
    source: SourceKey,
    length: u32,
    passed: Reason,
) -> Option<Reason> {
    let kinds = atomic::load(&config.shared);
    if kinds == 0 {
        return Some(passed);
    }
    let source = state.copy(source);
    let mut prefix = NONE;
    if kinds & PREFIX != 0
        && let Some(found) = state.shared_by(ANY, source)
    {
        prefix = u64::from(found);
    }
    let mut class = NONE;
    if kinds & CLASS != 0
        && let Some(found) = classified.shared(state, source)?
    {
        class = u64::from(found);
    }
    let (class, prefix) = (state.opaque(class), state.opaque(prefix));
    let total = if kinds & TOTAL != 0 { u64::from(TOTAL_SLOT) } else { NONE };
    // The exact clock: many sources share the bucket, so it is charged far more often than the
    // coarse one ticks.
    let now_ns = state.now();
    // As a number that the verifier knows nothing about: what follows is the same for each reason.
    let mut reason = state.opaque(passed as u64);
    let mut step = 0u32;
    // In a loop, though there are three at most: the verifier then goes through a charge once, not
    // for each.
    while step < 3 && Reason::from_u32(reason as u32).passes() {
        let slot = match step {
            0 => class,
            1 => prefix,
            _ => total,
        };
        if slot != NONE {
            let shared = state.shared(slot as u32)?;
            let outcome = charge(state, shared, length, now_ns)?;
            let over =
                if slot == u64::from(TOTAL_SLOT) { Reason::OverTotal } else { Reason::OverShared };
            let became = match outcome {
                CONFORMING => reason,
                WOULD_DROP => Reason::WouldDrop as u64,
                _ => over as u64,
            };
            reason = state.opaque(became);
        }
        step += 1;
    }
    Some(Reason::from_u32(reason as u32))
}

// What a shared limit makes of a packet.
const CONFORMING: u64 = 0;
const WOULD_DROP: u64 = 1;
const OVER: u64 = 2;

#[inline(always)]
fn charge<S: State>(state: &S, shared: &Shared, length: u32, now_ns: u64) -> Option<u64> {
    let policy = state.policy(atomic::load(&shared.policy) as u32)?;
    let (price, lapse) = (CostMultiplier::LOCAL, Lapse::NONE);
    let bucket = BucketRef { price, lapse, first: &shared.tat, second: &shared.second_tat };
    let now = ticks(now_ns);
    let tat = atomic::load(&shared.tat);
    // These buckets are never another's while a packet may know of them, so nothing is asked again.
    let admitted = bucket.charge(state, policy, tat, length, now, || true) == Charge::ADMITTED;
    atomic::add(&shared.bytes, u64::from(length));
    if admitted {
        atomic::add(&shared.passed, 1);
        return Some(CONFORMING);
    }
    atomic::add(&shared.dropped, 1);
    Some(if policy.observes() { WOULD_DROP } else { OVER })
}
