//! Frames on their way out and in.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::Moment;
use crate::membership::Identity;
use crate::wire::{Content, Counts, KeyRing, Opened, Opener, Packet, Rejection, Sealer};

/// A run of a host, and how it is spoken to.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) address: SocketAddr,
    /// In short, 0 if it is not known.
    pub(super) number: u32,
    /// The version that it understands.
    pub(super) version: u8,
}

/// Seals and opens frames and counts them. It is apart from what they say: of that it knows nothing, so that nothing
/// but a whole seal gets any further.
pub(super) struct Frames {
    pub(super) ring: KeyRing,
    pub(super) sealer: Sealer,
    pub(super) opener: Opener,
    pub(super) counts: Counts,
    /// The other key in short, and when a frame came that was sealed with it.
    pub(super) other_key: Option<(u16, Moment)>,
    pub(super) outgoing: VecDeque<(SocketAddr, Vec<u8>)>,
}

impl Frames {
    pub(super) fn new(me: &Identity, ring: KeyRing, salt: fn() -> u64) -> Self {
        Self {
            ring,
            sealer: Sealer::new(me.host(), me.epoch, salt),
            opener: Opener::new(me.host(), me.epoch, me.versions),
            counts: Counts::default(),
            other_key: None,
            outgoing: VecDeque::new(),
        }
    }

    /// Seals what is said to a run of a host; `cluster` as frames name it.
    pub(super) fn seal(&mut self, cluster: u16, run: Run, digest: Option<u64>, content: &Content) {
        let Ok(contents) = Packet::encode(digest, content) else {
            self.counts.unsent += 1;
            return;
        };
        for content in contents {
            match self.sealer.seal(&self.ring, run.version, cluster, run.number, &content) {
                Some(frame) => {
                    self.counts.sent += 1;
                    self.counts.sent_bytes += frame.len() as u64;
                    self.outgoing.push_back((run.address, frame));
                }
                None => self.counts.unsent += 1,
            }
        }
    }

    /// Opens a datagram.
    pub(super) fn open<'a>(
        &mut self,
        now: Moment,
        datagram: &'a mut [u8],
    ) -> Result<Opened<'a>, Rejection> {
        let opened = self.opener.open(&self.ring, datagram)?;
        // Rotation takes it as proof that the key was decided on, so only whole seals get here.
        if let (true, Some(key)) = (opened.other_key, self.ring.other()) {
            self.other_key = Some((key.short(), now));
        }
        Ok(opened)
    }
}
