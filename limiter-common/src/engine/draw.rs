//! One packet's tokens, from the tiers of a policy.

use super::State;
use crate::abi::{Internal, Tier};
use crate::atomic::{self, AtomicU64};
use crate::drop_cache::{self, MAX_NS, MAX_SHARED_NS, MIN_TOLERANCE};
use crate::features::{PolicyRef, TierRef, Which};
use crate::gate::MIN_FRAME;
use crate::gcra::{
    MAX_COST, MAX_TOLERANCE, TICKS_PER_NS, Ticks, decide_shared, decide_whole, ticks,
};
use crate::share::{CostMultiplier, LARGEST_FRAME, Lapse};

/// What became of a packet that asked a bucket for its tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Charge {
    /// There were enough.
    Admitted,
    /// There are too few.
    OverLimit,
    /// The bucket went to another source meanwhile. Nothing was charged.
    Gone,
}

/// The theoretical arrival times of a bucket; the second one means nothing without a second tier.
#[derive(Clone, Copy)]
pub(super) struct Tats {
    pub(super) first: Ticks,
    pub(super) second: Ticks,
}

/// The debt of a tier's bucket that is empty. At a share that is one packet of the largest size beyond its room.
#[inline(always)]
pub(super) fn deepest(price: CostMultiplier, tier: &Tier) -> Ticks {
    let beyond = if price.is_cluster() { dearest(price, tier, LARGEST_FRAME) } else { 0 };
    price.room(tier.tolerance) + beyond
}

/// What a packet of `length` bytes costs under a tier, if any bucket has the room for it.
#[inline(always)]
pub(super) fn dearest(price: CostMultiplier, tier: &Tier, length: u32) -> Ticks {
    price.cost(tier.cost(length)).min(MAX_COST)
}

/// Judges a packet of `cost` by a bucket at `tat` that has `room`.
#[inline(always)]
fn decide_at(
    price: CostMultiplier,
    tat: Ticks,
    now: Ticks,
    cost: Ticks,
    room: Ticks,
) -> Option<Ticks> {
    if price.is_cluster() {
        return decide_shared(tat, now, cost, room);
    }
    decide_whole(tat, now, cost, room)
}

/// Judges the first packet of a bucket, of `length` bytes, by one of its tiers.
#[inline(always)]
fn decide_first(
    tier: TierRef<'_>,
    price: CostMultiplier,
    word: u64,
    length: u32,
    now: Ticks,
) -> Option<u64> {
    let cost = tier.cost(length);
    if tier.is_window() {
        // What is owed leaves room for a packet: a gate is an eighth of the limit at the most, or lets nothing pass.
        return (cost <= u64::from(tier.limit)).then_some(word + cost);
    }
    decide_at(price, word, now, price.cost(cost), price.room(tier.tolerance))
}

/// Judges the first packet of a bucket, of `length` bytes, by all tiers of a policy: whether it is admitted, and what a
/// bucket at `at` comes to, of which nothing is charged otherwise.
#[inline(always)]
pub(super) fn judge(
    policy: PolicyRef<'_>,
    price: CostMultiplier,
    at: Tats,
    length: u32,
    now: Ticks,
) -> (bool, Tats) {
    let tier = policy.tier(Which::First);
    let Some(first) = decide_first(tier, price, at.first, length, now) else { return (false, at) };
    if !policy.has_second() {
        return (true, Tats { first, ..at });
    }
    match decide_first(policy.tier(Which::Second), price, at.second, length, now) {
        Some(second) => (true, Tats { first, second }),
        None => (false, at),
    }
}

/// How often a charge is tried before it is made without a comparison.
// Each failure is a packet that another CPU has charged within some tens of ns.
const TRIES: u32 = 2;

/// Changes a word that was `tat` a moment ago, if `decide` has room and nobody else comes.
#[inline(always)]
pub(super) fn once(
    word: &AtomicU64,
    tat: Ticks,
    decide: impl Fn(Ticks) -> Option<Ticks>,
) -> Charge {
    match decide(tat) {
        Some(next) if atomic::replace(word, tat, next) => Charge::Admitted,
        _ => Charge::OverLimit,
    }
}

/// Charges `cost` to a word that was `tat` a moment ago, if `decide` has room for it as long as the bucket is the
/// source's.
///
/// Where other CPUs are faster each time, the cost is added without a comparison. By what was there before, `added` says
/// what becomes of it: a token bucket then may overshoot by a packet for each other CPU, which the source owes.
#[inline(always)]
pub(super) fn charge<S: State>(
    state: &S,
    word: &AtomicU64,
    tat: Ticks,
    cost: Ticks,
    decide: impl Fn(Ticks) -> Option<Ticks>,
    added: impl Fn(Ticks) -> Charge,
    is_its: impl Fn() -> bool,
) -> Charge {
    let mut tat = tat;
    let mut tries = 0;
    while tries < TRIES {
        let Some(next) = decide(tat) else { return Charge::OverLimit };
        if atomic::replace(word, tat, next) {
            return Charge::Admitted;
        }
        tat = atomic::load(word);
        if !is_its() {
            return Charge::Gone;
        }
        state.note(Internal::Contended);
        tries += 1;
    }
    // How often others are faster has no bound. A packet that there was room for each time is not dropped for it
    // (P1), and what it costs is not forgiven (P2).
    if decide(tat).is_none() {
        return Charge::OverLimit;
    }
    // Whoever was faster has moved the word to the present.
    added(atomic::add(word, cost))
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
        policy: PolicyRef<'_>,
        tat: Ticks,
        length: u32,
        now: Ticks,
        is_its: impl Fn() -> bool,
    ) -> Charge {
        let room = self.price.room(policy.first.tolerance);
        let tat = self.lengthened(&policy.first, self.first, tat, room);
        let decide = |tat, cost, room| decide_at(self.price, tat, now, cost, room);
        // What is beyond the bucket is owed.
        let added = |_| Charge::Admitted;
        let first = self.price.cost(policy.first.cost(length));
        let decide_first = |tat| decide(tat, first, room);
        let mut second = 0;
        if policy.has_second() {
            // The second tier first: that word is only known to be the source's by the first one,
            // which is looked at afterwards.
            let at = atomic::load(self.second);
            if !is_its() {
                return Charge::Gone;
            }
            let room = self.price.room(policy.second.tolerance);
            let at = self.lengthened(&policy.second, self.second, at, room);
            // Before anything is taken from the second tier, so that nothing has to be given back
            // as a rule.
            if decide_first(tat).is_none() {
                return Charge::OverLimit;
            }
            second = self.price.cost(policy.second.cost(length));
            let decide_second = |tat| decide(tat, second, room);
            let charged = charge(state, self.second, at, second, decide_second, added, &is_its);
            if charged != Charge::Admitted {
                return charged;
            }
        }
        let charged = charge(state, self.first, tat, first, decide_first, added, &is_its);
        if charged != Charge::Admitted && policy.has_second() && is_its() {
            atomic::add(self.second, second.wrapping_neg());
        }
        charged
    }

    /// What a word that was `tat` a moment ago comes to by what has become of the bucket's share since its last
    /// packet, and writes it: whoever comes next does not know of it. It has `room` by now.
    #[inline(always)]
    fn lengthened(&self, tier: &Tier, word: &AtomicU64, tat: Ticks, room: Ticks) -> Ticks {
        if self.lapse.spares(tat, tier.tolerance) {
            return tat;
        }
        let most = room - tier.tolerance + dearest(self.price, tier, LARGEST_FRAME);
        let next = self.lapse.apply(tat, tier.tolerance, most);
        // If this fails, another CPU has done it, or has charged a packet at the share before.
        atomic::replace(word, tat, next);
        next
    }
}

/// How long, in ns from `ns` on, a tier whose bucket is at `tat` will deny every packet; `length` is
/// that of the packet at hand.
#[inline(always)]
pub(super) fn lasts(tier: &Tier, price: CostMultiplier, tat: Ticks, length: u32, ns: u64) -> u64 {
    let debt = tat.saturating_sub(ticks(ns));
    if price.is_cluster() {
        return lasts_shared(tier, price, debt);
    }
    let least = tier.cost(MIN_FRAME);
    // A limit in bytes may have room for a smaller packet when it has none for this one.
    let cost = if tier.per_byte != 0 { tier.cost(length) } else { least };
    drop_cache::lasts(debt, cost, least, tier.tolerance)
}

/// The same of a tier of the cluster.
#[inline(always)]
fn lasts_shared(tier: &Tier, price: CostMultiplier, debt: Ticks) -> u64 {
    if price.cost(tier.cost(MIN_FRAME)) > MAX_TOLERANCE {
        // The share is nothing. It denies as long as it is what it is.
        return MAX_NS;
    }
    let room = price.room(tier.tolerance);
    let mut wait = debt.saturating_sub(room);
    if room < MIN_TOLERANCE {
        // It must not be full before somebody looks.
        wait = wait.saturating_sub(MIN_TOLERANCE);
    }
    // Whoever makes the share larger has the bucket forget it, unless a packet is being judged meanwhile. So no
    // longer than the bucket has room for what it earns.
    let longest = (room / TICKS_PER_NS).clamp(MAX_SHARED_NS, MAX_NS);
    (wait / TICKS_PER_NS).min(longest)
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::super::tests::{limiter, policy};
    use super::*;
    use crate::share::{MAX_SHARED_COST, Multiplier};

    const MS: Ticks = 1_000_000 * TICKS_PER_NS;
    const SHARE: CostMultiplier =
        CostMultiplier::from_share(Multiplier::WHOLE, Multiplier::WHOLE.home());

    const fn tier(fixed: Ticks, tolerance: Ticks) -> Tier {
        Tier::of_packets(fixed, tolerance)
    }

    #[test]
    fn a_charge_that_others_outrun_is_made_in_the_end() {
        let memory = limiter(policy(1, 1), 1, 1 << 6, 2);
        let word = AtomicU64::new(0);
        let looks = Cell::new(0);
        // Another CPU charges a tick before each try.
        let decide = |tat| {
            looks.set(looks.get() + 1);
            atomic::add(&word, 1);
            Some(tat + 100)
        };
        let added = |_| Charge::Admitted;
        assert!(charge(&memory.cpu(0), &word, 0, 100, decide, added, || true) == Charge::Admitted);
        assert_eq!((looks.get(), atomic::load(&word)), (TRIES + 1, 100 + u64::from(TRIES) + 1));
        assert_eq!(memory.internal(Internal::Contended), u64::from(TRIES));
    }

    #[test]
    fn no_packet_costs_more_than_a_bucket_can_owe() {
        assert_eq!(dearest(CostMultiplier::LOCAL, &tier(7 * MS, 9 * MS), 100), 7 * MS);
        assert_eq!(dearest(SHARE, &tier(MAX_COST, 9 * MS), 100), MAX_COST);
        let nothing = CostMultiplier::from_share(Multiplier::NOTHING, 0);
        assert_eq!(dearest(nothing, &tier(MS, 9 * MS), 100), MAX_COST);
        // Only a share lets its bucket owe a packet more, and the burst floor.
        let deepest = |price| deepest(price, &tier(7 * MS, 9 * MS));
        assert_eq!(deepest(CostMultiplier::LOCAL), 9 * MS);
        assert_eq!(deepest(SHARE), 9 * MS + 9 * MS + 7 * MS);
    }

    #[test]
    fn a_frame_longer_than_the_burst_passes_when_the_bucket_is_full() {
        let decide = |debt, cost| decide_at(CostMultiplier::LOCAL, MS + debt, MS, cost, 5 * MS);
        assert_eq!(decide(0, 5 * MS), Some(6 * MS));
        assert_eq!(decide(0, 40 * MS), Some(41 * MS), "and owes it all");
        assert_eq!(decide(1, 40 * MS), None);
        assert_eq!(decide(35 * MS, 1), None);
    }

    #[test]
    fn a_limit_of_bytes_is_remembered_by_the_packet_at_hand() {
        let tier = Tier::of_bytes(MS / 100, 0, MIN_TOLERANCE + 10 * MS);
        let lasts = |length| lasts(&tier, CostMultiplier::LOCAL, tier.tolerance, length, 0);
        // By the smallest packet, which may come next. The bucket would be full too soon after a large one.
        assert_eq!(lasts(1000) * TICKS_PER_NS, tier.cost(MIN_FRAME));
        assert_eq!(lasts(1001), 0);
    }

    #[test]
    fn a_share_denies_until_its_debt_is_paid_but_no_longer_than_it_has_room_for() {
        // Half of the room is the burst floor.
        let lasts = |room, debt| lasts(&tier(MS, room / 2), SHARE, debt, 100, 0) * TICKS_PER_NS;
        let (least, shortest) = (MIN_TOLERANCE, MAX_SHARED_NS * TICKS_PER_NS);
        assert_eq!(lasts(least, least + 3 * MS), 3 * MS);
        assert_eq!(lasts(least, least), 0);
        // Not full before somebody looks.
        assert_eq!(lasts(least - MS, least + 3 * MS), 0);
        assert_eq!(lasts(least - MS, 2 * least + 3 * MS), 4 * MS);
        assert_eq!(lasts(60 * MS, 200 * MS), 60 * MS);
        assert_eq!(lasts(MS, 200 * MS), shortest);
        assert_eq!(lasts(200 * MS, 400 * MS), MAX_NS * TICKS_PER_NS);
    }

    #[test]
    fn a_share_of_nothing_denies_as_long_as_it_may_be_remembered() {
        let lasts = |price| lasts(&tier(MS, MS), price, 0, 100, 0);
        let nothing = CostMultiplier::from_share(Multiplier::NOTHING, 0);
        assert_eq!((lasts(SHARE), lasts(nothing)), (0, MAX_NS));
        // At the bound a packet may still have room.
        let most = CostMultiplier::from_share(Multiplier::from_units(1 << 20), 0);
        let tier = tier(MAX_SHARED_COST, MS);
        assert_eq!(most.cost(tier.cost(MIN_FRAME)), MAX_TOLERANCE);
        assert_eq!(super::lasts(&tier, most, 0, 100, 0), 0);
    }
}
