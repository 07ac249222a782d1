//! What a replica knows of another one.

use std::collections::BTreeSet;
use std::time::Duration;

use super::clock::Stamp;
use super::packet::Body;
use crate::Moment;

/// How long two replicas may differ before they are compared: a change is on its way for a moment.
const GRACE: Duration = Duration::from_millis(500);

/// How soon they are compared again while they still differ; more and more slowly.
/// Two versions may differ for good, where one does not understand what the other keeps.
const SOONEST: Duration = Duration::from_secs(1);
const LATEST: Duration = Duration::from_secs(60);

/// What waits to be sent to a peer, at most; what there is no room for is found by comparing.
const MAX_RANGES: usize = 256;
const MAX_BODIES: usize = 64;

/// Another replica.
pub(super) struct Peer {
    /// Since when it differs.
    differs: Option<Moment>,
    /// When it may be compared again, and how long it is waited then.
    again: Moment,
    wait: Duration,
    /// As [`super::packet::Packet::forgotten`].
    pub(super) forgotten: Stamp,
    /// Places whose entries it is to get.
    ranges: BTreeSet<(u64, u64)>,
    /// What else it is to get.
    bodies: Vec<Body>,
}

impl Default for Peer {
    fn default() -> Self {
        Self {
            differs: None,
            again: Moment::default(),
            wait: SOONEST,
            forgotten: Stamp::default(),
            ranges: BTreeSet::new(),
            bodies: Vec::new(),
        }
    }
}

impl Peer {
    /// Notes whether it has the same digest.
    pub(super) fn note(&mut self, now: Moment, same: bool) {
        if same {
            (self.differs, self.wait) = (None, SOONEST);
        } else {
            // The first moment stays: digests come several times a second, and would put the comparison off for
            // ever.
            self.differs.get_or_insert(now);
        }
    }

    /// Whether it is to be compared now; if so, that is noted.
    pub(super) fn is_due(&mut self, now: Moment) -> bool {
        let differs = self.differs.is_some_and(|since| now.since(since) >= GRACE);
        if !differs || now < self.again || self.is_busy() {
            return false;
        }
        self.again = now.after(self.wait);
        self.wait = (2 * self.wait).min(LATEST);
        true
    }

    /// Whether its digest was another one the last time.
    pub(super) const fn differs(&self) -> bool {
        self.differs.is_some()
    }

    /// Notes that comparing has brought something: it may go on.
    pub(super) fn progress(&mut self) {
        self.wait = SOONEST;
    }

    /// It is to get the entries from one place to another.
    pub(super) fn send(&mut self, places: (u64, u64)) {
        if self.ranges.len() < MAX_RANGES {
            self.ranges.insert(places);
        }
    }

    /// It is to get this.
    pub(super) fn tell(&mut self, body: Body) {
        if self.bodies.len() < MAX_BODIES && !self.bodies.contains(&body) {
            self.bodies.push(body);
        }
    }

    /// Whether entries still wait to be sent: what else differs can be told when they have come.
    pub(super) fn is_busy(&self) -> bool {
        !self.ranges.is_empty()
    }

    /// The next range of places that it is to get.
    pub(super) fn next_range(&mut self) -> Option<(u64, u64)> {
        self.ranges.pop_first()
    }

    /// What else it is to get, so many at the most.
    pub(super) fn next_bodies(&mut self, most: usize) -> Vec<Body> {
        self.bodies.drain(..self.bodies.len().min(most)).collect()
    }
}
