//! The sliding window of two counters.

use super::window::MAX_PREVIOUS_BITS;
use super::{Unfit, Window};
use crate::gcra::Ticks;

impl Window {
    /// The sliding window counts as the fixed one, and adds what the window before has admitted, weighted by the part of it
    /// that a window which ends now still covers (Cloudflare 2017).
    ///
    /// At `t` ticks into a window, with `p` admitted in the one before and `c` in this one, a request of cost `x` is
    /// admitted if `c + ⌈p · (W − t) / W⌉ + x ≤ L`. `p` has nine bits, so that from `L = 512` on up to `L / 256` less of it
    /// counts; below, the comparison is exact.
    ///
    /// One word of 8 bytes. Windows begin at multiples of `length` on the caller's clock, in the kernel program since boot.
    ///
    /// **Bound.** A window of length `W` meets at most two of them. The first admits `L` at most. As long as any of that
    /// counts, it counts one unit at least, so the second admits `L − 1`: together `2 L − 1`. Who sends all at the end of a
    /// window, and again at the end of the next, comes near it. Steady traffic gets `L`, as each window ends with a weight
    /// of nothing.
    ///
    /// **Clock.** As the fixed window's.
    ///
    /// # Errors
    /// As [`Window::fixed`].
    pub fn sliding(limit: u64, headroom: u64, length: Ticks) -> Result<Self, Unfit> {
        Self::new(limit, headroom, length, MAX_PREVIOUS_BITS)
    }
}
