//! A hybrid logical clock: moments that are near to the wall clock, and that come after all that was known
//! when they were taken, whatever the wall clocks of hosts say.
//!
//! After Kulkarni, Demirbas, Madappa, Avva and Leone, "Logical physical clocks" (2014).

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Milliseconds since 1970, by a host's wall clock.
pub type WallMs = u64;

/// Bits of a stamp that count moments within a millisecond.
/// As many as the paper has: with 48 for the time a stamp is one word, and words compare in one step.
const COUNT_BITS: u32 = 16;

/// How far a stamp may be ahead of this host's wall clock. Clocks that are hours off do no harm; a stamp
/// that is years ahead would be the latest one for as long.
pub const FARTHEST: Duration = Duration::from_secs(24 * 60 * 60);

/// When something was changed: 48 bits of milliseconds since 1970, and 16 bits that count.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Stamp(pub u64);

impl Stamp {
    /// The first one of a millisecond.
    pub const fn at(wall: WallMs) -> Self {
        // Bits shifted out would make the stamp of a clock gone mad an early one, which loses to all others.
        let most = u64::MAX >> COUNT_BITS;
        Self((if wall > most { most } else { wall }) << COUNT_BITS)
    }

    /// Its millisecond.
    pub const fn wall(self) -> WallMs {
        self.0 >> COUNT_BITS
    }

    /// The next one. A count that is used up takes the next millisecond.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// How far it is ahead of a wall clock.
    pub const fn ahead_of(self, wall: WallMs) -> Duration {
        Duration::from_millis(self.wall().saturating_sub(wall))
    }
}

/// The clock of a host.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    last: Stamp,
    /// The furthest that it was ahead of the wall clock, when it was last read.
    ahead: Duration,
}

impl Clock {
    /// A clock that comes after `last`.
    pub(super) fn after(last: Stamp) -> Self {
        Self { last, ahead: Duration::ZERO }
    }

    /// The moment of a change that is made now. It is later than all that were taken and seen.
    pub(super) fn tick(&mut self, wall: WallMs) -> Stamp {
        // The wall clock may have been set back: a change still has to win over the one that it follows.
        self.last = Stamp::at(wall).max(self.last.next());
        self.ahead = self.last.ahead_of(wall);
        self.last
    }

    /// Notes a moment that another host has taken. Returns whether it can be: not if it is too far ahead.
    pub(super) fn see(&mut self, wall: WallMs, stamp: Stamp) -> bool {
        // Before it is taken: this host's own changes would carry the wrong time on.
        if stamp.ahead_of(wall) > FARTHEST {
            return false;
        }
        self.last = self.last.max(stamp);
        self.ahead = self.last.ahead_of(wall);
        true
    }

    /// How far changes of this host are stamped ahead of its wall clock, as of the last of them: somebody's
    /// clock is wrong by that, or was.
    pub(super) const fn ahead(&self) -> Duration {
        self.ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;
    const NOON: u64 = 1_800_000_000_000;

    #[test]
    fn moments_only_rise_and_keep_to_the_wall_clock() {
        let mut clock = Clock::default();
        let mut last = Stamp::default();
        // On, still, back by an hour, on by an hour, back again.
        for wall in [NOON, NOON, NOON - HOUR, NOON + HOUR, NOON, NOON + 2 * HOUR] {
            let stamp = clock.tick(wall);
            assert!(stamp > last);
            assert!(stamp.wall() >= wall && stamp.wall() <= NOON + 2 * HOUR);
            last = stamp;
        }
        assert_eq!((last, clock.ahead()), (Stamp::at(NOON + 2 * HOUR), Duration::ZERO));
    }

    #[test]
    fn what_was_seen_is_before_what_comes() {
        let mut clock = Clock::default();
        let theirs = Stamp::at(NOON + HOUR).next();
        assert!(clock.see(NOON, theirs));
        assert_eq!(clock.tick(NOON), theirs.next());
        assert_eq!(clock.ahead(), Duration::from_millis(HOUR));
        assert!(clock.see(NOON, Stamp::at(NOON)), "an old one changes nothing");
        assert_eq!(clock.tick(NOON), theirs.next().next());
        let far = Stamp::at(NOON + FARTHEST.as_millis() as u64 + 1);
        assert!(!clock.see(NOON, far) && !clock.see(NOON, Stamp(u64::MAX)));
        assert_eq!(clock.tick(NOON), theirs.next().next().next());
    }

    #[test]
    fn a_millisecond_can_be_used_up() {
        let mut clock = Clock::default();
        let first = clock.tick(NOON);
        for _ in 0..70_000 {
            clock.tick(NOON);
        }
        assert_eq!((first.wall(), clock.tick(NOON).wall()), (NOON, NOON + 1));
    }
}
