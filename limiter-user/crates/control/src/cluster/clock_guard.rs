//! Whether this host's clock runs at the right speed: leases and buckets rest on that.

use std::fmt;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Over so long, at least, clocks are compared.
// Shorter, and what passes between reading one and the next would look like a wrong rate.
const WINDOW: Duration = Duration::from_secs(1);

/// By what part of that they may differ, which is what leases allow for.
const TOLERANCE: f64 = 1e-3;

/// Clocks that are read later than this after each other say nothing.
const AT_ONCE: Duration = Duration::from_micros(100);

/// A clock that stands still for less is no reason to worry: leases allow for it.
const SUSPENDED: Duration = Duration::from_millis(1);

/// What three clocks of the kernel say at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    /// By which leases and buckets go. Whoever sets the time may slew it, chrony by up to 8.3 %.
    monotonic: Duration,
    /// As that one, but it is never slewed.
    raw: Duration,
    /// As the first one, but it goes on while the machine is suspended.
    boot: Duration,
}

impl Reading {
    /// None if this thread was held up meanwhile.
    fn now() -> Option<Self> {
        let read = |clock| clock_gettime(clock).ok().map(Duration::from);
        let before = read(ClockId::CLOCK_MONOTONIC_RAW)?;
        let (monotonic, boot) = (read(ClockId::CLOCK_MONOTONIC)?, read(ClockId::CLOCK_BOOTTIME)?);
        let raw = read(ClockId::CLOCK_MONOTONIC_RAW)?;
        (raw.saturating_sub(before) < AT_ONCE).then_some(Self { monotonic, raw, boot })
    }
}

/// Why the clock is not trusted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ClockFault {
    /// It is fast by this part, slow if that is negative.
    Rate(f64),
    /// It stood still for so long.
    Suspended(Duration),
}

impl fmt::Display for ClockFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Rate(rate) => {
                let how = if rate > 0.0 { "fast" } else { "slow" };
                write!(f, "the clock of this host runs {:.1} % {how}", 100.0 * rate.abs())
            }
            Self::Suspended(span) => {
                write!(f, "this host was suspended for {:.1} s", span.as_secs_f64())
            }
        }
    }
}

/// Compares the clocks of the kernel.
#[derive(Debug, Default)]
pub(super) struct ClockGuard {
    since: Option<Reading>,
}

impl ClockGuard {
    /// What is wrong with the clock, or was since it was looked at last.
    pub(super) fn look(&mut self) -> Option<ClockFault> {
        self.compare(Reading::now()?)
    }

    fn compare(&mut self, now: Reading) -> Option<ClockFault> {
        let Some(since) = self.since else {
            self.since = Some(now);
            return None;
        };
        let monotonic = now.monotonic.saturating_sub(since.monotonic);
        let raw = now.raw.saturating_sub(since.raw);
        let still = now.boot.saturating_sub(since.boot).saturating_sub(monotonic);
        let suspended = (still > SUSPENDED).then_some(ClockFault::Suspended(still));
        if suspended.is_none() && raw < WINDOW {
            return None;
        }
        self.since = Some(now);
        let rate = monotonic.as_secs_f64() / raw.as_secs_f64() - 1.0;
        suspended.or_else(|| (rate.abs() > TOLERANCE).then_some(ClockFault::Rate(rate)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the guard says every 200 ms, while the clock runs fast by so much.
    fn told(guard: &mut ClockGuard, now: &mut Reading, rate: f64, looks: u32) -> Vec<ClockFault> {
        let each = Duration::from_millis(200);
        let mut told = Vec::new();
        for _ in 0..looks {
            now.raw += each;
            now.monotonic += each.mul_f64(1.0 + rate);
            now.boot += each.mul_f64(1.0 + rate);
            told.extend(guard.compare(*now));
        }
        told
    }

    #[test]
    fn a_slewed_clock_is_seen_within_two_seconds_and_trusted_again() {
        for rate in [0.083_333, -0.083_333, 0.002, -0.002] {
            let (mut guard, mut now) = (ClockGuard::default(), Reading::default());
            // As NTP steers it.
            assert_eq!(told(&mut guard, &mut now, 0.000_5, 50), []);
            let faults = told(&mut guard, &mut now, rate, 10);
            let Some(ClockFault::Rate(last)) = faults.last() else { panic!("{faults:?}") };
            assert!((last - rate).abs() < 1e-4, "{last}, not {rate}");
            assert!(told(&mut guard, &mut now, 0.0, 10).len() <= 1);
            assert_eq!(told(&mut guard, &mut now, 0.0, 50), []);
        }
    }

    #[test]
    fn a_suspended_machine_is_told_of_once() {
        let (mut guard, mut now) = (ClockGuard::default(), Reading::default());
        assert_eq!(told(&mut guard, &mut now, 0.0, 3), []);
        let span = Duration::from_secs(30);
        now.boot += span;
        assert_eq!(told(&mut guard, &mut now, 0.0, 1), [ClockFault::Suspended(span)]);
        assert_eq!(told(&mut guard, &mut now, 0.0, 50), []);
    }

    #[test]
    fn this_machine_has_such_clocks() {
        let reading = (0..1000).find_map(|_| Reading::now()).expect("three clocks");
        assert!(reading.boot >= reading.monotonic && !reading.raw.is_zero());
    }
}
