//! Frames: sealed by one host, opened by another.

use std::collections::HashMap;

use super::header::{Header, MAX_NUMBER, Versions};
use super::key::KeyRing;
use super::window::Window;
use super::{Epoch, Rejection, TAG};
use crate::HostId;

/// Senders that are kept in mind.
/// Who has the key can invent numbers, and each costs windows of 256 bytes: so there is an end to it.
const MAX_SENDERS: usize = 4096;

/// Runs of one sender that are kept in mind: more than one where two hosts have one ledger.
const MAX_RUNS: usize = 4;

/// Seals what a host sends.
#[derive(Clone, Debug)]
pub struct Sealer {
    me: HostId,
    epoch: Epoch,
    number: u64,
    salt: fn() -> u64,
}

impl Sealer {
    /// Of a run that has not sealed anything yet. `salt` draws what no copy of this machine draws: a second sealer of the
    /// same epoch would repeat nonces without.
    pub const fn new(me: HostId, epoch: Epoch, salt: fn() -> u64) -> Self {
        Self { me, epoch, number: 0, salt }
    }

    /// A frame of `content`, in that version, for the run `to` of whoever gets it, 0 if that is not known. `None` after
    /// 2^48 frames, which is 89 years at 100,000 a second.
    pub fn seal(
        &mut self,
        ring: &KeyRing,
        version: u8,
        cluster: u16,
        to: u32,
        content: &[u8],
    ) -> Option<Vec<u8>> {
        // Silence is the lesser harm: two frames with one nonce would give away what both say.
        if self.number >= MAX_NUMBER {
            return None;
        }
        // Counted before it is sealed: a number that was tried is never used again, even if sealing fails.
        let number = self.number;
        self.number += 1;
        let key = ring.active();
        let (from, epoch, salt) = (self.me, self.epoch, (self.salt)());
        let header = Header { version, key: key.short(), cluster, from, epoch, to, number, salt };
        let mut frame = Vec::with_capacity(Header::LENGTH + content.len() + TAG);
        frame.extend(header.bytes());
        frame.extend_from_slice(content);
        let tag = key.seal(&header, &mut frame[Header::LENGTH..])?;
        frame.extend(tag);
        Some(frame)
    }
}

/// The recipient of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipient {
    /// This run of this host. It has come for the first time.
    This,
    /// Whoever gets it. It may have come before.
    Anybody,
    /// Another run of this host. It may have come before.
    Another,
}

/// A frame whose seal is whole.
#[derive(Debug, PartialEq, Eq)]
pub struct Opened<'a> {
    /// Who has sent it.
    pub from: HostId,
    /// In which run.
    pub epoch: Epoch,
    /// In which version.
    pub version: u8,
    /// Of which cluster, in short; 0 if of none yet.
    pub cluster: u16,
    /// For whom.
    pub to: Recipient,
    /// It is sealed with the key that is accepted besides, not with the one that this host seals with.
    pub other_key: bool,
    /// What it says.
    pub content: &'a [u8],
}

/// One sender: frames of its latest runs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sender {
    /// The highest epoch that there was. A run is listened to if it is kept below, or is later than
    /// this; so none that has been forgotten is ever listened to again.
    latest: Epoch,
    /// Those last heard of last.
    runs: Vec<(Epoch, Window)>,
}

impl Sender {
    fn check(&self, epoch: Epoch, number: u64) -> Result<(), Rejection> {
        match self.runs.iter().find(|run| run.0 == epoch) {
            Some((_, window)) if window.is_new(number) => Ok(()),
            Some(_) => Err(Rejection::Replayed),
            None if epoch > self.latest => Ok(()),
            None => Err(Rejection::Old),
        }
    }

    fn note(&mut self, epoch: Epoch, number: u64) {
        let place = self.runs.iter().position(|run| run.0 == epoch).unwrap_or_else(|| {
            // Replays of a forgotten run stay out: its epoch is not above `latest`.
            if self.runs.len() == MAX_RUNS {
                self.runs.remove(0);
            }
            self.latest = epoch;
            self.runs.push((epoch, Window::default()));
            self.runs.len() - 1
        });
        self.runs[place].1.note(number);
        // Two hosts of one ledger alternate; the run that is heard is not the one to be forgotten.
        self.runs[place..].rotate_left(1);
    }
}

/// Opens what a host receives.
///
/// What was recorded cannot be played back: a frame is listened to if it names this very run, by a number
/// that could not be known before, and if it is of a run of its sender that has not been replaced, and has
/// not come yet. Nothing is remembered of a frame before its seal has been found whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Opener {
    me: HostId,
    epoch: Epoch,
    versions: Versions,
    senders: HashMap<HostId, Sender>,
}

impl Opener {
    /// Of a run that has not received anything yet, and understands these versions.
    pub fn new(me: HostId, epoch: Epoch, versions: Versions) -> Self {
        Self { me, epoch, versions, senders: HashMap::new() }
    }

    /// Opens a datagram in its place.
    ///
    /// # Errors
    /// Why it is not listened to. Nothing has changed then.
    pub fn open<'a>(
        &mut self,
        ring: &KeyRing,
        datagram: &'a mut [u8],
    ) -> Result<Opened<'a>, Rejection> {
        let header = Header::read(datagram, self.versions)?;
        // Reflected by whoever records frames. Its seal is right, so it must be refused by its sender.
        if (header.from, header.epoch) == (self.me, self.epoch) {
            return Err(Rejection::Own);
        }
        let to = match header.to {
            0 => Recipient::Anybody,
            to if to == self.epoch.short() => Recipient::This,
            _ => Recipient::Another,
        };
        // What will not be listened to is not worth being decrypted.
        let sender = self.senders.get(&header.from);
        if to == Recipient::This {
            match sender {
                Some(sender) => sender.check(header.epoch, header.number)?,
                None if self.senders.len() >= MAX_SENDERS => return Err(Rejection::TooManySenders),
                None => {}
            }
        }
        let sealed = &mut datagram[Header::LENGTH..];
        let (content, tag) = sealed.split_last_chunk_mut::<TAG>().ok_or(Rejection::Short)?;
        let other_key = ring.open(&header, content, *tag)?;
        // Only now: a forged header must not fill the table, nor use up the number of a frame to come.
        if to == Recipient::This {
            let fresh = || Sender { latest: header.epoch, runs: Vec::new() };
            let sender = self.senders.entry(header.from).or_insert_with(fresh);
            sender.note(header.epoch, header.number);
        }
        let Header { version, from, epoch, cluster, .. } = header;
        Ok(Opened { version, from, epoch, cluster, to, other_key, content })
    }
}

#[cfg(test)]
mod tests;
