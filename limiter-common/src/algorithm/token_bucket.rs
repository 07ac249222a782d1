//! The token bucket.

use super::{Algorithm, Unfit};
use crate::gcra::{MAX_TOLERANCE, Ticks, credit, decide};

/// A bucket of `burst` tokens that refills at `L` per `W`, as the generic cell rate algorithm (ITU-T I.371): see
/// [`crate::gcra`].
///
/// One word of 8 bytes: the time when the bucket is full again. A unit costs `T = ⌈W / L⌉` ticks.
///
/// **Bound.** The bucket holds at most `burst` at the beginning of a window, and earns at most `W / T ≤ L` in it. So it
/// gives at most `burst + L`.
///
/// **Clock.** It has no windows, so it does not matter where they begin. A clock that goes back by `d` adds `d` to the
/// debt, one that jumps ahead fills the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// What a unit costs.
    interval: Ticks,
    /// The burst as time.
    tolerance: Ticks,
    bound: u64,
}

impl TokenBucket {
    /// A bucket of `burst` tokens that earns `limit` in a `window`.
    ///
    /// # Errors
    /// If one of them is 0, or the bucket takes longer than 13 days to fill.
    pub fn new(limit: u64, window: Ticks, burst: u64) -> Result<Self, Unfit> {
        if limit == 0 || window == 0 || burst == 0 {
            return Err(Unfit::Nothing);
        }
        // Rounded up: never more than the limit.
        let interval = window.div_ceil(limit);
        let tolerance = interval.checked_mul(burst).ok_or(Unfit::TooLarge)?;
        if tolerance > MAX_TOLERANCE {
            return Err(Unfit::TooLarge);
        }
        Ok(Self { interval, tolerance, bound: burst + limit })
    }

    /// The most that a bucket owes: that of an empty one, and as much that was used already.
    const fn most(&self, now: Ticks) -> Ticks {
        now + 2 * self.tolerance
    }

    /// The word of a bucket under this limit that may be of another one, by which it could owe more.
    #[must_use]
    pub fn clamped(&self, word: u64, now: Ticks) -> u64 {
        word.min(self.most(now))
    }

    /// What `cost` units cost; more than the bucket holds if it cannot be told.
    fn cost(&self, cost: u64) -> Ticks {
        // `decide` adds it to a debt: it must not overflow there.
        cost.saturating_mul(self.interval).min(self.tolerance + 1)
    }

    /// Judges a request of `cost` units at `now` by a bucket of `word`: the next word if it is admitted.
    #[inline]
    #[must_use]
    pub fn decide(&self, word: u64, now: Ticks, cost: u64) -> Option<u64> {
        decide(word, now, self.cost(cost), self.tolerance)
    }
}

impl Algorithm for TokenBucket {
    fn words(&self) -> usize {
        1
    }

    fn bound(&self) -> u64 {
        self.bound
    }

    fn capacity(&self) -> u64 {
        self.tolerance / self.interval
    }

    fn renews(&self, state: &[u64]) -> Ticks {
        state[0]
    }

    fn room(&self, state: &[u64], now: Ticks) -> u64 {
        credit(state[0], now, self.tolerance) / self.interval
    }

    fn wait(&self, state: &[u64], now: Ticks, cost: u64) -> Option<Ticks> {
        let debt = state[0].saturating_sub(now) + self.cost(cost);
        (self.cost(cost) <= self.tolerance).then_some(debt.saturating_sub(self.tolerance))
    }

    fn charge(&self, state: &mut [u64], now: Ticks, cost: u64) {
        state[0] = state[0].max(now) + self.cost(cost);
    }

    fn owe(&self, state: &mut [u64], now: Ticks, cost: u64) {
        self.charge(state, now, cost);
        state[0] = state[0].min(self.most(now));
    }

    fn refund(&self, state: &mut [u64], _: Ticks, cost: u64) {
        // A time in the past is that of a full bucket, so no more comes back than it holds.
        state[0] = state[0].saturating_sub(self.cost(cost));
    }

    #[inline]
    fn take(&self, state: &mut [u64], now: Ticks, cost: u64) -> bool {
        let next = self.decide(state[0], now, cost);
        state[0] = next.unwrap_or(state[0]);
        next.is_some()
    }
}
