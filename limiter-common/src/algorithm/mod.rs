//! The algorithms of rate limiting, side by side: pure, in integers, with time as an argument.
//!
//! A limit of `L` units in a window of `W` ticks is the same question to all of them. They differ in what they remember,
//! and by that in the most that they admit in *any* window of that length, wherever it begins:
//!
//! | algorithm | words | at most in any window |
//! |---|---|---|
//! | [`TokenBucket`], as a meter also called leaky bucket | 1 | burst + L |
//! | [fixed window](Window::fixed) | 1 | 2 L |
//! | [sliding window](Window::sliding) | 1 | 2 L − 1, near L for steady traffic |
//! | [`SubWindows`] | n + 3 | L |
//! | [`SlidingLog`] | L + 1 | L |
//!
//! A window is half open: what came `W` ticks ago is no longer in it. Where an algorithm's windows begin, it says.
//!
//! What fits into one word is decided by a function from word to word, which CPUs share by compare-and-swap: the kernel
//! program calls the same one. More words need a lock. Words of 0 are those of a key that nobody has asked for.

mod fixed_window;
mod leaky_bucket;
mod sliding_log;
mod sliding_window;
mod sub_windows;
mod token_bucket;
mod window;

pub use leaky_bucket::LeakyBucket;
pub use sliding_log::SlidingLog;
pub use sub_windows::{MAX_SUB_WINDOWS, SubWindows};
pub use token_bucket::TokenBucket;
pub use window::{MAX_LIMIT, Window};

use crate::gcra::{MAX_TOLERANCE, Ticks};

/// An algorithm with its limit. What it knows of a key lies in words that the caller keeps.
pub trait Algorithm {
    /// Words that a key needs.
    fn words(&self) -> usize;

    /// The most units that are admitted in any window.
    fn bound(&self) -> u64;

    /// The most units that have room at once.
    fn capacity(&self) -> u64;

    /// When the state is as good as new: nothing that was admitted counts any more.
    fn renews(&self, state: &[u64]) -> Ticks;

    /// How many units have room at `now`.
    fn room(&self, state: &[u64], now: Ticks) -> u64;

    /// How long from `now` on a request of `cost` units has to wait for room, if nobody else comes; `None` for one that
    /// is larger than the limit.
    fn wait(&self, state: &[u64], now: Ticks, cost: u64) -> Option<Ticks>;

    /// Charges a request of `cost` units, for which there is room.
    fn charge(&self, state: &mut [u64], now: Ticks, cost: u64);

    /// Charges `cost` units that were used already, whether there was room for them or not. What is beyond the limit is
    /// owed, up to as much again as it is.
    fn owe(&self, state: &mut [u64], now: Ticks, cost: u64);

    /// Gives back `cost` units that were charged. No more comes back than still counts at `now`.
    fn refund(&self, state: &mut [u64], now: Ticks, cost: u64);

    /// Charges a request of `cost` units if there is room: whether there was. One of 0 units is always admitted.
    #[inline]
    fn take(&self, state: &mut [u64], now: Ticks, cost: u64) -> bool {
        let admits = cost <= self.room(state, now);
        if admits {
            self.charge(state, now, cost);
        }
        admits
    }
}

/// Why an algorithm cannot have a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// A limit or a window of nothing.
    Nothing,
    /// A limit of more units than can be counted, or a window that is too long.
    TooLarge,
    /// A window so short that its counts and its time do not fit into a word.
    TooFine,
    /// Windows that do not divide into so many parts, or a number of parts that is not from 2 to [`MAX_SUB_WINDOWS`].
    Parts,
}

/// Whether an algorithm can have a `limit` in a `window`.
const fn check(limit: u64, window: Ticks) -> Result<(), Unfit> {
    if limit == 0 || window == 0 {
        return Err(Unfit::Nothing);
    }
    if limit > MAX_LIMIT || window > MAX_TOLERANCE { Err(Unfit::TooLarge) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
