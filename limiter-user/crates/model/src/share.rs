//! Parts of a limit.

use std::iter::Sum;
use std::ops::{Add, AddAssign};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Whoever sends little for so long needs no share any more, or after longer where its limit is slow.
// The escrow forgets a key without reports after the same time.
pub const IDLE: Duration = Duration::from_secs(3);
/// Or for so long at the most.
// Buckets of very slow limits take days to fill. To track them so long would take the room of those that are busy.
const MAX_IDLE: Duration = Duration::from_secs(300);

/// For how long a share is needed after the last use of a limit whose bucket takes `fills` s to fill: until then, and a moment
/// until the share has come; 3 s to 5 minutes.
#[must_use]
pub fn life(fills: f64) -> Duration {
    // The floors of other hosts are not to be had. Clamped as seconds: what is too long for a duration would panic.
    let longest = MAX_IDLE.as_secs_f64();
    Duration::from_secs_f64((1.0 + fills * 1.1).clamp(IDLE.as_secs_f64(), longest))
}

/// A part of a limit, of its rate and its burst alike, in units of 2^-32. What a host may use is at most
/// [`Share::WHOLE`]; demand may be more.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
// Whole units: hosts that add the same shares in another order must come to the same sum (P6).
pub struct Share(u64);

impl Share {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// The limit.
    pub const WHOLE: Self = Self(1 << 32);

    /// So many units of 2^-32.
    pub const fn from_units(units: u64) -> Self {
        Self(units)
    }

    /// In units of 2^-32.
    pub const fn units(self) -> u64 {
        self.0
    }

    /// So much of the limit; 0 if `part` is negative or no number.
    pub fn from_part(part: f64) -> Self {
        // A cast of a float saturates: what is negative or no number becomes 0.
        Self((part * Self::WHOLE.0 as f64) as u64)
    }

    /// As a part of the limit.
    pub fn part(self) -> f64 {
        self.0 as f64 / Self::WHOLE.0 as f64
    }

    /// Whether it is nothing.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// What is left without `other`, nothing if that is more.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// `numerator / denominator` of it, rounded down; nothing if the denominator is 0.
    #[must_use]
    pub const fn times(self, numerator: u64, denominator: u64) -> Self {
        if denominator == 0 {
            return Self::NONE;
        }
        // Nearly always it fits, and wide divisions are slow.
        if let Some(product) = self.0.checked_mul(numerator) {
            return Self(product / denominator);
        }
        let product = self.0 as u128 * numerator as u128 / denominator as u128;
        Self(if product > u64::MAX as u128 { u64::MAX } else { product as u64 })
    }
}

impl Add for Share {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        // Demand has no bound, and a sum that wraps would look like none.
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Share {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for Share {
    fn sum<I: Iterator<Item = Self>>(shares: I) -> Self {
        shares.fold(Self::NONE, Self::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_rounded_down_and_never_overflow() {
        assert_eq!(Share::from_part(0.5) + Share::from_part(0.5), Share::WHOLE);
        assert_eq!(Share::from_part(-1.0), Share::NONE);
        let thirds = [Share::WHOLE.times(1, 3); 3].into_iter().sum::<Share>();
        assert!(thirds < Share::WHOLE && thirds.part() > 0.999_999);
        assert_eq!(Share::from_units(u64::MAX) + Share::WHOLE, Share::from_units(u64::MAX));
        assert_eq!(Share::WHOLE.times(1, 0), Share::NONE);
        assert_eq!(Share::from_part(0.25).without(Share::WHOLE), Share::NONE);
    }
}
