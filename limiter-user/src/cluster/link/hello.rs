//! Who somebody is, said by itself.

use super::ClusterId;
use crate::cluster::membership::Identity;
use crate::cluster::wire::bytes::{Malformed, Reader};
use crate::cluster::wire::{Opened, Rejection};

/// What hosts say to each other first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// The cluster that the sender belongs to.
    pub(super) cluster: Option<ClusterId>,
    /// The sender.
    pub(super) identity: Identity,
}

impl Hello {
    /// As bytes.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut to = self.cluster.map_or(0, |cluster| cluster.0).to_be_bytes().to_vec();
        self.identity.write(&mut to);
        to
    }

    /// Reads one that came in `frame`.
    ///
    /// # Errors
    /// If it is none, or of somebody else than who has sealed the frame.
    pub(super) fn read(bytes: &[u8], frame: &Opened<'_>) -> Result<Self, Rejection> {
        let hello = Self::parse(bytes).map_err(|Malformed| Rejection::Malformed)?;
        let Identity { epoch, .. } = hello.identity;
        if (hello.identity.host(), epoch) != (frame.from, frame.epoch) {
            return Err(Rejection::Malformed);
        }
        Ok(hello)
    }

    fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes);
        let cluster = Some(ClusterId(from.u64()?)).filter(|cluster| cluster.0 != 0);
        let identity = Identity::read(&mut from)?;
        if from.is_empty() { Ok(Self { cluster, identity }) } else { Err(Malformed) }
    }
}
