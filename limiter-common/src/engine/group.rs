//! What many packets are counted to beside their sources: groups, and destinations.
//!
//! A *group* is the sources of a prefix, as far as they have no buckets.
//! A source below its gate needs no bucket, and a prefix may have 65,536 of them. So a packet of a source without a
//! bucket is charged to the prefix first, which is one more source to table, sketch and gate, under a class number of its
//! own. A group that sends little costs two cells of the sketch. One over its limit promotes no source.

use super::attempt::Attempt;
use super::charge::drop_cache_entry;
use super::classes::Classified;
use super::limit::pause;
use super::lookup::{Arrival, SlotRef, charge_found, find};
use super::sketched::{Added, add};
use super::{State, Steps};
use crate::abi::{Newcomers, Reason, UNLIMITED_SLOT};
use crate::atomic;
use crate::key::SourceKey;
use crate::table::set_of;

/// What a packet is counted to.
#[derive(Clone, Copy, Debug)]
pub enum Whole {
    /// It has no limit.
    Unlimited,
    /// It is known to be over the limit.
    Over,
    /// The packet as one of it.
    Of(Arrival),
}

/// The packet as one of its source's group.
#[inline(always)]
pub fn of_group<S: Steps>(state: &S, packet: &Arrival) -> Option<Whole> {
    let newcomers = Newcomers(atomic::load(&state.config()?.newcomers));
    let (group, bits) = packet.source.group(newcomers.group_ipv6_prefix());
    whole(state, packet, group, Classified::group(bits, newcomers.group_slot()))
}

/// The packet as one of its destination.
#[inline(always)]
pub fn of_destination<S: Steps>(
    state: &S,
    packet: &Arrival,
    destination: SourceKey,
) -> Option<Whole> {
    match packet.classified.of_destination(state, destination)? {
        Some(classified) => whole(state, packet, destination, classified),
        None => Some(Whole::Unlimited),
    }
}

#[inline(always)]
fn whole<S: Steps>(
    state: &S,
    packet: &Arrival,
    source: SourceKey,
    classified: Classified,
) -> Option<Whole> {
    let hash = state.hash(source).of_class(classified.limited());
    // As a source's packets are: a flood from one prefix, or to one address, costs no look at the bucket.
    let entry = drop_cache_entry(state, hash)?;
    if entry.holds(hash, packet.coarse_ns, packet.published.generation()) {
        entry.count(packet.length);
        return Some(Whole::Over);
    }
    let set = set_of(hash, state.set_mask());
    Some(Whole::Of(Arrival { source, classified, hash, set, ..*packet }))
}

/// What comes next for a packet of a [`Whole`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing: it is below its gate.
    Passes,
    /// The bucket in the slot at `index` is charged.
    Charge {
        /// As in [`Steps::charge`], below 2^30.
        index: u32,
    },
    /// It is to get a bucket.
    Promote {
        /// As in [`Steps::promote`].
        first: bool,
    },
}

impl Next {
    const PASSES: u32 = u32::MAX;
    const MISSING: u32 = u32::MAX - 1;
    const PROMOTE: u32 = 1 << 30;

    /// As [`Attempt::to_bits`].
    #[inline(always)]
    pub const fn to_bits(next: Option<Self>) -> u32 {
        match next {
            Some(Self::Passes) => Self::PASSES,
            Some(Self::Charge { index }) => index,
            Some(Self::Promote { first }) => Self::PROMOTE | first as u32,
            None => Self::MISSING,
        }
    }

    /// What has become `bits`.
    #[inline(always)]
    pub const fn from_bits(bits: u32) -> Option<Self> {
        match bits {
            Self::MISSING => None,
            Self::PASSES => Some(Self::Passes),
            index if index < Self::PROMOTE => Some(Self::Charge { index }),
            _ => Some(Self::Promote { first: bits & 1 != 0 }),
        }
    }
}

/// Judges a packet of a group by the limit of groups.
#[inline(always)]
pub fn by_group<S: Steps>(state: &S, group: &Arrival) -> Option<Reason> {
    // `on_full` decides on sources, not on what they belong to: without room for its group a packet passes.
    let is_over = matches!(judged(state, group)?, Attempt::Done(Reason::OverLimit));
    Some(if is_over { Reason::OverGroup } else { Reason::BelowGate })
}

/// Judges a packet of a destination, which has `passed` all limits of its sender, by the destination's limit.
#[inline(always)]
pub fn by_destination<S: Steps>(
    state: &S,
    destination: &Arrival,
    passed: Reason,
) -> Option<Reason> {
    Some(match judged(state, destination)? {
        Attempt::Done(Reason::OverLimit) => Reason::OverDestination,
        Attempt::Done(Reason::WouldDrop) => Reason::WouldDrop,
        // As for groups.
        _ => passed,
    })
}

#[inline(always)]
fn judged<S: Steps>(state: &S, whole: &Arrival) -> Option<Attempt<Reason>> {
    match attempt(state, whole, false)? {
        Attempt::Contended => attempt(state, whole, true),
        done => Some(done),
    }
}

#[inline(always)]
fn attempt<S: Steps>(state: &S, whole: &Arrival, again: bool) -> Option<Attempt<Reason>> {
    match state.next_of_whole(whole, again)? {
        Next::Passes => Some(Attempt::Done(Reason::BelowGate)),
        Next::Charge { index } => charge_found(state, &SlotRef::new(state, index)?, whole),
        Next::Promote { first } => state.promote(whole, first),
    }
}

/// What is to be done with the packet in hand, which is that of a [`Whole`]; `again`, if another CPU was about to make
/// its bucket.
// It does nothing of that itself: it takes more of the kernel's stack than this leaves.
#[inline(always)]
pub fn next_of_whole<S: State>(state: &S, whole: &Arrival, again: bool) -> Option<Next> {
    if again {
        pause(whole.fingerprints(state)?);
    }
    if let Some(found) = find(state, whole)? {
        return Some(Next::Charge { index: found.index });
    }
    if again {
        return Some(Next::Passes);
    }
    // Its own gate: the least one of all is that of sources.
    let slot = match whole.classified.found() {
        Some(slot) => slot,
        None => state.lookup(whole.classified.limited(), whole.source).unwrap_or(UNLIMITED_SLOT),
    };
    let Added { below, first } = add(state, state.config()?, whole, state.policy(slot)?.gate)?;
    Some(if below { Next::Passes } else { Next::Promote { first } })
}
