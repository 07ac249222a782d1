//! One packet's tokens, from the tiers of a policy.

use core::sync::atomic::AtomicU64;

use super::State;
use crate::abi::{Internal, Policy, Tier};
use crate::atomic;
use crate::denial::{self, LONGEST_NS};
use crate::gate::MIN_FRAME;
use crate::gcra::{TICKS_PER_NS, Ticks, decide, ticks};
use crate::share::{Held, Multiplier, Price};

/// What became of a packet that asked a bucket for its tokens. A number, so that the verifier can be
/// kept from following each separately.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Drawn(u64);

impl Drawn {
    /// There were enough.
    pub(super) const ADMITTED: Self = Self(0);
    /// There are too few.
    pub(super) const DENIED: Self = Self(1);
    /// The bucket went to another source meanwhile. Nothing was charged.
    pub(super) const GONE: Self = Self(2);
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

/// Judges a packet of `length` bytes by all tiers of a policy: whether it is admitted, and what a bucket at
/// `at` comes to, of which nothing is charged otherwise.
#[inline(always)]
pub(super) fn judge<S: State>(
    state: &S,
    policy: &Policy,
    price: Price,
    at: Tats,
    length: u32,
    now: Ticks,
) -> (bool, Tats) {
    let cost = priced(state, price, policy.first.cost.of(length));
    let Some(first) = decide(at.first, now, cost, policy.first.tolerance) else {
        return (false, at);
    };
    if !policy.has_second() {
        return (true, Tats { first, ..at });
    }
    let cost = priced(state, price, policy.second.cost.of(length));
    match decide(at.second, now, cost, policy.second.tolerance) {
        Some(second) => (true, Tats { first, second }),
        None => (false, at),
    }
}

/// Charges `cost` to a word that was `tat` a moment ago, if it has room for it as long as the bucket is the
/// source's.
///
/// Where another CPU is faster, the word is judged once more, and the cost added without a comparison: it then may
/// overshoot by a packet for each other CPU, which the source owes.
#[inline(always)]
fn charge<S: State>(
    state: &S,
    word: &AtomicU64,
    tat: Ticks,
    now: Ticks,
    cost: Ticks,
    tolerance: Ticks,
    is_its: impl Fn() -> bool,
) -> Drawn {
    let Some(next) = decide(tat, now, cost, tolerance) else { return Drawn::DENIED };
    if atomic::replace(word, tat, next) {
        return Drawn::ADMITTED;
    }
    state.note(Internal::Contended);
    let tat = state.opaque(atomic::load(word));
    if !is_its() {
        return Drawn::GONE;
    }
    if decide(tat, now, cost, tolerance).is_none() {
        return Drawn::DENIED;
    }
    // Whoever was faster has moved the word to the present.
    atomic::add(word, cost);
    Drawn::ADMITTED
}

/// The words of a bucket.
#[derive(Clone, Copy)]
pub(super) struct Words<'a> {
    /// What packets cost.
    pub(super) price: Price,
    pub(super) first: &'a AtomicU64,
    /// The second tier's, where the policy has one.
    pub(super) second: &'a AtomicU64,
}

impl Words<'_> {
    /// Charges a packet of `length` bytes to the bucket, whose first word was `tat` a moment ago, to all tiers
    /// or to none.
    #[inline(always)]
    pub(super) fn draw<S: State>(
        &self,
        state: &S,
        policy: &Policy,
        tat: Ticks,
        length: u32,
        now: Ticks,
        is_its: impl Fn() -> bool,
    ) -> Drawn {
        let cost = priced(state, self.price, policy.first.cost.of(length));
        let tolerance = policy.first.tolerance;
        let mut second = 0;
        if policy.has_second() {
            if decide(tat, now, cost, tolerance).is_none() {
                return Drawn::DENIED;
            }
            second = priced(state, self.price, policy.second.cost.of(length));
            let at = atomic::load(self.second);
            let drawn =
                charge(state, self.second, at, now, second, policy.second.tolerance, &is_its);
            let drawn = Drawn(state.opaque(drawn.0));
            if drawn != Drawn::ADMITTED {
                return drawn;
            }
        }
        let drawn = charge(state, self.first, tat, now, cost, tolerance, &is_its);
        let drawn = Drawn(state.opaque(drawn.0));
        if drawn != Drawn::ADMITTED && policy.has_second() && is_its() {
            // What was taken from the second tier goes back.
            atomic::add(self.second, second.wrapping_neg());
        }
        drawn
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
    let least = priced(state, price, tier.cost.of(MIN_FRAME));
    if price.is_shared() && least > tier.tolerance {
        // The share has no room for any packet. It denies as long as it is what it is.
        return state.opaque(LONGEST_NS);
    }
    let mut cost = least;
    if tier.cost.per_byte != 0 {
        cost = priced(state, price, tier.cost.of(length));
    }
    let lasts = denial::lasts(tat.saturating_sub(ticks(ns)), cost, least, tier.tolerance);
    if !price.is_shared() {
        return lasts;
    }
    // Whoever makes the share larger has the bucket forget it, unless a packet is being judged meanwhile. So no
    // longer than the bucket has room for what it earns.
    let room = tier.tolerance.saturating_sub(cost) / TICKS_PER_NS;
    state.opaque(if lasts > room { room } else { lasts })
}
