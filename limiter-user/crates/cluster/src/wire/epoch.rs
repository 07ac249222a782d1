//! Since when a host runs.

use serde::{Deserialize, Serialize};

/// One run of a daemon, from its start to its end: the second in which it started by its clock in the
/// upper half, chance in the lower one, and above that of the run before. So a later run has a larger one
/// (if the clock was set back meanwhile, then because the store has kept the one before), and two daemons
/// that were given copies of one disk have different ones.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epoch(pub u64);

impl Epoch {
    /// That of a run that starts now: `before` is the one that the store has kept, `unix` the time in
    /// seconds, `chance` a random number. The store has to keep it before the first frame is sealed.
    #[must_use]
    pub fn starting(before: Option<Self>, unix: u64, chance: u32) -> Self {
        // One more even within a second: nonces of two runs must differ (see `Header::nonce`).
        let kept = before.map_or(0, |epoch| (epoch.0 >> 32) + 1);
        // Zero in the lower half would mean that it is not known.
        // The seconds stop in 2106. Wrapped ones would be refused as an earlier run by all others.
        Self(kept.max(unix).min(u64::from(u32::MAX)) << 32 | u64::from(chance.max(1)))
    }

    /// By which others address this run: the half that cannot be guessed. Never 0.
    pub const fn short(self) -> u32 {
        self.0 as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rises_whatever_the_clock_says() {
        let first = Epoch::starting(None, 1_800_000_000, u32::MAX);
        for unix in [1_800_000_000, 1_799_996_400, 0] {
            let second = Epoch::starting(Some(first), unix, 1);
            assert!(second > first);
            assert!(Epoch::starting(Some(second), unix, 1) > second);
        }
        assert!(Epoch::starting(Some(first), 1_900_000_000, 1).0 >> 32 == 1_900_000_000);
        assert_ne!(Epoch::starting(None, 5, 0).short(), 0);
    }
}
