//! What a packet costs a source with a bucket, and what is written down of it.

use super::State;
use super::attempt::Attempt;
use super::draw::{Charge, lasts};
use super::events::event;
use super::evidence::seek;
use super::lookup::{Arrival, SlotRef};
use super::shadow::shadow;
use super::steps::Steps;
use crate::abi::{EventKind, PolicyWord, Reason};
use crate::atomic::{self, AtomicU64};
use crate::drop_cache::{
    Basis, DROP_CACHE_ENTRIES, DropCacheEntry, MAX_NS, MAX_SHARED_NS, MIN_TOLERANCE,
};
use crate::features::PolicyRef;
use crate::gcra::{Ticks, ticks};
use crate::hash::Hash;
use crate::share::{CostMultiplier, Held, Lapse};
use crate::table::{LastSeen, Slot};

/// Whether a bucket has nothing for a while yet. Then the packet is counted as dropped, by three words of the slot:
/// no policy, no share, no clock.
#[inline(always)]
pub(super) fn denies<S: State>(state: &S, found: &SlotRef<'_>, packet: &Arrival) -> Option<bool> {
    let slot = found.slot;
    let until_ns = LastSeen(atomic::load(&slot.last_seen)).denies_until();
    let generation = packet.published.generation();
    // The tag last: whoever gets the slot takes it off before anything else. A CPU that was stopped since it found the
    // bucket must not drop its packet for who has it now.
    if packet.coarse_ns >= until_ns
        || PolicyWord(atomic::load(&slot.policy)).generation() != generation
        || atomic::load(&slot.tag) != packet.hash.0
    {
        return Some(false);
    }
    atomic::add(&slot.dropped, 1);
    atomic::add(&slot.bytes, u64::from(packet.length));
    // Whoever raises a share clears it in the slot, but not in what each CPU remembers.
    let until_ns = until_ns.min(packet.coarse_ns + MAX_SHARED_NS);
    remember(state, packet.hash, until_ns, Basis::over_limit(generation, found.index))?;
    Some(true)
}

/// Judges a packet whose source has a bucket. Contended only if the bucket is another source's now.
#[inline(always)]
pub fn charge<S: Steps>(state: &S, packet: &Arrival, index: u32) -> Option<Attempt<Reason>> {
    let found = &SlotRef::new(state, index)?;
    let slot = found.slot;
    let last = LastSeen(atomic::load(&slot.last_seen));
    // Of this generation, or of one that another CPU has seen already.
    let resolved = PolicyWord(atomic::load(&slot.policy));
    let policy = state.active(resolved.slot())?;
    let (held, before) = found.held(state, policy)?;
    let tat = found.opened(packet);
    // A source that was over its limit may wait for the coarse clock to reach its next token. Not a
    // bucket of two tiers, each of which has a time of its own. It is denied then, as it would be by the exact
    // clock if its share is over by that.
    let mut price = CostMultiplier::LOCAL;
    let mut lapse = Lapse::NONE;
    let mut lasts_ns = 0;
    if last.is_over_limit() && !policy.has_second() {
        let (tier, coarse_ns) = (&policy.first, packet.coarse_ns);
        price = held.at(coarse_ns);
        lapse = lapse_of(policy, before, held, last, coarse_ns);
        if lapse.spares(tat, tier.tolerance) {
            lasts_ns = lasts(tier, price, tat, packet.length, coarse_ns);
        }
    }
    let waits = lasts_ns > 0;
    let mut now_ns = packet.coarse_ns;
    if !waits {
        now_ns = state.now();
        price = held.at(now_ns);
        lapse = lapse_of(policy, before, held, last, now_ns);
    }
    if !found.is_of(tat, packet) {
        return Some(Attempt::Contended);
    }
    let mut charged = Charge::OverLimit;
    if !waits {
        let bucket = found.bucket(state, policy, price, lapse)?;
        let is_its = || found.is_of(atomic::load(&slot.tat), packet);
        charged = bucket.charge(state, policy, tat, packet.length, ticks(now_ns), is_its);
    }
    if charged == Charge::Gone {
        return Some(Attempt::Contended);
    }
    found.lower(state, policy, before)?;
    if policy.has_shadow() {
        // The shadow has a bucket of its own, which the coarse clock would let wait longer than its
        // rate says.
        let exact_ns = if waits { state.now() } else { now_ns };
        shadow(state, policy, found.index, packet, ticks(exact_ns))?;
    }
    if charged == Charge::Admitted {
        passed(slot, packet, now_ns);
        return Some(Attempt::Done(Reason::Conforming));
    }
    let lasts = || match waits {
        true => Some(lasts_ns),
        false => denies_for(state, policy, price, found.index, tat, packet.length, now_ns),
    };
    // A share may become larger at any moment, and nobody can reach what this CPU remembers.
    let most_ns = if price.is_cluster() { MAX_SHARED_NS } else { MAX_NS };
    denied(state, packet, found, policy, resolved.slot(), now_ns, lasts, most_ns)
}

/// Writes down a packet over its limit at `now_ns`, as all will be for as long as `lasts` says, ns. This CPU remembers it
/// for `most_ns` at the most.
#[inline(always)]
#[expect(
    clippy::too_many_arguments,
    reason = "all of it is at hand where it is called, and lies in registers"
)]
pub(super) fn denied<S: State>(
    state: &S,
    packet: &Arrival,
    found: &SlotRef<'_>,
    policy: PolicyRef<'_>,
    policy_slot: u32,
    now_ns: u64,
    lasts: impl FnOnce() -> Option<u64>,
    most_ns: u64,
) -> Option<Attempt<Reason>> {
    // A shadow has to see each packet.
    let lasts_ns = if policy.observes() || policy.has_shadow() { 0 } else { lasts()? };
    if lasts_ns > 0 {
        let until_ns = now_ns + lasts_ns.min(most_ns);
        let basis = Basis::over_limit(packet.published.generation(), found.index);
        remember(state, packet.hash, until_ns, basis)?;
    }
    if policy.seeks_evidence() {
        seek(state, policy, packet, found.index);
    }
    let last = LastSeen::over_limit(now_ns, lasts_ns);
    Some(Attempt::Done(over(state, found.slot, packet, policy, policy_slot, last)?))
}

/// What has become of a bucket's share since its `last` packet, when its floor was `before`.
#[inline(always)]
fn lapse_of(policy: PolicyRef<'_>, before: u32, held: Held, last: LastSeen, now_ns: u64) -> Lapse {
    if !policy.is_cluster() {
        return Lapse::NONE;
    }
    Lapse::new(before, held, last.ns(), now_ns)
}

/// How long, in ns from `now_ns` on, a bucket that has just denied a packet will deny every other one.
#[inline(always)]
fn denies_for<S: State>(
    state: &S,
    policy: PolicyRef<'_>,
    price: CostMultiplier,
    index: u32,
    tat: Ticks,
    length: u32,
    now_ns: u64,
) -> Option<u64> {
    let first = lasts(&policy.first, price, tat, length, now_ns);
    if !policy.has_second() {
        return Some(first);
    }
    // Neither tier may overflow while its source waits for the other one.
    if policy.first.tolerance < MIN_TOLERANCE || policy.second.tolerance < MIN_TOLERANCE {
        return Some(0);
    }
    let second_tat = atomic::load(&state.identity(index)?.second_tat);
    let second = lasts(&policy.second, price, second_tat, length, now_ns);
    Some(first.max(second))
}

/// The place of a source in what this CPU remembers. Another one may be there.
#[inline(always)]
pub(super) fn drop_cache_entry<S: State>(state: &S, hash: Hash) -> Option<&DropCacheEntry> {
    state.drop_cache_entry(hash.0 as u32 % DROP_CACHE_ENTRIES as u32)
}

/// Remembers that a source's packets are dropped, in the place of another source whose drops go where they
/// belong.
#[inline(always)]
pub(super) fn remember<S: State>(state: &S, hash: Hash, until_ns: u64, basis: Basis) -> Option<()> {
    let entry = drop_cache_entry(state, hash)?;
    let (packets, bytes) = entry.pending();
    if packets != 0
        && let Some(index) = entry.basis().slot()
    {
        let slot = state.slot(index)?;
        // A source that has lost its bucket since has lost its counters with it.
        if atomic::load(&slot.tag) == atomic::load(&entry.tag) {
            atomic::add(&slot.dropped, packets);
            atomic::add(&slot.bytes, bytes);
        }
    }
    entry.remember(hash, until_ns, basis);
    Some(())
}

/// Counts a packet over its limit.
#[inline(always)]
pub(super) fn over<S: State>(
    state: &S,
    slot: &Slot,
    packet: &Arrival,
    policy: PolicyRef<'_>,
    policy_slot: u32,
    last: LastSeen,
) -> Option<Reason> {
    // One event for each bucket, not for each packet: what a source loses afterwards is in its
    // counters.
    if atomic::load(&slot.dropped) == 0 {
        event(state, state.config()?, EventKind::Limited, packet, policy_slot, last.ns());
    }
    count(slot, &slot.dropped, packet);
    // It denies others, so it must not be said of who may have got the slot since. Whoever does writes that word after
    // it has taken off the tag.
    let before = atomic::load(&slot.last_seen);
    if atomic::load(&slot.tag) == packet.hash.0 {
        atomic::replace(&slot.last_seen, before, last.0);
    }
    Some(if policy.observes() { Reason::WouldDrop } else { Reason::OverLimit })
}

/// Counts a packet that passes at `now_ns`.
#[inline(always)]
pub(super) fn passed(slot: &Slot, packet: &Arrival, now_ns: u64) {
    count(slot, &slot.passed, packet);
    // Only stored: packets of one source may come on several CPUs, and the time of each of them is right.
    atomic::store(&slot.last_seen, LastSeen::passed(now_ns).0);
}

#[inline(always)]
fn count(slot: &Slot, outcome: &AtomicU64, packet: &Arrival) {
    atomic::add(outcome, 1);
    atomic::add(&slot.bytes, u64::from(packet.length));
}
