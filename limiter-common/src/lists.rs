//! Sources that are let through or dropped whatever they send: the allow and deny lists.
//!
//! An entry is for a single source or for a prefix of many, and may expire. So that a million entries
//! cost others next to nothing, a packet asks filters first: a bit for each prefix of 16 bits,
//! both for prefixes and for single sources, and for the latter a Bloom filter of one word per source (Putze,
//! Sanders and Singler, "Cache-, hash- and space-efficient Bloom filters", 2009). The bits stay in the
//! processor's caches, the Bloom filter of many entries does not; and who is listed lies close together
//! mostly. Filters may say yes for no reason, never no; the maps decide.

use crate::atomic::{self, AtomicU64};
use crate::hash::Hash;
use crate::key::SourceKey;
/// Bits of [`crate::abi::Config::listed`]: there are entries for single sources.
// Known apart, so that a host with prefixes alone asks no filter of single sources.
pub const SINGLE: u64 = 1;
/// Bits of [`crate::abi::Config::listed`]: there are entries for prefixes.
pub const PREFIX: u64 = 2;

/// Bits of [`crate::abi::Config::listed`] from here on: the binary logarithm of how many words of the
/// filter are in use for single sources.
const SIZE_SHIFT: u32 = 8;

/// [`crate::abi::Config::listed`] for some kinds of entries, with `words` of the filter, a power of
/// two, in use for single sources.
pub const fn in_use(kinds: u64, words: u32) -> u64 {
    kinds | (words.trailing_zeros() as u64) << SIZE_SHIFT
}

/// How many words of the filter are in use for single sources: 1 to 2^31, a power of two.
#[inline(always)]
pub const fn words_in_use(listed: u64) -> u32 {
    1 << (listed >> SIZE_SHIFT & 31)
}

/// How many words of the filter are to be used for so many single sources, if it has `most`. A small
/// filter stays in the processor's caches, and a packet that finds no cache line there costs more than
/// everything else about the lists.
pub fn words_for(sources: usize, most: u32) -> u32 {
    let words = (sources * BITS_PER_SOURCE as usize).div_ceil(64).next_power_of_two();
    u32::try_from(words).unwrap_or(most).min(most)
}

/// Words of the filter that are for prefixes: a bit for each prefix of 16 bits of each family.
pub const PREFIX_WORDS: u32 = PREFIX_BITMAP_WORDS;

/// Words of the bitmap of prefixes in which single sources are listed.
pub const PREFIX_BITMAP_WORDS: u32 = 2 * 65_536 / 64;

/// Bits of the filter for each entry for a single source that there may be.
// With 8 bits one packet in thirty asks the map for nothing: 0.82 of the speed without lists, 0.85
// with 16.
pub const BITS_PER_SOURCE: u32 = 16;

/// What becomes of a listed source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Action {
    /// Every packet passes.
    Allow = 1,
    /// Every packet is dropped.
    Deny = 2,
}

/// A value of the lists' maps: `action:32 | until:32`, the latter in seconds since boot, 0 for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(pub u64);

impl Entry {
    /// No entry at all.
    pub const NOTHING: Self = Self(0);

    /// An entry that holds before second `until` since boot, 0 for ever.
    // Seconds since boot, as the program has no wall clock. One word, so an entry ends without the
    // daemon (P4) and is replaced in one step.
    pub const fn new(action: Action, until: u32) -> Self {
        Self((action as u64) << 32 | until as u64)
    }

    /// Whether it is no entry at all.
    #[inline(always)]
    pub const fn is_nothing(&self) -> bool {
        self.0 == 0
    }

    /// When it expires, in seconds since boot; 0 for never.
    #[inline(always)]
    pub const fn until(&self) -> u32 {
        self.0 as u32
    }

    /// Whether it holds at `now_ns` since boot. By the coarse clock it may hold a tick longer.
    #[inline(always)]
    pub const fn holds(&self, now_ns: u64) -> bool {
        let until = self.until() as u64;
        until == 0 || now_ns < until * 1_000_000_000
    }

    /// Whether its source's packets are dropped.
    #[inline(always)]
    pub const fn denies(&self) -> bool {
        (self.0 >> 32) as u32 == Action::Deny as u32
    }
}

/// Where a source's bits are: the word of the filter, and the bits in it. `words` is how many are in
/// use beyond [`PREFIX_WORDS`], a power of two.
#[inline(always)]
pub const fn bits_of(hash: Hash, words: u32) -> (u32, u64) {
    // A multiplication of its own, so that neither sets nor columns tell which word it is.
    let mixed = hash.0.wrapping_mul(0xd6e8_feb8_6659_fd93);
    let word = (mixed >> 40) as u32 & words.wrapping_sub(1);
    let bits = 1 << (mixed & 63) | 1 << (mixed >> 6 & 63) | 1 << (mixed >> 12 & 63);
    (PREFIX_WORDS + word, bits)
}

/// The bit of a source's prefix, below 2^17: the first 16 bits of an IPv4 address, or 16 bits made of
/// the first 32 of an IPv6 address.
#[inline(always)]
pub const fn prefix_bit(key: SourceKey) -> u32 {
    match key.ipv4() {
        Some(address) => address >> 16,
        None => {
            // The first 16 bits of IPv6 addresses in use differ little, so the next 16 are mixed
            // in.
            let first = (key.high >> 32) as u32;
            65_536 | first.wrapping_mul(0x9e37_79b1) >> 16
        }
    }
}

/// Where the bit of a prefix is: the word, and the bit in it.
#[inline(always)]
pub const fn bit_of(prefix_bit: u32) -> (u32, u64) {
    (prefix_bit / 64, 1 << (prefix_bit % 64))
}

/// The bits of a prefix of `length` bits, which may cover many.
///
/// Calls `visit` with each that a source in the prefix of `key` can have.
// Every bit that any source in it can have: a filter may say yes for no reason, but never no.
pub fn prefix_bits(key: SourceKey, length: u32, mut visit: impl FnMut(u32)) {
    match key.ipv4() {
        Some(_) if length < 16 => {
            let first = prefix_bit(key);
            (first..first + (1 << (16 - length))).for_each(visit);
        }
        None if length < 32 => {
            // The bits are mixed: short prefixes take their chance with all.
            (65_536..2 * 65_536).for_each(visit);
        }
        _ => visit(prefix_bit(key)),
    }
}

/// Whether a filter's word has all `bits`.
#[inline(always)]
pub fn has(word: &AtomicU64, bits: u64) -> bool {
    atomic::load(word) & bits == bits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::HashKey;
    use std::vec;
    use std::vec::Vec;

    #[test]
    fn an_entry_expires_in_its_second() {
        let entry = Entry::new(Action::Deny, 10);
        assert!(entry.denies() && entry.holds(9_999_999_999) && !entry.holds(10_000_000_000));
        let forever = Entry::new(Action::Allow, 0);
        assert!(!forever.denies() && forever.holds(u64::MAX));
    }

    #[test]
    fn the_filter_never_misses_and_is_seldom_wrong() {
        let key = HashKey { words: [(); 10].map(|()| 0x9e37_79b9_7f4a_7c15) };
        let hash = |i: u32| key.hash(SourceKey::from_ipv4(i.to_be_bytes()));
        let (entries, words) = (1 << 16, (1u32 << 16) * BITS_PER_SOURCE / 64);
        let mut filter = vec![0u64; (PREFIX_WORDS + words) as usize];
        for i in 0..entries {
            let (word, bits) = bits_of(hash(i), words);
            filter[word as usize] |= bits;
        }
        let hit = |i: u32| {
            let (word, bits) = bits_of(hash(i), words);
            filter[word as usize] & bits == bits
        };
        assert!((0..entries).all(hit));
        let wrong = (entries..2 * entries).filter(|&i| hit(i)).count();
        assert!(wrong * 50 < entries as usize, "{wrong} of {entries}");
    }

    #[test]
    fn the_filter_is_as_large_as_its_entries_need() {
        for (sources, words) in [(0, 1), (1, 1), (4, 1), (5, 2), (1000, 256), (1 << 20, 1 << 18)] {
            assert_eq!(words_for(sources, 1 << 18), words, "{sources}");
        }
        assert_eq!(words_for(usize::MAX / 64, 1 << 18), 1 << 18);
        for words in [1, 2, 1 << 18] {
            let listed = in_use(SINGLE | PREFIX, words);
            assert_eq!((words_in_use(listed), listed & 0xff), (words, SINGLE | PREFIX));
        }
    }

    #[test]
    fn a_prefix_covers_the_bits_of_its_sources() {
        let v4 = |a, b, c, d| SourceKey::from_ipv4([a, b, c, d]);
        let all = |key, length| {
            let mut found = Vec::new();
            prefix_bits(key, length, |n| found.push(n));
            found
        };
        assert_eq!(all(v4(10, 0, 0, 0), 8), (10 << 8..11 << 8).collect::<Vec<_>>());
        assert!(all(v4(10, 0, 0, 0), 8).contains(&prefix_bit(v4(10, 200, 3, 4))));
        assert_eq!(all(v4(198, 51, 100, 0), 24), [prefix_bit(v4(198, 51, 100, 9))]);
        let v6 = |high| SourceKey { high, low: 0 };
        let net = all(v6(0x2001_0db8_0000_0000), 48);
        assert_eq!(net, [prefix_bit(v6(0x2001_0db8_0000_1234))]);
        assert!(net[0] >= 65_536 && net[0] < PREFIX_WORDS * 64);
        assert_eq!(all(v6(0x2000_0000_0000_0000), 16).len(), 65_536);
    }
}
