//! Votes: who may use what a host delegates of limits that a majority decides about.
//!
//! Of such a limit nothing beside floors is used without the consent of hosts that have more than half of all
//! shares. A host asks for it all the time. Where it is lost, one of the others, the coordinator, may ask instead.

use std::collections::BTreeMap;

use crate::message::Vote;
use crate::{HostId, Message, Moment};
use model::Share;

use super::home::Home;
use super::host::Host;
use super::lost::Absent;
use super::peer::Peer;
use super::{Planted, Settings};

/// The most hosts that a message votes about.
pub(super) const VOTES: usize = 64;

/// The vote of another host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ballot {
    /// Whose share it is about.
    of: HostId,
    /// How much of that the voter knows of.
    known: Share,
    /// What the voter has itself.
    weight: Share,
    /// Its end here.
    until: Moment,
}

/// A share that a majority lets this host use.
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
        weight += counted(ballot.weight);
        known = known.min(ballot.known);
        // Not with half alone: both sides of a cluster cut in two would have that (I9).
        if weight > half {
            return Some((ballot.until, known));
        }
    }
    None
}

/// What counts of a voter's weight: a unit less, as what is beside a floor is rounded up. Else three of six hosts that
/// have as much each would be more than half (I9).
pub(super) fn counted(weight: Share) -> Share {
    weight.without(Share::from_units(1))
}

impl Peer {
    /// Takes the votes of a message, which hold until then.
    pub(super) fn take_votes(&mut self, now: Moment, until: Moment, message: &Message) {
        self.ballots.retain(|ballot| !ballot.until.has_come(now));
        if until.has_come(now) {
            return;
        }
        for vote in message.votes.iter().take(VOTES) {
            let new = Ballot { of: vote.host, known: vote.known, weight: message.delegated, until };
            let known = self.ballots.iter().position(|ballot| ballot.of == vote.host);
            match known {
                // A late message votes for less time: it takes nothing back.
                Some(at) if self.ballots[at].until < until => self.ballots[at] = new,
                None if self.ballots.len() < 2 * VOTES => self.ballots.push(new),
                _ => {}
            }
        }
    }
}

impl Settings {
    /// Half of what all delegate.
    pub(super) fn half(&self) -> Share {
        self.beside_floor(Share::WHOLE).times(1, 2)
    }
}

/// The votes that this host has given, and what comes of those that it was given. They are apart from shares, because a
/// vote binds for as long as it holds, whatever becomes of the share that it is about.
#[derive(Clone, Debug, Default)]
pub(super) struct Votes {
    /// Whom this host has voted for, for each share, and until when that holds.
    given: BTreeMap<HostId, (HostId, Moment)>,
    /// Until when a vote for itself holds.
    pub(super) own: Moment,
    /// What a majority lets this host use.
    leases: Vec<QuorumLease>,
}

impl Votes {
    /// Whether this host may vote for another one about a share: not while it has voted otherwise (I9), unless a fault
    /// lets it vote `twice`.
    fn vote(&mut self, now: Moment, of: HostId, to: HostId, until: Moment, twice: bool) -> bool {
        let voted = self.given.get(&of).copied();
        let free = |(whom, end): (HostId, Moment)| whom == to || end.has_come(now);
        if !voted.is_none_or(free) && !twice {
            return false;
        }
        // A vote that is said again for less time does not shorten the first: that may be relied on still.
        let before = voted.filter(|(whom, _)| *whom == to).map(|(_, end)| end);
        self.given.insert(of, (to, until.max(before.unwrap_or_default())));
        true
    }

    /// The votes for a host that may rely on them until then.
    pub(super) fn votes_for(
        &mut self,
        now: Moment,
        to: HostId,
        until: Moment,
        host: &Host,
        lost: impl FnOnce() -> Vec<(HostId, Share)>,
    ) -> Vec<Vote> {
        if !host.settings.majority {
            return Vec::new();
        }
        let mut shares = vec![(to, Share::WHOLE)];
        if host.coordinator() == Some(to) {
            shares.extend(lost());
        }
        let twice = host.settings.planted(Planted::VotedTwice);
        shares.retain(|(of, _)| self.vote(now, *of, to, until, twice));
        shares.into_iter().map(|(host, known)| Vote { host, known }).collect()
    }

    /// Counts the votes for this host.
    pub(super) fn count(&mut self, now: Moment, host: &Host, home: &Home, absent: &Absent) {
        // From the ballots alone, each time: a lease must end with the votes that made it (I10).
        self.leases.clear();
        self.given.retain(|_, (_, until)| !until.has_come(now));
        let settings = &host.settings;
        let delegation = home.delegation(&settings.timing);
        let idle = host.is_quiet(now) || host.leaving || !host.is_leased(now, delegation);
        if !settings.majority || idle {
            return;
        }
        let (me, lent) = (settings.me, home.lent(settings));
        let twice = settings.planted(Planted::VotedTwice);
        let until = now.after(delegation);
        let mut shares = vec![(me, lent)];
        if host.coordinator() == Some(me) {
            shares.extend(absent.voted_about(now, host, home));
        }
        let mut all: BTreeMap<HostId, Vec<Ballot>> = BTreeMap::new();
        let ballots = host.peers.values().flat_map(|peer| &peer.ballots);
        for ballot in ballots.filter(|ballot| !ballot.until.has_come(now)) {
            all.entry(ballot.of).or_default().push(*ballot);
        }
        for (of, known) in shares {
            let mut ballots = all.remove(&of).unwrap_or_default();
            if self.vote(now, of, me, until, twice) {
                // Who has this host's share next must wait for that, too.
                self.own = until;
                ballots.push(Ballot { of, known, weight: lent, until });
            }
            if let Some((until, known)) = majority(ballots, settings.half()) {
                self.leases.push(QuorumLease { of, known, until });
            }
        }
    }

    /// What a majority lets this host use or delegate, if that holds for the length of a grant, and until when, of
    /// which it delegates so much `lent` itself.
    pub(super) fn leased(
        &self,
        now: Moment,
        until: Moment,
        settings: &Settings,
        lent: Share,
    ) -> (Share, Moment) {
        // A grant out of it could outlast what ends sooner.
        let least = now.after(settings.timing.grant);
        let hold = self.leases.iter().filter(|lease| lease.until > least);
        hold.fold((Share::NONE, until), |(share, until), lease| {
            // Its own may have become less since the votes were counted.
            let more = if lease.of == settings.me { lent } else { lease.known };
            (share + more, until.min(lease.until))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_hosts_are_no_majority_and_one_more_are() {
        let settings = Settings::new(HostId(1), 1);
        let until = Moment(1);
        for hosts in (2..=1_000).step_by(2) {
            let weight = settings.beside_floor(Share::WHOLE.times(1, hosts));
            let ballot = Ballot { of: HostId(1), known: Share::WHOLE, weight, until };
            let votes = |voters: u64| majority(vec![ballot; voters as usize], settings.half());
            assert!(votes(hosts / 2).is_none(), "{hosts} hosts");
            assert!(votes(hosts / 2 + 1).is_some(), "{hosts} hosts");
        }
    }
}
