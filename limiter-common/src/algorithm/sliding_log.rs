//! The log: exact, at the price of a word for each unit.

use super::{Algorithm, Unfit, check};
use crate::gcra::Ticks;

/// Remembers when each of the last `L` units was admitted. A request of `x` units has room if the `x`-th oldest of them is
/// older than the window.
///
/// `L + 1` words: where the oldest one lies, and a ring of times plus one; 0 for none.
///
/// **Bound.** `L`, and all of it: it is what a limit of `L` in any window means. It has no windows of its own.
///
/// **Clock.** One that goes back stays at the last time until it has caught up. One that jumps ahead forgets what is older.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    limit: u64,
    window: Ticks,
}

/// Where the parts of the state lie.
const OLDEST: usize = 0;
const RING: usize = 1;

impl SlidingLog {
    /// `limit` units in a `window`.
    ///
    /// # Errors
    /// If one of them is 0 or too large.
    pub fn new(limit: u64, window: Ticks) -> Result<Self, Unfit> {
        check(limit, window)?;
        Ok(Self { limit, window })
    }

    /// Where the unit lies that has `older` ones before it.
    const fn place(&self, state: &[u64], older: u64) -> usize {
        let place = state[OLDEST] + older;
        // No division: this is asked for each request.
        RING + (if place < self.limit { place } else { place - self.limit }) as usize
    }

    /// The time: never before the last unit.
    fn time(&self, state: &[u64], now: Ticks) -> Ticks {
        now.max(state[self.place(state, self.limit - 1)].saturating_sub(1))
    }

    /// When the unit that has `older` ones before it leaves the window; 0 if there is none.
    const fn leaves(&self, state: &[u64], older: u64) -> Ticks {
        match state[self.place(state, older)] {
            0 => 0,
            time => time - 1 + self.window,
        }
    }
}

impl Algorithm for SlidingLog {
    fn words(&self) -> usize {
        RING + self.limit as usize
    }

    fn bound(&self) -> u64 {
        self.limit
    }

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn renews(&self, state: &[u64]) -> Ticks {
        self.leaves(state, self.limit - 1)
    }

    fn room(&self, state: &[u64], now: Ticks) -> u64 {
        let now = self.time(state, now);
        // Times never fall from the oldest on.
        let (mut least, mut most) = (0, self.limit);
        while least < most {
            let middle = u64::midpoint(least, most);
            if self.leaves(state, middle) <= now {
                least = middle + 1;
            } else {
                most = middle;
            }
        }
        least
    }

    fn wait(&self, state: &[u64], now: Ticks, cost: u64) -> Option<Ticks> {
        match cost {
            0 => Some(0),
            _ if cost > self.limit => None,
            _ => Some(self.leaves(state, cost - 1).saturating_sub(now)),
        }
    }

    fn charge(&self, state: &mut [u64], now: Ticks, cost: u64) {
        let now = self.time(state, now);
        for _ in 0..cost.min(self.limit) {
            let oldest = self.place(state, 0);
            state[oldest] = now + 1;
            state[OLDEST] = (self.place(state, 1) - RING) as u64;
        }
    }

    fn owe(&self, state: &mut [u64], now: Ticks, cost: u64) {
        // Who has used more than the log remembers waits for the last ones of it.
        self.charge(state, now, cost);
    }

    fn refund(&self, state: &mut [u64], now: Ticks, cost: u64) {
        for _ in 0..cost {
            if self.leaves(state, self.limit - 1) <= now {
                return;
            }
            let last = self.place(state, self.limit - 1);
            state[last] = 0;
            state[OLDEST] = (last - RING) as u64;
        }
    }

    #[inline]
    fn take(&self, state: &mut [u64], now: Ticks, cost: u64) -> bool {
        let admits = self.wait(state, self.time(state, now), cost) == Some(0);
        if admits {
            self.charge(state, now, cost);
        }
        admits
    }
}
