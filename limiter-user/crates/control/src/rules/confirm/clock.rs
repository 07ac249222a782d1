//! Deadlines that survive the daemon and the machine.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Names the boot that the machine is in.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What clocks show at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Clocks {
    /// Since 1970.
    wall: Duration,
    /// Since the machine was started, sleep included.
    boot: Duration,
    /// Which start that was; empty if it cannot be told.
    boot_id: String,
}

impl Clocks {
    /// At present.
    pub(super) fn now() -> Self {
        let boot = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
        let boot_id = std::fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { wall, boot, boot_id }
    }
}

/// A moment to come. Within a boot, the clock that nobody sets decides; after another, the wall clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Deadline {
    period: Duration,
    wall: Duration,
    boot: Duration,
    boot_id: String,
}

impl Deadline {
    /// `period` from `now` on.
    pub(super) fn new(now: Clocks, period: Duration) -> Self {
        Self { period, wall: now.wall + period, boot: now.boot + period, boot_id: now.boot_id }
    }

    /// The time left, never more than there was at first.
    pub(super) fn left(&self, now: &Clocks) -> Duration {
        let same_boot = !self.boot_id.is_empty() && self.boot_id == now.boot_id;
        let left = if same_boot {
            self.boot.saturating_sub(now.boot)
        } else {
            self.wall.saturating_sub(now.wall)
        };
        left.min(self.period)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clocks(wall: u64, boot: u64, boot_id: &str) -> Clocks {
        let (wall, boot) = (Duration::from_secs(wall), Duration::from_secs(boot));
        Clocks { wall, boot, boot_id: boot_id.into() }
    }

    #[test]
    fn the_boot_clock_decides_within_a_boot_and_the_wall_clock_after_it() {
        let deadline = Deadline::new(clocks(1000, 50, "one"), Duration::from_secs(60));
        let left = |wall, boot, id: &str| deadline.left(&clocks(wall, boot, id)).as_secs();
        assert_eq!(left(1000, 50, "one"), 60);
        assert_eq!(left(9999, 60, "one"), 50, "somebody has set the wall clock");
        assert_eq!(left(1, 111, "one"), 0);
        assert_eq!(left(1010, 5, "two"), 50);
        assert_eq!(left(1100, 5, "two"), 0);
        assert_eq!(left(10, 5, "two"), 60, "a wall clock that went back");
        let unknown = Deadline::new(clocks(1000, 50, ""), Duration::from_secs(60));
        assert_eq!(unknown.left(&clocks(1030, 5, "")).as_secs(), 30);
    }

    #[test]
    fn clocks_run() {
        let deadline = Deadline::new(Clocks::now(), Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(20));
        let left = deadline.left(&Clocks::now());
        assert!(left < Duration::from_millis(4990) && left > Duration::from_secs(1), "{left:?}");
    }
}
