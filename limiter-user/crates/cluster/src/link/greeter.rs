//! When hosts that may not know this one are greeted.

use std::net::SocketAddr;
use std::time::Duration;

use crate::Moment;
use crate::wire::Versions;

/// Hellos that are answered in a second.
pub(super) const MAX_ANSWERS: u32 = 500;

/// How often a seed that is not there is greeted, at first and at last; always as at first by a host that belongs
/// to no cluster.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(10)];

/// Seeds, and the pace of greetings and of answers to them. It is apart from what they say, which never changes the pace.
pub(super) struct Greeter {
    pub(super) seeds: Vec<SocketAddr>,
    /// When they are greeted next.
    pub(super) due: Moment,
    pause: Duration,
    /// How often all were greeted.
    turn: u8,
    /// Answers since a moment.
    answers: (Moment, u32),
}

impl Greeter {
    pub(super) const fn new(now: Moment) -> Self {
        Self { seeds: Vec::new(), due: now, pause: PAUSES[0], turn: 0, answers: (now, 0) }
    }

    /// Greets all at once, and often from then on.
    pub(super) const fn hurry(&mut self, now: Moment) {
        self.due = now;
        self.be_quick();
    }

    /// Greets often again after the next greeting.
    pub(super) const fn be_quick(&mut self) {
        self.pause = PAUSES[0];
    }

    /// In which version those are greeted of whom nothing is known, from the oldest on.
    pub(super) const fn version(&self, versions: Versions) -> u8 {
        versions.oldest + self.turn % (versions.newest - versions.oldest + 1)
    }

    /// All were greeted: less often from now on by a host that belongs to a cluster.
    pub(super) fn greeted(&mut self, now: Moment, belongs: bool) {
        self.due = now.after(self.pause);
        self.turn = self.turn.wrapping_add(1);
        // Who waits for a cluster drops packets under its limits: it must not wait ten seconds more.
        self.pause = if belongs { (2 * self.pause).min(PAUSES[1]) } else { self.pause };
    }

    /// Whether one more may be answered now.
    pub(super) fn may_answer(&mut self, now: Moment) -> bool {
        if now.since(self.answers.0) >= Duration::from_secs(1) {
            self.answers = (now, 0);
        }
        // Recorded frames may come from forged addresses: answers to them must not become a flood.
        let may = self.answers.1 < MAX_ANSWERS;
        self.answers.1 += u32::from(may);
        may
    }
}
