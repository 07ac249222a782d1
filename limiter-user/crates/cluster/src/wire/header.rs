//! What a frame says in clear text, and what its seal covers as well.

use super::bytes::Reader;
use super::{Epoch, MAX_BYTES, Rejection, TAG};
use crate::HostId;

/// The versions of what is said in frames that a host understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// From this one on.
    pub oldest: u8,
    /// Up to this one.
    pub newest: u8,
}

impl Versions {
    /// Those of this build. A later one understands the newest of these, too: a cluster is upgraded host by host.
    pub const THESE: Self = Self { oldest: 6, newest: 6 };

    /// Whether this one is understood.
    pub const fn has(self, version: u8) -> bool {
        self.oldest <= version && version <= self.newest
    }

    /// The newest one that `other` understands, too; the newest one at all if there is none.
    pub fn with(self, other: Self) -> u8 {
        let common = self.newest.min(other.newest);
        if self.has(common) && other.has(common) { common } else { self.newest }
    }
}

/// What every frame begins with.
const MAGIC: u8 = 0xc7;

/// The largest number of a frame.
pub const MAX_NUMBER: u64 = (1 << 48) - 1;

/// The head of a frame. It is the same in all versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// In which version the content is.
    pub version: u8,
    /// Which key it is sealed with, in short.
    pub key: u16,
    /// Which cluster the sender belongs to, in short; 0 if to none yet.
    pub cluster: u16,
    /// Who has sent it.
    pub from: HostId,
    /// Since when the sender runs.
    pub epoch: Epoch,
    /// Since when the receiver runs, in short: what was said to it before is not said again. 0 if the
    /// sender does not know.
    pub to: u32,
    /// One more for each frame of the sender; 48 bits.
    pub number: u64,
    /// What no copy of the sender's machine has drawn for a frame with the same number.
    pub salt: u64,
}

impl Header {
    /// Its bytes in a frame.
    pub const LENGTH: usize = 40;

    /// As bytes.
    pub fn bytes(&self) -> [u8; Self::LENGTH] {
        let mut to = [0; Self::LENGTH];
        to[0] = MAGIC;
        to[1] = self.version;
        to[2..4].copy_from_slice(&self.key.to_be_bytes());
        to[4..6].copy_from_slice(&self.cluster.to_be_bytes());
        to[6..14].copy_from_slice(&self.from.0.to_be_bytes());
        to[14..22].copy_from_slice(&self.epoch.0.to_be_bytes());
        to[22..26].copy_from_slice(&self.to.to_be_bytes());
        to[26..32].copy_from_slice(&self.number.to_be_bytes()[2..]);
        to[32..40].copy_from_slice(&self.salt.to_be_bytes());
        to
    }

    /// From a datagram.
    ///
    /// # Errors
    /// If that is no frame of one of these versions.
    pub fn read(datagram: &[u8], versions: Versions) -> Result<Self, Rejection> {
        match *datagram {
            [] => return Err(Rejection::Short),
            // Before the length: packets of other programs are counted as such, and not as broken frames.
            [MAGIC, ..] => {}
            _ => return Err(Rejection::Foreign),
        }
        if datagram.len() > MAX_BYTES {
            return Err(Rejection::Long);
        }
        // A frame has a byte of content at least.
        if datagram.len() <= Self::LENGTH + TAG {
            return Err(Rejection::Short);
        }
        let mut from = Reader::new(&datagram[1..]);
        let version = from.u8()?;
        // Before all other fields: those of a version to come may lie elsewhere.
        if !versions.has(version) {
            return Err(Rejection::Protocol);
        }
        Ok(Self {
            version,
            key: from.u16()?,
            cluster: from.u16()?,
            from: HostId(from.u64()?),
            epoch: Epoch(from.u64()?),
            to: from.u32()?,
            number: u64::from(from.u16()?) << 32 | u64::from(from.u32()?),
            salt: from.u64()?,
        })
    }

    /// What is never the same for two frames under one key: a host has one epoch at a time, a later one
    /// after each start, and counts the frames of an epoch. A machine that is cloned while it runs, or goes back to a
    /// snapshot of its memory, has the same epoch and counts on from the same number: there the salts differ.
    /// They take more than the 12 bytes of plain ChaCha20 (RFC 8439): hence the extended nonce.
    pub(super) fn nonce(&self) -> [u8; 24] {
        let mut nonce = [0; 24];
        // Mixed in, not in the place of something: should the salts be alike after all, the rest still differs.
        nonce[..8].copy_from_slice(&(self.from.0 ^ self.salt).to_be_bytes());
        nonce[8..16].copy_from_slice(&self.epoch.0.to_be_bytes());
        nonce[16..].copy_from_slice(&self.number.to_be_bytes());
        nonce
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header {
        version: 6,
        key: 0x1234,
        cluster: 0x5678,
        from: HostId(u64::MAX - 1),
        epoch: Epoch(0xdead_beef_0bad_cafe),
        to: 77,
        number: MAX_NUMBER - 1,
        salt: 0x0123_4567_89ab_cdef,
    };

    fn datagram() -> Vec<u8> {
        [&HEADER.bytes()[..], &[0; TAG + 1]].concat()
    }

    fn read(datagram: &[u8]) -> Result<Header, Rejection> {
        Header::read(datagram, Versions { oldest: 5, newest: 6 })
    }

    #[test]
    fn it_is_read_as_it_was_written() {
        assert_eq!(read(&datagram()), Ok(HEADER));
    }

    #[test]
    fn two_hosts_speak_the_newest_version_that_both_understand() {
        let versions = |oldest, newest| Versions { oldest, newest };
        assert_eq!(versions(5, 6).with(versions(6, 7)), 6);
        assert_eq!(versions(6, 7).with(versions(5, 6)), 6);
        assert_eq!(versions(6, 7).with(versions(6, 7)), 7);
        // Refused by the other one, and counted there.
        assert_eq!(versions(5, 6).with(versions(7, 8)), 6);
        assert_eq!(versions(7, 8).with(versions(5, 6)), 8);
    }

    #[test]
    fn a_copy_of_a_machine_has_other_nonces() {
        assert_ne!(Header { salt: 1, ..HEADER }.nonce(), HEADER.nonce());
        assert_ne!(Header { number: 1, ..HEADER }.nonce(), HEADER.nonce());
    }

    #[test]
    fn what_is_no_frame_of_this_version_is_told_apart() {
        let mut bytes = datagram();
        assert_eq!(read(&bytes[..bytes.len() - 1]), Err(Rejection::Short));
        assert_eq!(read(&[]), Err(Rejection::Short));
        assert_eq!(read(b"GET / HTTP/1.1"), Err(Rejection::Foreign));
        bytes[1] -= 1;
        assert!(read(&bytes).is_ok());
        bytes[1] += 2;
        assert_eq!(read(&bytes), Err(Rejection::Protocol));
        bytes.resize(MAX_BYTES + 1, 0);
        assert_eq!(read(&bytes), Err(Rejection::Long));
    }
}
