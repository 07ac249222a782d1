//! Marks of what happens to the packet at hand, of which [`crate::log`] writes lines.

use limiter_common::abi::Internal;

use crate::maps::{KERNEL_LOG, MARKED};

/// Marks what happens to the packet at hand, if there is to be a line about it.
#[inline(always)]
pub(crate) fn mark(what: Internal) {
    let told = match what {
        Internal::Promotions
        | Internal::Evictions
        | Internal::BusyEvictions
        | Internal::SetFull
        | Internal::Malformed
        | Internal::EventsLost
        | Internal::Contended => true,
        // These happen at the rate of packets, and are no news to anybody.
        Internal::EventsSuppressed
        | Internal::SketchAdds
        | Internal::SamplesMatched
        | Internal::SamplesLost => false,
    };
    if told
        && KERNEL_LOG.load() != 0
        && let Some(marked) = MARKED.get_ptr_mut(0)
    {
        // SAFETY: this CPU's element of the map; XDP programs are not preempted by one another on a CPU,
        // and nobody else knows the map.
        unsafe { (*marked).what |= 1 << what as u32 };
    }
}

/// Whether there is something to write about the packet at hand.
#[inline(always)]
pub(crate) fn is_marked() -> bool {
    if KERNEL_LOG.load() == 0 {
        return false;
    }
    match MARKED.get_ptr_mut(0) {
        // SAFETY: as in `mark`.
        Some(marked) => unsafe { (*marked).what != 0 },
        None => false,
    }
}
