//! How much is done at a time, so that it takes about as long as it may.

use std::ops::RangeInclusive;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// How much to do at a time, by how long it has taken.
#[derive(Clone, Debug)]
pub(super) struct AdaptiveBatch {
    much: usize,
    within: RangeInclusive<usize>,
    budget: Duration,
}

impl AdaptiveBatch {
    /// Starts with as little as it may; so much at a time at least and at most, in about `budget`.
    pub(super) const fn new(within: RangeInclusive<usize>, budget: Duration) -> Self {
        // How fast the machine is nobody knows yet. It doubles from there within a few turns.
        Self { much: *within.start(), within, budget }
    }

    /// The same, and starts with so much.
    pub(super) const fn from(self, much: usize) -> Self {
        Self { much, ..self }
    }

    /// How much to do next.
    pub(super) const fn much(&self) -> usize {
        self.much
    }

    /// So much has been done, in so long. Twice as much is done the next time at most.
    pub(super) fn took(&mut self, much: usize, took: Duration) {
        // The least keeps a clock that did not move from dividing by zero.
        let ratio = self.budget.as_secs_f64() / took.as_secs_f64().max(1e-6);
        // Quicker down than up: one turn that is too long delays grants, one that is short costs
        // nothing.
        let next = (much as f64 * ratio.clamp(0.25, 2.0)) as usize;
        // That little was quick says nothing against much.
        let next = if much < self.much && ratio > 1.0 { next.max(self.much) } else { next };
        self.much = next.clamp(*self.within.start(), *self.within.end());
    }
}

/// How long this thread has worked. While it waits for a CPU it does not: on a busy machine a look of a
/// millisecond would put off the next one for seconds, and grants would end.
pub(super) fn worked() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_too_long_becomes_less_and_what_does_not_more() {
        let ms = Duration::from_millis;
        let mut pace = AdaptiveBatch::new(10..=1000, ms(2));
        let mut done = |much, took| {
            pace.took(much, took);
            pace.much()
        };
        assert_eq!(done(10, ms(1)), 20);
        assert_eq!(done(20, ms(0)), 40);
        assert_eq!(done(5, ms(0)), 40);
        assert_eq!(done(40, ms(4)), 20);
        assert_eq!(done(20, ms(100)), 10);
        assert_eq!((0..20).map(|_| done(800, ms(0))).last(), Some(1000));
    }
}
