//! From a source to a verdict.

use core::sync::atomic::AtomicU64;

use super::State;
use crate::abi::{
    Config, EVENTS_PER_SECOND, Entry, Event, EventKind, Internal, Policy, PolicyWord, Reason,
    TOTAL_STEP, on_full,
};
use crate::atomic;
use crate::gate;
use crate::gcra::{Decision, TICKS_PER_NS, decide, ticks};
use crate::hash::Hash;
use crate::key::SourceKey;
use crate::sketch::{Cell, Estimate, MAX_DEPTH, touch};
use crate::table::{CLAIMED, Set, WAYS};

/// Reads of a shared word that pass the time which another CPU needs to fill a way, some tens of ns.
const PAUSE: u32 = 64;

/// A packet on its way.
struct Packet {
    source: SourceKey,
    hash: Hash,
    length: u32,
    set: u32,
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
    let packet = Packet { source, hash, length, set: (hash.0 >> 32) as u32 & state.set_mask() };
    let set = state.set(packet.set)?;
    let reason = match set.find(hash) {
        Some(way) => charge(state, config, set, opaque_way(state, way), &packet, false)?,
        None => {
            let sketched = sketch(state, config, hash)?;
            if sketched.estimate.window < atomic::load(&config.min_gate) as u32 {
                return Some(Reason::BelowGate);
            }
            promote(state, config, set, &packet, &sketched)?
        }
    };
    if reason.is_some() {
        return reason;
    }
    // Another CPU was faster, most likely with a packet of the same source. Never back to the gate:
    // a source with a bucket is charged for every packet.
    state.note(Internal::Contended);
    pause(set);
    if let Some(way) = set.find(hash)
        && let Some(reason) = charge(state, config, set, opaque_way(state, way), &packet, true)?
    {
        return Some(reason);
    }
    // The way went to another source, or two CPUs made room for each other. The next packet tries
    // again; dropping this one could hit a source that conforms.
    Some(Reason::PassedSetFull)
}

/// A way as a number in 0..[`WAYS`] of which nothing else is known.
#[inline(always)]
fn opaque_way<S: State>(state: &S, way: u32) -> u32 {
    state.opaque(u64::from(way)) as u32 % WAYS
}

/// Lets another CPU finish what it does to the set. It does not look whether that CPU has: Linux 6.1
/// refuses the loop that the compiler makes of that (a back edge from no jump).
#[inline(always)]
fn pause(set: &Set) {
    let mut reads = 0;
    while reads < PAUSE {
        atomic::load(&set.bucket(0).tat);
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

/// The policy of an entry, looked up again if policies changed since.
#[inline(always)]
fn policy_of<'a, S: State>(
    state: &'a S,
    config: &Config,
    entry: &Entry,
) -> Option<(&'a Policy, u32)> {
    let published = PolicyWord(atomic::load(&config.policy));
    let mut resolved = PolicyWord(atomic::load(&entry.policy));
    if resolved.generation() != published.generation() {
        resolved = resolve(state, published, entry.key());
        atomic::store(&entry.policy, resolved.0);
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

/// Judges a packet whose source has the bucket in `way`. `Some(None)`: another CPU was faster, and
/// this is not the `last` try.
#[inline(always)]
fn charge<S: State>(
    state: &S,
    config: &Config,
    set: &Set,
    way: u32,
    packet: &Packet,
    last: bool,
) -> Option<Option<Reason>> {
    let entry = state.entry(packet.set * WAYS + way)?;
    let bucket = set.bucket(way);
    let (policy, slot) = policy_of(state, config, entry)?;
    let cost = policy.cost.of(packet.length);
    let now_ns = state.now();
    let tat = atomic::load(&bucket.tat);
    // The tag after the TAT: whoever replaces the source claims the TAT first.
    if tat == CLAIMED || atomic::load(&bucket.tag) != packet.hash.0 {
        return Some(None);
    }
    match decide(tat, ticks(now_ns), cost, policy.tolerance) {
        Decision::Admit(next) => {
            if !atomic::replace(&bucket.tat, tat, next) {
                if !last {
                    return Some(None);
                }
                // Every time, another CPU's packet went through first. This one conformed a moment
                // ago; adding its cost without a comparison keeps the sum exact and lets the bucket
                // overshoot by this one packet.
                atomic::add(&bucket.tat, cost);
            }
            record(entry, &entry.passed, packet, now_ns);
            Some(Some(Reason::Conforming))
        }
        Decision::Clamp(empty) => {
            // If this loses, another CPU has clamped it.
            atomic::replace(&bucket.tat, tat, empty);
            Some(Some(over(state, config, entry, packet, slot, now_ns)))
        }
        Decision::Deny => Some(Some(over(state, config, entry, packet, slot, now_ns))),
    }
}

/// Gives the packet's source a bucket and judges the packet. `Some(None)`: another CPU interfered.
#[inline(always)]
fn promote<S: State>(
    state: &S,
    config: &Config,
    set: &Set,
    packet: &Packet,
    sketched: &Sketched,
) -> Option<Option<Reason>> {
    let resolved = resolve(state, PolicyWord(atomic::load(&config.policy)), packet.source);
    let policy = state.policy(resolved.slot())?;
    if sketched.estimate.window < policy.gate {
        return Some(Some(Reason::BelowGate));
    }
    let now_ns = state.now();
    let now = ticks(now_ns);
    let way = opaque_way(state, set.victim());
    let bucket = set.bucket(way);
    let entry = state.entry(packet.set * WAYS + way)?;
    let before = atomic::load(&bucket.tat);
    let occupied = atomic::load(&bucket.tag) != 0;
    let busy = before > now;
    if before == CLAIMED {
        return Some(None);
    }
    if busy && let Some(reason) = full(state, config, packet, resolved.slot(), now_ns) {
        return Some(Some(reason));
    }
    if !atomic::replace(&bucket.tat, before, CLAIMED) {
        return Some(None);
    }

    // The way is ours until its TAT says otherwise. The entry is complete before the tag names it.
    let start = now + owed(state, config, policy, sketched, now_ns);
    let cost = policy.cost.of(packet.length);
    let (tat, admitted) = match decide(start, now, cost, policy.tolerance) {
        Decision::Admit(tat) => (tat, true),
        Decision::Deny => (start, false),
        Decision::Clamp(tat) => (tat, false),
    };
    atomic::store(&entry.high, packet.source.high);
    atomic::store(&entry.low, packet.source.low);
    atomic::store(&entry.policy, resolved.0);
    atomic::store(&entry.passed, 0);
    atomic::store(&entry.dropped, 0);
    atomic::store(&entry.bytes, 0);
    atomic::store(&entry.first_seen, now_ns);
    atomic::store(&entry.last_seen, now_ns);
    atomic::swap(&bucket.tag, packet.hash.0);
    atomic::swap(&bucket.tat, tat);

    if set.duplicated(packet.hash, way) {
        // Two CPUs promoted the source at once, into two ways. Both see the other (the swaps are
        // full barriers) or only the later one does; whoever sees yields and charges the other.
        atomic::swap(&bucket.tag, 0);
        atomic::swap(&bucket.tat, 0);
        return Some(None);
    }
    state.note(Internal::Promotions);
    if busy {
        state.note(Internal::BusyEvictions);
    } else if occupied {
        state.note(Internal::Evictions);
    }
    if admitted {
        record(entry, &entry.passed, packet, now_ns);
        Some(Some(Reason::Conforming))
    } else {
        Some(Some(over(state, config, entry, packet, resolved.slot(), now_ns)))
    }
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
    packet: &Packet,
    slot: u32,
    now_ns: u64,
) -> Option<Reason> {
    state.note(Internal::SetFull);
    event(state, config, EventKind::SetFull, packet.source, slot, now_ns);
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
    entry: &Entry,
    packet: &Packet,
    slot: u32,
    now_ns: u64,
) -> Reason {
    if atomic::load(&entry.dropped) == 0 {
        event(state, config, EventKind::Limited, packet.source, slot, now_ns);
    }
    record(entry, &entry.dropped, packet, now_ns);
    Reason::OverLimit
}

/// Counts a packet of a tracked source.
#[inline(always)]
fn record(entry: &Entry, outcome: &AtomicU64, packet: &Packet, now_ns: u64) {
    atomic::add(outcome, 1);
    atomic::add(&entry.bytes, u64::from(packet.length));
    atomic::store(&entry.last_seen, now_ns);
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
