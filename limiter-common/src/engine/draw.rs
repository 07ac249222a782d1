//! One packet's tokens, from the tiers of a policy.

use core::sync::atomic::AtomicU64;

use super::State;
use crate::abi::{Policy, Tier};
use crate::atomic;
use crate::denial::{self, LEAST_TOLERANCE, LONGEST_NS, LONGEST_SHARED_NS};
use crate::gate::MIN_FRAME;
use crate::gcra::{Decision, MAX_TOLERANCE, TICKS_PER_NS, Ticks, decide, decide_shared, ticks};
use crate::share::{Held, LARGEST_FRAME, Lapse, Multiplier, Price};
use crate::table::CLAIMED;

/// What became of a packet that asked a bucket for its tokens. A number, so that the verifier can be
/// kept from following each separately.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Drawn(u64);

impl Drawn {
    /// There were enough.
    pub(super) const ADMITTED: Self = Self(0);
    /// There are too few.
    pub(super) const DENIED: Self = Self(1);
    /// There are too few, and the bucket was deeper in debt than its policy lets it be.
    pub(super) const CLAMPED: Self = Self(2);
    /// Another CPU was faster. Nothing was charged.
    pub(super) const CONTENDED: Self = Self(3);
}

/// The theoretical arrival times of a bucket; the second one means nothing without a second tier.
#[derive(Clone, Copy)]
pub(super) struct Tats {
    pub(super) first: Ticks,
    pub(super) second: Ticks,
}

/// What packets cost at `now_ns` under what a bucket may use. The verifier learns nothing of a share but
/// that there is one, as otherwise it would follow each way to come by it.
#[inline(always)]
pub(super) fn price_at<S: State>(state: &S, held: Held, now_ns: u64) -> Price {
    if held.floor == 0 { Price::LOCAL } else { price_of(state, held.at(now_ns).multiplier()) }
}

/// What packets cost under a share, as [`price_at`].
#[inline(always)]
pub(super) fn price_of<S: State>(state: &S, share: Multiplier) -> Price {
    Price::of_share(Multiplier::from_bits(state.opaque(u64::from(share.0)) as u32))
}

/// What a packet costs that costs `cost` under the whole limit.
#[inline(always)]
pub(super) fn priced<S: State>(state: &S, price: Price, cost: Ticks) -> Ticks {
    if price.is_shared() { state.opaque(price.of(cost)) } else { cost }
}

/// What the largest packet costs under a tier of the cluster, and what is added to debts for a moment while
/// shares are changed.
#[inline(always)]
fn most<S: State>(state: &S, price: Price, tier: &Tier) -> Ticks {
    let most = priced(state, price, tier.cost.of(LARGEST_FRAME));
    if most > MAX_TOLERANCE { MAX_TOLERANCE } else { most + SLACK }
}

/// Twice what [`crate::share::change`] adds at a time.
const SLACK: Ticks = 2 * crate::share::MARGIN_NS * TICKS_PER_NS;

/// How far a tier's bucket may be in debt.
#[inline(always)]
pub(super) fn deepest<S: State>(state: &S, price: Price, tier: &Tier) -> Ticks {
    if price.is_shared() { tier.tolerance + most(state, price, tier) } else { tier.tolerance }
}

/// Judges a packet of `length` bytes by one tier, whose bucket is at `tat`.
#[inline(always)]
fn judge_tier<S: State>(
    state: &S,
    tier: &Tier,
    price: Price,
    tat: Ticks,
    length: u32,
    now: Ticks,
) -> Decision {
    let cost = priced(state, price, tier.cost.of(length));
    if price.is_shared() {
        return decide_shared(tat, now, cost, most(state, price, tier), tier.tolerance);
    }
    decide(tat, now, cost, tier.tolerance)
}

/// The times of a bucket after what has become of its share since its last packet.
#[inline(always)]
fn lapsed<S: State>(state: &S, policy: &Policy, price: Price, lapse: &Lapse, at: Tats) -> Tats {
    let (first, second) = (&policy.first, &policy.second);
    let mut after = at;
    if !lapse.spares(at.first, first.tolerance) {
        after.first = lapse.apply(at.first, first.tolerance, most(state, price, first));
    }
    if policy.has_second() && !lapse.spares(at.second, second.tolerance) {
        after.second = lapse.apply(at.second, second.tolerance, most(state, price, second));
    }
    Tats { first: state.opaque(after.first), second: state.opaque(after.second) }
}

/// Judges a packet of `length` bytes by all tiers of a policy, and says what its bucket comes to.
#[inline(always)]
pub(super) fn judge<S: State>(
    state: &S,
    policy: &Policy,
    price: Price,
    lapse: &Lapse,
    before: Tats,
    length: u32,
    now: Ticks,
) -> (Drawn, Tats) {
    let mut at = before;
    let mut denied = Drawn::DENIED;
    if price.is_shared() {
        at = lapsed(state, policy, price, lapse, before);
        if at.first != before.first || at.second != before.second {
            // It is to be written: whoever comes next does not know of it.
            denied = Drawn::CLAMPED;
        }
    }
    let mut next = at;
    match judge_tier(state, &policy.first, price, at.first, length, now) {
        Decision::Admit(tat) => next.first = tat,
        Decision::Clamp(first) => return (Drawn::CLAMPED, Tats { first, ..at }),
        Decision::Deny => return (denied, at),
    }
    if policy.has_second() {
        match judge_tier(state, &policy.second, price, at.second, length, now) {
            Decision::Admit(tat) => next.second = tat,
            Decision::Clamp(second) => return (Drawn::CLAMPED, Tats { second, ..at }),
            Decision::Deny => return (denied, at),
        }
    }
    (Drawn::ADMITTED, next)
}

/// The words of a bucket.
#[derive(Clone, Copy)]
pub(super) struct Words<'a> {
    /// What packets cost.
    pub(super) price: Price,
    /// What has become of its share since its last packet.
    pub(super) lapse: Lapse,
    pub(super) first: &'a AtomicU64,
    /// The second tier's, where the policy has one.
    pub(super) second: &'a AtomicU64,
}

impl Words<'_> {
    /// The bucket whose first word was `first` a moment ago.
    #[inline(always)]
    fn at(&self, policy: &Policy, first: Ticks) -> Tats {
        let second = if policy.has_second() { atomic::load(self.second) } else { 0 };
        Tats { first, second }
    }

    /// Charges a packet of `length` bytes to the bucket, whose first word was `tat` a moment ago.
    #[inline(always)]
    pub(super) fn draw<S: State>(
        &self,
        state: &S,
        policy: &Policy,
        tat: Ticks,
        length: u32,
        now: Ticks,
    ) -> Drawn {
        let at = self.at(policy, tat);
        let (drawn, next) = judge(state, policy, self.price, &self.lapse, at, length, now);
        let drawn = Drawn(state.opaque(drawn.0));
        if drawn == Drawn::DENIED {
            return drawn;
        }
        let mut written = true;
        if policy.has_second() {
            written = atomic::replace(self.second, at.second, next.second);
        }
        let done = written && atomic::replace(self.first, at.first, next.first);
        if done || drawn == Drawn::CLAMPED {
            // If clamping loses, another CPU has done it.
            return drawn;
        }
        if written && policy.has_second() && atomic::load(self.first) != CLAIMED {
            // What was taken from the second tier goes back, unless the bucket is another source's now.
            atomic::add(self.second, at.second.wrapping_sub(next.second));
        }
        Drawn::CONTENDED
    }

    /// Charges a packet for which another CPU was faster before: without a comparison, which keeps the
    /// sum exact and lets the bucket overshoot by this one packet.
    #[inline(always)]
    pub(super) fn insist<S: State>(
        &self,
        state: &S,
        policy: &Policy,
        tat: Ticks,
        length: u32,
        now: Ticks,
    ) -> bool {
        let at = self.at(policy, tat);
        let (drawn, next) = judge(state, policy, self.price, &self.lapse, at, length, now);
        if state.opaque(drawn.0) != Drawn::ADMITTED.0 {
            if self.price.is_shared() && drawn == Drawn::CLAMPED {
                atomic::replace(self.first, at.first, next.first);
                if policy.has_second() {
                    atomic::replace(self.second, at.second, next.second);
                }
            }
            return false;
        }
        atomic::add(self.first, next.first.wrapping_sub(at.first));
        if policy.has_second() {
            atomic::add(self.second, next.second.wrapping_sub(at.second));
        }
        true
    }
}

/// How long, in ns from `ns` on, a tier whose bucket is at `tat` will deny every packet; `length` is
/// that of the packet at hand.
#[inline(always)]
pub(super) fn lasts<S: State>(
    state: &S,
    tier: &Tier,
    price: Price,
    tat: Ticks,
    length: u32,
    ns: u64,
) -> u64 {
    let debt = tat.saturating_sub(ticks(ns));
    if price.is_shared() {
        return state.opaque(lasts_shared(state, tier, price, debt));
    }
    let least = tier.cost.of(MIN_FRAME);
    let cost = if tier.cost.per_byte != 0 { tier.cost.of(length) } else { least };
    denial::lasts(debt, cost, least, tier.tolerance)
}

/// The same of a tier of the cluster.
#[inline(always)]
fn lasts_shared<S: State>(state: &S, tier: &Tier, price: Price, debt: Ticks) -> u64 {
    if priced(state, price, tier.cost.of(MIN_FRAME)) > MAX_TOLERANCE {
        // The share is nothing. It denies as long as it is what it is.
        return LONGEST_NS;
    }
    let mut wait = debt.saturating_sub(tier.tolerance);
    if tier.tolerance < LEAST_TOLERANCE {
        // It must not be full before somebody looks.
        wait = wait.saturating_sub(LEAST_TOLERANCE);
    }
    // Whoever makes the share larger has the bucket forget it, unless a packet is being judged meanwhile. So no
    // longer than the bucket has room for what it earns.
    let longest = (tier.tolerance / TICKS_PER_NS).clamp(LONGEST_SHARED_NS, LONGEST_NS);
    let wait_ns = wait / TICKS_PER_NS;
    if wait_ns > longest { longest } else { wait_ns }
}
