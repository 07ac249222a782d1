//! The sliding window of many counters.

use super::{Algorithm, Unfit, check};
use crate::gcra::Ticks;

/// The most parts of a window.
pub const MAX_SUB_WINDOWS: u64 = 60;

/// Counts in `n` parts of a window, and forgets a part when all of it is older than the window (Figma 2017 has 60).
///
/// `n + 3` words: the part that time is in, what all of them have admitted, and a ring of `n + 1` counters. The running sum
/// spares a decision the reads of all counters. Parts begin at multiples of `W / n` on the caller's clock.
///
/// **Bound.** `L`: at any moment the counted parts cover the whole window that ends then. They cover up to one part more,
/// so it admits no more than the log of a window of `W`, and no less than that of one of `W · (n + 1) / n`.
///
/// **Clock.** One that goes back stays in the last part until it has caught up. One that jumps ahead forgets what is older.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubWindows {
    limit: u64,
    part: Ticks,
    counters: u64,
}

/// Where the parts of the state lie.
const POSITION: usize = 0;
const SUM: usize = 1;
const RING: usize = 2;

impl SubWindows {
    /// `limit` units in a `window` of so many `parts`.
    ///
    /// # Errors
    /// If limit or window is 0 or too large, there are fewer than 2 or more than [`MAX_SUB_WINDOWS`] parts, or the window
    /// does not divide into them.
    pub fn new(limit: u64, window: Ticks, parts: u64) -> Result<Self, Unfit> {
        check(limit, window)?;
        if !(2..=MAX_SUB_WINDOWS).contains(&parts) || !window.is_multiple_of(parts) {
            return Err(Unfit::Parts);
        }
        Ok(Self { limit, part: window / parts, counters: parts + 1 })
    }

    /// The part that time is in: never one before the last.
    fn position(&self, state: &[u64], now: Ticks) -> u64 {
        (now / self.part).max(state[POSITION])
    }

    const fn counter(&self, position: u64) -> usize {
        RING + (position % self.counters) as usize
    }

    /// The first part that counts at `position`; those before it are forgotten.
    const fn first(&self, position: u64) -> u64 {
        (position + 1).saturating_sub(self.counters)
    }

    /// The parts that the state still has but that do not count any more at `position`.
    fn forgotten(&self, state: &[u64], position: u64) -> core::ops::Range<u64> {
        let last = state[POSITION];
        self.first(last)..self.first(position).min(last + 1)
    }

    /// What the state has that counts at `now`.
    fn counted(&self, state: &[u64], now: Ticks) -> u64 {
        let forgotten = self.forgotten(state, self.position(state, now));
        state[SUM] - forgotten.map(|part| state[self.counter(part)]).sum::<u64>()
    }

    /// Goes on to the part that `now` is in.
    fn advance(&self, state: &mut [u64], now: Ticks) {
        let position = self.position(state, now);
        if position == state[POSITION] {
            return;
        }
        let forgotten = self.forgotten(state, position);
        // One division for all of them, and none for a key that has been quiet for long.
        let mut counter = self.counter(forgotten.start);
        for _ in forgotten {
            if state[SUM] == 0 {
                break;
            }
            state[SUM] -= state[counter];
            state[counter] = 0;
            counter = if counter + 1 < self.words() { counter + 1 } else { RING };
        }
        state[POSITION] = position;
    }

    /// Counts `cost` units in the part that time is in.
    fn add(&self, state: &mut [u64], cost: u64) {
        state[self.counter(state[POSITION])] += cost;
        state[SUM] += cost;
    }
}

impl Algorithm for SubWindows {
    fn words(&self) -> usize {
        RING + self.counters as usize
    }

    fn bound(&self) -> u64 {
        self.limit
    }

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn renews(&self, state: &[u64]) -> Ticks {
        if state[SUM] == 0 { 0 } else { (state[POSITION] + self.counters) * self.part }
    }

    fn room(&self, state: &[u64], now: Ticks) -> u64 {
        self.limit.saturating_sub(self.counted(state, now))
    }

    fn wait(&self, state: &[u64], now: Ticks, cost: u64) -> Option<Ticks> {
        if cost > self.limit {
            return None;
        }
        // More than the limit where some of it is owed.
        let mut missing = (cost + self.counted(state, now)).saturating_sub(self.limit);
        if missing == 0 {
            return Some(0);
        }
        let position = self.position(state, now);
        let counted = self.first(position).max(self.first(state[POSITION]))..=state[POSITION];
        for part in counted {
            missing = missing.saturating_sub(state[self.counter(part)]);
            if missing == 0 {
                return Some((part + self.counters) * self.part - now);
            }
        }
        None
    }

    fn charge(&self, state: &mut [u64], now: Ticks, cost: u64) {
        self.advance(state, now);
        self.add(state, cost);
    }

    fn owe(&self, state: &mut [u64], now: Ticks, cost: u64) {
        self.advance(state, now);
        self.add(state, cost.min((2 * self.limit).saturating_sub(state[SUM])));
    }

    fn refund(&self, state: &mut [u64], now: Ticks, cost: u64) {
        self.advance(state, now);
        let (mut left, position) = (cost, state[POSITION]);
        // The latest first: what was charged by mistake is more likely there.
        for part in (self.first(position)..=position).rev() {
            let counter = self.counter(part);
            let back = left.min(state[counter]);
            state[counter] -= back;
            state[SUM] -= back;
            left -= back;
        }
    }

    #[inline]
    fn take(&self, state: &mut [u64], now: Ticks, cost: u64) -> bool {
        self.advance(state, now);
        let admits = cost <= self.limit.saturating_sub(state[SUM]);
        if admits {
            self.add(state, cost);
        }
        admits
    }
}
