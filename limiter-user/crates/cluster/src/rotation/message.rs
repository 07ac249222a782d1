//! What hosts say to each other about a change of keys.

use super::{Id, Stage};
use crate::wire::KEY;
use crate::wire::KeyBytes as Key;
use crate::wire::bytes::{Malformed, Reader};

/// What is wanted of who hears it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// To make a new key. The rotation is the last one that the sender knows of.
    Ask = 1,
    /// To be as far.
    Command = 2,
    /// To know that the sender is as far.
    PeerStage = 3,
}

/// What is said. It has the same length whatever it is.
#[derive(Clone, PartialEq, Eq)]
// No `Debug`: it carries a key, and what can be printed ends in logs.
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) id: Id,
    pub(super) stage: Stage,
    /// A hash of the members that the sender sees.
    pub(super) view: u64,
    pub(super) key: Key,
}

impl Message {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind as u8, self.stage as u8];
        for word in [self.id.number, self.id.tag, self.view] {
            bytes.extend(word.to_be_bytes());
        }
        bytes.extend(self.key);
        bytes
    }

    /// Reads one.
    ///
    /// # Errors
    /// If it is none.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes);
        let kind = match from.u8()? {
            1 => Kind::Ask,
            2 => Kind::Command,
            3 => Kind::PeerStage,
            _ => return Err(Malformed),
        };
        let stage = Stage::from_number(from.u8()?).ok_or(Malformed)?;
        let id = Id { number: from.u64()?, tag: from.u64()? };
        let view = from.u64()?;
        let key: [u8; KEY] = from.rest().try_into().map_err(|_| Malformed)?;
        Ok(Self { kind, id, stage, view, key })
    }
}
