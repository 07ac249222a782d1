//! Evidence that a source is real, which a ban asks for.
//!
//! Anybody can send packets in the name of another source. So samples of what a source sends over its limit are looked
//! up among this host's established TCP connections, and its bucket counts both: how many were looked up, and how many
//! belong to a connection. Nobody completes a handshake from a forged address.

use crate::gcra::{TICKS_PER_NS, Ticks};

/// The time for one sample, on each CPU: 2048 a second.
// A lookup takes some 200 ns: a flood of forged packets takes less than a thousandth of a CPU by it.
pub const INTERVAL: Ticks = 1_000_000_000 * TICKS_PER_NS / 2048;

/// Samples at once, as time: 64 ms.
// By the coarse clock, which moves up to 10 ms at once: what was earned meanwhile must not be lost.
pub const TOLERANCE: Ticks = 128 * INTERVAL;

/// From how many bytes on each packet is a sample under a limit of bytes; a power of two.
// Longer ones count less than they should: on a wire of 1500 bytes by no more than a third, which is no use to who
// forges them (half of the samples, and twice the limit, must be a source's own). With more, samples of small packets
// would be rare.
const MAX_WEIGHT: u32 = 1024;

/// Whether a packet of `length` bytes is a sample, under a limit of bytes, by a random number.
// By its length, so that the samples measure bytes: a few large forged packets must not pass for the many small ones
// of a connection.
#[inline(always)]
#[must_use]
pub const fn is_weighty(length: u32, random: u32) -> bool {
    random & (MAX_WEIGHT - 1) < length
}

/// What was looked up of a source since it got its bucket. Both numbers are modulo 2^28.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Samples of its packets over the limit.
    pub sampled: u32,
    /// Of those, how many belong to an established TCP connection.
    pub connected: u32,
}

impl Evidence {
    const MASK: u32 = (1 << ClassWord::BITS) - 1;

    /// What came since `before`, of the same bucket.
    #[must_use]
    pub const fn since(self, before: Self) -> Self {
        let sampled = self.sampled.wrapping_sub(before.sampled) & Self::MASK;
        let connected = self.connected.wrapping_sub(before.connected) & Self::MASK;
        Self { sampled, connected }
    }
}

/// What a bucket is for, and what speaks for its source: `connected:28 | sampled:28 | class:8`. One word, because the
/// line is full; and one addition counts a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassWord(pub u64);

impl ClassWord {
    const CLASS_BITS: u32 = 8;
    const BITS: u32 = 28;

    /// A bucket for a class, of whose source nothing is known.
    #[inline(always)]
    #[must_use]
    pub const fn new(class: u32) -> Self {
        Self(class as u64 & ((1 << Self::CLASS_BITS) - 1))
    }

    /// The class of traffic that the bucket is for: see [`crate::class`].
    #[inline(always)]
    #[must_use]
    pub const fn class(self) -> u8 {
        self.0 as u8
    }

    /// What was looked up.
    #[must_use]
    pub const fn evidence(self) -> Evidence {
        let sampled = (self.0 >> Self::CLASS_BITS) as u32 & Evidence::MASK;
        let connected = (self.0 >> (Self::CLASS_BITS + Self::BITS)) as u32;
        Evidence { sampled, connected }
    }

    /// What counts one more sample when it is added to the word.
    // Every 2^28 samples one is carried into those that belong to a connection. That is no evidence.
    #[inline(always)]
    #[must_use]
    pub const fn sample(is_connected: bool) -> u64 {
        let connected = (is_connected as u64) << (Self::CLASS_BITS + Self::BITS);
        1 << Self::CLASS_BITS | connected
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn samples_leave_the_class_alone(class in 0u32..256, samples: [bool; 40]) {
            let mut word = ClassWord::new(class);
            for (index, connected) in samples.into_iter().enumerate() {
                let before = word.evidence();
                word.0 = word.0.wrapping_add(ClassWord::sample(connected));
                let step = Evidence { sampled: 1, connected: u32::from(connected) };
                prop_assert_eq!(word.evidence().since(before), step);
                prop_assert_eq!(word.evidence().sampled, index as u32 + 1);
            }
            let connected = samples.into_iter().filter(|connected| *connected).count();
            prop_assert_eq!(word.evidence().connected, connected as u32);
            prop_assert_eq!(u32::from(word.class()), class);
        }
    }

    #[test]
    fn a_count_that_begins_anew_is_no_evidence() {
        let last = ClassWord(ClassWord::new(7).0 | u64::from(Evidence::MASK) << 8);
        let next = ClassWord(last.0.wrapping_add(ClassWord::sample(false)));
        assert_eq!((next.class(), next.evidence().sampled), (7, 0));
        let since = next.evidence().since(last.evidence());
        assert_eq!((since.sampled, since.connected), (1, 1), "one of 2^28");
    }

    #[test]
    fn long_packets_are_samples_more_often() {
        let chance = |length| (0..1 << 16).filter(|random| is_weighty(length, *random)).count();
        assert_eq!(chance(64) * 16, chance(1024));
        assert_eq!((chance(1024), chance(9000)), (1 << 16, 1 << 16));
    }
}
