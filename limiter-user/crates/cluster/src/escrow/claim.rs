//! What one host wants of a key, and what it was given.

use std::time::Duration;

use smallvec::SmallVec;

use crate::Moment;
use crate::message::Report;
use model::Share;

use super::allocation::CLOSE;

/// A grant that a host may go by, or a loan that it may count.
#[derive(Clone, Copy, Debug)]
pub(super) struct IssuedLease {
    pub(super) number: u32,
    pub(super) share: Share,
    /// When it was said first. None while it has not been.
    pub(super) first: Option<Moment>,
    /// Its end here, once it was said.
    pub(super) end: Moment,
}

/// What one host wants of a key and has of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Grantee {
    pub(super) demand: Share,
    /// When that came, and its moment by the reporter's clock.
    pub(super) heard: Moment,
    sent: Moment,
    /// All that it may go by, numbers ascending.
    pub(super) given: SmallVec<[IssuedLease; 2]>,
    /// The highest number that was used.
    number: u32,
    /// To be said before the next round.
    pub(super) dirty: bool,
    /// Whether the host says that a majority decides about the limit.
    pub(super) majority: bool,
}

impl Grantee {
    /// The most that it may go by.
    pub(super) fn outstanding(&self) -> Share {
        // Not the last one: which of them has come is unknown until a number is acknowledged (I4).
        self.given.iter().map(|given| given.share).max().unwrap_or_default()
    }

    /// The same of what was said and lasts until then.
    pub(super) fn outstanding_at(&self, end: Moment) -> Share {
        let lasts = self.given.iter().filter(|given| given.end >= end);
        lasts.map(|given| given.share).max().unwrap_or_default()
    }

    pub(super) fn current(&self) -> Share {
        self.given.last().map_or(Share::NONE, |given| given.share)
    }

    pub(super) fn expire(&mut self, now: Moment) {
        self.given.retain(|given| given.first.is_none() || !given.end.has_come(now));
    }

    /// Decides on another grant. One that was never said is forgotten.
    pub(super) fn give(&mut self, share: Share) {
        // Its number may be used again: no message has carried it.
        if self.given.last().is_some_and(|last| last.first.is_none()) {
            self.given.pop();
        } else {
            self.number += 1;
        }
        let given = IssuedLease { number: self.number, share, first: None, end: Moment(0) };
        self.given.push(given);
        self.dirty = true;
    }

    /// Nothing more is said of it.
    pub(super) fn let_end(&mut self) {
        self.given.retain(|given| given.first.is_some());
        self.dirty = false;
    }

    /// Whether it has not been heard of for so long, and nothing of it may be gone by.
    pub(super) fn stale(&self, now: Moment, forget: Duration) -> bool {
        let unused = self.given.iter().all(|given| given.first.is_none());
        !self.heard.is_recent(now, forget) && unused
    }

    /// Gives this much, or as much as is free.
    pub(super) fn set(&mut self, target: Share, free: Share) {
        let current = self.current();
        let share = target.min(free);
        // Each raise is a number and a message; a lowered one others may wait for.
        if share < current || share > current + current.times(1, 400) {
            self.give(share);
        }
    }

    /// Takes what a host reports that answers `echo`; whether that changes anything.
    pub(super) fn hear(
        &mut self,
        now: Moment,
        sent: Moment,
        echo: Option<Moment>,
        report: &Report,
        own: Share,
    ) -> bool {
        self.expire(now);
        let mut changed = false;
        // The host goes by no grant before this one any more; it cannot have known this one before it was
        // said, so a report from before that is about another run or another life of the key (I5).
        let known = self.given.iter().find(|given| given.number == report.in_use);
        if known.is_some_and(|known| known.first.is_some_and(|first| echo >= Some(first))) {
            let before = self.outstanding();
            self.given.retain(|given| given.number >= report.in_use);
            changed = self.outstanding() < before;
        }
        // Acknowledgements count in any order, demand only from the latest report.
        if sent >= self.sent {
            let (less, more) = (self.demand.min(report.demand), self.demand.max(report.demand));
            // Where more is wanted than was granted, how much more changes nothing.
            let current = self.current();
            let asked = !current.is_none() && less > (current + own).times(CLOSE.0, CLOSE.1);
            changed |= !asked && more.without(less) > self.demand.times(1, 20);
            changed |= self.majority != report.majority;
            self.majority = report.majority;
            self.demand = report.demand;
            self.sent = sent;
            self.heard = now;
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeyId;

    fn report(demand: u64) -> Report {
        let (key, demand) = (KeyId::from_hash(1), Share::from_units(demand));
        Report { key, demand, in_use: 0, majority: false }
    }

    #[test]
    fn how_much_more_is_wanted_than_was_granted_changes_nothing() {
        // More than 51/50 of what it has, floor included: it has said that it wants more.
        for (had, changes) in [(102_000, true), (102_001, false)] {
            let mut claim = Grantee::default();
            claim.give(Share::from_units(90_000));
            let mut hear = |sent: u64, demand: u64| {
                let floor = Share::from_units(10_000);
                claim.hear(Moment(9), Moment(sent), None, &report(demand), floor)
            };
            assert!(hear(1, had));
            assert_eq!(hear(2, 2 * had), changes, "{had}");
        }
    }

    #[test]
    fn what_was_never_said_is_forgotten_when_nothing_more_is() {
        let mut claim = Grantee::default();
        claim.give(Share::from_units(5));
        claim.given[0].first = Some(Moment(1));
        claim.give(Share::from_units(7));
        claim.let_end();
        assert_eq!((claim.outstanding(), claim.dirty), (Share::from_units(5), false));
    }

    #[test]
    fn a_grant_is_lowered_always_and_raised_only_if_it_is_worth_a_message() {
        let mut claim = Grantee::default();
        let free = Share::WHOLE;
        for (target, current) in [(400, 400), (401, 400), (402, 402), (401, 401), (0, 0)] {
            claim.set(Share::from_units(target), free);
            assert_eq!(claim.current(), Share::from_units(current), "{target}");
        }
    }
}
