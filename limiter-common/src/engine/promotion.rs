//! How a source gets a bucket.

use super::State;
use super::attempt::Attempt;
use super::charge::{over, passed};
use super::draw::{Tats, judge};
use super::events::event;
use super::lookup::{Arrival, SlotRef, resolve};
use super::shadow::{begin, shadow};
use super::sketched::{estimate, owed};
use super::steps::Steps;
use super::windows::owing;
use crate::abi::{Config, EventKind, Internal, PolicyWord, Reason, on_full};
use crate::atomic;
use crate::evidence::ClassWord;
use crate::features::{Features, Which};
use crate::gate;
use crate::gcra::{Ticks, ticks};
use crate::promotions::Budget;
use crate::share::{CostMultiplier, Grant};
use crate::table::{
    CHEAP, CLAIMED, FILLED, Identity, LastSeen, Slot, WAYS, Ways, clear_fingerprint, fingerprint,
    fingerprint_of, is_claimed, with_fingerprint,
};

/// The way that a packet's source gets, by which time of its bucket it was chosen, and what is lost by it: when that was
/// used last, 0 if it is full, with flags above any time.
struct Victim {
    way: u32,
    tat: Ticks,
    lost: u64,
}

impl Victim {
    /// Its bucket denies packets, or it is none that the source may have.
    const KEPT: u64 = 1 << 63;
    /// Its bucket owes more than a packet or two.
    const DEAR: u64 = 1 << 62;
}

/// How often a source's fingerprint is tried to be set. It fails only where another source of the set gets a way, or
/// loses one, within some ns.
const PUBLISH_TRIES: u32 = 4;

/// Finds a way for the packet's source: an empty one, else one whose bucket is full. Else, of those that have denied
/// nothing, the one that was used least recently, first of those that have admitted a packet or two since they were
/// made. The search starts somewhere else for each source.
#[inline(always)]
fn victim<S: State>(state: &S, packet: &Arrival, ways: Ways, now: Ticks) -> Option<Victim> {
    // The word is at hand: only where no way is empty are eight lines of memory touched.
    let fingerprints = packet.fingerprints(state)?;
    let mut empty = ways.empty(atomic::load(fingerprints));
    let mut looks = 0;
    while !empty.is_empty() && looks < WAYS {
        let way = empty.way();
        let tat = atomic::load(&packet.slot_ref(state, way)?.slot.tat);
        // Nobody waits for who fills one. That CPU may be stopped: the packets of all that wait would pass meanwhile.
        // And this CPU may have been stopped: a way that is not claimed may be filled by now, and in use. Its
        // fingerprint was set before it was opened.
        if !is_claimed(tat) && fingerprint_of(atomic::load(fingerprints), way) == 0 {
            return Some(Victim { way, tat, lost: 0 });
        }
        empty = empty.rest();
        looks += 1;
    }
    // Or a flood would find the same way of each set first, and its holder would pay for all.
    let start = packet.hash.0 as u32;
    let mut best = Victim { way: 0, tat: CLAIMED, lost: u64::MAX };
    let mut looks = 0;
    while looks < WAYS && best.lost != 0 {
        let way = start.wrapping_add(looks) % WAYS;
        let slot = packet.slot_ref(state, way)?.slot;
        let tat = atomic::load(&slot.tat);
        // No branches but one: the verifier would follow each of 2^32 ways through the loop.
        let ahead = tat.wrapping_sub(now);
        let debt = ahead & (ahead >> 63).wrapping_sub(1);
        let dropped = atomic::load(&slot.dropped);
        let denies = (dropped | dropped.wrapping_neg()) & Victim::KEPT;
        let dear = (CHEAP.wrapping_sub(atomic::load(&slot.passed)) & Victim::KEPT) >> 1;
        // Not by the debt: busy sources under a fast limit would take turns with one bucket, and each would begin with
        // most of its burst again. Those that deny have flags in this word, and are never compared by it.
        let seen = atomic::load(&slot.last_seen);
        // A full bucket may go whatever it did before: a new one is as good.
        let busy = u64::from(debt != 0).wrapping_neg();
        let lost = (seen | denies | dear) & busy | tat & Victim::KEPT | ways.not(way);
        if lost < best.lost {
            best = Victim { way, tat, lost };
        }
        looks += 1;
    }
    Some(best)
}

/// Gives the packet's source a bucket and judges the packet.
#[inline(always)]
pub fn promote<S: Steps>(state: &S, packet: &Arrival, is_first: bool) -> Option<Attempt<Reason>> {
    let config = state.config()?;
    let estimate = estimate(state, packet)?;
    let resolved = resolve(state, packet);
    let policy = state.active(resolved.slot())?;
    // By its own gate: so far only the smallest one of all policies was asked.
    if gate::passes(estimate, is_first, policy.gate) {
        return Some(Attempt::Done(Reason::BelowGate));
    }
    let now_ns = state.now();
    let now = ticks(now_ns);
    if !is_within_budget(state, now)? {
        return Some(Attempt::Done(Reason::Deferred));
    }
    let ways = Ways::new(resolved.slot(), policy.gate);
    let Victim { way, tat: before, lost } = victim(state, packet, ways, now)?;
    let SlotRef { index, slot } = packet.slot_ref(state, way)?;
    let identity = state.identity(index)?;
    // After the time, which is replaced only if nobody has come meanwhile: so both are of one
    // holder.
    let occupied = atomic::load(&slot.tag) != 0;
    let busy = before > now;
    if is_claimed(before) {
        return Some(Attempt::Contended);
    }
    if lost >= Victim::DEAR
        && let Some(reason) = full(state, config, packet, resolved.slot(), now_ns, lost)
    {
        return Some(Attempt::Done(reason));
    }
    // This is the lock. It fails if a packet was charged since the way was chosen: then the bucket is in use after all.
    if !atomic::replace(&slot.tat, before, CLAIMED) {
        return Some(Attempt::Contended);
    }

    // The slot is ours until its TAT says otherwise. Whoever had it gets another one at once, and it is complete before
    // its tag and fingerprint name it.
    clear_fingerprint(packet.fingerprints(state)?, way);
    atomic::store(&slot.tag, 0);
    let owed = owed(state, config, packet, estimate, now_ns);
    let share = state.share(index)?;
    let mut price = CostMultiplier::LOCAL;
    let mut full = [now; 2];
    if policy.is_cluster() {
        price = CostMultiplier::from_share(policy.floor(), policy.home);
        full = policy.filled().map(|filled| filled.max(now));
    }
    // Where no limit of the cluster ever was, its line is left alone.
    if state.features().has(Features::CLUSTER)
        && (policy.is_cluster() || atomic::load(&share.floor) != 0)
    {
        atomic::store(&share.floor, price.word());
        atomic::store(&share.grant, Grant::nothing_at(now_ns).0);
    }
    let start = |which, full, price| owing(state, policy.tier(which), price, full, now, &owed);
    let first = start(Which::First, full[0], price);
    let second = if policy.has_second() { start(Which::Second, full[1], price) } else { 0 };
    let (admitted, next) = judge(policy, price, Tats { first, second }, packet.length, now);
    atomic::store(&identity.second_tat, next.second);
    let has_shadow = policy.has_shadow();
    let word = if has_shadow { start(Which::Shadow, now, CostMultiplier::LOCAL) } else { 0 };
    begin(identity, policy, word);
    if has_shadow {
        shadow(state, policy, index, packet, now)?;
    }
    enter(slot, identity, packet, resolved, now_ns);
    // A swap, not a store: a full barrier, so that whoever sees the tag sees what is written above.
    atomic::swap(&slot.tag, packet.hash.0);
    atomic::swap(&slot.tat, FILLED | next.first);
    if !publish(state, packet, way)? {
        atomic::swap(&slot.tag, 0);
        atomic::swap(&slot.tat, 0);
        return Some(Attempt::Contended);
    }
    // Unless a packet of the source has done it.
    SlotRef { index, slot }.opened(packet);
    state.note(Internal::Promotions);
    // One of the two counters: an operator has to see how often somebody has lost a debt.
    if busy {
        state.note(Internal::BusyEvictions);
    } else if occupied {
        state.note(Internal::Evictions);
    }
    let reason = if admitted {
        passed(slot, packet, now_ns);
        Reason::Conforming
    } else {
        let last = LastSeen::over_limit(now_ns, 0);
        over(state, slot, packet, policy, resolved.slot(), last)?
    };
    Some(Attempt::Done(reason))
}

/// Names the packet's source among the fingerprints of its set; `false` if another CPU was faster.
///
/// The word orders all CPUs that fill ways for the same source at once: the first one keeps its way, and the others see
/// it. No fingerprint leads to `way` yet.
#[inline(always)]
fn publish<S: Steps>(state: &S, packet: &Arrival, way: u32) -> Option<bool> {
    let fingerprints = packet.fingerprints(state)?;
    let mut tries = 0;
    while tries < PUBLISH_TRIES {
        let seen = atomic::load(fingerprints);
        if state.find_by(packet, seen)?.is_some() {
            return Some(false);
        }
        let next = with_fingerprint(seen, way, fingerprint(packet.hash));
        if atomic::replace(fingerprints, seen, next) {
            return Some(true);
        }
        tries += 1;
    }
    Some(false)
}

/// Whether this CPU may promote one more source.
#[inline(always)]
fn is_within_budget<S: State>(state: &S, now: Ticks) -> Option<bool> {
    let buckets = (u64::from(state.set_mask()) + 1) * u64::from(WAYS);
    let word = state.promotions()?;
    let tat = atomic::load(word);
    let next = Budget::new(buckets, u64::from(state.cpus())).draw(tat, now);
    if let Some(next) = next {
        // Stored, not replaced: the word is this CPU's alone, and one promotion more or less is no matter.
        atomic::store(word, next);
    }
    Some(next.is_some())
}

/// Writes into a slot whose it is, with counters that begin.
#[inline(always)]
fn enter(slot: &Slot, identity: &Identity, packet: &Arrival, resolved: PolicyWord, now_ns: u64) {
    atomic::store(&identity.high, packet.source.high);
    atomic::store(&identity.low, packet.source.low);
    // With nothing known of the source: what spoke for the one before does not speak for this one.
    atomic::store(&identity.class, ClassWord::new(packet.classified.limited()).0);
    atomic::store(&slot.policy, resolved.0);
    atomic::store(&slot.passed, 0);
    atomic::store(&slot.dropped, 0);
    atomic::store(&slot.bytes, 0);
    atomic::store(&slot.first_seen, now_ns);
    atomic::store(&slot.last_seen, LastSeen::passed(now_ns).0);
}

/// What becomes of a packet whose set is full; `None` if it may evict. A bucket that limits somebody is never
/// thrown out.
#[inline(always)]
fn full<S: State>(
    state: &S,
    config: &Config,
    packet: &Arrival,
    policy: u32,
    now_ns: u64,
    lost: u64,
) -> Option<Reason> {
    // Counted and told whatever the verdict is: the table is too small for its sources.
    state.note(Internal::SetFull);
    event(state, config, EventKind::SetFull, packet, policy, now_ns);
    match atomic::load(&config.on_full) {
        on_full::DROP => Some(Reason::DroppedSetFull),
        on_full::EVICT_OLDEST if lost < Victim::KEPT => None,
        _ => Some(Reason::PassedSetFull),
    }
}
