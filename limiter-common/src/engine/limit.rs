//! From a source to a verdict.

use super::attempt::Attempt;
use super::charge::{denies, drop_cache_entry};
use super::classes::Classified;
use super::listed::by_list;
use super::lookup::{Arrival, SlotRef, charge_found, find};
use super::sketched::{Added, add};
use super::steps::Steps;
use crate::abi::{Config, Internal, Newcomers, PolicyWord, Reason, UNLIMITED_SLOT};
use crate::atomic::{self, AtomicU64};
use crate::features::Features;
use crate::hll;
use crate::key::SourceKey;
use crate::table::set_of;

/// Reads of a shared word that pass the time which another CPU needs to fill a way, some tens of ns.
const PAUSE: u32 = 64;

/// Judges a packet of `length` bytes from `source` by the limit of its source, then by those that it shares, at last by
/// that of its destination.
/// `None` if `state` lacks something.
#[inline(always)]
pub(super) fn limit<S: Steps>(
    state: &S,
    config: &Config,
    source: SourceKey,
    (classified, destination): (Classified, SourceKey),
    length: u32,
) -> Option<Reason> {
    let of_source = state.hash(source);
    let hash = of_source.of_class(classified.limited());
    let coarse_ns = state.now_coarse();
    // Read once, before anything that depends on it: generation and default are of one moment.
    let published = PolicyWord(atomic::load(&config.policy));
    let generation = published.generation();
    // Before all else in memory that CPUs share: a flood is mostly of sources that were dropped
    // just before.
    let entry = drop_cache_entry(state, hash)?;
    if entry.holds(hash, coarse_ns, generation) {
        entry.count(length);
        let is_over = entry.basis().slot().is_some();
        return Some(if is_over { Reason::OverLimit } else { Reason::Denied });
    }

    // Whoever is remembered was here less than a tenth of a window ago.
    let wall_ns = coarse_ns.wrapping_add(atomic::load(&config.clock_offset));
    hll::add(state.registers()?, of_source, wall_ns);

    let set = set_of(hash, state.set_mask());
    let packet = Arrival { source, classified, hash, coarse_ns, wall_ns, published, length, set };
    let packet = state.take_up(&packet)?;
    let mut reason = of_its_own(state, config, packet)?;
    // Management addresses are on the allow list. What others have used up must not shut the operator out.
    if !reason.passes() || reason == Reason::Allowed {
        return Some(reason);
    }
    if state.features().has(Features::AGGREGATES) && atomic::load(&config.shared) != 0 {
        reason = state.shared_limits(packet, reason)?;
    }
    if state.features().has(Features::DESTINATIONS)
        && classified.limits_destination()
        && reason.passes()
    {
        reason = state.destination(packet, destination, reason)?;
    }
    Some(reason)
}

/// Judges a packet by the limit of its source alone.
#[inline(always)]
fn of_its_own<S: Steps>(state: &S, config: &Config, packet: &Arrival) -> Option<Reason> {
    let found = find(state, packet)?;
    // A change of the lists raises the generation: a bucket of this one is no listed source's.
    let is_vetted = match &found {
        Some(found) => {
            let policy = PolicyWord(atomic::load(&found.slot.policy));
            policy.generation() == packet.published.generation()
        }
        None => false,
    };
    // One load where there are no lists, which is most often.
    if state.features().has(Features::LISTS) && !is_vetted && atomic::load(&config.listed) != 0 {
        let entry = state.entry(packet)?;
        if !entry.is_nothing() {
            return by_list(state, packet, entry);
        }
    }

    // The two ways do not meet: who has a bucket is not counted in the sketch, so that it makes no
    // noise for others.
    let attempt = match found {
        Some(found) if denies(state, &found, packet)? => return Some(Reason::OverLimit),
        Some(found) => charge_found(state, &found, packet)?,
        None => {
            let newcomers = Newcomers(atomic::load(&config.newcomers));
            // Here alone: who has a bucket never pays for its neighbours.
            if state.features().has(Features::GROUPS)
                && newcomers.group_slot() != UNLIMITED_SLOT
                && !state.group(packet)?.passes()
            {
                return Some(Reason::OverGroup);
            }
            let Added { below, first } = add(state, config, packet, newcomers.least_gate())?;
            if below {
                return Some(Reason::BelowGate);
            }
            state.promote(packet, first)?
        }
    };
    if let Attempt::Done(reason) = attempt {
        return Some(reason);
    }

    // Another CPU was faster, most likely with a packet of the same source. Never back to the gate:
    // a source with a bucket is charged for every packet.
    state.note(Internal::Contended);
    pause(packet.fingerprints(state)?);
    let fingerprints = atomic::load(packet.fingerprints(state)?);
    if let Some(index) = state.find_by(packet, fingerprints)?
        && let Attempt::Done(reason) = charge_found(state, &SlotRef::new(state, index)?, packet)?
    {
        return Some(reason);
    }
    // The way went to another source, or two CPUs made room for each other. The next packet tries
    // again; dropping this one could hit a source that conforms.
    Some(Reason::PassedContended)
}

/// Lets another CPU finish what it does to the set. It does not look whether that CPU has: Linux 6.1
/// refuses the loop that the compiler makes of that (a back edge from no jump).
#[inline(always)]
pub(super) fn pause(shared: &AtomicU64) {
    let mut reads = 0;
    while reads < PAUSE {
        atomic::load(shared);
        reads += 1;
    }
}
