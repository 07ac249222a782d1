//! One packet's tokens, from the tiers of a policy.

use core::sync::atomic::AtomicU64;

use super::State;
use crate::abi::{Internal, Policy, Tier};
use crate::atomic;
use crate::drop_cache::{self, MAX_NS, MAX_SHARED_NS, MIN_TOLERANCE};
use crate::gate::MIN_FRAME;
use crate::gcra::{MAX_COST, MAX_TOLERANCE, TICKS_PER_NS, Ticks, decide, decide_shared, ticks};
use crate::share::{CostMultiplier, Held, LARGEST_FRAME, Lapse, Multiplier};

/// What became of a packet that asked a bucket for its tokens. A number, so that the verifier can be
/// kept from following each separately.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Charge(u64);

impl Charge {
    /// There were enough.
    pub(super) const ADMITTED: Self = Self(0);
    /// There are too few.
    pub(super) const OVER_LIMIT: Self = Self(1);
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
pub(super) fn price_at<S: State>(state: &S, held: Held, now_ns: u64) -> CostMultiplier {
    if held.floor == 0 {
        CostMultiplier::LOCAL
    } else {
        price_of(state, held.at(now_ns).multiplier())
    }
}

/// What packets cost under a share, as [`price_at`].
#[inline(always)]
pub(super) fn price_of<S: State>(state: &S, share: Multiplier) -> CostMultiplier {
    CostMultiplier::from_share(Multiplier::from_bits(state.opaque(u64::from(share.0)) as u32))
}

/// What a packet costs that costs `cost` under the whole limit.
#[inline(always)]
pub(super) fn priced<S: State>(state: &S, price: CostMultiplier, cost: Ticks) -> Ticks {
    if price.is_cluster() { state.opaque(price.cost(cost)) } else { cost }
}

/// The debt of a tier's bucket that is empty. At a share that is one packet of the largest size beyond its tolerance.
#[inline(always)]
pub(super) fn deepest<S: State>(state: &S, price: CostMultiplier, tier: &Tier) -> Ticks {
    let beyond = if price.is_cluster() { dearest(state, price, tier, LARGEST_FRAME) } else { 0 };
    tier.tolerance + beyond
}

/// What a packet of `length` bytes costs under a tier, if any bucket has the room for it.
#[inline(always)]
pub(super) fn dearest<S: State>(
    state: &S,
    price: CostMultiplier,
    tier: &Tier,
    length: u32,
) -> Ticks {
    let cost = priced(state, price, tier.cost.ticks(length));
    if cost > MAX_COST { MAX_COST } else { cost }
}

/// Judges a packet of `cost` by a bucket at `tat`, as [`decide`].
#[inline(always)]
fn decide_at(
    price: CostMultiplier,
    tat: Ticks,
    now: Ticks,
    cost: Ticks,
    tolerance: Ticks,
) -> Option<Ticks> {
    if price.is_cluster() {
        return decide_shared(tat, now, cost, tolerance);
    }
    decide(tat, now, cost, tolerance)
}

/// Judges a packet of `length` bytes by all tiers of a policy: whether it is admitted, and what a bucket at
/// `at` comes to, of which nothing is charged otherwise.
#[inline(always)]
pub(super) fn judge<S: State>(
    state: &S,
    policy: &Policy,
    price: CostMultiplier,
    at: Tats,
    length: u32,
    now: Ticks,
) -> (bool, Tats) {
    let cost = priced(state, price, policy.first.cost.ticks(length));
    let Some(first) = decide_at(price, at.first, now, cost, policy.first.tolerance) else {
        return (false, at);
    };
    if !policy.has_second() {
        return (true, Tats { first, ..at });
    }
    let cost = priced(state, price, policy.second.cost.ticks(length));
    match decide_at(price, at.second, now, cost, policy.second.tolerance) {
        Some(second) => (true, Tats { first, second }),
        None => (false, at),
    }
}

/// Charges `cost` to a word that was `tat` a moment ago, if `decide` has room for it as long as the bucket is the
/// source's.
///
/// Where another CPU is faster, the word is judged once more, and the cost added without a comparison: it then may
/// overshoot by a packet for each other CPU, which the source owes.
#[inline(always)]
fn charge<S: State>(
    state: &S,
    word: &AtomicU64,
    tat: Ticks,
    cost: Ticks,
    decide: impl Fn(Ticks) -> Option<Ticks>,
    is_its: impl Fn() -> bool,
) -> Charge {
    let Some(next) = decide(tat) else { return Charge::OVER_LIMIT };
    if atomic::replace(word, tat, next) {
        return Charge::ADMITTED;
    }
    let tat = state.opaque(atomic::load(word));
    if !is_its() {
        return Charge::GONE;
    }
    state.note(Internal::Contended);
    // Judged once, not in a loop: how often others are faster has no bound, and the verifier asks
    // for one.
    if decide(tat).is_none() {
        return Charge::OVER_LIMIT;
    }
    // Whoever was faster has moved the word to the present.
    atomic::add(word, cost);
    Charge::ADMITTED
}

/// A bucket that a packet is charged to: its words, and what a packet costs there.
#[derive(Clone, Copy)]
pub(super) struct BucketRef<'a> {
    /// By what its share multiplies the cost of packets.
    pub(super) price: CostMultiplier,
    /// What has become of its share since its last packet.
    pub(super) lapse: Lapse,
    /// Its theoretical arrival time in the first tier.
    pub(super) first: &'a AtomicU64,
    /// The second tier's, where the policy has one.
    pub(super) second: &'a AtomicU64,
}

impl BucketRef<'_> {
    /// Charges a packet of `length` bytes to the bucket, whose first word was `tat` a moment ago, to all tiers
    /// or to none.
    #[inline(always)]
    pub(super) fn charge<S: State>(
        &self,
        state: &S,
        policy: &Policy,
        tat: Ticks,
        length: u32,
        now: Ticks,
        is_its: impl Fn() -> bool,
    ) -> Charge {
        let tat = self.lengthened(state, &policy.first, self.first, tat);
        let decide = |tat, cost, tier: &Tier| decide_at(self.price, tat, now, cost, tier.tolerance);
        let first = priced(state, self.price, policy.first.cost.ticks(length));
        let decide_first = |tat| decide(tat, first, &policy.first);
        let mut second = 0;
        if policy.has_second() {
            // The second tier first: that word is only known to be the source's by the first one,
            // which is looked at afterwards.
            let at = atomic::load(self.second);
            if !is_its() {
                return Charge::GONE;
            }
            let at = self.lengthened(state, &policy.second, self.second, at);
            // Before anything is taken from the second tier, so that nothing has to be given back
            // as a rule.
            if decide_first(tat).is_none() {
                return Charge::OVER_LIMIT;
            }
            second = priced(state, self.price, policy.second.cost.ticks(length));
            let decide_second = |tat| decide(tat, second, &policy.second);
            let charged = charge(state, self.second, at, second, decide_second, &is_its);
            let charged = Charge(state.opaque(charged.0));
            if charged != Charge::ADMITTED {
                return charged;
            }
        }
        let charged = charge(state, self.first, tat, first, decide_first, &is_its);
        let charged = Charge(state.opaque(charged.0));
        if charged != Charge::ADMITTED && policy.has_second() && is_its() {
            // What was taken from the second tier goes back.
            atomic::add(self.second, second.wrapping_neg());
        }
        charged
    }

    /// What a word that was `tat` a moment ago comes to by what has become of the bucket's share since its last
    /// packet, and writes it: whoever comes next does not know of it.
    #[inline(always)]
    fn lengthened<S: State>(&self, state: &S, tier: &Tier, word: &AtomicU64, tat: Ticks) -> Ticks {
        if self.lapse.spares(tat, tier.tolerance) {
            return tat;
        }
        let most = dearest(state, self.price, tier, LARGEST_FRAME);
        let next = self.lapse.apply(tat, tier.tolerance, most);
        // If this fails, another CPU has done it, or has charged a packet at the share before.
        atomic::replace(word, tat, next);
        state.opaque(next)
    }
}

/// How long, in ns from `ns` on, a tier whose bucket is at `tat` will deny every packet; `length` is
/// that of the packet at hand.
#[inline(always)]
pub(super) fn lasts<S: State>(
    state: &S,
    tier: &Tier,
    price: CostMultiplier,
    tat: Ticks,
    length: u32,
    ns: u64,
) -> u64 {
    let debt = tat.saturating_sub(ticks(ns));
    if price.is_cluster() {
        return state.opaque(lasts_shared(state, tier, price, debt));
    }
    let least = tier.cost.ticks(MIN_FRAME);
    // A limit in bytes may have room for a smaller packet when it has none for this one.
    let cost = if tier.cost.per_byte != 0 { tier.cost.ticks(length) } else { least };
    drop_cache::lasts(debt, cost, least, tier.tolerance)
}

/// The same of a tier of the cluster.
#[inline(always)]
fn lasts_shared<S: State>(state: &S, tier: &Tier, price: CostMultiplier, debt: Ticks) -> u64 {
    if priced(state, price, tier.cost.ticks(MIN_FRAME)) > MAX_TOLERANCE {
        // The share is nothing. It denies as long as it is what it is.
        return MAX_NS;
    }
    let mut wait = debt.saturating_sub(tier.tolerance);
    if tier.tolerance < MIN_TOLERANCE {
        // It must not be full before somebody looks.
        wait = wait.saturating_sub(MIN_TOLERANCE);
    }
    // Whoever makes the share larger has the bucket forget it, unless a packet is being judged meanwhile. So no
    // longer than the bucket has room for what it earns.
    let longest = (tier.tolerance / TICKS_PER_NS).clamp(MAX_SHARED_NS, MAX_NS);
    let wait_ns = wait / TICKS_PER_NS;
    if wait_ns > longest { longest } else { wait_ns }
}
