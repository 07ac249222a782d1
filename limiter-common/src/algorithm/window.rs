//! A window's counts in one word.

use super::{Algorithm, Unfit, check};
use crate::gcra::Ticks;

/// The most units that a window can count to.
pub const MAX_LIMIT: u64 = (1 << 31) - 1;

/// Bits of what the window before has admitted.
pub(super) const MAX_PREVIOUS_BITS: u32 = 9;

/// A limit of a fixed or a sliding window: see [`Window::fixed`] and [`Window::sliding`].
///
/// The word is `until | previous | current`. `current` is what the window has admitted so far, and `previous` what the one
/// before has, in units of 2^`previous_shift`; a fixed window has none. `until` is the time at which all of it counts no
/// more, rounded up to what is left of the word. It names the window: windows are no shorter than that.
///
/// A word that is not in the future is therefore as good as new, whatever its window is. The other way round it takes
/// longer by less than two units of `until`. With ten bits more than the limit's these are 0.01 % of a window at a limit
/// of 1000 a second, and 0.8 % at one of 100,000.
///
/// An overshoot, which CPUs may add together beyond the limit, was admitted to nobody. It ends with its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// How long it is.
    pub length: Ticks,
    /// What is admitted in one, units; ≤ [`MAX_LIMIT`].
    pub limit: u32,
    /// Bits of `current`.
    pub current_bits: u8,
    /// Bits of `previous`, 0 in a fixed window.
    pub previous_bits: u8,
    /// log2 of the units of `previous`, if there are any.
    pub previous_shift: u8,
}

/// A word as of a moment.
#[derive(Clone, Copy)]
struct Counts {
    /// The word without counts.
    until: u64,
    /// Ticks since the window began.
    elapsed: Ticks,
    /// As the word has it.
    previous: u64,
    current: u64,
}

impl Window {
    /// The layout for `limit` units in a window of `length`, whose counts may overshoot by `headroom`, with up to so many
    /// bits for the window before.
    pub(super) fn new(
        limit: u64,
        headroom: u64,
        length: Ticks,
        previous_bits: u32,
    ) -> Result<Self, Unfit> {
        let most = limit.saturating_add(headroom);
        check(limit, length)?;
        check(most, length)?;
        let bits = |most: u64| u64::BITS - most.leading_zeros();
        let previous_bits = bits(limit).min(previous_bits);
        let current_bits = bits(most);
        if length >> (current_bits + previous_bits) == 0 {
            return Err(Unfit::TooFine);
        }
        Ok(Self {
            length,
            limit: limit as u32,
            current_bits: current_bits as u8,
            previous_bits: previous_bits as u8,
            previous_shift: (bits(limit) - previous_bits) as u8,
        })
    }

    /// Bits of `current`. The masks here are no-ops for valid limits; they give the verifier its bounds.
    #[inline(always)]
    const fn current_bits(&self) -> u32 {
        self.current_bits as u32 & 31
    }

    /// What the next window keeps of one that has counted so much.
    #[inline(always)]
    const fn kept(&self, current: u64) -> u64 {
        if !self.slides() {
            return 0;
        }
        // What is counted beyond the limit was admitted to nobody.
        let limit = self.limit as u64;
        let admitted = if current < limit { current } else { limit };
        admitted >> (self.previous_shift as u32 & 31)
    }

    /// Whether the window before counts, too.
    #[inline(always)]
    const fn slides(&self) -> bool {
        self.previous_bits > 0
    }

    /// Bits below `until`.
    #[inline(always)]
    const fn count_bits(&self) -> u32 {
        self.current_bits() + (self.previous_bits as u32 & 15)
    }

    /// How long after its beginning a window counts.
    #[inline(always)]
    const fn horizon(&self) -> Ticks {
        if self.slides() { 2 * self.length } else { self.length }
    }

    /// `until` of a window that began at `start`.
    #[inline(always)]
    const fn until(&self, start: Ticks) -> u64 {
        let mask = (1 << self.count_bits()) - 1;
        // Wrapping, as the window before the clock's first one began below zero.
        start.wrapping_add(self.horizon()).wrapping_add(mask) & !mask
    }

    /// What `word` counts at `now`.
    #[inline(always)]
    const fn at(&self, word: u64, now: Ticks) -> Counts {
        // Spelled out: a remainder by 0 would bring a panic into the kernel program.
        let elapsed = match now.checked_rem(self.length) {
            Some(elapsed) => elapsed,
            None => 0,
        };
        let start = now - elapsed;
        let (seen, until) = (word >> self.count_bits() << self.count_bits(), self.until(start));
        let current_mask = (1 << self.current_bits()) - 1;
        let (counts, current) = (word ^ seen, word & current_mask);
        if seen >= until {
            // A later window if the caller's clock is behind: time stands still until it has caught up.
            let elapsed = if seen > until { 0 } else { elapsed };
            let previous = counts >> self.current_bits();
            return Counts { until: seen, elapsed, previous, current };
        }
        let mut previous = 0;
        if self.slides() && seen == self.until(start.wrapping_sub(self.length)) {
            previous = self.kept(current);
        }
        Counts { until, elapsed, previous, current: 0 }
    }

    /// The unit of `previous` in ticks for each of its own: what divides its weight.
    #[inline(always)]
    const fn divisor(&self) -> u64 {
        // Rounded down by less than 2^-19 of it, as a window is no shorter than 2^(bits of both counts).
        self.length >> (self.previous_shift as u32 & 31)
    }

    /// What of the window before still counts, units, rounded up.
    #[inline(always)]
    const fn weight(&self, counts: &Counts) -> u64 {
        if !self.slides() {
            return 0;
        }
        // Below 2^63: nine bits times a window of 2^54 at the most.
        let part = counts.previous * (self.length - counts.elapsed);
        let divisor = self.divisor();
        quotient(part + divisor - 1, divisor)
    }

    /// Whether `cost` units more are within the limit.
    #[inline(always)]
    const fn has_room(&self, counts: &Counts, cost: u64) -> bool {
        counts.current + self.weight(counts) + cost <= self.limit as u64
    }

    /// Judges a request of `cost` units at `now` by `word`: the next word if it is admitted.
    ///
    /// The counts are lowest in the word. So where others are faster each time, the cost may be added to it; the word
    /// before it tells whether there was room.
    #[inline(always)]
    #[must_use]
    pub const fn decide(&self, word: u64, now: Ticks, cost: u64) -> Option<u64> {
        let counts = self.at(word, now);
        if !self.has_room(&counts, cost) {
            return None;
        }
        Some(self.word(&counts, counts.current + cost))
    }

    /// The word with other counts of the same window.
    #[inline(always)]
    const fn word(&self, counts: &Counts, current: u64) -> u64 {
        counts.until | counts.previous << self.current_bits() | current
    }

    /// Whether there was room for a request of `cost` units that was added to a word, which was `before`, without a
    /// comparison; `None` if the word was that of another window.
    #[inline(always)]
    #[must_use]
    pub const fn added(&self, before: u64, now: Ticks, cost: u64) -> Option<bool> {
        let counts = self.at(before, now);
        if counts.until != before >> self.count_bits() << self.count_bits() {
            return None;
        }
        Some(self.has_room(&counts, cost))
    }

    /// How many units of the limit are used up at `now`.
    #[inline(always)]
    #[must_use]
    pub const fn used(&self, word: u64, now: Ticks) -> u64 {
        let counts = self.at(word, now);
        counts.current + self.weight(&counts)
    }

    /// The word without `cost` of what the window has admitted; nothing comes back of one that is over.
    #[inline(always)]
    #[must_use]
    pub const fn refunded(&self, word: u64, now: Ticks, cost: u64) -> u64 {
        let counts = self.at(word, now);
        self.word(&counts, counts.current.saturating_sub(cost))
    }

    /// The word of a key that has sent `cost` units, of which the first came up to `age` before `now`: what cannot be
    /// of this window is not counted.
    #[inline(always)]
    #[must_use]
    pub const fn owing(&self, now: Ticks, cost: u64, age: Ticks) -> u64 {
        let counts = self.at(0, now);
        let limit = self.limit as u64;
        let counted = if age > counts.elapsed {
            0
        } else if cost < limit {
            cost
        } else {
            limit
        };
        self.word(&counts, counted)
    }

    /// How long from `now` on a request of `cost` units has to wait, as [`Algorithm::wait`].
    #[inline(always)]
    #[must_use]
    pub const fn wait(&self, word: u64, now: Ticks, cost: u64) -> Option<Ticks> {
        let limit = self.limit as u64;
        if cost > limit {
            return None;
        }
        let mut counts = self.at(word, now);
        if self.has_room(&counts, cost) {
            return Some(0);
        }
        let mut until = 0;
        if counts.current + cost > limit {
            // Not in this window.
            until = self.length - counts.elapsed;
            counts.previous = self.kept(counts.current);
            counts.current = 0;
            counts.elapsed = 0;
        }
        if self.has_room(&counts, cost) {
            return Some(until);
        }
        // The part of the window before that may still count, as ticks until the window's end. Smaller than its weight,
        // so the product is no larger than that in `weight`.
        let left = quotient((limit - counts.current - cost) * self.divisor(), counts.previous);
        Some(until + self.length - counts.elapsed - left)
    }
}

/// Divides; 0 by 0, without the panic that the kernel program cannot have.
#[inline(always)]
const fn quotient(number: u64, divisor: u64) -> u64 {
    match number.checked_div(divisor) {
        Some(quotient) => quotient,
        None => 0,
    }
}

impl Algorithm for Window {
    fn words(&self) -> usize {
        1
    }

    fn bound(&self) -> u64 {
        2 * u64::from(self.limit) - u64::from(self.slides())
    }

    fn capacity(&self) -> u64 {
        u64::from(self.limit)
    }

    fn renews(&self, state: &[u64]) -> Ticks {
        state[0] >> self.count_bits() << self.count_bits()
    }

    fn room(&self, state: &[u64], now: Ticks) -> u64 {
        u64::from(self.limit).saturating_sub(self.used(state[0], now))
    }

    fn wait(&self, state: &[u64], now: Ticks, cost: u64) -> Option<Ticks> {
        self.wait(state[0], now, cost)
    }

    fn charge(&self, state: &mut [u64], now: Ticks, cost: u64) {
        let counts = self.at(state[0], now);
        state[0] = self.word(&counts, counts.current + cost);
    }

    fn owe(&self, state: &mut [u64], now: Ticks, cost: u64) {
        let counts = self.at(state[0], now);
        let most = (1 << self.current_bits()) - 1;
        state[0] = self.word(&counts, counts.current.saturating_add(cost).min(most));
    }

    fn refund(&self, state: &mut [u64], now: Ticks, cost: u64) {
        state[0] = self.refunded(state[0], now, cost);
    }

    #[inline]
    fn take(&self, state: &mut [u64], now: Ticks, cost: u64) -> bool {
        // A packet is far from it, but anybody's number may be too large to be added to the counts.
        if cost > u64::from(self.limit) {
            return false;
        }
        let next = self.decide(state[0], now, cost);
        state[0] = next.unwrap_or(state[0]);
        next.is_some()
    }
}
