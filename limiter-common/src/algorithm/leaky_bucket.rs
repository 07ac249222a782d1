//! The leaky bucket: the token bucket in the other vocabulary.

use super::TokenBucket;
use crate::gcra::Ticks;

/// A bucket that holds `burst` units and leaks `L` per `W`.
///
/// As a *meter* (Turner 1986) it admits what does not overflow it. Its level is what is missing in a [`TokenBucket`], so
/// both decide alike; bound, bytes and behaviour on clock steps are the same.
///
/// As a *queue* it delays each request that it admits until those before have leaked out: [`TokenBucket::delay`]. Requests
/// then leave at the rate, at least `W / L` apart, so that no window of length `W` sees more than `L + 1` leave.
pub type LeakyBucket = TokenBucket;

impl TokenBucket {
    /// How long a request that is admitted at `now` waits until the requests before it have leaked out; before it is
    /// charged.
    #[must_use]
    pub const fn delay(&self, word: u64, now: Ticks) -> Ticks {
        word.saturating_sub(now)
    }
}
