//! Time for decisions: since 1970, and never back.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use limiter_common::gcra::Ticks;
use model::meter::ticks;
use nix::time::{ClockId, clock_gettime};

/// A clock that began with this boot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    epoch: Duration,
}

/// How long this boot lasts, with the time that the machine was suspended.
fn since_boot() -> Duration {
    // The kernel has this clock since 2.6.39, and nothing else can be wrong.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

impl Clock {
    /// When this boot began, by the wall clock of now, ns since 1970.
    #[must_use]
    pub(crate) fn boot() -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.saturating_sub(since_boot()).as_nanos() as u64
    }

    /// A clock of which `epoch` is the beginning, ns since 1970. The wall clock may be set while it goes on.
    #[must_use]
    pub(crate) const fn since(epoch: u64) -> Self {
        Self { epoch: Duration::from_nanos(epoch) }
    }

    /// The time.
    #[must_use]
    pub(crate) fn now(&self) -> Ticks {
        self.at(since_boot())
    }

    /// The time so long after the boot.
    #[must_use]
    pub(crate) fn at(&self, since_boot: Duration) -> Ticks {
        ticks(self.epoch + since_boot)
    }
}
