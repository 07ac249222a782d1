//! Questions and answers, cut into what a frame has room for.

use crate::wire::MAX_OPAQUE;
use crate::wire::bytes::{Malformed, Reader};

/// Bytes before what a packet carries.
const HEAD: usize = 1 + 8 + 8 + 8 + 8 + 2 + 2;

/// Bytes that a packet carries.
const ROOM: usize = MAX_OPAQUE - HEAD;

/// Parts of a question, at most.
const MAX_ASKED: u16 = 128;

/// Parts of an answer, at most.
/// Sixteen open questions bring 3,072 frames of a host: fewer than the 4,000 that its budget in the kernel has.
const MAX_PARTS: u16 = 192;

/// Bytes of a question, at most.
pub const MAX_QUESTION: usize = MAX_ASKED as usize * ROOM;

/// Bytes of an answer, at most.
pub const MAX_ANSWER: usize = MAX_PARTS as usize * ROOM;

const ASK: u8 = 1;
const PART: u8 = 2;
const MISSING: u8 = 3;

/// A piece of a question or of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece<'a> {
    /// Which one, from 0 on.
    pub(super) number: u16,
    /// Of how many, at least 1.
    pub(super) of: u16,
    pub(super) bytes: &'a [u8],
}

/// What is said. `ticket` is the asker's number of the question; `sent` its clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message<'a> {
    /// A piece of a question.
    Ask { ticket: u64, sent: u64, piece: Piece<'a> },
    /// A piece of the answer to it.
    Part {
        ticket: u64,
        /// The latest `sent` that has come, and how long ago that was, ns.
        echo: u64,
        held: u64,
        /// The answerer's wall clock, ns since 1970.
        wall: u64,
        piece: Piece<'a>,
    },
    /// These pieces of the answer have not come.
    Missing { ticket: u64, sent: u64, numbers: Vec<u16> },
}

impl<'a> Message<'a> {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut to = Vec::with_capacity(MAX_OPAQUE);
        match self {
            Self::Ask { ticket, sent, piece } => {
                to.push(ASK);
                to.extend(ticket.to_be_bytes());
                to.extend(sent.to_be_bytes());
                piece.write(&mut to);
            }
            Self::Part { ticket, echo, held, wall, piece } => {
                to.push(PART);
                for number in [ticket, echo, held, wall] {
                    to.extend(number.to_be_bytes());
                }
                piece.write(&mut to);
            }
            Self::Missing { ticket, sent, numbers } => {
                to.push(MISSING);
                to.extend(ticket.to_be_bytes());
                to.extend(sent.to_be_bytes());
                for number in numbers {
                    to.extend(number.to_be_bytes());
                }
            }
        }
        to
    }

    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes);
        let kind = from.u8()?;
        let ticket = from.u64()?;
        match kind {
            ASK => {
                Ok(Self::Ask { ticket, sent: from.u64()?, piece: Piece::read(from, MAX_ASKED)? })
            }
            PART => Ok(Self::Part {
                ticket,
                echo: from.u64()?,
                held: from.u64()?,
                wall: from.u64()?,
                piece: Piece::read(from, MAX_PARTS)?,
            }),
            MISSING => {
                let sent = from.u64()?;
                let mut numbers = Vec::new();
                while !from.is_empty() {
                    // A frame has room for more numbers than an answer has parts: each could cost a search through
                    // all.
                    if numbers.len() >= usize::from(MAX_PARTS) {
                        return Err(Malformed);
                    }
                    numbers.push(from.u16()?);
                }
                Ok(Self::Missing { ticket, sent, numbers })
            }
            _ => Err(Malformed),
        }
    }
}

impl<'a> Piece<'a> {
    fn write(&self, to: &mut Vec<u8>) {
        to.extend(self.number.to_be_bytes());
        to.extend(self.of.to_be_bytes());
        to.extend_from_slice(self.bytes);
    }

    fn read(mut from: Reader<'a>, most: u16) -> Result<Self, Malformed> {
        let (number, of) = (from.u16()?, from.u16()?);
        // All but the last one are full, so that their number says how much they are.
        let bytes = from.rest();
        let last = usize::from(number) + 1 >= usize::from(of);
        let fits = if last { bytes.len() <= ROOM } else { bytes.len() == ROOM };
        if number >= of || of > most || !fits {
            return Err(Malformed);
        }
        Ok(Self { number, of, bytes })
    }

    /// `bytes` in pieces; `None` if they are more than `most`.
    pub(super) fn all(bytes: &'a [u8], most: usize) -> Option<impl Iterator<Item = Self>> {
        if bytes.len() > most {
            return None;
        }
        // An empty answer takes a packet too: without one the asker would name this host as silent.
        let of = bytes.len().div_ceil(ROOM).max(1) as u16;
        Some((0..of).map(move |number| {
            let first = usize::from(number) * ROOM;
            let last = bytes.len().min(first + ROOM);
            Self { number, of, bytes: &bytes[first..last] }
        }))
    }
}

/// What has come of a question or an answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces {
    parts: Vec<Option<Box<[u8]>>>,
    come: usize,
    pub(super) bytes: usize,
}

impl Pieces {
    /// Takes a piece. Returns how many bytes more are kept than before.
    pub(super) fn take(&mut self, piece: Piece<'_>) -> usize {
        // The first piece says how many there are, at most MAX_PARTS: so memory is bounded before they come.
        if self.parts.is_empty() {
            self.parts = vec![None; usize::from(piece.of)];
        }
        // What is of something else does not fit.
        if self.parts.len() != usize::from(piece.of) {
            return 0;
        }
        // A doubled piece must not be counted: the answer would seem whole with a hole in it.
        let Some(slot @ None) = self.parts.get_mut(usize::from(piece.number)) else { return 0 };
        *slot = Some(piece.bytes.into());
        self.come += 1;
        self.bytes += piece.bytes.len();
        piece.bytes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.come == 0
    }

    /// Those that have not come.
    pub(super) fn missing(&self) -> Vec<u16> {
        (0..)
            .zip(&self.parts)
            .filter(|(_, part)| part.is_none())
            .map(|(number, _)| number)
            .collect()
    }

    /// All of it, if it has all come.
    pub(super) fn whole(&self) -> Option<Vec<u8>> {
        if self.parts.is_empty() || self.come < self.parts.len() {
            return None;
        }
        let mut whole = Vec::with_capacity(self.bytes);
        self.parts.iter().flatten().for_each(|part| whole.extend_from_slice(part));
        Some(whole)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_cannot_be_is_refused() {
        let piece = Piece { number: 0, of: 1, bytes: &[1] };
        for saying in [
            Message::Ask { ticket: 1, sent: 2, piece: Piece { of: 0, ..piece } },
            Message::Ask { ticket: 1, sent: 2, piece: Piece { of: 2, ..piece } },
            Message::Ask { ticket: 1, sent: 2, piece: Piece { number: 1, ..piece } },
            Message::Ask { ticket: 1, sent: 2, piece: Piece { number: 128, of: 129, bytes: &[] } },
        ] {
            assert_eq!(Message::read(&saying.bytes()), Err(Malformed), "{saying:?}");
        }
        assert!(Piece::all(&vec![0; MAX_QUESTION], MAX_QUESTION).unwrap().count() == 128);
        assert!(Piece::all(&vec![0; MAX_ANSWER + 1], MAX_ANSWER).is_none());
    }

    proptest! {
        #[test]
        fn bytes_come_through_in_any_order_however_often(
            bytes in prop::collection::vec(any::<u8>(), 0..20_000),
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        ) {
            let frames: Vec<_> = Piece::all(&bytes, MAX_QUESTION)
                .unwrap()
                .map(|piece| Message::Ask { ticket: 7, sent: 8, piece }.bytes())
                .collect();
            let mut pieces = Pieces::default();
            let mixed = order.iter().map(|index| index.index(frames.len()));
            for at in mixed.chain((0..frames.len()).rev()) {
                prop_assert!(frames[at].len() <= MAX_OPAQUE);
                let Message::Ask { ticket: 7, sent: 8, piece } = Message::read(&frames[at]).unwrap()
                else { panic!("another saying") };
                pieces.take(piece);
                prop_assert_eq!(pieces.whole().is_none(), !pieces.missing().is_empty());
            }
            prop_assert_eq!(pieces.whole().unwrap(), bytes);
        }

        #[test]
        fn nothing_that_comes_can_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(Message::Ask { piece, .. } | Message::Part { piece, .. }) = Message::read(&bytes) {
                let mut pieces = Pieces::default();
                pieces.take(piece);
                pieces.take(Piece { number: 3, of: 4, bytes: &[] });
                pieces.whole();
            }
        }
    }
}
