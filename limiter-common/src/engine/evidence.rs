//! Samples of what sources send over a limit that bans: see [`crate::evidence`].

use super::State;
use super::lookup::Arrival;
use crate::atomic;
use crate::evidence::{ClassWord, is_weighty};
use crate::features::PolicyRef;

/// Makes a packet over its limit a sample, by its length where the limit is of bytes alone.
#[inline(always)]
pub(super) fn seek<S: State>(state: &S, policy: PolicyRef<'_>, packet: &Arrival, index: u32) {
    let is_of_bytes = policy.first.per_byte != 0;
    if !is_of_bytes || is_weighty(packet.length, state.random()) {
        state.look_up(index);
    }
}

/// Counts a sample of the source in the slot at `index`. `None` if `state` lacks the slot.
#[inline(always)]
pub fn note_sample<S: State>(state: &S, index: u32, is_connected: bool) -> Option<()> {
    // Another source may have got the slot since. A sample or two that are not its own decide nothing.
    atomic::add(&state.identity(index)?.class, ClassWord::sample(is_connected));
    Some(())
}
