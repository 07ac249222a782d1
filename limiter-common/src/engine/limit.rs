//! From a source to a verdict.

use core::sync::atomic::AtomicU64;

use super::State;
use super::attempt::Attempt;
use super::charge::{charge, drop_cache_entry, force_charge};
use super::classes::Limited;
use super::listed::{by_list, listed};
use super::lookup::{NO_WAY, Packet, find};
use super::promotion::promote;
use super::sketched::{Added, Sketched, add, estimate};
use crate::abi::{Config, Internal, PolicyWord, Reason};
use crate::atomic;
use crate::hll;
use crate::key::SourceKey;
use crate::table::set_of;

/// Reads of a shared word that pass the time which another CPU needs to fill a way, some tens of ns.
const PAUSE: u32 = 64;

/// Judges a packet of `length` bytes from `source`, of a class that the source has a bucket for, by the
/// limit of its source. `None` if `state` lacks something.
#[inline(always)]
pub(super) fn limit<S: State>(
    state: &S,
    config: &Config,
    source: SourceKey,
    limited: Limited,
    length: u32,
) -> Option<Reason> {
    let of_source = state.hash(source);
    let hash = of_source.of_class(limited.class());
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
    let fingerprints = state.fingerprints(set)?;
    let packet = Packet { source, limited, hash, length, set, fingerprints, coarse_ns, published };
    let found = find(state, &packet, NO_WAY)?;
    // A change of the lists raises the generation: a bucket of this one is no listed source's.
    let is_vetted = match &found {
        Some(found) => PolicyWord(atomic::load(&found.slot.policy)).generation() == generation,
        None => false,
    };
    if !is_vetted {
        let entry = listed(state, config, source, of_source, coarse_ns)?;
        if !entry.is_nothing() {
            return by_list(state, &packet, entry);
        }
    }

    // The two ways do not meet: who has a bucket is not counted in the sketch, so that it makes no
    // noise for others.
    let attempt = match found {
        Some(found) => charge(state, config, &found, &packet)?,
        None => {
            let least_gate = atomic::load(&config.min_gate) as u32;
            let Added { below, first } = add(state, config, &packet, wall_ns, least_gate)?;
            if below {
                return Some(Reason::BelowGate);
            }
            let estimate = estimate(state, &packet, wall_ns)?;
            let sketched = Sketched { estimate, first, wall_ns };
            promote(state, config, &packet, &sketched)?
        }
    };
    if let Attempt::Done(reason) = attempt {
        return Some(reason);
    }

    // Another CPU was faster, most likely with a packet of the same source. Never back to the gate:
    // a source with a bucket is charged for every packet.
    state.note(Internal::Contended);
    pause(fingerprints);
    if let Some(found) = find(state, &packet, NO_WAY)?
        && let Attempt::Done(reason) = force_charge(state, config, &found, &packet)?
    {
        return Some(reason);
    }
    // The way went to another source, or two CPUs made room for each other. The next packet tries
    // again; dropping this one could hit a source that conforms.
    Some(Reason::PassedSetFull)
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
