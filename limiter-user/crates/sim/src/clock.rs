//! A host's monotonic clock, and a clock for what it costs.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize, Serializer};

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

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_duration(self.0))
    }
}

/// A clock that starts anywhere and runs a little fast or slow. Real moments are ns since the run began.
#[derive(Clone, Copy, Debug)]
// Origins lie hours to weeks apart, as those of machines do: a decision that mixed two hosts'
// moments up would fail at once.
pub(super) struct Clock {
    /// What it showed at the real moment `since`.
    base: u64,
    since: u64,
    /// By how much it is fast from then on, 0.001 being 1 ms in a second.
    drift: f64,
    /// It goes on by so many ns at once.
    step: u64,
}

impl Clock {
    pub(super) const fn new(base: u64, drift: f64, step: u64) -> Self {
        Self { base, since: 0, drift, step }
    }

    /// What it shows at a moment that is not before it was last set.
    pub(super) fn local(&self, real: u64) -> Moment {
        let real = real.saturating_sub(self.since);
        let ahead = (real as f64 * self.drift) as i64;
        let shows = self.base.saturating_add(real).saturating_add_signed(ahead);
        Moment(shows - shows % self.step)
    }

    /// The real moment, not earlier than when it shows `local`, as far as rounding goes.
    pub(super) fn real(&self, local: Moment) -> u64 {
        let shows = local.0.div_ceil(self.step).saturating_mul(self.step);
        let real = (shows.saturating_sub(self.base) as f64 / (1.0 + self.drift)) as u64;
        // One more: an event that is planned by this must not come before the clock shows `local`.
        self.since.saturating_add(real).saturating_add(1)
    }

    /// Shows this from now on, as a machine that starts, or that stood still.
    pub(super) const fn set(&mut self, real: u64, shows: Moment) {
        (self.base, self.since) = (shows.0, real);
    }

    /// Runs faster by so much from now on, or slower.
    pub(super) fn slew(&mut self, real: u64, by: f64) {
        self.set(real, self.local(real));
        self.drift += by;
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
        let mut clock = Clock::new(5_000_000_000_000, -0.001, 1);
        assert_eq!(clock.local(1_000_000_000), Moment(5_000_999_000_000));
        for real in [0, 1, 999_999_937, 60_000_000_000] {
            let there = clock.local(real);
            assert!(clock.real(there).abs_diff(real) <= 3, "{real}");
        }
        clock.set(2_000_000_000, Moment(7_000_000_000));
        assert_eq!(clock.local(3_000_000_000), Moment(7_999_000_000));
        clock.slew(3_000_000_000, 0.051);
        assert!(clock.local(4_000_000_000).0.abs_diff(9_049_000_000) <= 1);
        for real in [3_000_000_000, 3_999_999_937, 60_000_000_000] {
            let there = clock.local(real);
            assert!(clock.real(there).abs_diff(real) <= 3, "{real}");
        }
    }

    #[test]
    fn a_coarse_clock_shows_whole_steps_and_each_as_soon_as_it_begins() {
        let clock = Clock::new(5_000_000_300, 0.0, 1_000);
        for (real, shows) in [(0, 0), (699, 0), (700, 1_000), (1_699, 1_000), (1_700, 2_000)] {
            assert_eq!(clock.local(real), Moment(5_000_000_000 + shows), "{real}");
        }
        for moment in [5_000_000_301, 5_000_000_999, 5_000_001_000].map(Moment) {
            assert_eq!(clock.local(clock.real(moment)), Moment(5_000_001_000));
        }
    }
}
