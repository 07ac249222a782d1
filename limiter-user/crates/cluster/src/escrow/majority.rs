//! Votes: who may use what a host delegates of limits that a majority decides about.
//!
//! Of such a limit nothing beside floors is used without the consent of hosts that have more than half of all
//! shares. A host asks for it all the time. Where it is lost, one of the others, the regent, may ask instead.

use std::collections::BTreeMap;

use crate::message::Vote;
use crate::{HostId, Message, Moment};
use model::Share;

use super::clock::usable;
use super::{Escrow, Planted};

/// The most hosts that a message votes about.
pub(super) const VOTES: usize = 64;

/// The vote of another host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ballot {
    /// Whose right it is about.
    of: HostId,
    /// How much of that the voter knows of.
    known: Share,
    /// What the voter has itself.
    weight: Share,
    /// Its end here.
    until: Moment,
}

/// A right that a majority lets this host use.
#[derive(Clone, Copy, Debug)]
pub(super) struct QuorumLease {
    of: HostId,
    /// What the voters know of, if it is of another host.
    known: Share,
    until: Moment,
}

/// How long ballots with more than `half` of all shares hold together, and the least that one of them knows of.
fn majority(mut ballots: Vec<Ballot>, half: Share) -> Option<(Moment, Share)> {
    // Until the weakest of those that are needed ends: the fewest that suffice, longest first.
    ballots.sort_by_key(|ballot| std::cmp::Reverse(ballot.until));
    let (mut weight, mut known) = (Share::NONE, Share::WHOLE);
    for ballot in ballots {
        weight += ballot.weight;
        known = known.min(ballot.known);
        if weight > half {
            return Some((ballot.until, known));
        }
    }
    None
}

impl Escrow {
    /// Takes the votes of a message that answers `echo`.
    pub(super) fn take_votes(
        &mut self,
        now: Moment,
        echo: Moment,
        from: HostId,
        message: &Message,
    ) {
        let until = echo.after(usable(message.delegated_for));
        let Some(peer) = self.peers.get_mut(&from) else { return };
        peer.ballots.retain(|ballot| ballot.until > now);
        if until <= now {
            return;
        }
        for vote in message.votes.iter().take(VOTES) {
            let new = Ballot { of: vote.host, known: vote.known, weight: message.delegated, until };
            let known = peer.ballots.iter().position(|ballot| ballot.of == vote.host);
            match known {
                // A late message votes for less time: it takes nothing back.
                Some(at) if peer.ballots[at].until < until => peer.ballots[at] = new,
                None if peer.ballots.len() < 2 * VOTES => peer.ballots.push(new),
                _ => {}
            }
        }
    }

    /// Half of what all delegate.
    fn half(&self) -> Share {
        self.beside_floor(Share::WHOLE).times(1, 2)
    }

    /// A moment after all that this host has told anybody.
    pub(super) fn mark(&self, now: Moment) -> Moment {
        self.peers.values().map(|peer| peer.last_sent).max().unwrap_or_default().max(now)
    }

    /// Whether hosts with more than half of all shares have heard what this one has said after that moment.
    pub(super) fn majority_heard(&self, mark: Moment) -> bool {
        if !self.settings.majority {
            return true;
        }
        // What one says now it cannot have been given by another one who said that it had it within less time than
        // giving takes.
        let (now, delegation) = (self.clock.now(), self.settings.timing.delegation);
        let span = if self.kept.far { delegation * 4 / 5 } else { delegation / 2 };
        let knows = |peer: &&super::Peer| peer.echoed > Some(mark) && peer.hears(now, span);
        let heard = self.peers.values().filter(knows);
        let theirs: Share = heard.filter_map(|peer| peer.offered).sum();
        theirs + self.beside_floor(self.kept.home) > self.half()
    }

    /// The host that the others vote for where one is lost.
    fn regent(&self) -> Option<HostId> {
        // Views may differ: two regents split the votes, and then neither has a majority (I9).
        self.views.present().iter().map(|(host, _)| host).min()
    }

    /// Hosts with shares that this one hears no more and may vote about: it must have heard them since it
    /// last took shares of others, who may have known more. Together they have what the others lack at most: what is
    /// more has gone to these, with the host's name or otherwise.
    fn lost_hosts(&self, now: Moment) -> Vec<(HostId, Share)> {
        let fresh = |host| self.fresh.get(&host).is_some_and(|fresh| *fresh > self.taken);
        let lost = self.homes.iter().filter(|(host, _)| self.is_lost(now, **host) && fresh(**host));
        // A unit less, for what rounding has added.
        let known = |home: Share| self.beside_floor(home).without(Share::from_units(1));
        let mut left = self.beside_floor(self.missing(now).unwrap_or_default());
        let mut capped = |(host, home): (&HostId, &Share)| {
            let known = known(*home).min(left);
            left = left.without(known);
            (!known.is_none()).then_some((*host, known))
        };
        lost.filter_map(&mut capped).take(VOTES - 1).collect()
    }

    /// Whether this host may vote for another one about a right: not while it has voted otherwise (I9).
    fn votes(&mut self, now: Moment, of: HostId, to: HostId, until: Moment) -> bool {
        let voted = self.voted.get(&of).copied();
        let free = |(whom, end): (HostId, Moment)| whom == to || end <= now;
        if !voted.is_none_or(free) && !self.planted(Planted::VotedTwice) {
            return false;
        }
        // A vote that is said again for less time does not shorten the first: that may be relied on still.
        let before = voted.filter(|(whom, _)| *whom == to).map(|(_, end)| end);
        self.voted.insert(of, (to, until.max(before.unwrap_or_default())));
        true
    }

    /// The votes for a host that may rely on them until then.
    pub(super) fn votes_for(&mut self, now: Moment, to: HostId, until: Moment) -> Vec<Vote> {
        if !self.settings.majority {
            return Vec::new();
        }
        let mut shares = vec![(to, Share::WHOLE)];
        if self.regent() == Some(to) {
            shares.extend(self.lost_hosts(now));
        }
        shares.retain(|(of, _)| self.votes(now, *of, to, until));
        shares.into_iter().map(|(host, known)| Vote { host, known }).collect()
    }

    /// Counts the votes for this host.
    pub(super) fn count_votes(&mut self, now: Moment) {
        // From the ballots alone, each time: a mandate must end with the votes that made it (I10).
        self.mandates.clear();
        self.voted.retain(|_, (_, until)| *until > now);
        if !self.settings.majority || now < self.quiet || self.leaving {
            return;
        }
        let me = self.settings.me;
        let until = now.after(self.delegation());
        let mut shares = vec![(me, self.lent())];
        if self.regent() == Some(me) {
            shares.extend(self.lost_hosts(now));
        }
        let mut all: BTreeMap<HostId, Vec<Ballot>> = BTreeMap::new();
        let ballots = self.peers.values().flat_map(|peer| &peer.ballots);
        for ballot in ballots.filter(|ballot| ballot.until > now) {
            all.entry(ballot.of).or_default().push(*ballot);
        }
        for (of, known) in shares {
            let mut ballots = all.remove(&of).unwrap_or_default();
            if self.votes(now, of, me, until) {
                // Who has this host's right next must wait for that, too.
                self.own_votes = until;
                ballots.push(Ballot { of, known, weight: self.lent(), until });
            }
            if let Some((until, known)) = majority(ballots, self.half()) {
                self.mandates.push(QuorumLease { of, known, until });
            }
        }
    }

    /// What a majority lets this host use or delegate, if that holds for the length of a grant, and until when.
    pub(super) fn mandated(&self, now: Moment, until: Moment) -> (Share, Moment) {
        // A grant out of it could outlast what ends sooner.
        let least = now.after(self.settings.timing.grant);
        let hold = self.mandates.iter().filter(|mandate| mandate.until > least);
        hold.fold((Share::NONE, until), |(share, until), mandate| {
            // Its own may have become less since the votes were counted.
            let own = mandate.of == self.settings.me;
            let more = if own { self.lent() } else { mandate.known };
            (share + more, until.min(mandate.until))
        })
    }
}
