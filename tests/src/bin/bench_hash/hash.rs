//! The hashes, as userspace computes them.

use std::hash::Hasher as _;

use limiter_common::{hash::HashKey, key::SourceKey};
use serde::Serialize;
use siphasher::sip::SipHasher13;

/// What a source is hashed by.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Hash {
    /// Nothing: its low half goes on.
    // To be taken off the others: what a run costs without a hash.
    Nothing,
    /// The limiter's keyed multilinear hash.
    Multilinear,
    /// SipHash-1-3 of the sixteen bytes that the limiter hashes.
    #[serde(rename = "siphash")]
    Sip,
    /// SipHash-1-3 of an IPv4 address alone.
    #[serde(rename = "siphash-ipv4")]
    // SipHash at its best: a hash for IPv4 alone would need no more input.
    SipIpv4,
}

impl Hash {
    pub(crate) const ALL: [Self; 4] = [Self::Nothing, Self::Multilinear, Self::Sip, Self::SipIpv4];

    /// Its name in output.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "no hash",
            Self::Multilinear => "the limiter's",
            Self::Sip => "SipHash-1-3 of 16 bytes",
            Self::SipIpv4 => "SipHash-1-3 of 4 bytes",
        }
    }

    /// Its kernel program.
    pub(crate) const fn program(self) -> &'static str {
        match self {
            Self::Nothing => "hash_nothing",
            Self::Multilinear => "hash_multilinear",
            Self::Sip => "hash_siphash",
            Self::SipIpv4 => "hash_siphash_ipv4",
        }
    }

    /// What its program makes of a source.
    fn of(self, key: &HashKey, source: SourceKey) -> u64 {
        match self {
            Self::Nothing => source.low,
            Self::Multilinear => key.hash(source).0,
            Self::Sip => {
                let bytes = [source.high.to_le_bytes(), source.low.to_le_bytes()];
                siphash(key, bytes.as_flattened())
            }
            Self::SipIpv4 => siphash(key, &source.low.to_le_bytes()[..4]),
        }
    }

    /// What `count` hashes of one another leave in the addresses of a frame that came from `source`.
    pub(crate) fn chain(self, key: &HashKey, source: [u8; 4], count: u32) -> [u8; 8] {
        let mut addresses = [0; 8];
        addresses[..4].copy_from_slice(&source);
        for _ in 0..count {
            let [a, b, c, d, ..] = addresses;
            addresses = self.of(key, SourceKey::from_ipv4([a, b, c, d])).to_ne_bytes();
        }
        addresses
    }
}

fn siphash(key: &HashKey, bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(key.words[0], key.words[1]);
    hasher.write(bytes);
    hasher.finish()
}
