//! Tiers that count in windows.
//!
//! All that is asked of a window goes through one function: its arithmetic is too much for the stack of a charge, and the
//! verifier checks it once.

use super::State;
use super::attempt::Attempt;
use super::charge::{denied, passed};
use super::draw::{Charge, charge, deepest};
use super::lookup::{Arrival, SlotRef};
use super::shadow::shadow;
use super::sketched::Owed;
use super::steps::Steps;
use crate::abi::{PolicyWord, Reason};
use crate::atomic::{self, AtomicU64};
use crate::drop_cache::MAX_NS;
use crate::features::{TierRef, Which};
use crate::gate::MIN_FRAME;
use crate::gcra::{TICKS_PER_NS, Ticks, clamped, ticks};
use crate::share::CostMultiplier;
use crate::table::is_claimed;

/// What is asked of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Question {
    /// What becomes of the word by a request; 0 if it is not admitted.
    Decide,
    /// What became of a request that was added to the word without a comparison: 2 if it was admitted, 1 if there was
    /// no room, 0 if the word was that of another window.
    Added,
    /// How many ticks a request has to wait for room; 0 also for one that is larger than the limit.
    Wait,
    /// How many units of the limit are used up.
    Used,
    /// What becomes of the word by a refund.
    Refund,
    /// The word of a source that has sent so much, the first of it as many ticks ago as the word says.
    Owe,
}

/// The word was that of another window.
const GONE: u64 = 0;
/// There was no room.
const OVER: u64 = 1;
/// There was room.
const ADMITTED: u64 = 2;
/// There was no room: no word that counts anything is 0.
pub(super) const DENIED: u64 = 0;

impl Question {
    /// The question with a number; [`Question::Decide`] for a number that is none.
    #[inline(always)]
    #[must_use]
    pub const fn from_u32(number: u32) -> Self {
        match number {
            1 => Self::Added,
            2 => Self::Wait,
            3 => Self::Used,
            4 => Self::Refund,
            5 => Self::Owe,
            _ => Self::Decide,
        }
    }
}

/// Answers a question about the window of a tier `at` [`TierRef::at`], whose word is `word` at `now`, and a request of
/// `cost` units. 0 if there is no such window.
#[inline(always)]
pub fn ask_window<S: State>(
    state: &S,
    at: u32,
    question: Question,
    word: u64,
    now: Ticks,
    cost: u64,
) -> u64 {
    let tier = state.active(TierRef::slot(at)).map(|policy| policy.tier(TierRef::which(at)));
    let Some(window) = tier.and_then(|tier| tier.window()) else { return 0 };
    match question {
        Question::Decide => window.decide(word, now, cost).unwrap_or(DENIED),
        Question::Added => match window.added(word, now, cost) {
            None => GONE,
            Some(false) => OVER,
            Some(true) => ADMITTED,
        },
        Question::Wait => window.wait(word, now, cost).unwrap_or(0),
        Question::Used => window.used(word, now),
        Question::Refund => window.refunded(word, now, cost),
        Question::Owe => window.owing(now, cost, word),
    }
}

impl TierRef<'_> {
    /// Asks the tier's window.
    #[inline(always)]
    pub(super) fn ask<S: Steps>(
        &self,
        state: &S,
        question: Question,
        word: u64,
        now: Ticks,
        cost: u64,
    ) -> u64 {
        state.ask_window(self.at(), question, word, now, cost)
    }

    /// Charges a packet to the tier's word, which was `seen` before the bucket was known to be the source's: a word that
    /// is claimed since must not be replaced.
    #[inline(always)]
    fn charge<S: Steps>(
        &self,
        state: &S,
        word: &AtomicU64,
        seen: u64,
        cost: u64,
        now: Ticks,
        is_its: impl Fn() -> bool,
    ) -> Charge {
        let decide = |word| match self.ask(state, Question::Decide, word, now, cost) {
            DENIED => None,
            next => Some(next),
        };
        let added = |before| match self.ask(state, Question::Added, before, now, cost) {
            ADMITTED => Charge::Admitted,
            // At an edge, CPUs whose clock is on its other side were faster.
            GONE => Charge::Gone,
            _ => Charge::OverLimit,
        };
        charge(state, word, seen, cost, decide, added, is_its)
    }

    /// How long, in ns from `ns` on, the window denies every packet.
    #[inline(always)]
    fn denies<S: Steps>(&self, state: &S, word: &AtomicU64, ns: u64) -> u64 {
        // By the smallest packet: no other one can conform before.
        let cost = self.cost(MIN_FRAME);
        let wait = self.ask(state, Question::Wait, atomic::load(word), ticks(ns), cost);
        // The coarse clock must not deny what a new window admits.
        (wait / TICKS_PER_NS).saturating_sub(COARSE_NS).min(MAX_NS)
    }
}

/// How far the coarse clock may be behind, ns: a tick of a kernel with 100 a second.
const COARSE_NS: u64 = 10_000_000;

/// Judges a packet whose source has a bucket by the windows of its policy, as [`super::steps::charge`] does by token
/// buckets.
#[inline(always)]
pub fn charge_windows<S: Steps>(
    state: &S,
    packet: &Arrival,
    index: u32,
) -> Option<Attempt<Reason>> {
    let found = &SlotRef::new(state, index)?;
    let slot = found.slot;
    let resolved = PolicyWord(atomic::load(&slot.policy));
    let policy = state.active(resolved.slot())?;
    let tat = found.opened(packet);
    let now_ns = state.now();
    let now = ticks(now_ns);
    if !found.is_of(tat, packet) {
        return Some(Attempt::Contended);
    }
    let is_its = || found.is_of(atomic::load(&slot.tat), packet);
    let (first, second) = (policy.tier(Which::First), policy.tier(Which::Second));
    let (cost, second_cost) = (first.cost(packet.length), second.cost(packet.length));
    let mut charged = Charge::Admitted;
    let mut second_word = &slot.tat;
    if policy.has_second() {
        second_word = &state.identity(index)?.second_tat;
        let seen = atomic::load(second_word);
        // That word is only known to be the source's by the first one, which is looked at afterwards.
        if !is_its() {
            return Some(Attempt::Contended);
        }
        // As in a token bucket: nothing is taken from the second tier if the first one denies.
        charged = match first.ask(state, Question::Decide, tat, now, cost) {
            DENIED => Charge::OverLimit,
            _ => second.charge(state, second_word, seen, second_cost, now, is_its),
        };
    }
    if charged == Charge::Admitted {
        charged = first.charge(state, &slot.tat, tat, cost, now, is_its);
        if charged != Charge::Admitted && policy.has_second() && is_its() {
            let before = atomic::load(second_word);
            let after = second.ask(state, Question::Refund, before, now, second_cost);
            // If this fails, somebody else came: then the window counts a packet too many.
            atomic::replace(second_word, before, after);
        }
    }
    if charged == Charge::Gone {
        return Some(Attempt::Contended);
    }
    if policy.has_shadow() {
        shadow(state, policy, index, packet, now)?;
    }
    if charged == Charge::Admitted {
        passed(slot, packet, now_ns);
        return Some(Attempt::Done(Reason::Conforming));
    }
    let lasts = || {
        let lasts_ns = first.denies(state, &slot.tat, now_ns);
        if !policy.has_second() {
            return Some(lasts_ns);
        }
        Some(lasts_ns.max(second.denies(state, second_word, now_ns)))
    };
    denied(state, packet, found, policy, resolved.slot(), now_ns, lasts, MAX_NS)
}

/// The word of a tier whose bucket is new but for what its source owes; a token bucket is full at `full`, at the
/// earliest.
#[inline(always)]
pub(super) fn owing<S: Steps>(
    state: &S,
    tier: TierRef<'_>,
    price: CostMultiplier,
    full: Ticks,
    now: Ticks,
    owed: &Owed,
) -> u64 {
    if tier.is_window() {
        let cost = owed.cost(&tier, CostMultiplier::LOCAL);
        return tier.ask(state, Question::Owe, ticks(owed.age_ns), now, cost);
    }
    clamped(full + owed.debt(&tier, price), now, deepest(price, &tier))
}

/// Has the words of the bucket at `index` mean under the policy in a `slot` what they meant under the one in the `former`
/// slot: as large a part of the limit is used up. `false` if none of both counts in windows.
///
/// The bucket was at `tat` when it was known to be the source's. All words are times, so the one taken for the other would deny for a window or two.
#[inline(always)]
pub fn convert<S: Steps>(
    state: &S,
    index: u32,
    former: u32,
    slot: u32,
    tat: u64,
    now: Ticks,
) -> Option<bool> {
    let is_same = former == slot;
    let (former, policy) = (state.active(former)?, state.active(slot)?);
    if !former.counts_in_windows() && !policy.counts_in_windows() {
        return Some(false);
    }
    if is_same {
        return Some(true);
    }
    let convert = |word: &AtomicU64, before, which| {
        if !is_claimed(before) {
            let used = used(state, former.tier(which), before, now);
            // If this fails, another CPU has done it, or charged a packet: then more seems to be used up.
            atomic::replace(word, before, using(state, policy.tier(which), now, used));
        }
    };
    convert(&state.slot(index)?.tat, tat, Which::First);
    if policy.has_second() {
        // Of a former tier that there was not, nothing is used up.
        let word = &state.identity(index)?.second_tat;
        convert(word, atomic::load(word), Which::Second);
    }
    Some(true)
}

/// What of a limit is used up that is all of it.
const WHOLE: u64 = 1 << 16;

/// What part of a tier's limit is used up by its word, in units of 2^-16; all of it at the most.
#[inline(always)]
fn used<S: Steps>(state: &S, tier: TierRef<'_>, word: u64, now: Ticks) -> u64 {
    let (used, unit) = if tier.is_window() {
        // At most 2^33 units.
        (tier.ask(state, Question::Used, word, now, 0) * WHOLE, u64::from(tier.limit))
    } else {
        (word.saturating_sub(now), tier.tolerance / WHOLE)
    };
    used.checked_div(unit).unwrap_or(0).min(WHOLE)
}

/// The word of a tier of whose limit so much is used up.
#[inline(always)]
fn using<S: Steps>(state: &S, tier: TierRef<'_>, now: Ticks, used: u64) -> u64 {
    if tier.is_window() {
        let units = (u64::from(tier.limit) * used).div_ceil(WHOLE);
        return tier.ask(state, Question::Owe, 0, now, units);
    }
    now + tier.tolerance / WHOLE * used
}

// Loom builds have no tests of windows.
#[cfg(all(test, not(loom)))]
mod tests {
    use core::cell::Cell;

    use super::super::memory::DEFAULT_SLOT;
    use super::super::tests::limiter;
    use super::super::window_tests::{counted, window};
    use super::*;

    #[test]
    fn questions_survive_as_numbers() {
        let mut numbers = 0..;
        for question in [
            Question::Decide,
            Question::Added,
            Question::Wait,
            Question::Used,
            Question::Refund,
            Question::Owe,
        ] {
            assert_eq!(numbers.next(), Some(question as u32));
            assert_eq!(Question::from_u32(question as u32), question);
        }
    }

    /// Others charge before each try, by a clock that is still in the former window.
    #[test]
    fn a_packet_that_others_outrun_over_an_edge_is_judged_again() {
        let memory = limiter(counted(9, false), 1, 1 << 6, 2);
        let cpu = memory.cpu(0);
        let edge = ticks(100_000_000_000);
        let alone = window(9, false);
        let charged = |word, now| alone.decide(word, now, 1).expect("there is room");
        let run = |now| {
            let tier = cpu.active(DEFAULT_SLOT).expect("a policy").tier(Which::First);
            let first = charged(0, edge - 9);
            let word = AtomicU64::new(charged(first, edge - 9));
            let looks = Cell::new(0);
            let is_its = || {
                looks.set(looks.get() + 1);
                atomic::store(&word, charged(atomic::load(&word), edge - 9));
                true
            };
            let became = tier.charge(&cpu, &word, first, 1, now, is_its);
            (became, looks.get())
        };
        assert!(run(edge - 5) == (Charge::Admitted, 2));
        assert!(run(edge + 5) == (Charge::Gone, 2));
    }
}
