//! Changes what a bucket may use, while packets are charged to it.
//!
//! Only the share changes, never how many tokens there are, but for those that a smaller share has no room
//! for. Packets are charged meanwhile, and whoever changes the bucket may die at any moment: then it has
//! fewer tokens than it could have, never more.
//!
//! * **A larger share** makes a bucket's credit, which is time, worth more. So the debt that keeps its worth
//!   is added first, by compare-and-swap, and then the word is written. A packet that finds debt and word in
//!   between pays too much. A packet reads the words before the time, so one that finds the new word finds
//!   the debt.
//! * **A smaller share** is written first. What the credit is worth less is given back when no packet is
//!   judged any more that has read the old word ([`Lowered`]).
//! * **A larger floor** brings a larger burst floor, whose tokens are added to the debt.
//! * **An overdrawn bucket** is the other way round: what is missing of its packet takes longer at a smaller
//!   share. So a smaller share begins with the end of the grant that there is, which the kernel knows to deal
//!   with ([`Lapse`]), then the debt is added, then the word is written. With a larger share the word is first
//!   and the debt follows, unless a packet was charged meanwhile.
//! * What was read may be over when the word is written: time earns at the larger share from then on only.
//!   So a raise adds [`MARGIN_NS`] of debt more, and takes back what was not needed. A grant that ends within
//!   that time counts as ended.
//! * **Whose bucket it is** may change at any moment. The time is replaced only where the tag is right, and a
//!   new bucket's grant is a word that was never there before, so neither replacement hits another source.

use crate::abi::{Policy, Tier};
use crate::atomic::{self, AtomicU64};
use crate::gcra::{Ticks, credit, ticks};
use crate::share::{
    CostMultiplier, Grant, Held, LARGEST_FRAME, Lapse, Multiplier, NEVER, ShareSlot, burst_floor,
};
use crate::shared::Shared;
use crate::table::{Identity, LastSeen, Slot, is_claimed};

/// What a change may take from the first look at a bucket to the last word written, ns.
// If the daemon dies in between, the bucket has lost what it earns in this time: too few tokens,
// never too many.
pub const MARGIN_NS: u64 = 1_000_000;

/// How often a bucket is tried that packets are charged to at the same moment.
// A bound: under a flood a bucket may change before each try, and the thread has other shares to
// renew in time.
const TRIES: u32 = 32;

/// The words of a bucket under a limit of the cluster.
#[derive(Clone, Copy)]
pub struct Bucket<'a> {
    /// Its theoretical arrival times, by tier.
    pub(crate) tats: [&'a AtomicU64; 2],
    /// What tells whose it is: 0 for nobody's.
    pub(crate) tag: &'a AtomicU64,
    /// Its [`LastSeen`], which a shared limit has none of.
    last_seen: Option<&'a AtomicU64>,
    /// What it may use.
    pub(crate) share: &'a ShareSlot,
    /// The policy that its next packet meets.
    pub(crate) policy: &'a Policy,
}

/// What became of a change.
#[derive(Clone, Copy, Debug)]
pub enum Outcome {
    /// It is made.
    Done,
    /// It is made, and something is to be given back.
    Lowered(Lowered),
    /// It is not: the bucket is another source's by now, or no packet has come since its limit is the
    /// cluster's.
    Gone,
    /// It is not: packets came too fast, or this took too long. Tokens may be lost.
    Missed,
}

/// A bucket whose share was lowered. Call [`Lowered::give_back`] when no packet is judged any more that
/// was so then.
#[derive(Clone, Copy, Debug)]
pub struct Lowered {
    tag: u64,
    grant: Grant,
    at: Ticks,
    from: Multiplier,
    to: Multiplier,
    tats: [Ticks; 2],
}

/// What credit at one share is worth at another one, at the most `tolerance`, rounded down.
#[must_use]
pub fn worth(credit: Ticks, from: Multiplier, to: Multiplier, tolerance: Ticks) -> Ticks {
    if from.is_nothing() {
        return 0;
    }
    if to.is_nothing() {
        return credit;
    }
    // Rounded down, as debts are rounded up: the sum of all hosts must stay below the limit (P6).
    let worth = u128::from(credit) * u128::from(to.scaled()) / u128::from(from.scaled());
    u64::try_from(worth).unwrap_or(u64::MAX).min(tolerance)
}

/// The theoretical arrival time of a bucket that was at `tat`, from now on at another share with the same
/// tokens, as far as there is room for them. What is missing of an overdrawn bucket's packet stays missing.
#[must_use]
pub fn converted(
    tat: Ticks,
    now: Ticks,
    tolerance: Ticks,
    from: Multiplier,
    to: Multiplier,
) -> Ticks {
    let left = credit(tat, now, tolerance);
    if left > 0 {
        return now + tolerance - worth(left, from, to, tolerance);
    }
    now + tolerance + overdrawn(tat.saturating_sub(now + tolerance), from, to)
}

/// How long a bucket stays overdrawn at another share, rounded up.
fn overdrawn(missing: Ticks, from: Multiplier, to: Multiplier) -> Ticks {
    if from == to || from.is_nothing() {
        // Of no share it is a packet that is missing: its caller knows what one costs.
        return missing;
    }
    if to.is_nothing() {
        return if missing > 0 { NEVER } else { 0 };
    }
    let missing = (u128::from(missing) * u128::from(to.scaled())).div_ceil(from.scaled().into());
    u64::try_from(missing).unwrap_or(NEVER).min(NEVER)
}

impl Lapse {
    /// As [`Lapse::apply`], but exact.
    fn exactly(&self, tat: Ticks, tolerance: Ticks) -> Ticks {
        if self.spares(tat, tolerance) {
            return tat;
        }
        converted(tat, self.at, tolerance, self.from, self.to)
    }
}

/// How much earlier the theoretical arrival time of a bucket becomes that was at `before` when its share was
/// lowered at `at`, and is at `after` by now. What it was charged in between counts as if it had been at the
/// larger share.
#[must_use]
pub fn surplus(
    [before, after]: [Ticks; 2],
    at: Ticks,
    tolerance: Ticks,
    from: Multiplier,
    to: Multiplier,
) -> Ticks {
    let left = credit(before, at, tolerance);
    let gained = worth(left, from, to, tolerance) - left;
    let charged = after.saturating_sub(before.max(at));
    gained.saturating_sub(worth(charged, from, to, Ticks::MAX) - charged)
}

/// Replaces a time by another one, as long as `holds`. Whether it did; `None` if it no longer holds.
fn replace(
    word: &AtomicU64,
    holds: impl Fn() -> bool,
    to: impl Fn(Ticks) -> Option<Ticks>,
) -> Option<bool> {
    for _ in 0..TRIES {
        let tat = atomic::load(word);
        // The tag after the time: whoever replaces the source claims the time first.
        if is_claimed(tat) || !holds() {
            return None;
        }
        let Some(next) = to(tat) else { return Some(false) };
        if atomic::replace(word, tat, next) {
            return Some(true);
        }
    }
    Some(false)
}

impl<'a> Bucket<'a> {
    /// The bucket of a source.
    #[must_use]
    pub const fn new(
        slot: &'a Slot,
        identity: &'a Identity,
        share: &'a ShareSlot,
        policy: &'a Policy,
    ) -> Self {
        Self {
            tats: [&slot.tat, &identity.second_tat],
            tag: &slot.tag,
            last_seen: Some(&slot.last_seen),
            share,
            policy,
        }
    }

    /// The bucket of a limit that sources share. Its policy tells whose it is.
    #[must_use]
    pub const fn of_shared(shared: &'a Shared, policy: &'a Policy) -> Self {
        Self {
            tats: [&shared.tat, &shared.second_tat],
            tag: &shared.policy,
            // It is never overdrawn, but for what CPUs owe that meet: nothing lapses that would matter.
            last_seen: None,
            share: &shared.share,
            policy,
        }
    }

    /// What it may use.
    #[must_use]
    pub fn held(&self) -> Held {
        self.share.held(self.policy.floor(), self.policy.home)
    }

    /// Its tiers and their times, the one that tells whose it is last.
    fn tiers(&self) -> impl Iterator<Item = (usize, &'a Tier, &'a AtomicU64)> {
        let policy = self.policy;
        let [first_tat, second_tat] = self.tats;
        let second = policy.whole().has_second().then_some((1, &policy.second, second_tat));
        second.into_iter().chain([(0, &policy.first, first_tat)])
    }

    /// The burst floor of a tier at this floor.
    fn burst_floor(&self, floor: u32, tier: &Tier) -> Ticks {
        // What sources share has none, as it has no `last_seen`.
        self.last_seen.map_or(0, |_| burst_floor(Multiplier(floor).home(), tier.tolerance))
    }

    /// The debt of a bucket that is empty, at a share and this floor.
    fn deepest(&self, share: Multiplier, floor: u32, tier: &Tier) -> Ticks {
        let beyond = [self.burst_floor(floor, tier), tier.cost(LARGEST_FRAME)];
        beyond.into_iter().fold(tier.tolerance, |debt, cost| debt + share.cost(cost))
    }

    fn is_of(&self, tag: u64) -> bool {
        atomic::load(self.tag) == tag
    }

    /// Gives the bucket of the source with `tag` a grant, or leaves it the one that it has, and the floor
    /// of its policy. `clock` tells the exact time, ns since boot.
    pub fn change(&self, tag: u64, grant: Option<Grant>, clock: impl Fn() -> u64) -> Outcome {
        if grant.is_some() && u64::from(self.policy.floor().0) < atomic::load(&self.share.floor) {
            // A larger floor by itself: between both words its debt would be worth less than its tokens.
            let raised = self.change_both(tag, None, &clock);
            if !matches!(raised, Outcome::Done) {
                return raised;
            }
        }
        self.change_both(tag, grant, clock)
    }

    fn change_both(&self, tag: u64, grant: Option<Grant>, clock: impl Fn() -> u64) -> Outcome {
        let last_ns = self.last_seen.map(|word| LastSeen(atomic::load(word)).ns());
        let old_floor = atomic::load(&self.share.floor);
        let mut held = self.held();
        let at_ns = clock();
        if tag == 0 || old_floor == 0 || !self.is_of(tag) || !self.policy.whole().is_cluster() {
            return Outcome::Gone;
        }
        let after =
            Held { floor: self.policy.floor().0, grant: grant.unwrap_or(held.grant), ..held };
        let to = after.at(at_ns).multiplier();
        let at = ticks(at_ns);
        let had = held.at(at_ns).multiplier();
        // As no packet has seen what follows.
        let before = self.tats.map(atomic::load);
        // It would end while this is under way. So it is ended first, for packets as for what
        // follows.
        let ends = held.at(at_ns + MARGIN_NS).multiplier() != had;
        let lowers = to > had && !ends;
        if ends || lowers && held.grant.holds(at_ns) {
            let ended = held.grant.ended(at_ns);
            if ended != held.grant && !atomic::replace(&self.share.grant, held.grant.0, ended.0) {
                return Outcome::Gone;
            }
            held.grant = ended;
        }
        let from = if lowers { had } else { held.at(at_ns).multiplier() };
        let lapse = match lowers {
            true => Lapse { at: ticks(held.grant.until_ns()).min(at), from, to },
            false => Lapse::new(old_floor as u32, held, last_ns.unwrap_or(at_ns), at_ns),
        };
        let raises = to < from;
        let margin = if raises { ticks(MARGIN_NS) } else { 0 };
        let becomes = |tat, tier: &Tier, now: Ticks| {
            let tolerance = tier.tolerance;
            let [had, has] = [held.floor, after.floor].map(|floor| self.burst_floor(floor, tier));
            let tat = lapse.exactly(tat, tolerance);
            let tat = if lowers { tat } else { converted(tat, now, tolerance, from, to) };
            // A larger burst floor brings no tokens, either.
            let tat = if has > had { tat.max(now) + to.cost(has - had) } else { tat };
            // Of no share a packet is missing for as long as it takes.
            let most = now + self.deepest(to, after.floor, tier);
            if from.is_nothing() { tat.min(most) } else { tat }
        };
        let mut tats = [0; 2];
        let mut raised = [None; 2];
        for (number, tier, word) in self.tiers() {
            for tried in 0.. {
                let seen = atomic::load(word);
                if is_claimed(seen) || !self.is_of(tag) {
                    return Outcome::Gone;
                }
                tats[number] = seen;
                let next = becomes(seen, tier, at) + margin;
                if next <= seen.max(at) {
                    break;
                }
                if atomic::replace(word, seen, next) {
                    raised[number] = Some(next);
                    break;
                }
                if tried == TRIES {
                    return Outcome::Missed;
                }
            }
        }
        // The margin is used up: with the word written now the bucket could hold more than it
        // should. The debt that was added stays.
        if clock().saturating_sub(at_ns) > MARGIN_NS {
            return Outcome::Missed;
        }
        if !self.write(old_floor, held.grant, after) {
            return Outcome::Gone;
        }
        let written_ns = clock();
        let took = written_ns.saturating_sub(at_ns);
        let holds = || self.is_of(tag);
        for (number, tier, word) in self.tiers() {
            match raised[number] {
                // Not from a bucket that has been clamped.
                Some(raised) if raises && took <= MARGIN_NS => {
                    let back = ticks(MARGIN_NS - took);
                    replace(word, holds, |tat| (tat >= raised).then(|| tat - back));
                }
                // Overdrawn, and as long as it is no packet is charged to it: less is missing now.
                None if raises => {
                    let less = becomes(tats[number], tier, ticks(written_ns)).min(tats[number]);
                    if self.is_of(tag) {
                        atomic::replace(word, tats[number], less);
                    }
                }
                _ if took > MARGIN_NS => {
                    let late = ticks(took - if raises { MARGIN_NS } else { 0 });
                    replace(word, holds, |tat| Some(tat.max(at) + late));
                }
                _ => {}
            }
        }
        // A packet between two of these words may have applied a `Lapse` that the change reckons with, too. No source's
        // bucket lacks more than it has room for, but for what CPUs that met have overdrawn before.
        if self.last_seen.is_some() {
            let mut now_ns = clock();
            loop {
                let has = after.at(now_ns).multiplier();
                // The grant may have ended meanwhile: a packet since then makes no debt longer that became shorter after it.
                let ended = Lapse { at: ticks(after.grant.until_ns()), from: to, to: has };
                for (number, tier, word) in self.tiers() {
                    let deepest = at + self.deepest(had, held.floor, tier);
                    let owed = overdrawn(before[number].saturating_sub(deepest), had, has);
                    let most = ticks(now_ns) + self.deepest(has, after.floor, tier) + owed;
                    replace(word, holds, |tat| {
                        let next = ended.exactly(tat, tier.tolerance).min(most);
                        (next != tat).then_some(next)
                    });
                }
                now_ns = clock();
                if after.at(now_ns).multiplier() == has {
                    break;
                }
            }
        }
        if raises {
            self.forget_drop_cache();
        }
        if lowers {
            return Outcome::Lowered(Lowered { tag, grant: after.grant, at, from, to, tats });
        }
        Outcome::Done
    }

    /// Has it look at its next packet, which it may have tokens for earlier than it knew.
    fn forget_drop_cache(&self) {
        // What CPUs remember of a shared limit ends soon.
        let Some(word) = self.last_seen else { return };
        let seen = atomic::load(word);
        // If this fails, a packet has just come.
        atomic::replace(word, seen, LastSeen(seen).alone().0);
    }

    /// Writes the words, if they are what they were.
    fn write(&self, old_floor: u64, old_grant: Grant, after: Held) -> bool {
        let floor = u64::from(after.floor);
        if old_floor != floor && !atomic::replace(&self.share.floor, old_floor, floor) {
            return false;
        }
        old_grant == after.grant || atomic::replace(&self.share.grant, old_grant.0, after.grant.0)
    }

    /// What packets cost at a moment.
    #[must_use]
    pub fn price(&self, now_ns: u64) -> CostMultiplier {
        self.held().at(now_ns)
    }
}

impl Lowered {
    /// Gives the credit that is worth less now its former worth, as far as there is room.
    pub fn give_back(&self, bucket: &Bucket<'_>) {
        // Only under the grant that came with the lower share: after another change this is owed
        // no more.
        let holds = || bucket.is_of(self.tag) && atomic::load(&bucket.share.grant) == self.grant.0;
        for (tier, Tier { tolerance, .. }, word) in bucket.tiers() {
            replace(word, holds, |tat| {
                let before_and_after = [self.tats[tier], tat];
                Some(tat - surplus(before_and_after, self.at, *tolerance, self.from, self.to))
            });
        }
        bucket.forget_drop_cache();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
