//! What a host keeps for itself where it has no room for all keys that matter.
//!
//! Of a key that it does not track it could use its floor alone. So it delegates half of its home share of all keys, and
//! uses the other half itself, of whichever key: no message names one. Whoever is tracked everywhere still has half of the
//! limit at whichever host it comes to, and a host's own half beside.

use std::time::Duration;

use crate::{Moment, ViewId};
use model::Share;

use super::Escrow;
use super::host::Host;

/// Whether this host keeps half of its home share.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OwnHalf {
    /// Whether it is to.
    pub(super) wanted: bool,
    /// Whether it delegates no more than the other half.
    delegates_half: bool,
    /// Whether it uses its own half.
    used: bool,
    /// When what is in the way of the next change has ended.
    ends: Moment,
}

impl OwnHalf {
    /// Does what is due. What was delegated by now lasts until then, and an own use for so long. It `waits` for the former,
    /// unless that is a fault.
    pub(super) fn poll(&mut self, now: Moment, delegated: Moment, own_use: Duration, waits: bool) {
        if self.used && !self.wanted {
            self.used = false;
            self.ends = now.after(own_use);
        }
        if !self.ends.has_come(now) && waits {
            return;
        }
        // Nothing that was delegated of this half lasts (I7).
        self.used = self.wanted && self.delegates_half;
        if self.wanted && !self.delegates_half {
            self.ends = delegated;
        }
        self.delegates_half = self.wanted;
    }

    /// What is delegated of that.
    pub(super) fn delegated(&self, share: Share) -> Share {
        if self.delegates_half { half(share) } else { share }
    }

    /// What messages add to the views that they delegate by.
    pub(super) fn told(&self) -> Option<ViewId> {
        self.delegates_half.then_some(ViewId::HALF)
    }
}

/// The views that a message delegates by, of those that it lists, and whether it delegates half: see [`OwnHalf::told`].
pub(super) fn delegates_by(listed: &[ViewId]) -> (&[ViewId], bool) {
    match listed.split_last() {
        Some((&ViewId::HALF, views)) => (views, true),
        _ => (listed, false),
    }
}

/// Half of it, rounded down: both halves are never more than all.
pub(super) fn half(share: Share) -> Share {
    share.times(1, 2)
}

impl Host {
    /// Whether this host uses its own half, as it does for as long as a grant lasts.
    pub(super) fn uses_half(&self, now: Moment) -> bool {
        self.own_half.used && self.takes.has_come(now) && self.uses_own(now)
    }
}

impl Escrow {
    /// From now on there is no room to track all keys that matter, or there is.
    pub fn keep_half(&mut self, keeps: bool) {
        self.host.own_half.wanted = keeps;
    }

    /// What this host may use of each key that it does not track, and until when. None if that is the floor alone.
    ///
    /// Where a majority decides about some limit, of whichever key what that lets this host use.
    // Words for many keys cannot be taken back at once. They end before anything is given away that they are about.
    pub fn share_of_untracked(&self, now: Moment) -> Option<(Share, Moment)> {
        let now = self.clock.at(now);
        if !self.host.uses_half(now) {
            return None;
        }
        let (half, end) = self.own_half(now, self.host.settings.majority);
        let floor = self.host.settings.floor_of(self.home.unceded());
        (!half.is_none()).then(|| (self.excess.scaled(floor) + half, self.clock.host(end)))
    }

    /// Half of the home share, of a key that a `majority` decides about or not, and until when it may be used.
    pub(super) fn own_half(&self, now: Moment, majority: bool) -> (Share, Moment) {
        let settings = &self.host.settings;
        let (end, lent) = (now.after(settings.timing.grant), self.home.lent(settings));
        let (own, end) =
            if majority { self.votes.leased(now, end, settings, lent) } else { (lent, end) };
        (self.excess.scaled(half(own)), end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_is_used_when_nothing_delegated_of_it_lasts_and_delegated_when_no_use_of_it_does() {
        let at = |ms: u64| Moment(ms * 1_000_000);
        let grant = Duration::from_millis(500);
        let mut half = OwnHalf { wanted: true, ..OwnHalf::default() };
        // What it delegates lasts for a second each time.
        let poll = |half: &mut OwnHalf, ms| {
            half.poll(at(ms), at(ms + 1000), grant, true);
            (half.told().is_some(), half.used)
        };
        assert_eq!(poll(&mut half, 0), (true, false));
        assert_eq!(poll(&mut half, 999), (true, false));
        assert_eq!(poll(&mut half, 1000), (true, true));
        assert_eq!(poll(&mut half, 1001), (true, true));
        half.wanted = false;
        assert_eq!(poll(&mut half, 1100), (true, false));
        assert_eq!(poll(&mut half, 1599), (true, false));
        assert_eq!(poll(&mut half, 1600), (false, false));
        // What it delegates whole is not in the way of delegating half.
        assert_eq!(poll(&mut half, 1650), (false, false));
        // Once more, and not after all: nothing was used.
        half.wanted = true;
        assert_eq!(poll(&mut half, 1700), (true, false));
        half.wanted = false;
        assert_eq!(poll(&mut half, 1800), (true, false));
        assert_eq!(poll(&mut half, 2700), (false, false));
    }
}
