//! Who asks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::packet::{MAX_QUESTION, Message, Piece, Pieces};
use crate::wire::bytes::Malformed;
use crate::{HostId, Moment};

/// Questions that are open at once, at most.
const MAX_OPEN: usize = 16;

/// Bytes of answers that are kept, at most.
const MAX_BYTES: usize = 64 << 20;

/// A host that says nothing is asked again after this time, then after twice that, and so on.
const RETRY_INTERVAL: Duration = Duration::from_millis(60);

/// Pieces are asked for again when so long none has come.
const PAUSE: Duration = Duration::from_millis(30);

/// What a host has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// What it says.
    pub bytes: Vec<u8>,
    /// The shortest time that a packet of it took to there and back.
    pub round_trip: Duration,
    /// How far its wall clock is ahead of this host's, ns, give or take half of `round_trip`.
    pub ahead_ns: i64,
}

/// What has become of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Its number.
    pub ticket: u64,
    /// Who answered, and what.
    pub answers: BTreeMap<HostId, Answered>,
    /// Who did not.
    pub silent: Vec<HostId>,
}

#[derive(Clone, Debug)]
struct Waiting {
    pieces: Pieces,
    again: Moment,
    pause: Duration,
    /// The shortest round trip, and how far the host's clock was ahead by that packet.
    timed: Option<(Duration, i64)>,
}

#[derive(Clone, Debug)]
struct Open {
    question: Arc<[u8]>,
    until: Moment,
    waiting: BTreeMap<HostId, Waiting>,
    answers: BTreeMap<HostId, Answered>,
    silent: Vec<HostId>,
}

/// Asks members and takes their answers.
#[derive(Clone, Debug)]
pub struct QueryClient {
    ticket: u64,
    open: BTreeMap<u64, Open>,
    bytes: usize,
    outgoing: VecDeque<(HostId, Vec<u8>)>,
}

impl QueryClient {
    /// Of a host that numbers its questions from `first` on: a random number, so that answers to an
    /// earlier run of it are no answers.
    pub const fn new(first: u64) -> Self {
        Self { ticket: first, open: BTreeMap::new(), bytes: 0, outgoing: VecDeque::new() }
    }

    /// Asks these members until then. `None` if too many questions are open, or it is too long; else its
    /// number.
    pub fn ask(
        &mut self,
        now: Moment,
        hosts: impl IntoIterator<Item = HostId>,
        question: Vec<u8>,
        until: Moment,
    ) -> Option<u64> {
        if self.open.len() >= MAX_OPEN || question.len() > MAX_QUESTION {
            return None;
        }
        self.ticket = self.ticket.wrapping_add(1);
        let question: Arc<[u8]> = question.into();
        let mut waiting = BTreeMap::new();
        for host in hosts {
            say(&mut self.outgoing, now, self.ticket, host, &question);
            let again = now.after(RETRY_INTERVAL);
            let asked =
                Waiting { pieces: Pieces::default(), again, pause: RETRY_INTERVAL, timed: None };
            waiting.insert(host, asked);
        }
        let open = Open { question, until, waiting, answers: BTreeMap::new(), silent: Vec::new() };
        self.open.insert(self.ticket, open);
        Some(self.ticket)
    }

    /// A member has said something that is an answer; `wall` is this host's wall clock, ns since 1970.
    ///
    /// # Errors
    /// If it makes no sense. An answer that nobody waits for does.
    pub fn receive(
        &mut self,
        now: Moment,
        wall: u64,
        from: HostId,
        bytes: &[u8],
    ) -> Result<(), Malformed> {
        let Message::Part { ticket, echo, held, wall: theirs, piece } = Message::read(bytes)?
        else {
            return Err(Malformed);
        };
        // Late answers are normal, and no reason to count a fault of the member.
        let Some(open) = self.open.get_mut(&ticket) else { return Ok(()) };
        let Some(waiting) = open.waiting.get_mut(&from) else { return Ok(()) };
        // No error: it is not this member's fault that others have filled the room.
        if self.bytes + piece.bytes.len() > MAX_BYTES {
            return Ok(());
        }
        // What it says of times is believed only as far as it is possible.
        if let Some(round_trip) = now.0.checked_sub(echo).and_then(|took| took.checked_sub(held)) {
            // In 128 bits: a member may claim any time, and 64 would overflow.
            let ahead = i128::from(theirs) + i128::from(round_trip / 2) - i128::from(wall);
            let ahead = ahead.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
            let round_trip = Duration::from_nanos(round_trip);
            // The shortest one waited least in queues, so its two ways differ least: half of it is the error.
            if waiting.timed.is_none_or(|(shortest, _)| round_trip < shortest) {
                waiting.timed = Some((round_trip, ahead));
            }
        }
        self.bytes += waiting.pieces.take(piece);
        waiting.again = now.after(PAUSE);
        if let Some(bytes) = waiting.pieces.whole() {
            let (round_trip, ahead_ns) = waiting.timed.unwrap_or_default();
            open.waiting.remove(&from);
            open.answers.insert(from, Answered { bytes, round_trip, ahead_ns });
        }
        Ok(())
    }

    /// This member is there no longer: nobody waits for its answers.
    pub fn gone(&mut self, host: HostId) {
        for open in self.open.values_mut() {
            // At once, so that a question to a fleet with dead hosts does not take its whole second.
            if let Some(waiting) = open.waiting.remove(&host) {
                self.bytes -= waiting.pieces.bytes;
                open.silent.push(host);
            }
        }
    }

    /// Nobody wants the answers to this question any more.
    pub fn forget(&mut self, ticket: u64) {
        if let Some(open) = self.open.remove(&ticket) {
            self.bytes -= open.bytes();
        }
    }

    /// Asks again for what is missing.
    pub fn poll(&mut self, now: Moment) {
        for (ticket, open) in &mut self.open {
            let due = open.waiting.iter_mut().filter(|(_, waiting)| now >= waiting.again);
            for (host, waiting) in due {
                if waiting.pieces.is_empty() {
                    say(&mut self.outgoing, now, *ticket, *host, &open.question);
                    // A host may be slow because it is busy: asking ever faster would make that worse.
                    waiting.pause = waiting.pause.saturating_mul(2);
                    waiting.again = now.after(waiting.pause);
                } else {
                    let numbers = waiting.pieces.missing();
                    let missing = Message::Missing { ticket: *ticket, sent: now.0, numbers };
                    self.outgoing.push_back((*host, missing.bytes()));
                    waiting.again = now.after(PAUSE);
                }
            }
        }
    }

    /// When there will be something to do.
    pub fn next(&self) -> Option<Moment> {
        let again = |open: &Open| open.waiting.values().map(|waiting| waiting.again).min();
        // Where nobody is waited for it is due at once: the asker need not sit out its time.
        self.open.values().map(|open| again(open).unwrap_or_default().min(open.until)).min()
    }

    /// The next packet to be sent, and to whom.
    pub fn outgoing(&mut self) -> Option<(HostId, Vec<u8>)> {
        self.outgoing.pop_front()
    }

    /// A question that all have answered, or whose time is over.
    pub fn outcome(&mut self, now: Moment) -> Option<Outcome> {
        let over = |open: &Open| open.waiting.is_empty() || now >= open.until;
        let ticket = *self.open.iter().find(|(_, open)| over(open))?.0;
        let open = self.open.remove(&ticket)?;
        self.bytes -= open.bytes();
        let mut silent = open.silent;
        silent.extend(open.waiting.into_keys());
        silent.sort_unstable();
        Some(Outcome { ticket, answers: open.answers, silent })
    }
}

impl Open {
    fn bytes(&self) -> usize {
        let waiting: usize = self.waiting.values().map(|waiting| waiting.pieces.bytes).sum();
        waiting + self.answers.values().map(|answered| answered.bytes.len()).sum::<usize>()
    }
}

fn say(
    outgoing: &mut VecDeque<(HostId, Vec<u8>)>,
    now: Moment,
    ticket: u64,
    host: HostId,
    question: &[u8],
) {
    for piece in Piece::all(question, MAX_QUESTION).into_iter().flatten() {
        outgoing.push_back((host, Message::Ask { ticket, sent: now.0, piece }.bytes()));
    }
}
