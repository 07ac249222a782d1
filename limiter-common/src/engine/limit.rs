//! From a source to a verdict.

use core::sync::atomic::AtomicU64;

use super::State;
use super::listed::listed;
use crate::abi::{
    Config, EVENTS_PER_SECOND, Event, EventKind, Internal, Policy, PolicyWord, Reason, TOTAL_STEP,
    on_full,
};
use crate::atomic;
use crate::denial::{self, DENIALS, LISTED};
use crate::gate::{self, MIN_FRAME};
use crate::gcra::{Decision, TICKS_PER_NS, Ticks, decide, ticks};
use crate::hash::Hash;
use crate::key::SourceKey;
use crate::sketch::{Cell, Estimate, MAX_DEPTH, touch};
use crate::table::{
    CLAIMED, DENIED, Matches, Slot, WAYS, fingerprint, set_fingerprint, set_of, slot_index,
};

/// Reads of a shared word that pass the time which another CPU needs to fill a way, some tens of ns.
const PAUSE: u32 = 64;

/// A packet on its way.
struct Packet<'a> {
    source: SourceKey,
    hash: Hash,
    length: u32,
    set: u32,
    fingerprints: &'a AtomicU64,
    /// Monotonic, as of the last clock tick.
    coarse_ns: u64,
}

impl Packet<'_> {
    /// A way of its set.
    #[inline(always)]
    fn place<'a, S: State>(&self, state: &'a S, way: u32) -> Option<Place<'a>> {
        let index = slot_index(self.set, way, state.set_mask());
        Some(Place { index, slot: state.slot(index)? })
    }
}

/// Where a source is in the table.
struct Place<'a> {
    index: u32,
    slot: &'a Slot,
}

/// An estimate, and when it was made.
struct Sketched {
    estimate: Estimate,
    /// On the wall, as of the last clock tick.
    wall_ns: u64,
}

/// Judges a packet of `length` bytes from `source`. `None` if `state` lacks something.
#[inline(always)]
pub fn limit<S: State>(state: &S, source: SourceKey, length: u32) -> Option<Reason> {
    let config = state.config()?;
    let hash = state.hash(source);
    let coarse_ns = state.now_coarse();
    let generation = PolicyWord(atomic::load(&config.policy)).generation();
    let denial = state.denial(hash.0 as u32 % DENIALS as u32)?;
    if denial.holds(hash, coarse_ns, generation) {
        denial.count(length);
        let reason = if denial.index() == LISTED { Reason::Denied } else { Reason::OverLimit };
        return Some(reason);
    }
    if let Some(reason) = listed(state, config, source, hash, coarse_ns, generation)? {
        return Some(reason);
    }
    let set = set_of(hash, state.set_mask());
    let fingerprints = state.fingerprints(set)?;
    let packet = Packet { source, hash, length, set, fingerprints, coarse_ns };
    let reason = match find(state, &packet, NO_WAY)? {
        Some(place) => charge(state, config, &place, &packet, false)?,
        None => {
            let wall_ns = coarse_ns.wrapping_add(atomic::load(&config.clock_offset));
            let least_gate = atomic::load(&config.min_gate) as u32;
            if below(state, config, &packet, wall_ns, least_gate)? {
                return Some(Reason::BelowGate);
            }
            let sketched = Sketched { estimate: estimate(state, &packet, wall_ns)?, wall_ns };
            promote(state, config, &packet, &sketched)?
        }
    };
    if reason.is_some() {
        return reason;
    }
    // Another CPU was faster, most likely with a packet of the same source. Never back to the gate:
    // a source with a bucket is charged for every packet.
    state.note(Internal::Contended);
    pause(fingerprints);
    if let Some(place) = find(state, &packet, NO_WAY)?
        && let Some(reason) = charge(state, config, &place, &packet, true)?
    {
        return Some(reason);
    }
    // The way went to another source, or two CPUs made room for each other. The next packet tries
    // again; dropping this one could hit a source that conforms.
    Some(Reason::PassedSetFull)
}

/// Not a way of any set.
const NO_WAY: u32 = WAYS;

/// Where the packet's source is, in another way than `except`; `Some(None)` if nowhere.
#[inline(always)]
fn find<'a, S: State>(state: &'a S, packet: &Packet<'_>, except: u32) -> Option<Option<Place<'a>>> {
    let fingerprints = atomic::load(packet.fingerprints);
    let mut matches = Matches::of(fingerprints, fingerprint(packet.hash));
    let mut looks = 0;
    while !matches.is_empty() && looks < WAYS {
        let way = matches.way();
        let place = packet.place(state, way)?;
        if way != except && atomic::load(&place.slot.tag) == packet.hash.0 {
            return Some(Some(place));
        }
        matches = matches.rest();
        looks += 1;
    }
    Some(None)
}

/// Lets another CPU finish what it does to the set. It does not look whether that CPU has: Linux 6.1
/// refuses the loop that the compiler makes of that (a back edge from no jump).
#[inline(always)]
fn pause(shared: &AtomicU64) {
    let mut reads = 0;
    while reads < PAUSE {
        atomic::load(shared);
        reads += 1;
    }
}

/// Adds the packet to the sketch; whether the estimate with it is below `gate`.
#[inline(always)]
fn below<S: State>(
    state: &S,
    config: &Config,
    packet: &Packet<'_>,
    wall_ns: u64,
    gate: u32,
) -> Option<bool> {
    let now = state.window().position(wall_ns);
    let shape = state.shape();
    // The estimate is the least over all rows, so it is below if any is. Which row that is cannot be
    // foreseen, hence no branch for each: the sign of the differences tells.
    let mut signs = 0;
    let mut row = 0;
    while row < MAX_DEPTH && row < shape.depth {
        let cell = touch(state.cell(shape.index(packet.hash, row))?, now, 1);
        signs |= i64::from(cell.estimate(now)).wrapping_sub(i64::from(gate));
        row += 1;
    }
    if state.note(Internal::SketchAdds) & (TOTAL_STEP - 1) == 0 {
        touch(&config.sketch_total, now, TOTAL_STEP as u32);
    }
    Some(signs < 0)
}

/// The estimate for a source whose packet has been added.
#[inline(always)]
fn estimate<S: State>(state: &S, packet: &Packet<'_>, wall_ns: u64) -> Option<Estimate> {
    let now = state.window().position(wall_ns);
    let shape = state.shape();
    let mut estimate = Estimate::NOTHING;
    let mut row = 0;
    while row < MAX_DEPTH && row < shape.depth {
        let cell = touch(state.cell(shape.index(packet.hash, row))?, now, 0);
        estimate = estimate.and(cell, now);
        row += 1;
    }
    Some(estimate)
}

/// The policy of a slot, looked up again if policies changed since.
#[inline(always)]
fn policy_of<'a, S: State>(
    state: &'a S,
    config: &Config,
    slot: &Slot,
    source: SourceKey,
) -> Option<(&'a Policy, PolicyWord)> {
    let published = PolicyWord(atomic::load(&config.policy));
    let mut resolved = PolicyWord(atomic::load(&slot.policy));
    if resolved.generation() != published.generation() {
        resolved = resolve(state, published, source);
        atomic::store(&slot.policy, resolved.0);
    }
    Some((state.policy(resolved.slot())?, resolved))
}

/// The policy of a source in the generation of `published`.
#[inline(always)]
fn resolve<S: State>(state: &S, published: PolicyWord, source: SourceKey) -> PolicyWord {
    let slot = match state.lookup(source) {
        Some(slot) => slot,
        None => published.slot(),
    };
    PolicyWord::new(published.generation(), slot)
}

/// Judges a packet whose source has `slot`. `Some(None)`: another CPU was faster, and this is not the
/// `last` try.
#[inline(always)]
fn charge<S: State>(
    state: &S,
    config: &Config,
    place: &Place<'_>,
    packet: &Packet<'_>,
    last: bool,
) -> Option<Option<Reason>> {
    let slot = place.slot;
    let (policy, resolved) = policy_of(state, config, slot, packet.source)?;
    let (policy_slot, generation) = (resolved.slot(), resolved.generation());
    let cost = policy.cost.of(packet.length);
    let least = policy.cost.of(MIN_FRAME);
    let tat = atomic::load(&slot.tat);
    let lasts = |ns| denial::lasts(tat.saturating_sub(ticks(ns)), cost, least, policy.tolerance);
    // A source that was over its limit may wait for the coarse clock to reach its next token. Not a
    // bucket that is in debt by that clock: it must be clamped if it is by the exact one.
    let waits = atomic::load(&slot.last_seen) & DENIED != 0
        && tat <= ticks(packet.coarse_ns) + policy.tolerance
        && lasts(packet.coarse_ns) > 0;
    let now_ns = if waits { packet.coarse_ns } else { state.now() };
    // The tag after the TAT: whoever replaces the source claims the TAT first.
    if tat == CLAIMED || atomic::load(&slot.tag) != packet.hash.0 {
        return Some(None);
    }
    match decide(tat, ticks(now_ns), cost, policy.tolerance) {
        Decision::Admit(next) => {
            if !atomic::replace(&slot.tat, tat, next) {
                if !last {
                    return Some(None);
                }
                // Twice, another CPU's packet went through first. This one conformed a moment ago;
                // adding its cost without a comparison keeps the sum exact and lets the bucket
                // overshoot by this one packet.
                atomic::add(&slot.tat, cost);
            }
            record(slot, &slot.passed, packet, now_ns & !DENIED);
            Some(Some(Reason::Conforming))
        }
        Decision::Clamp(empty) => {
            // If this loses, another CPU has clamped it.
            atomic::replace(&slot.tat, tat, empty);
            Some(Some(over(state, config, slot, packet, policy, policy_slot, now_ns)))
        }
        Decision::Deny => {
            let lasts_ns = lasts(now_ns);
            if lasts_ns > 0 && !policy.observes() {
                remember(state, place.index, packet.hash, now_ns + lasts_ns, generation)?;
            }
            Some(Some(over(state, config, slot, packet, policy, policy_slot, now_ns)))
        }
    }
}

/// Remembers that the packet's source is over its limit, in the place of another source whose drops go
/// where they belong.
#[inline(always)]
pub(super) fn remember<S: State>(
    state: &S,
    index: u32,
    hash: Hash,
    until_ns: u64,
    generation: u32,
) -> Option<()> {
    let denial = state.denial(hash.0 as u32 % DENIALS as u32)?;
    let (packets, bytes) = denial.pending();
    if packets > 0 && denial.index() != LISTED {
        let slot = state.slot(denial.index())?;
        // A source that has lost its bucket since has lost its counters with it.
        if atomic::load(&slot.tag) == atomic::load(&denial.tag) {
            atomic::add(&slot.dropped, packets);
            atomic::add(&slot.bytes, bytes);
        }
    }
    denial.remember(hash, until_ns, generation, index);
    Some(())
}

/// The way that the packet's source gets: an empty one, else one whose bucket is full, else the one
/// that will be full soonest. The search starts somewhere else for each source.
#[inline(always)]
fn victim<S: State>(state: &S, packet: &Packet<'_>, now: Ticks) -> Option<u32> {
    let empty = Matches::of(atomic::load(packet.fingerprints), 0);
    if !empty.is_empty() {
        return Some(empty.way());
    }
    let start = packet.hash.0 as u32;
    let (mut best, mut least) = (start % WAYS, CLAIMED);
    let mut looks = 0;
    while looks < WAYS && least > now {
        let way = start.wrapping_add(looks) % WAYS;
        let tat = atomic::load(&packet.place(state, way)?.slot.tat);
        if tat < least {
            best = way;
            least = tat;
        }
        looks += 1;
    }
    Some(best)
}

/// Gives the packet's source a bucket and judges the packet. `Some(None)`: another CPU interfered.
#[inline(always)]
fn promote<S: State>(
    state: &S,
    config: &Config,
    packet: &Packet<'_>,
    sketched: &Sketched,
) -> Option<Option<Reason>> {
    let resolved = resolve(state, PolicyWord(atomic::load(&config.policy)), packet.source);
    let policy = state.policy(resolved.slot())?;
    if sketched.estimate.window < policy.gate {
        return Some(Some(Reason::BelowGate));
    }
    let now_ns = state.now();
    let now = ticks(now_ns);
    let way = state.opaque(u64::from(victim(state, packet, now)?)) as u32 % WAYS;
    let Place { index, slot } = packet.place(state, way)?;
    let identity = state.identity(index)?;
    let before = atomic::load(&slot.tat);
    let occupied = atomic::load(&slot.tag) != 0;
    let busy = before > now;
    if before == CLAIMED {
        return Some(None);
    }
    if busy && let Some(reason) = full(state, config, packet, resolved.slot(), now_ns) {
        return Some(Some(reason));
    }
    if !atomic::replace(&slot.tat, before, CLAIMED) {
        return Some(None);
    }

    // The slot is ours until its TAT says otherwise. It is complete before its tag and fingerprint
    // name it.
    let start = now + owed(state, config, policy, packet, sketched, now_ns);
    let cost = policy.cost.of(packet.length);
    let (tat, admitted) = match decide(start, now, cost, policy.tolerance) {
        Decision::Admit(tat) => (tat, true),
        Decision::Deny => (start, false),
        Decision::Clamp(tat) => (tat, false),
    };
    atomic::store(&identity.high, packet.source.high);
    atomic::store(&identity.low, packet.source.low);
    atomic::store(&slot.policy, resolved.0);
    atomic::store(&slot.passed, 0);
    atomic::store(&slot.dropped, 0);
    atomic::store(&slot.bytes, 0);
    atomic::store(&slot.first_seen, now_ns);
    atomic::store(&slot.last_seen, now_ns);
    atomic::swap(&slot.tag, packet.hash.0);
    set_fingerprint(packet.fingerprints, way, fingerprint(packet.hash));
    atomic::swap(&slot.tat, tat);

    if find(state, packet, way)?.is_some() {
        // Two CPUs promoted the source at once, into two ways. Both see the other (the swaps are
        // full barriers) or only the later one does; whoever sees yields and charges the other.
        set_fingerprint(packet.fingerprints, way, 0);
        atomic::swap(&slot.tag, 0);
        atomic::swap(&slot.tat, 0);
        return Some(None);
    }
    state.note(Internal::Promotions);
    if busy {
        state.note(Internal::BusyEvictions);
    } else if occupied {
        state.note(Internal::Evictions);
    }
    if admitted {
        record(slot, &slot.passed, packet, now_ns & !DENIED);
        Some(Some(Reason::Conforming))
    } else {
        Some(Some(over(state, config, slot, packet, policy, resolved.slot(), now_ns)))
    }
}

/// The debt that a new bucket starts with.
#[inline(always)]
fn owed<S: State>(
    state: &S,
    config: &Config,
    policy: &Policy,
    packet: &Packet<'_>,
    sketched: &Sketched,
    now_ns: u64,
) -> u64 {
    let window = state.window();
    let now = window.position(sketched.wall_ns);
    let total = Cell(atomic::load(&config.sketch_total)).rolled(now).current();
    let cpus = state.cpus();
    let noise = gate::noise(total, cpus.wrapping_mul(TOTAL_STEP as u32), state.shape());
    // A packet that another CPU has counted but not judged yet will be charged there.
    let others = noise.saturating_add(cpus.saturating_sub(1));
    let age_ns = window.since(sketched.estimate.first, sketched.wall_ns)
        + now_ns.saturating_sub(packet.coarse_ns);
    gate::debt(sketched.estimate, others, &policy.cost, age_ns)
}

/// What becomes of a packet whose set is full; `None` if it may evict.
#[inline(always)]
fn full<S: State>(
    state: &S,
    config: &Config,
    packet: &Packet<'_>,
    policy: u32,
    now_ns: u64,
) -> Option<Reason> {
    state.note(Internal::SetFull);
    event(state, config, EventKind::SetFull, packet.source, policy, now_ns);
    match atomic::load(&config.on_full) {
        on_full::DROP => Some(Reason::DroppedSetFull),
        on_full::EVICT_OLDEST => None,
        _ => Some(Reason::PassedSetFull),
    }
}

/// Counts a packet over its limit.
#[inline(always)]
fn over<S: State>(
    state: &S,
    config: &Config,
    slot: &Slot,
    packet: &Packet<'_>,
    policy: &Policy,
    policy_slot: u32,
    now_ns: u64,
) -> Reason {
    if atomic::load(&slot.dropped) == 0 {
        event(state, config, EventKind::Limited, packet.source, policy_slot, now_ns);
    }
    record(slot, &slot.dropped, packet, now_ns | DENIED);
    if policy.observes() { Reason::WouldDrop } else { Reason::OverLimit }
}

/// Counts a packet of a tracked source.
#[inline(always)]
fn record(slot: &Slot, outcome: &AtomicU64, packet: &Packet<'_>, last_seen: u64) {
    atomic::add(outcome, 1);
    atomic::add(&slot.bytes, u64::from(packet.length));
    atomic::store(&slot.last_seen, last_seen);
}

/// Sends an event, unless its kind has sent enough lately.
#[inline(always)]
fn event<S: State>(
    state: &S,
    config: &Config,
    kind: EventKind,
    source: SourceKey,
    policy: u32,
    now_ns: u64,
) {
    const SECOND: u64 = 1_000_000_000 * TICKS_PER_NS;
    let word = match kind {
        EventKind::Limited => &config.event_tat[0],
        EventKind::SetFull => &config.event_tat[1],
    };
    let tat = atomic::load(word);
    let sent = match decide(tat, ticks(now_ns), SECOND / EVENTS_PER_SECOND, SECOND) {
        Decision::Admit(next) => atomic::replace(word, tat, next),
        Decision::Clamp(_) | Decision::Deny => false,
    };
    if !sent {
        state.note(Internal::EventsSuppressed);
    } else if !state.send(Event { time_ns: now_ns, source, kind: kind as u32, policy }) {
        state.note(Internal::EventsLost);
    }
}
