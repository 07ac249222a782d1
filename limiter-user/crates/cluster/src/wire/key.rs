//! The keys of a cluster.

use std::fmt;

use chacha20poly1305::aead::{AeadInOut as _, KeyInit as _};
use chacha20poly1305::{Tag, XChaCha20Poly1305, XNonce};

use super::header::Header;
use super::{Rejection, TAG};

/// Bytes of a key.
pub const KEY: usize = 32;

/// A key as files and messages have it.
pub type KeyBytes = [u8; KEY];

/// What frames are sealed with.
#[derive(Clone)]
pub struct Key {
    cipher: XChaCha20Poly1305,
    /// Which one it is, in short. It says nothing about the key.
    short: u16,
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the bytes: what is printed for diagnosis ends in logs.
        write!(formatter, "Key({:04x})", self.short)
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        // The cipher does not give its key back. Two keys have one tag with a probability of 2^-128.
        self.check() == other.check()
    }
}

impl Key {
    /// Of these bytes, which should be random.
    pub fn new(bytes: [u8; KEY]) -> Self {
        let key = Self { cipher: XChaCha20Poly1305::new(&bytes.into()), short: 0 };
        // Not from the key's own bytes: each header would give two of them away.
        let check = key.check();
        Self { short: u16::from_be_bytes([check[0], check[1]]), ..key }
    }

    /// The tag of nothing, by a nonce that no frame has: as good as a hash of the key.
    fn check(&self) -> [u8; TAG] {
        // Numbers of frames have 48 bits, so two bytes of each frame's nonce are zero: this one is free.
        let nonce = XNonce::from([0xff; 24]);
        self.cipher
            .encrypt_inout_detached(&nonce, &[], (&mut [][..]).into())
            .map_or([0; TAG], Into::into)
    }

    /// Another secret, that who has the key can make and nobody else: a key stream by a nonce that no frame
    /// has.
    pub fn derived<const N: usize>(&self) -> [u8; N] {
        let mut nonce = [0xff; 24];
        // Not that of `check`: a nonce is for one message.
        nonce[23] = 0xfe;
        let mut secret = [0; N];
        // It is only refused above 256 GiB.
        let sealed = self.cipher.encrypt_inout_detached(
            &XNonce::from(nonce),
            b"limiter: hash of sources",
            secret.as_mut_slice().into(),
        );
        debug_assert!(sealed.is_ok(), "it is short");
        secret
    }

    /// Which one it is, in short; two keys may have the same.
    pub const fn short(&self) -> u16 {
        self.short
    }

    /// Encrypts `content` in its place; the tag covers `header` too.
    pub(super) fn seal(&self, header: &Header, content: &mut [u8]) -> Option<[u8; TAG]> {
        let nonce = XNonce::from(header.nonce());
        let tag = self.cipher.encrypt_inout_detached(&nonce, &header.bytes(), content.into());
        tag.ok().map(Into::into)
    }

    /// Decrypts `content` in its place, if its tag is right.
    pub(super) fn open(&self, header: &Header, content: &mut [u8], tag: [u8; TAG]) -> bool {
        let nonce = XNonce::from(header.nonce());
        let opened = self.cipher.decrypt_inout_detached(
            &nonce,
            &header.bytes(),
            content.into(),
            &Tag::from(tag),
        );
        opened.is_ok()
    }
}

/// The keys that are in use: one to seal with, and while keys are changed another one that frames of
/// others may be sealed with.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyRing {
    active: Key,
    other: Option<Key>,
}

impl KeyRing {
    /// With one key.
    pub const fn new(active: Key) -> Self {
        Self { active, other: None }
    }

    /// With the keys of a file: the one to seal with, and one that is accepted, too.
    pub fn from_bytes((active, other): (KeyBytes, Option<KeyBytes>)) -> Self {
        Self { active: Key::new(active), other: other.map(Key::new) }
    }

    /// Accepts frames that are sealed with `key`, too, in the place of another one that was accepted
    /// so. Every host of the cluster has to accept a key before the first one seals with it.
    pub fn accept(&mut self, key: Key) {
        if key != self.active {
            self.other = Some(key);
        }
    }

    /// Seals with the other key from now on, and accepts both still. Returns whether there was one.
    pub fn rotate(&mut self) -> bool {
        self.other.as_mut().is_some_and(|other| {
            // Both stay: hosts that have not come so far still seal with the former key.
            std::mem::swap(&mut self.active, other);
            true
        })
    }

    /// Accepts only the key that it seals with from now on.
    pub fn retire(&mut self) {
        // Not kept for hosts that were away: a way in for them is one for a thief of the key.
        self.other = None;
    }

    /// The key that it seals with.
    pub const fn active(&self) -> &Key {
        &self.active
    }

    /// The other key that it accepts.
    pub const fn other(&self) -> Option<&Key> {
        self.other.as_ref()
    }

    /// Those that a frame may be sealed with. Returns whether it was sealed with the one that is only accepted.
    ///
    /// # Errors
    /// If it is sealed with none of them.
    pub(super) fn open(
        &self,
        header: &Header,
        content: &mut [u8],
        tag: [u8; TAG],
    ) -> Result<bool, Rejection> {
        // The short name only saves work: two keys may share it, so each that fits is tried.
        let mut rejection = Rejection::Key;
        for (key, other) in [(Some(&self.active), false), (self.other.as_ref(), true)] {
            if let Some(key) = key.filter(|key| key.short == header.key) {
                // A wrong tag leaves the content as it was.
                if key.open(header, content, tag) {
                    return Ok(other);
                }
                rejection = Rejection::Forged;
            }
        }
        Err(rejection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_seals_with_one_key_and_opens_with_two() {
        let [old, new] = [1, 2].map(|byte| Key::new([byte; KEY]));
        let mut ring = KeyRing::new(old.clone());
        assert!(!ring.rotate());
        ring.accept(old.clone());
        assert_eq!(ring.other(), None);
        ring.accept(new.clone());
        assert_eq!(ring.active(), &old);
        assert!(ring.rotate());
        assert_eq!((ring.active(), ring.other()), (&new, Some(&old)));
        ring.retire();
        assert_eq!(ring, KeyRing::new(new.clone()));
        assert_ne!(old.short(), new.short());
        assert!(!format!("{ring:?}").contains("02020202"));
    }

    #[test]
    fn what_is_derived_is_the_same_for_who_has_the_key_and_for_nobody_else() {
        let [one, other] = [1, 2].map(|byte| Key::new([byte; KEY]));
        let secret = one.derived::<80>();
        assert_eq!(secret, Key::new([1; KEY]).derived());
        assert_ne!(secret, other.derived());
        assert!(secret.chunks(8).all(|word| word.iter().any(|byte| *byte != 0)));
        assert_ne!(secret[..TAG], one.check());
    }
}
