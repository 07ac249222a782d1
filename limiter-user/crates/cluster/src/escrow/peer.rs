//! What a host knows of another one.

use std::sync::Arc;
use std::time::Duration;

use crate::message::Standing;
use crate::{Moment, ViewId};
use model::Share;

use super::Timing;
use super::half::half;
use super::majority::Ballot;

/// How many delegations of one host are remembered: a host that gives away its home share delegates less each
/// time, and what it delegated before holds until its end.
const DELEGATIONS: usize = 24;

/// How many times as long as a message and its answer take a grant lasts: one is over when it comes, and some may be lost.
const GRANT_TRIPS: u32 = 4;

/// How much is delegated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) share: Share,
    /// Of keys whose limit a majority decides about, instead.
    pub(super) voted: Share,
}

impl Amount {
    pub(super) fn new(share: Share) -> Self {
        // Cut: a faulty message may claim more than there is.
        Self { share: share.min(Share::WHOLE), ..Self::default() }
    }

    pub(super) fn voted(voted: Share) -> Self {
        Self { voted: voted.min(Share::WHOLE), ..Self::default() }
    }

    pub(super) fn max(self, other: Self) -> Self {
        Self { share: self.share.max(other.share), voted: self.voted.max(other.voted) }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.share += other.share;
        self.voted += other.voted;
    }
}

/// What another host has delegated.
#[derive(Clone, Debug)]
pub(super) struct Delegation {
    pub(super) amount: Amount,
    /// Its end here.
    pub(super) until: Moment,
    pub(super) views: Arc<[ViewId]>,
}

impl Delegation {
    /// Whether nothing is lost without the other one.
    fn covers(&self, other: &Self) -> bool {
        self.amount.max(other.amount) == self.amount
            && self.until >= other.until
            && self.views == other.views
    }
}

/// Another host.
#[derive(Clone, Debug, Default)]
pub(super) struct Peer {
    /// The latest moment that it has told, by its clock.
    pub(super) theirs: Option<Moment>,
    /// When that came.
    heard: Moment,
    /// The latest moment of this host that it has sent back.
    pub(super) echoed: Option<Moment>,
    /// What it delegates, by lists of views, the latest last: none is covered by another one.
    pub(super) delegations: Vec<Delegation>,
    /// What it says to delegate, in force or not.
    pub(super) offered: Option<Share>,
    /// From when on it uses half of that itself, if it says so: of each key, whatever it is granted of it.
    pub(super) half_from: Option<Moment>,
    /// Whether that is in force: not while it starts or leaves.
    pub(super) delegates: bool,
    /// Whether it is one of those who count, as far as is known.
    pub(super) counts: bool,
    /// Until when this host's home lease is renewed by it.
    pub(super) renews: Moment,
    /// Until when it may rely on its home lease by this host.
    pub(super) renewed: Moment,
    /// How many times all shares had been counted when its were.
    pub(super) era: u64,
    /// What it has told of the recount of this era.
    pub(super) standing: Standing,
    /// Until when it may rely on what this host has delegated to it.
    pub(super) lent: Moment,
    /// Whether it is to be told which of its transfers was taken last.
    pub(super) acknowledges: bool,
    /// How long it takes at least until it answers, as of late.
    trip: Option<Duration>,
    /// For how many rounds in turn that has been long.
    pub(super) slow_rounds: u32,
    /// Whether it gives for as long as is needed over long ways, and so waits for as long after a restart.
    pub(super) far: bool,
    pub(super) ballots: Vec<Ballot>,
    /// The latest moment that it was told.
    pub(super) last_sent: Moment,
    /// When it was last told all.
    pub(super) rounded: Moment,
    /// When a message is due before the next round.
    pub(super) due: Option<Moment>,
}

impl Peer {
    /// What it may use of each key whatever it is granted: its floor, which is that `part` of its home share, and half of
    /// what is beside that where it keeps it.
    pub(super) fn uses_anyway(&self, now: Moment, part: Share) -> Share {
        let beside = self.offered.unwrap_or_default();
        let floor = beside.times(part.units(), Share::WHOLE.without(part).units());
        let keeps = self.half_from.is_some_and(|from| from.has_come(now));
        if keeps { floor + half(beside) } else { floor }
    }

    /// Takes the moment of a message; whether it is the latest one.
    pub(super) fn hear(&mut self, now: Moment, sent: Moment) -> bool {
        let later = self.theirs.is_none_or(|theirs| sent > theirs);
        if later {
            self.theirs = Some(sent);
            self.heard = now;
        }
        // Frames of one message carry one moment: all of them are the latest.
        later || self.theirs == Some(sent)
    }

    /// Takes the moment that it answers.
    pub(super) fn answers(&mut self, now: Moment, echo: Moment) {
        self.echoed = self.echoed.max(Some(echo));
        // What it takes changes slowly; that some answers are late says nothing.
        let took = now.since(echo);
        self.trip = Some(self.trip.map_or(took, |trip| took.min(trip + trip / 16)));
    }

    /// Whether so much of a lease is over when it comes.
    pub(super) fn takes(&self, span: Duration) -> bool {
        self.trip.is_some_and(|trip| trip > span)
    }

    /// How long a grant to it has to last, if it waits for as long after a restart.
    pub(super) fn grant(&self, timing: &Timing) -> Duration {
        let trip = self.trip.unwrap_or_default();
        (trip * GRANT_TRIPS).clamp(timing.grant, timing.longest_grant(self.far))
    }

    /// When what is given now for so long ends, if it is not over yet.
    pub(super) fn lease(&self, now: Moment, span: Duration) -> Option<Moment> {
        // A lease answers the latest message: it counts from when that came, not from now (I8).
        self.heard().map(|heard| heard.after(span)).filter(|end| !end.has_come(now))
    }

    /// When its latest moment came.
    pub(super) fn heard(&self) -> Option<Moment> {
        self.theirs.map(|_| self.heard)
    }

    /// Whether it has been heard lately.
    pub(super) fn alive(&self, now: Moment, span: Duration) -> bool {
        self.theirs.is_some() && self.heard.is_recent(now, span)
    }

    /// Whether it has lately told that it hears this host.
    pub(super) fn hears(&self, now: Moment, span: Duration) -> bool {
        self.echoed.is_some_and(|echoed| echoed.is_recent(now, span))
    }

    /// Whether it has something or may be given something to use. Who leaves only hands on what comes once it had nothing.
    pub(super) fn stays(&self) -> bool {
        self.delegates || self.offered.is_some_and(|it| !it.is_none())
    }

    /// Whether something that was given to or by it may still matter.
    pub(super) fn needed(&self, now: Moment, far: Duration) -> bool {
        self.alive(now, far) || !self.lent.max(self.renewed).has_come(now)
    }

    /// Takes what it delegates until then; whether that is much more than before by the same views. Each message gives for
    /// itself and under its own views (I6): what an earlier one gave holds until its end, even if this one
    /// gives less.
    pub(super) fn delegate(
        &mut self,
        now: Moment,
        until: Moment,
        amount: Amount,
        views: &[ViewId],
    ) -> bool {
        self.delegations.retain(|known| !known.until.has_come(now));
        if amount == Amount::default() || until.has_come(now) || views.is_empty() {
            return false;
        }
        let mut alike = self.delegations.iter().filter(|known| *known.views == *views);
        let before = alike.clone().fold(Amount::default(), |most, known| most.max(known.amount));
        let same = alike.next_back().map(|known| Arc::clone(&known.views));
        let new = Delegation { amount, until, views: same.unwrap_or_else(|| views.into()) };
        if self.delegations.iter().any(|known| known.covers(&new)) {
            return false;
        }
        self.delegations.retain(|known| !new.covers(known));
        // Forgetting one only wastes: it counted here, and is missing from the pool from now on.
        if self.delegations.len() == DELEGATIONS {
            self.delegations.remove(0);
        }
        self.delegations.push(new);
        let rose = |share: Share, before: Share| share > before + before.times(1, 16);
        rose(amount.share, before.share) || rose(amount.voted, before.voted)
    }

    /// A message is to be sent so long after the last one, or sooner if one is already wanted.
    pub(super) fn want(&mut self, now: Moment, span: Duration) {
        let due = self.last_sent.after(span).max(now);
        self.due = Some(self.due.map_or(due, |known| known.min(due)));
    }

    pub(super) fn due(&self, now: Moment) -> bool {
        self.due.is_some_and(|due| due.has_come(now))
    }

    /// A message goes out; its moment, later than that of all others to this host.
    pub(super) fn send(&mut self, now: Moment) -> Moment {
        self.due = None;
        // Two messages in one tick of the clock still differ: an echo says which of them was heard.
        self.last_sent = now.max(Moment(self.last_sent.0 + 1));
        self.last_sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_lasts_for_four_ways_there_and_back_from_half_a_second_up_to_two() {
        let timing = Timing::default();
        let lasts = |ms, far| {
            let trip = Some(Duration::from_millis(ms));
            Peer { trip, far, ..Peer::default() }.grant(&timing).as_millis()
        };
        let all = [1, 125, 126, 400, 500, 501].map(|ms| lasts(ms, true));
        assert_eq!(all, [500, 500, 504, 1_600, 2_000, 2_000]);
        // It does not wait for longer after a restart.
        assert_eq!(lasts(400, false), 500);
    }
}
