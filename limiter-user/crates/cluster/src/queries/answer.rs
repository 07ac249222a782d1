//! Who answers.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::packet::{MAX_ANSWER, Message, Piece, Pieces};
use crate::wire::bytes::Malformed;
use crate::{HostId, Moment};

/// Questions of one member that are kept, with their answers, at most.
const MAX_OF_ONE: usize = 8;

/// Bytes of all of them, at most.
const MAX_BYTES: usize = 16 << 20;

/// How long they are kept.
/// Longer than the second that an asker waits: until then it may ask for parts that were lost.
const KEPT: Duration = Duration::from_secs(3);

/// A whole answer is not sent again within this time.
/// Below the 60 ms after which a host is asked again, or the first repeat would bring nothing.
const RETRY_INTERVAL: Duration = Duration::from_millis(40);

/// A question, by who asks and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Asked {
    /// Who asks.
    pub from: HostId,
    ticket: u64,
}

#[derive(Clone, Debug)]
struct CachedAnswer {
    question: Pieces,
    /// Set once it has been handed over.
    working: bool,
    answer: Option<Vec<u8>>,
    since: Moment,
    /// The latest `sent` of the asker, and when it came.
    echo: (u64, Moment),
    /// When all of the answer was sent last.
    sent: Moment,
}

impl CachedAnswer {
    fn bytes(&self) -> usize {
        self.question.bytes + self.answer.as_ref().map_or(0, Vec::len)
    }
}

/// Takes questions of members, and sends them answers until those have come.
#[derive(Clone, Debug, Default)]
pub struct QueryServer {
    kept: BTreeMap<Asked, CachedAnswer>,
    bytes: usize,
    outgoing: VecDeque<(HostId, Vec<u8>)>,
}

impl QueryServer {
    /// A member has asked something, or for what is missing of an answer; `wall` is this host's wall clock,
    /// ns since 1970. Returns a question that has to be answered.
    ///
    /// # Errors
    /// If it makes no sense.
    pub fn receive(
        &mut self,
        now: Moment,
        wall: u64,
        from: HostId,
        bytes: &[u8],
    ) -> Result<Option<(Asked, Vec<u8>)>, Malformed> {
        match Message::read(bytes)? {
            Message::Ask { ticket, sent, piece } => {
                let asked = Asked { from, ticket };
                // Dropped without a word: the asker repeats it, and memory is free again within seconds.
                if self.bytes + piece.bytes.len() > MAX_BYTES {
                    return Ok(None);
                }
                self.begin(now, asked);
                let Some(kept) = self.kept.get_mut(&asked) else { return Ok(None) };
                kept.echo = (sent, now);
                if kept.working {
                    // It asks again: the answer was lost.
                    // By the first piece only: a question of many pieces would call for the answer with each.
                    if piece.number == 0 && now.since(kept.sent) >= RETRY_INTERVAL {
                        self.send(now, wall, asked, None);
                    }
                    return Ok(None);
                }
                self.bytes += kept.question.take(piece);
                let Some(question) = kept.question.whole() else { return Ok(None) };
                kept.working = true;
                // It is not needed a second time.
                self.bytes -= kept.question.bytes;
                kept.question = Pieces::default();
                Ok(Some((asked, question)))
            }
            Message::Missing { ticket, sent, numbers } => {
                let asked = Asked { from, ticket };
                if let Some(kept) = self.kept.get_mut(&asked) {
                    kept.echo = (sent, now);
                    self.send(now, wall, asked, Some(&numbers));
                }
                Ok(None)
            }
            Message::Part { .. } => Err(Malformed),
        }
    }

    /// Gives the answer to a question that [`QueryServer::receive`] has returned. Returns whether there was
    /// somebody to have it, and room for it.
    pub fn answer(&mut self, now: Moment, wall: u64, asked: Asked, answer: Vec<u8>) -> bool {
        if answer.len() > MAX_ANSWER || self.bytes + answer.len() > MAX_BYTES {
            self.remove(asked);
            return false;
        }
        let Some(kept) = self.kept.get_mut(&asked).filter(|kept| kept.answer.is_none()) else {
            return false;
        };
        self.bytes += answer.len();
        kept.answer = Some(answer);
        self.send(now, wall, asked, None);
        true
    }

    /// Forgets what is old.
    pub fn poll(&mut self, now: Moment) {
        let old = |kept: &CachedAnswer| now.since(kept.since) >= KEPT;
        let asked: Vec<_> =
            self.kept.iter().filter(|(_, kept)| old(kept)).map(|(asked, _)| *asked).collect();
        asked.into_iter().for_each(|asked| self.remove(asked));
    }

    /// The next packet to be sent, and to whom.
    pub fn outgoing(&mut self) -> Option<(HostId, Vec<u8>)> {
        self.outgoing.pop_front()
    }

    /// Bytes that are kept.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Begins a question if it is a new one.
    fn begin(&mut self, now: Moment, asked: Asked) {
        if self.kept.contains_key(&asked) {
            return;
        }
        self.poll(now);
        // For each member by itself: one that asks too much forgets its own questions, not those of others.
        let of_one =
            |asked: Asked| Asked { ticket: 0, ..asked }..=Asked { ticket: u64::MAX, ..asked };
        if self.kept.range(of_one(asked)).count() >= MAX_OF_ONE {
            // The oldest one: who asks something new has mostly had the answer.
            let oldest = self.kept.range(of_one(asked)).min_by_key(|(_, kept)| kept.since);
            if let Some(oldest) = oldest.map(|(asked, _)| *asked) {
                self.remove(oldest);
            }
        }
        let kept = CachedAnswer {
            question: Pieces::default(),
            working: false,
            answer: None,
            since: now,
            echo: (0, now),
            sent: now,
        };
        self.kept.insert(asked, kept);
    }

    fn remove(&mut self, asked: Asked) {
        if let Some(kept) = self.kept.remove(&asked) {
            self.bytes -= kept.bytes();
        }
    }

    /// Sends pieces of an answer that there is, or all of them.
    fn send(&mut self, now: Moment, wall: u64, asked: Asked, numbers: Option<&[u16]>) {
        let Some(kept) = self.kept.get_mut(&asked) else { return };
        let Some(answer) = &kept.answer else { return };
        let (echo, held) = (kept.echo.0, now.since(kept.echo.1).as_nanos() as u64);
        if numbers.is_none() {
            kept.sent = now;
        }
        for piece in Piece::all(answer, MAX_ANSWER).into_iter().flatten() {
            if numbers.is_none_or(|numbers| numbers.contains(&piece.number)) {
                let part = Message::Part { ticket: asked.ticket, echo, held, wall, piece };
                self.outgoing.push_back((asked.from, part.bytes()));
            }
        }
    }
}
