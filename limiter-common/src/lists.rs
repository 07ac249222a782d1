//! Sources that are let through or dropped whatever they send: the allow and deny lists.
//!
//! An entry is for a single source or for a prefix of many, and may expire. So that a million entries
//! cost others next to nothing, a packet asks filters first. A bitmap has a bit for each prefix of 16 bits in which
//! anything is listed. Behind it lies one with a bit for each prefix of 24 bits that a listed prefix meets, and for
//! single sources a Bloom filter of one word per source (Putze, Sanders and Singler, "Cache-, hash- and
//! space-efficient Bloom filters", 2009). The first bitmap stays in the processor's caches, what lies behind it does
//! not; and who is listed lies close together mostly. Filters may say yes for no reason, never no; the maps decide.

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

/// Networks of each family: prefixes of 24 bits of IPv4 addresses, or of 40 bits of IPv6 addresses, some of which share
/// a number.
const NETWORKS: u32 = 1 << 24;

/// A network's number without so many bits is that of its prefix of 16 bits, or of 32 for IPv6.
const PREFIX_SHIFT: u32 = 8;

/// Words of the filter that are for prefixes: a bit for each network of each family.
pub const PREFIX_WORDS: u32 = 2 * NETWORKS / 64;

/// Words of the bitmap that is asked first.
pub const PREFIX_BITMAP_WORDS: u32 = PREFIX_WORDS >> PREFIX_SHIFT;

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

/// A word of one of the filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Of the bitmap that is asked first.
    Bitmap(u32),
    /// Of the filter behind it.
    Filter(u32),
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

/// The number of a source's network, below 2^25.
#[inline(always)]
pub const fn network(key: SourceKey) -> u32 {
    match key.ipv4() {
        Some(address) => address >> 8,
        None => {
            NETWORKS
                | mixed((key.high >> 32) as u32) << PREFIX_SHIFT
                | (key.high >> 24) as u32 & 0xff
        }
    }
}

/// The first 32 bits of an IPv6 address, as 16.
// The first 16 bits of addresses in use differ little, so the next 16 are mixed in.
#[inline(always)]
const fn mixed(first: u32) -> u32 {
    first.wrapping_mul(0x9e37_79b1) >> 16
}

/// Where the bit of a network is in the filter: the word, and the bit in it.
#[inline(always)]
pub const fn bit_of(network: u32) -> (u32, u64) {
    (network / 64, 1 << (network % 64))
}

/// Where the bit of a network's prefix is in the bitmap that is asked first.
#[inline(always)]
pub const fn prefix_bit(network: u32) -> (u32, u64) {
    bit_of(network >> PREFIX_SHIFT)
}

/// Calls `visit` with each word of the filters that a single source concerns, and its bits there. `words` is how many
/// are in use beyond [`PREFIX_WORDS`], a power of two.
pub fn source_bits(key: SourceKey, hash: Hash, words: u32, mut visit: impl FnMut(Word, u64)) {
    let (word, bits) = bits_of(hash, words);
    visit(Word::Filter(word), bits);
    let (word, bit) = prefix_bit(network(key));
    visit(Word::Bitmap(word), bit);
}

/// Calls `visit` with each word of the filters that a prefix of `length` bits concerns, and its bits there.
// Every bit that any source in it can have: a filter may say yes for no reason, but never no.
pub fn prefix_bits(key: SourceKey, length: u32, mut visit: impl FnMut(Word, u64)) {
    let mut networks = |first: u32, count: u32| {
        run(first, count, |word, bits| visit(Word::Filter(word), bits));
        let prefixes = (count >> PREFIX_SHIFT).max(1);
        run(first >> PREFIX_SHIFT, prefixes, |word, bits| visit(Word::Bitmap(word), bits));
    };
    match key.ipv4() {
        Some(_) => networks(network(key), 1 << 24u32.saturating_sub(length)),
        None if length >= 32 => networks(network(key), 1 << 40u32.saturating_sub(length)),
        // They are mixed: so many prefixes take their chance with all.
        None if length <= 16 => networks(NETWORKS, NETWORKS),
        None => {
            let first = (key.high >> 32) as u32;
            for prefix in first..=first | u32::MAX >> length {
                networks(NETWORKS | mixed(prefix) << PREFIX_SHIFT, 1 << PREFIX_SHIFT);
            }
        }
    }
}

/// Calls `visit` with each word that has some of `count` bits from `first` on, and those bits. The count is a power of
/// two, and `first` is a multiple of it.
fn run(first: u32, count: u32, mut visit: impl FnMut(u32, u64)) {
    if count < 64 {
        visit(first / 64, ((1 << count) - 1) << (first % 64));
    } else {
        (first / 64..(first + count) / 64).for_each(|word| visit(word, u64::MAX));
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
    use std::collections::HashSet;
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

    /// The bits that `visited` has been called with, of the bitmap and of the filter.
    fn all(visited: impl FnOnce(&mut dyn FnMut(Word, u64))) -> [Vec<u32>; 2] {
        let mut found = [Vec::new(), Vec::new()];
        visited(&mut |word, bits| {
            let (which, word) = match word {
                Word::Bitmap(word) => (0, word),
                Word::Filter(word) => (1, word),
            };
            found[which]
                .extend((0..64).filter(|bit| bits >> bit & 1 == 1).map(|bit| word * 64 + bit));
        });
        found
    }

    fn of_prefix(key: SourceKey, length: u32) -> [Vec<u32>; 2] {
        all(|visit| prefix_bits(key, length, visit))
    }

    /// The two addresses of a prefix that lie farthest apart.
    fn ends(address: u128, length: u32, whole: u32) -> [u128; 2] {
        let rest = (u128::MAX >> (128 - whole)) >> length;
        [address & !rest, address | rest]
    }

    #[test]
    fn a_prefix_covers_the_bits_of_its_sources() {
        let v4 = |address: u128| SourceKey::from_ipv4((address as u32).to_be_bytes());
        let v6 = |address: u128| SourceKey::from_ipv6(address.to_be_bytes());
        let cases = (6..=32).map(|length| (ends(0xcb00_7155, length, 32).map(v4), length));
        let long = (18..=64)
            .map(|length| (ends(0x2a01_0db8_4567_89ab << 64, length, 128).map(v6), length));
        for (sources, length) in cases.chain(long) {
            let [bitmap, filter] = of_prefix(sources[0], length);
            assert!(filter.iter().all(|bit| *bit < PREFIX_WORDS * 64));
            for source in sources {
                assert!(filter.contains(&network(source)), "{length} {source:?}");
                assert!(bitmap.contains(&(network(source) >> PREFIX_SHIFT)), "{length} {source:?}");
            }
            // The bitmap has what the filter has, and no more.
            let coarse: HashSet<_> = filter.iter().map(|bit| bit >> PREFIX_SHIFT).collect();
            assert_eq!(HashSet::from_iter(bitmap), coarse, "{length} {sources:?}");
        }
    }

    #[test]
    fn a_prefix_has_no_bits_of_others() {
        let v4 = |a, b, c, d| SourceKey::from_ipv4([a, b, c, d]);
        let v6 = |high| SourceKey { high, low: 0 };
        let count = |key, length| of_prefix(key, length).map(|bits| bits.len());
        let eight = [(10 << 8..11 << 8).collect::<Vec<_>>(), (10 << 16..11 << 16).collect()];
        assert_eq!(of_prefix(v4(10, 0, 0, 0), 8), eight);
        assert_eq!(count(v4(0, 0, 0, 0), 0), [65_536, 1 << 24]);
        assert_eq!(count(v4(10, 0, 0, 0), 15), [2, 512]);
        assert_eq!(count(v4(198, 51, 100, 0), 22), [1, 4]);
        assert_eq!(count(v4(198, 51, 100, 128), 30), [1, 1]);
        let [bitmap, filter] = of_prefix(v6(0x2001_0db8_0000_0000), 48);
        assert_eq!(filter, [network(v6(0x2001_0db8_0000_1234))]);
        assert!(bitmap.len() == 1 && bitmap[0] >= 65_536 && bitmap[0] < PREFIX_BITMAP_WORDS * 64);
        assert_eq!(count(v6(0x2000_0000_0000_0000), 16), [65_536, 1 << 24]);
        assert_eq!(count(v6(0x2001_0db8_0000_0000), 36), [1, 16]);
        assert_eq!(count(v6(0x2a00_0000_0000_0000), 29), [8, 2048]);
        assert_eq!(count(v6(0x2000_0000_0000_0000), 3), [65_536, 1 << 24]);
        let [bitmap, filter] = of_prefix(v4(198, 51, 100, 0), 24);
        assert_eq!(filter, [network(v4(198, 51, 100, 9))]);
        assert_ne!(filter, [network(v4(198, 51, 101, 9))]);
        assert_eq!(bitmap, of_prefix(v4(198, 51, 101, 0), 24)[0]);
    }

    #[test]
    fn a_single_source_is_in_no_bitmap_of_networks() {
        let (source, words) = (SourceKey::from_ipv4([198, 51, 100, 9]), 4);
        let hash = HashKey { words: [0x9e37_79b9_7f4a_7c15; 10] }.hash(source);
        let [bitmap, filter] = all(|visit| source_bits(source, hash, words, visit));
        assert_eq!(bitmap, [network(source) >> PREFIX_SHIFT]);
        assert!(
            filter.iter().all(|bit| (PREFIX_WORDS..PREFIX_WORDS + words).contains(&(bit / 64)))
        );
    }
}
