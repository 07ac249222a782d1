//! Who is there, page by page.
//!
//! Gossip tells what changes. Who has just come, or comes back from a partition, has everything to learn:
//! it asks a member that it knows for all that this one knows, a page at a time, and then another one,
//! less and less often while nothing new is learnt. A hash of who is there keeps that short: where it is
//! the same there is nothing to tell.

use std::net::SocketAddr;
use std::time::Duration;

use super::identity::{Identity, put_address, read_address};
use crate::Moment;
use crate::wire::MAX_OPAQUE;
use crate::wire::bytes::{Malformed, Reader};

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_millis(400);

/// How often a page is asked for.
const TRIES: u8 = 3;

/// From one round to the next one, at first and at last.
/// It never ends: where packets are lost, gossip leaves out one host of 20,000.
const PAUSES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(30)];

/// Changes after which a round comes sooner: so many are no single crash.
const MANY: u32 = 8;

const PULL: u8 = 1;
const PAGE: u8 = 2;

/// A question, or the answer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Who is there after this address, unless all together have this hash?
    Pull { ticket: u32, hash: u64, after: Option<SocketAddr> },
    /// These are, in the order of their addresses; whether there are more.
    Page { ticket: u32, more: bool, members: Vec<Identity> },
}

impl Message {
    pub(super) fn write(&self, to: &mut Vec<u8>) {
        match self {
            Self::Pull { ticket, hash, after } => {
                to.push(PULL);
                to.extend(ticket.to_be_bytes());
                to.extend(hash.to_be_bytes());
                if let Some(after) = after {
                    put_address(to, *after);
                }
            }
            Self::Page { ticket, more, members } => {
                to.push(PAGE);
                to.extend(ticket.to_be_bytes());
                to.push((*more).into());
                for member in members {
                    member.write(to);
                }
            }
        }
    }

    /// A page of as many of `members` as there is room for.
    pub(super) fn page<'a>(ticket: u32, members: impl Iterator<Item = &'a Identity>) -> Self {
        let (mut page, mut length, mut more) = (Vec::new(), 7, false);
        let mut bytes = Vec::new();
        for member in members {
            bytes.clear();
            member.write(&mut bytes);
            length += bytes.len();
            if length > MAX_OPAQUE {
                more = true;
                break;
            }
            page.push(member.clone());
        }
        Self::Page { ticket, more, members: page }
    }

    pub(super) fn read(mut from: Reader<'_>) -> Result<Self, Malformed> {
        match from.u8()? {
            PULL => {
                let (ticket, hash) = (from.u32()?, from.u64()?);
                let after = if from.is_empty() { None } else { Some(read_address(&mut from)?) };
                Ok(Self::Pull { ticket, hash, after })
            }
            PAGE => {
                let (ticket, more) = (from.u32()?, from.u8()? != 0);
                let mut members = Vec::new();
                while !from.is_empty() {
                    members.push(Identity::read(&mut from)?);
                }
                Ok(Self::Page { ticket, more, members })
            }
            _ => Err(Malformed),
        }
    }
}

/// Whom is being asked for what.
#[derive(Clone, Debug)]
struct Round {
    partner: Identity,
    ticket: u32,
    after: Option<SocketAddr>,
    tries: u8,
    until: Moment,
}

/// When to ask whom.
#[derive(Clone, Debug)]
pub(super) struct Roster {
    round: Option<Round>,
    next: Moment,
    pause: Duration,
    ticket: u32,
    /// Changes since the last round.
    changes: u32,
}

impl Roster {
    /// Of a host that knows nobody.
    pub(super) fn new(now: Moment, ticket: u32) -> Self {
        Self { round: None, next: now, pause: PAUSES[0], ticket, changes: 0 }
    }

    /// Somebody came, went or changed.
    pub(super) fn changed(&mut self, now: Moment) {
        self.changes = self.changes.saturating_add(1);
        // Two halves of a cluster that meet again, or a rack that comes up: gossip alone would take long.
        if self.changes == MANY {
            self.pause = PAUSES[0];
            self.next = self.next.min(now.after(self.pause));
        }
    }

    /// When there will be something to do.
    pub(super) fn next(&self) -> Moment {
        self.round.as_ref().map_or(self.next, |round| round.until)
    }

    /// Whom to ask what by now. `pick` chooses a member at random.
    pub(super) fn poll(
        &mut self,
        now: Moment,
        hash: u64,
        pick: impl FnOnce() -> Option<Identity>,
    ) -> Option<(Identity, Message)> {
        if let Some(round) = &mut self.round {
            if now < round.until {
                return None;
            }
            if round.tries < TRIES {
                round.tries += 1;
                round.until = now.after(TIMEOUT);
                return Some(round.ask(hash));
            }
            self.round = None;
            self.next = now.after(self.pause);
        }
        if now < self.next {
            return None;
        }
        // Nobody is known yet: the first member may come at any moment, and then has all to tell.
        let Some(partner) = pick() else {
            self.next = now.after(PAUSES[0]);
            return None;
        };
        self.changes = 0;
        // A new ticket for each round: a page that was asked for in an earlier one comes too late to count.
        self.ticket = self.ticket.wrapping_add(1);
        let until = now.after(TIMEOUT);
        let round = Round { partner, ticket: self.ticket, after: None, tries: 1, until };
        let asked = round.ask(hash);
        self.round = Some(round);
        Some(asked)
    }

    /// Whether this is the answer that is waited for.
    pub(super) fn awaits(&self, ticket: u32) -> bool {
        self.round.as_ref().is_some_and(|round| round.ticket == ticket)
    }

    /// The answer has come, up to this address: asks for the next page, or ends the round.
    pub(super) fn answered(
        &mut self,
        now: Moment,
        hash: u64,
        more: Option<SocketAddr>,
    ) -> Option<(Identity, Message)> {
        let round = self.round.as_mut()?;
        // Who does not go forward never comes to an end.
        if let Some(more) = more
            && round.after.is_none_or(|after| more > after)
        {
            self.ticket = self.ticket.wrapping_add(1);
            (round.ticket, round.after) = (self.ticket, Some(more));
            (round.tries, round.until) = (1, now.after(TIMEOUT));
            return Some(round.ask(hash));
        }
        self.pause = if self.changes > 0 { PAUSES[0] } else { (2 * self.pause).min(PAUSES[1]) };
        self.next = now.after(self.pause);
        self.round = None;
        None
    }
}

impl Round {
    fn ask(&self, hash: u64) -> (Identity, Message) {
        let Self { ticket, after, .. } = *self;
        (self.partner.clone(), Message::Pull { ticket, hash, after })
    }
}

#[cfg(test)]
mod tests {
    use super::super::identity::tests::identity;
    use super::*;

    #[test]
    fn sayings_are_read_as_they_were_written() {
        let members: Vec<_> = (1..100).map(|port| identity("some-host", port, 5)).collect();
        let page = Message::page(7, members.iter());
        let Message::Page { more: true, members: paged, .. } = &page else { panic!("{page:?}") };
        assert!(paged.len() > 20, "{}", paged.len());
        let all = Message::page(7, members[..5].iter());
        assert!(matches!(&all, Message::Page { more: false, members, .. } if members.len() == 5));
        let pull = Message::Pull { ticket: 1, hash: 2, after: None };
        let next = Message::Pull { ticket: 1, hash: 2, after: Some(members[0].address) };
        for saying in [page, all, pull, next] {
            let mut bytes = Vec::new();
            saying.write(&mut bytes);
            assert!(bytes.len() <= MAX_OPAQUE);
            assert_eq!(Message::read(Reader::new(&bytes)), Ok(saying));
        }
        assert!(Message::read(Reader::new(&[3])).is_err());
    }

    #[test]
    fn rounds_become_rare_and_end_with_a_partner_that_does_not_go_forward() {
        let mut roster = Roster::new(Moment(0), 0);
        let mut now = Moment(0);
        let partner = || Some(identity("a", 1, 1));
        let mut pauses = Vec::new();
        for _ in 0..12 {
            let (_, Message::Pull { ticket, .. }) = roster.poll(now, 0, partner).unwrap() else {
                panic!("no question");
            };
            assert!(roster.awaits(ticket) && roster.poll(now, 0, partner).is_none());
            assert!(roster.answered(now, 0, None).is_none());
            pauses.push(roster.next().since(now));
            now = roster.next();
        }
        assert_eq!(pauses.last(), Some(&PAUSES[1]));
        let earlier = Moment(now.0 - 10_000_000_000);
        for _ in 0..MANY {
            roster.changed(earlier);
        }
        assert_eq!(roster.next().since(earlier), PAUSES[0]);
        now = roster.next();
        roster.poll(now, 0, partner).unwrap();
        let more = Some(([192, 0, 2, 1], 1).into());
        assert!(roster.answered(now, 0, more).is_some());
        assert!(roster.answered(now, 0, more).is_none());
    }

    #[test]
    fn nobody_is_waited_for_without_end() {
        let mut roster = Roster::new(Moment(0), 0);
        let mut asked = 0;
        let mut now = Moment(0);
        while now < Moment(10_000_000_000) {
            asked += u32::from(roster.poll(now, 0, || Some(identity("a", 1, 1))).is_some());
            now = now.after(Duration::from_millis(10));
        }
        assert!((15..40).contains(&asked), "{asked}");
    }
}
