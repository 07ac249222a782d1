//! A host's monotonic clock, and a clock for what it costs.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use cluster::Moment;
use model::units::parse_duration;

/// A duration, such as `"200ms"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl Span {
    /// In seconds.
    pub const fn seconds(self) -> f64 {
        self.0.as_secs_f64()
    }

    /// In nanoseconds.
    pub const fn ns(self) -> u64 {
        self.0.as_nanos() as u64
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let read = parse_duration(&text).map(Self);
        read.map_err(|error| D::Error::custom(format!("{error}: {}", error.hint())))
    }
}

/// A clock that starts anywhere and runs a little fast or slow. Real moments are ns since the run began.
#[derive(Clone, Copy, Debug)]
// Origins lie hours to weeks apart, as those of machines do: a decision that mixed two hosts'
// moments up would fail at once.
pub(super) struct Clock {
    /// What it showed when the run began.
    base: u64,
    /// By how much it is fast, 0.001 being 1 ms in a second.
    drift: f64,
}

impl Clock {
    pub(super) const fn new(base: u64, drift: f64) -> Self {
        Self { base, drift }
    }

    /// What it shows.
    pub(super) fn local(&self, real: u64) -> Moment {
        let ahead = (real as f64 * self.drift) as i64;
        Moment(self.base.saturating_add(real).saturating_add_signed(ahead))
    }

    /// The real moment, not earlier than when it shows `local`, as far as rounding goes.
    pub(super) fn real(&self, local: Moment) -> u64 {
        // One more: an event that is planned by this must not come before the clock shows `local`.
        ((local.0.saturating_sub(self.base) as f64 / (1.0 + self.drift)) as u64).saturating_add(1)
    }

    /// Sets it by so many seconds, as a machine's clock that starts anew is.
    pub(super) fn step(&mut self, seconds: f64) {
        self.base = self.base.saturating_add_signed((seconds * 1e9) as i64);
    }
}

/// Adds up the time that this thread has the CPU. It is off by default: a run's outcome is to be the same
/// each time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stopwatch {
    on: bool,
    started: Duration,
    sum: Duration,
}

impl Stopwatch {
    pub(super) const fn switch_on(&mut self) {
        self.on = true;
    }

    pub(super) fn start(&mut self) {
        if self.on {
            self.started = thread_time();
        }
    }

    pub(super) fn stop(&mut self) {
        if self.on {
            self.sum += thread_time().saturating_sub(self.started);
        }
    }

    /// What was measured by now.
    pub(super) const fn sum(&self) -> Duration {
        self.sum
    }
}

fn thread_time() -> Duration {
    // Not the time of day: runs are made on all cores at once and wait for each other.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_found_again() {
        let mut clock = Clock::new(5_000_000_000_000, -0.001);
        assert_eq!(clock.local(1_000_000_000), Moment(5_000_999_000_000));
        for real in [0, 1, 999_999_937, 60_000_000_000] {
            let there = clock.local(real);
            assert!(clock.real(there).abs_diff(real) <= 3, "{real}");
        }
        clock.step(-3600.0);
        assert_eq!(clock.local(0), Moment(1_400_000_000_000));
    }
}
