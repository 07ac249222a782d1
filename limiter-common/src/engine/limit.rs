//! From a source to a verdict.

use core::sync::atomic::AtomicU64;

use super::State;
use crate::abi::{
    Config, EVENTS_PER_SECOND, Event, EventKind, Internal, Policy, PolicyWord, Reason, TOTAL_STEP,
    on_full,
};
use crate::atomic;
use crate::gate;
use crate::gcra::{Decision, TICKS_PER_NS, Ticks, decide, ticks};
use crate::hash::Hash;
use crate::key::SourceKey;
use crate::sketch::{Cell, Estimate, MAX_DEPTH, touch};
use crate::table::{CLAIMED, Matches, Slot, WAYS, fingerprint, set_fingerprint, set_of};

/// Reads of a shared word that pass the time which another CPU needs to fill a way, some tens of ns.
const PAUSE: u32 = 64;

/// A packet on its way.
struct Packet<'a> {
    source: SourceKey,
    hash: Hash,
    length: u32,
    /// The first slot of its set.
    base: u32,
    fingerprints: &'a AtomicU64,
}

/// An estimate, and when it was made.
struct Sketched {
    estimate: Estimate,
    /// Monotonic, as of the last clock tick.
    coarse_ns: u64,
    /// The same moment on the wall.
    wall_ns: u64,
}

/// Judges a packet of `length` bytes from `source`. `None` if `state` lacks something.
#[inline(always)]
pub fn limit<S: State>(state: &S, source: SourceKey, length: u32) -> Option<Reason> {
    let config = state.config()?;
    let hash = state.hash(source);
    let set = set_of(hash, state.set_mask());
    let fingerprints = state.fingerprints(set)?;
    let packet = Packet { source, hash, length, base: set * WAYS, fingerprints };
    let reason = match find(state, &packet)? {
        Some(slot) => charge(state, config, slot, &packet, false)?,
        None => {
            let sketched = sketch(state, config, hash)?;
            if sketched.estimate.window < atomic::load(&config.min_gate) as u32 {
                return Some(Reason::BelowGate);
            }
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
    if let Some(slot) = find(state, &packet)?
        && let Some(reason) = charge(state, config, slot, &packet, true)?
    {
        return Some(reason);
    }
    // The way went to another source, or two CPUs made room for each other. The next packet tries
    // again; dropping this one could hit a source that conforms.
    Some(Reason::PassedSetFull)
}

/// The slot of the packet's source, `Some(None)` if it has none.
#[inline(always)]
fn find<'a, S: State>(state: &'a S, packet: &Packet<'_>) -> Option<Option<&'a Slot>> {
    let fingerprints = atomic::load(packet.fingerprints);
    let mut matches = Matches::of(fingerprints, fingerprint(packet.hash));
    let mut looks = 0;
    while !matches.is_empty() && looks < WAYS {
        let slot = state.slot(packet.base + matches.way())?;
        if atomic::load(&slot.tag) == packet.hash.0 {
            return Some(Some(slot));
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

/// Adds the packet to the sketch.
#[inline(always)]
fn sketch<S: State>(state: &S, config: &Config, hash: Hash) -> Option<Sketched> {
    let coarse_ns = state.now_coarse();
    let wall_ns = coarse_ns.wrapping_add(atomic::load(&config.clock_offset));
    let now = state.window().position(wall_ns);
    let shape = state.shape();
    let mut estimate = Estimate::NOTHING;
    let mut row = 0;
    while row < MAX_DEPTH && row < shape.depth {
        let word = state.cell(shape.index(hash, row))?;
        estimate = estimate.and(touch(word, now, 1), now);
        row += 1;
    }
    if state.note(Internal::SketchAdds) & (TOTAL_STEP - 1) == 0 {
        touch(&config.sketch_total, now, TOTAL_STEP as u32);
    }
    Some(Sketched { estimate, coarse_ns, wall_ns })
}

/// The policy of a slot, looked up again if policies changed since.
#[inline(always)]
fn policy_of<'a, S: State>(
    state: &'a S,
    config: &Config,
    slot: &Slot,
    source: SourceKey,
) -> Option<(&'a Policy, u32)> {
    let published = PolicyWord(atomic::load(&config.policy));
    let mut resolved = PolicyWord(atomic::load(&slot.policy));
    if resolved.generation() != published.generation() {
        resolved = resolve(state, published, source);
        atomic::store(&slot.policy, resolved.0);
    }
    Some((state.policy(resolved.slot())?, resolved.slot()))
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
    slot: &Slot,
    packet: &Packet<'_>,
    last: bool,
) -> Option<Option<Reason>> {
    let (policy, policy_slot) = policy_of(state, config, slot, packet.source)?;
    let cost = policy.cost.of(packet.length);
    let now_ns = state.now();
    let tat = atomic::load(&slot.tat);
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
            record(slot, &slot.passed, packet, now_ns);
            Some(Some(Reason::Conforming))
        }
        Decision::Clamp(empty) => {
            // If this loses, another CPU has clamped it.
            atomic::replace(&slot.tat, tat, empty);
            Some(Some(over(state, config, slot, packet, policy_slot, now_ns)))
        }
        Decision::Deny => Some(Some(over(state, config, slot, packet, policy_slot, now_ns))),
    }
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
        let tat = atomic::load(&state.slot(packet.base + way)?.tat);
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
    let slot = state.slot(packet.base + way)?;
    let identity = state.identity(packet.base + way)?;
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
    let start = now + owed(state, config, policy, sketched, now_ns);
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

    if duplicated(state, packet, way)? {
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
        record(slot, &slot.passed, packet, now_ns);
        Some(Some(Reason::Conforming))
    } else {
        Some(Some(over(state, config, slot, packet, resolved.slot(), now_ns)))
    }
}

/// Whether another way than `way` holds the packet's source.
#[inline(always)]
fn duplicated<S: State>(state: &S, packet: &Packet<'_>, way: u32) -> Option<bool> {
    let fingerprints = atomic::load(packet.fingerprints);
    let mut matches = Matches::of(fingerprints, fingerprint(packet.hash));
    let mut looks = 0;
    while !matches.is_empty() && looks < WAYS {
        let other = matches.way();
        let slot = state.slot(packet.base + other)?;
        if other != way && atomic::load(&slot.tag) == packet.hash.0 {
            return Some(true);
        }
        matches = matches.rest();
        looks += 1;
    }
    Some(false)
}

/// The debt that a new bucket starts with.
#[inline(always)]
fn owed<S: State>(
    state: &S,
    config: &Config,
    policy: &Policy,
    sketched: &Sketched,
    now_ns: u64,
) -> u64 {
    let window = state.window();
    let now = window.position(sketched.wall_ns);
    let total = Cell(atomic::load(&config.sketch_total)).rolled(now).current();
    let cpus = state.cpus();
    let width_log2 = (state.shape().mask).count_ones();
    let noise = gate::noise(total, cpus.wrapping_mul(TOTAL_STEP as u32), width_log2);
    // A packet that another CPU has counted but not judged yet will be charged there.
    let others = noise.saturating_add(cpus.saturating_sub(1));
    let age_ns = window.since(sketched.estimate.first, sketched.wall_ns)
        + now_ns.saturating_sub(sketched.coarse_ns);
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
    policy: u32,
    now_ns: u64,
) -> Reason {
    if atomic::load(&slot.dropped) == 0 {
        event(state, config, EventKind::Limited, packet.source, policy, now_ns);
    }
    record(slot, &slot.dropped, packet, now_ns);
    Reason::OverLimit
}

/// Counts a packet of a tracked source.
#[inline(always)]
fn record(slot: &Slot, outcome: &AtomicU64, packet: &Packet<'_>, now_ns: u64) {
    atomic::add(outcome, 1);
    atomic::add(&slot.bytes, u64::from(packet.length));
    atomic::store(&slot.last_seen, now_ns);
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
