//! The keys of a cluster.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use chacha20poly1305::aead::{AeadInOut as _, KeyInit as _};
use chacha20poly1305::{Tag, XChaCha20Poly1305, XNonce};

use super::header::Header;
use super::{Rejection, TAG};
use crate::error::{Failure, exit};

/// Bytes of a key.
pub const KEY: usize = 32;

/// Bytes of a key file, at most.
const LONGEST: u64 = 4096;

/// What frames are sealed with.
#[derive(Clone)]
pub struct Key {
    cipher: XChaCha20Poly1305,
    /// Which one it is, in short. It says nothing about the key.
    short: u16,
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Key({:04x})", self.short)
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.check() == other.check()
    }
}

impl Key {
    /// Of these bytes, which should be random.
    pub fn new(bytes: [u8; KEY]) -> Self {
        let key = Self { cipher: XChaCha20Poly1305::new(&bytes.into()), short: 0 };
        let check = key.check();
        Self { short: u16::from_be_bytes([check[0], check[1]]), ..key }
    }

    /// The tag of nothing, by a nonce that no frame has: as good as a hash of the key.
    fn check(&self) -> [u8; TAG] {
        let nonce = XNonce::from([0xff; 24]);
        self.cipher
            .encrypt_inout_detached(&nonce, &[], (&mut [][..]).into())
            .map_or([0; TAG], Into::into)
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
            std::mem::swap(&mut self.active, other);
            true
        })
    }

    /// Accepts only the key that it seals with from now on.
    pub fn retire(&mut self) {
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

    /// Those that a frame may be sealed with.
    ///
    /// # Errors
    /// If it is sealed with none of them.
    pub(super) fn open(
        &self,
        header: &Header,
        content: &mut [u8],
        tag: [u8; TAG],
    ) -> Result<(), Rejection> {
        let mut rejection = Rejection::Key;
        for key in [Some(&self.active), self.other.as_ref()].into_iter().flatten() {
            if key.short == header.key {
                // A wrong tag leaves the content as it was.
                if key.open(header, content, tag) {
                    return Ok(());
                }
                rejection = Rejection::Forged;
            }
        }
        Err(rejection)
    }

    /// Reads a key file: a key in each line, as 64 hexadecimal digits or 44 letters of Base64, the one
    /// to seal with first, two at most. Lines that begin with `#` say nothing.
    ///
    /// # Errors
    /// If it cannot be read, is open to others, or has something else in it.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let name = path.display();
        let make = format!("make one with `limiter cluster key generate {name}`");
        let failed = |error: std::io::Error| {
            Failure::new(exit::USAGE, format!("cannot read the key file {name}: {error}"))
                .hint(make.clone())
        };
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.permissions().mode() & 0o077 != 0 {
            let message = format!("others than its owner may read or change the key file {name}");
            let hint = format!("run `chmod 600 {name}`, and better make another key");
            return Err(Failure::new(exit::USAGE, message).hint(hint));
        }
        let mut text = String::new();
        file.take(LONGEST + 1).read_to_string(&mut text).map_err(failed)?;
        let wrong = |what: String| {
            Failure::new(exit::USAGE, format!("the key file {name} {what}")).hint(make.clone())
        };
        if text.len() as u64 > LONGEST {
            return Err(wrong(format!("has more than {LONGEST} bytes")));
        }
        Self::parse(&text).map_err(wrong)
    }

    /// Reads the text of a key file; says what is wrong with it otherwise.
    fn parse(text: &str) -> Result<Self, String> {
        let mut keys = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let bytes = hexadecimal(line).or_else(|| base64(line)).ok_or_else(|| {
                format!("has no key in line {}: that is 64 hexadecimal digits", number + 1)
            })?;
            keys.push(Key::new(bytes));
        }
        let mut keys = keys.into_iter();
        let mut ring = Self::new(keys.next().ok_or("has no key in it")?);
        if let Some(other) = keys.next() {
            if other == ring.active {
                return Err("has the same key twice".to_owned());
            }
            ring.accept(other);
        }
        match keys.len() {
            0 => Ok(ring),
            more => Err(format!("has {} keys: two at most are in use", more + 2)),
        }
    }
}

fn hexadecimal(text: &str) -> Option<[u8; KEY]> {
    if text.len() != 2 * KEY || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut key = [0; KEY];
    for (byte, digits) in key.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(key)
}

/// With one `=` at the end, as of 32 bytes.
fn base64(text: &str) -> Option<[u8; KEY]> {
    let text = text.strip_suffix('=')?;
    if text.len() != 43 {
        return None;
    }
    let mut bytes = Vec::with_capacity(KEY + 1);
    let (mut bits, mut count) = (0_u32, 0);
    for letter in text.bytes() {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    // What is left over has to be nothing: a key is written in one way.
    (bits == 0).then(|| bytes.try_into().ok())?
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const BASE64: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    #[test]
    fn keys_are_read_in_either_form() {
        let key: [u8; KEY] = std::array::from_fn(|place| place as u8);
        assert_eq!(hexadecimal(HEX), Some(key));
        assert_eq!(base64(BASE64), Some(key));
        let ring = KeyRing::parse(&format!("# of March\n\n {} \r\n", HEX.to_uppercase())).unwrap();
        assert_eq!(ring, KeyRing::new(Key::new(key)));
        assert_eq!(KeyRing::parse(BASE64).unwrap(), ring);
    }

    #[test]
    fn what_is_wrong_with_a_file_is_told() {
        let tells = |text: &str, what: &str| {
            let told = KeyRing::parse(text).unwrap_err();
            assert!(told.contains(what), "{told}");
        };
        let other = HEX.replace('0', "a");
        tells("", "no key in it");
        tells("# nothing\n", "no key in it");
        tells(&format!("{HEX}\n{}", &HEX[1..]), "line 2");
        tells(&format!("{HEX}\n{BASE64}"), "same key twice");
        tells(&format!("{HEX}\n{other}\n{}", other.replace('a', "b")), "has 3 keys");
        tells(&BASE64.replace("8=", "9="), "line 1");
        tells(&HEX.replace("00", "é"), "line 1");
    }

    #[test]
    fn a_key_file_is_checked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        assert!(KeyRing::read(&path).unwrap_err().hint.unwrap().contains("key generate"));
        let write = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            KeyRing::read(&path)
        };
        assert!(write(HEX, 0o400).is_ok());
        for mode in [0o644, 0o640, 0o604, 0o620] {
            fs::remove_file(&path).unwrap();
            let failure = write(HEX, mode).unwrap_err();
            assert!(failure.hint.unwrap().contains("chmod 600"));
            assert_eq!(failure.code, exit::USAGE);
        }
        fs::remove_file(&path).unwrap();
        assert!(write(&"#".repeat(5000), 0o600).unwrap_err().message.contains("4096"));
    }

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
}
