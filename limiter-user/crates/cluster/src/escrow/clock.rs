//! The host's time as its messages tell it, and how long a lease lasts for whom.

use std::time::Duration;

use crate::Moment;

/// How far beyond the present the kept moment lies: so often, at least, it is written.
const AHEAD: Duration = Duration::from_secs(3600);

/// What a holder uses of a lease: a quarter of a percent less than it was given for, so that its end is
/// before the grantor's while neither clock is wrong by more than a tenth of a percent.
pub(super) fn usable(span: Duration) -> Duration {
    span - span / 400
}

/// How long a host waits at a start for all that it may have given before.
pub(super) fn grace(longest: Duration) -> Duration {
    longest + longest / 400
}

impl Moment {
    /// Whether it has come. What lasts until a moment is over at it, and what is due is done.
    pub(super) fn has_come(self, now: Self) -> bool {
        self <= now
    }

    /// Whether it is less than `span` ago.
    pub(super) fn is_recent(self, now: Self, span: Duration) -> bool {
        now.since(self) < span
    }
}

/// A clock that only goes forward, over restarts of the host too: what comes back from others with a moment
/// of an earlier run is known by it.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    /// What is added to the host's clock.
    shift: u64,
    now: Moment,
    /// When this run began.
    pub(super) start: Moment,
}

impl Clock {
    /// A clock that begins after `kept`, a moment that no earlier run has reached.
    pub(super) fn new(host: Moment, kept: Moment) -> Self {
        // A monotonic clock begins anew with each boot: without a shift it would repeat moments already told.
        let shift = (kept.0 + 1).saturating_sub(host.0);
        let now = Moment(host.0.saturating_add(shift));
        Self { shift, now, start: now }
    }

    /// The time to go by when the host's clock says so.
    pub(super) fn at(&self, host: Moment) -> Moment {
        Moment(host.0.saturating_add(self.shift)).max(self.now)
    }

    pub(super) fn advance(&mut self, host: Moment) -> Moment {
        self.now = self.at(host);
        self.now
    }

    /// The last moment that it was told.
    pub(super) fn now(&self) -> Moment {
        self.now
    }

    /// What the host's clock says then.
    pub(super) fn host(&self, moment: Moment) -> Moment {
        Moment(moment.0.saturating_sub(self.shift))
    }

    /// The moment to keep instead of `kept`, if it is time.
    pub(super) fn renew(&self, kept: Moment) -> Option<Moment> {
        // At half of the way: the disk may be slow, and no message may tell a moment that is not kept.
        (self.now.after(AHEAD / 2) > kept).then(|| self.now.after(AHEAD))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_until_a_moment_is_over_at_it() {
        let come = [9, 10, 11].map(|now| Moment(10).has_come(Moment(now)));
        assert_eq!(come, [false, true, true]);
        let span = Duration::from_nanos(5);
        let recent = [9, 14, 15].map(|now| Moment(10).is_recent(Moment(now), span));
        assert_eq!(recent, [true, true, false]);
    }
}
