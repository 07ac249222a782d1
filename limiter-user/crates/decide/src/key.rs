//! What a decision is about: any key, by a hash.

use std::hash::Hasher;

use model::meter::Meter;
use siphasher::sip128::{Hasher128, SipHasher13};

/// A key, by 128 bits of a keyed hash: nobody who does not know the secret can name two keys that share a bucket, and of
/// 2^32 keys any two meet with a probability of 2^-65.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash {
    /// Chooses the set of the table, and the fingerprint there.
    pub high: u64,
    /// Never 0, which is an empty slot.
    pub low: u64,
}

/// What a descriptor has in a request: key and value.
pub type Entry<'a> = (&'a str, &'a str);

/// What hashes are keyed with: random, and the same as long as the table lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Secret(pub [u64; 2]);

impl Secret {
    /// Begins the hash of a key in a `space`: keys of different spaces are different, whatever they consist of.
    #[must_use]
    pub fn begin(self, space: Space) -> KeyHasher {
        let mut hasher = SipHasher13::new_with_keys(self.0[0], self.0[1]);
        hasher.write_u8(space as u8);
        KeyHasher(hasher)
    }

    /// Begins the hash of a descriptor of a domain.
    #[must_use]
    pub fn descriptor(self, domain: &str) -> KeyHasher {
        let mut hasher = self.begin(Space::Descriptor);
        hasher.part(domain.as_bytes());
        hasher
    }

    /// The hash of a key that is one text.
    #[must_use]
    pub fn hash(self, space: Space, key: &[u8]) -> KeyHash {
        let mut hasher = self.begin(space);
        hasher.part(key);
        hasher.finish()
    }
}

impl KeyHash {
    /// Where the state of this key is under a meter. Token buckets of all limits mean the same by theirs: a time. What
    /// others count means something else under another limit, so a key begins anew there.
    #[must_use]
    pub const fn under(self, meter: &Meter) -> Self {
        Self { high: self.high ^ meter.layout(), low: self.low }
    }

    /// The key of something else of this one, in a `space`.
    #[must_use]
    pub fn within(self, space: Space, secret: Secret) -> Self {
        let mut hasher = secret.begin(space);
        hasher.part(&self.high.to_ne_bytes());
        hasher.part(&self.low.to_ne_bytes());
        hasher.finish()
    }
}

/// Where a key comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Space {
    /// A domain and the entries of a descriptor.
    Descriptor = 1,
    /// A key that comes with its limit.
    Named = 2,
    /// What was denied of another key.
    Denied = 3,
    /// Another key that all hosts know.
    Shared = 4,
    /// A key of the central store.
    Synced = 5,
}

/// The hash of a key in parts.
#[derive(Clone, Debug)]
pub struct KeyHasher(SipHasher13);

impl KeyHasher {
    /// Adds a part.
    pub fn part(&mut self, part: &[u8]) {
        // Its length first, or parts that are cut elsewhere would be the same key.
        self.0.write_u32(part.len() as u32);
        self.0.write(part);
    }

    /// Adds an entry of a descriptor.
    pub fn entry(&mut self, key: &str, value: &str) {
        self.part(key.as_bytes());
        self.part(value.as_bytes());
    }

    /// The hash of all parts.
    #[must_use]
    pub fn finish(&self) -> KeyHash {
        let hash = self.0.finish128();
        // Folding 0 onto 1 makes two of 2^64 values equal: immaterial.
        KeyHash { high: hash.h1, low: hash.h2.max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_by_secret_space_and_where_their_parts_end() {
        let of = |secret, space, parts: &[&str]| {
            let mut hasher = Secret([secret, 0]).begin(space);
            parts.iter().for_each(|part| hasher.part(part.as_bytes()));
            hasher.finish()
        };
        let key = of(1, Space::Named, &["ab", "c"]);
        assert_eq!(key, of(1, Space::Named, &["ab", "c"]));
        assert_ne!(key, of(2, Space::Named, &["ab", "c"]));
        assert_ne!(key, of(1, Space::Descriptor, &["ab", "c"]));
        assert_ne!(key, of(1, Space::Named, &["a", "bc"]));
        assert_ne!(key, of(1, Space::Named, &["ab", "c", ""]));
        assert_eq!(Secret([1, 0]).hash(Space::Named, b"ab"), of(1, Space::Named, &["ab"]));
    }
}
