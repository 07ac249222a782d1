//! The fixed window.

use super::{Unfit, Window};
use crate::gcra::Ticks;

impl Window {
    /// The fixed window counts in windows that follow each other, and begins each at nothing: what `INCR` and `EXPIRE` do
    /// in Redis.
    ///
    /// One word of 8 bytes. Windows begin at multiples of `length` on the caller's clock, in the kernel program since boot.
    ///
    /// **Bound.** A window of length `W` meets at most two of them, which admit `L` each: `2 L`. Who sends `L` just before
    /// an edge and `L` just behind it gets that much.
    ///
    /// **Clock.** One that goes back stays in the last window until it has caught up, so nobody gets a window twice. One
    /// that jumps ahead begins a window.
    ///
    /// # Errors
    /// If `limit` or `length` is 0, with `headroom` for overshoots beyond [`super::MAX_LIMIT`], or does not fit into a word.
    pub fn fixed(limit: u64, headroom: u64, length: Ticks) -> Result<Self, Unfit> {
        Self::new(limit, headroom, length, 0)
    }
}
