//! Who somebody is, said by itself.

use super::ClusterId;
use super::founding::Bootstrap;
use crate::agreement::Agreement;
use crate::membership::Identity;
use crate::wire::bytes::{Malformed, Reader, put_number};
use crate::wire::{Opened, Rejection};

/// What hosts say to each other first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// The cluster that the sender belongs to.
    pub(super) cluster: Option<ClusterId>,
    /// What it tells of founding one, if it belongs to none.
    pub(super) bootstrap: Bootstrap,
    /// What it has to agree about with others.
    pub(super) agreement: Agreement,
    pub(super) identity: Identity,
}

impl Hello {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut to = self.cluster.map_or(0, |cluster| cluster.0).to_be_bytes().to_vec();
        put_number(&mut to, self.bootstrap.expect.into());
        to.extend(self.bootstrap.proposal.0.to_be_bytes());
        to.extend(self.bootstrap.vote.map_or(0, |vote| vote.0).to_be_bytes());
        self.agreement.write(&mut to);
        self.identity.write(&mut to);
        to
    }

    /// Reads one that came in `frame`.
    ///
    /// # Errors
    /// If it is none, or of somebody else than who has sealed the frame.
    pub(super) fn read(bytes: &[u8], frame: &Opened<'_>) -> Result<Self, Rejection> {
        let hello = Self::parse(bytes)?;
        let Identity { epoch, .. } = hello.identity;
        // All members have the key: one must not introduce itself, or a recorded run, as another.
        if (hello.identity.host(), epoch) != (frame.from, frame.epoch) {
            return Err(Rejection::Malformed);
        }
        Ok(hello)
    }

    fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes);
        let some = |id: u64| Some(ClusterId(id)).filter(|id| id.0 != 0);
        let cluster = some(from.u64()?);
        let (expect, proposal) = (from.small()?, ClusterId(from.u64()?));
        let bootstrap = Bootstrap { expect, proposal, vote: some(from.u64()?) };
        let agreement = Agreement::read(&mut from)?;
        let identity = Identity::read(&mut from)?;
        let hello = Self { cluster, bootstrap, agreement, identity };
        if from.is_empty() { Ok(hello) } else { Err(Malformed) }
    }
}
