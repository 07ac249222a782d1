//! Groups: the sources of a prefix, as far as they have no buckets.
//!
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
use crate::abi::{Newcomers, Reason};
use crate::atomic;
use crate::table::set_of;

/// The packet as one of its source's group; `Some(None)` if its group is known to be over the limit.
#[inline(always)]
pub fn of_group<S: Steps>(state: &S, packet: &Arrival) -> Option<Option<Arrival>> {
    let newcomers = Newcomers(atomic::load(&state.config()?.newcomers));
    let (source, bits) = packet.source.group(newcomers.group_ipv6_prefix());
    let classified = Classified::group(bits, newcomers.group_slot());
    let hash = state.hash(source).of_class(classified.limited());
    // As a source's packets are: a flood from one prefix costs no look at the bucket.
    let entry = drop_cache_entry(state, hash)?;
    if entry.holds(hash, packet.coarse_ns, packet.published.generation()) {
        entry.count(packet.length);
        return Some(None);
    }
    let set = set_of(hash, state.set_mask());
    Some(Some(Arrival { source, classified, hash, set, ..*packet }))
}

/// What comes next for a packet of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing: the group is below its gate.
    Passes,
    /// The bucket in the slot at `index` is charged.
    Charge {
        /// As in [`Steps::charge`], below 2^30.
        index: u32,
    },
    /// The group is to get a bucket.
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
    let mut attempted = attempt(state, group, false)?;
    if matches!(attempted, Attempt::Contended) {
        attempted = attempt(state, group, true)?;
    }
    // `on_full` decides on sources, not on what they belong to: without room for its group a packet passes.
    let is_over = matches!(attempted, Attempt::Done(Reason::OverLimit));
    Some(if is_over { Reason::OverGroup } else { Reason::BelowGate })
}

#[inline(always)]
fn attempt<S: Steps>(state: &S, group: &Arrival, again: bool) -> Option<Attempt<Reason>> {
    match state.next_of_group(group, again)? {
        Next::Passes => Some(Attempt::Done(Reason::BelowGate)),
        Next::Charge { index } => charge_found(state, &SlotRef::new(state, index)?, group),
        Next::Promote { first } => state.promote(group, first),
    }
}

/// What is to be done with the packet in hand, which is that of a group; `again`, if another CPU was about to make
/// the group's bucket.
// It does nothing of that itself: it takes more of the kernel's stack than this leaves.
#[inline(always)]
pub fn next_of_group<S: State>(state: &S, group: &Arrival, again: bool) -> Option<Next> {
    if again {
        pause(group.fingerprints(state)?);
    }
    if let Some(found) = find(state, group)? {
        return Some(Next::Charge { index: found.index });
    }
    if again {
        return Some(Next::Passes);
    }
    // Its own gate: the least one of all is that of sources.
    let gate = state.policy(group.classified.found()?)?.gate;
    let Added { below, first } = add(state, state.config()?, group, gate)?;
    Some(if below { Next::Passes } else { Next::Promote { first } })
}
