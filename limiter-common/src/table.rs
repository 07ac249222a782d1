//! The bucket table: sets of eight buckets, a cache line each, found by a byte.
//!
//! A set's *fingerprints*, one byte of hash for each of its ways, are one word. So whoever has no
//! bucket learns it from one load, and whoever has one touches one line: bucket and counters together.
//!
//! A slot with tag 0 is empty. TAT [`CLAIMED`] is a slot that a CPU is filling; nobody waits for it. A bucket whose TAT
//! is not in the future is full, hence as good as a new one: such buckets are replaced first, and nothing is lost by it.
//! The TAT doubles as the lock of a replacement, because a compare-and-swap on it fails exactly if a packet was charged
//! in between, and a TAT never returns to a value it had.
//!
//! Limits share the ways of a set: where one packet makes a bucket busy ([`crate::gate`] 1), so that a flood of
//! spoofed sources could take them all, a limit leaves two ways to others ([`Ways::new`]).

use crate::atomic::{self, AtomicU64};
use crate::evidence::ClassWord;
use crate::gcra::Ticks;
use crate::hash::Hash;
use crate::key::SourceKey;

/// Buckets in a set.
// Eight fingerprints fill one word, so that one load asks for all of them.
pub const WAYS: u32 = 8;

/// Ways of each set that a limit of gate 1 leaves to others.
// Without it, spoofed sources under 1/minute filled 65,499 of 65,536 sets. Newcomers under another
// limit were then not limited at all.
pub const SPARED: u32 = 2;

/// A bucket that has admitted no more than so many packets, and denied none, makes room for another source: at most
/// what every limit lets pass uncounted is forgotten by it.
pub const CHEAP: u64 = 2;

/// The TAT of a slot that is being filled, and what comes above: a charge that is added meanwhile changes
/// nothing.
pub const CLAIMED: Ticks = 1 << 63;

/// Whether a slot is being filled.
#[inline(always)]
#[must_use]
pub const fn is_claimed(tat: Ticks) -> bool {
    tat >= CLAIMED
}

/// What a TAT has on top in a slot that is filled, and still claimed. Whoever sees its source's tag there may take it
/// off: the CPU that filled it may have been stopped.
pub const FILLED: Ticks = CLAIMED | 1 << 62;

/// Whether a slot is filled and still claimed.
#[inline(always)]
#[must_use]
pub const fn is_filled(tat: Ticks) -> bool {
    tat >= FILLED
}

/// Whether a slot is claimed, and not filled yet.
#[inline(always)]
#[must_use]
pub const fn makes_room(tat: Ticks) -> bool {
    is_claimed(tat) && !is_filled(tat)
}

/// The last packet of a source, as [`Slot::last_seen`] has it: `denies:4 | time:60`, in ns since boot. The lowest
/// bit of the time says that the packet was over the limit, and `denies`, in units of 2^23 ns, how long from then on
/// every other one is, as far as was looked: nothing but that word has to be read to drop it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastSeen(pub u64);

impl LastSeen {
    const OVER_LIMIT: u64 = 1;
    const TIME_BITS: u32 = 60;
    const TIME: u64 = (1 << Self::TIME_BITS) - 1;
    /// log2 of the units, ns.
    // Four bits of 8 ms reach 126 ms, beyond the 100 ms that a source is dropped without a look.
    const UNIT_SHIFT: u32 = 23;
    /// The longest that is kept, ns: 126 ms.
    const MAX_NS: u64 = (u64::MAX >> Self::TIME_BITS) << Self::UNIT_SHIFT;

    /// A packet that passed at `ns`.
    #[inline(always)]
    #[must_use]
    pub const fn passed(ns: u64) -> Self {
        Self(ns & Self::TIME & !Self::OVER_LIMIT)
    }

    /// A packet that was over the limit at `ns`, as all will be for `lasts_ns`.
    #[inline(always)]
    #[must_use]
    pub fn over_limit(ns: u64, lasts_ns: u64) -> Self {
        // Shorter is always right: whoever comes afterwards looks again.
        let units = lasts_ns.min(Self::MAX_NS) >> Self::UNIT_SHIFT;
        Self(ns & Self::TIME | Self::OVER_LIMIT | units << Self::TIME_BITS)
    }

    /// When it was, ns since boot, as far as it was looked at (see [`crate::drop_cache`]).
    #[inline(always)]
    #[must_use]
    pub const fn ns(self) -> u64 {
        self.0 & Self::TIME & !Self::OVER_LIMIT
    }

    /// Whether it was over the limit.
    #[inline(always)]
    #[must_use]
    pub const fn is_over_limit(self) -> bool {
        self.0 & Self::OVER_LIMIT != 0
    }

    /// Until when all packets are over the limit, ns since boot; 0 if nothing is known.
    #[inline(always)]
    #[must_use]
    pub const fn denies_until(self) -> u64 {
        let units = self.0 >> Self::TIME_BITS;
        if units == 0 { 0 } else { self.ns() + (units << Self::UNIT_SHIFT) }
    }

    /// The same packet, when nothing is known of others.
    #[must_use]
    pub const fn alone(self) -> Self {
        Self(self.0 & Self::TIME)
    }
}

/// A bucket and what became of its source's packets.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Slot {
    /// The source's hash, 0 if the slot is empty.
    pub tag: AtomicU64,
    /// Its theoretical arrival time.
    pub tat: AtomicU64,
    /// The policy it was resolved to: a [`crate::abi::PolicyWord`].
    pub policy: AtomicU64,
    /// Packets passed since promotion.
    pub passed: AtomicU64,
    /// Packets dropped since promotion.
    pub dropped: AtomicU64,
    /// Bytes offered (passed and dropped) since promotion.
    pub bytes: AtomicU64,
    /// Its last packet: a [`LastSeen`].
    pub last_seen: AtomicU64,
    /// When it was promoted, ns since boot.
    pub first_seen: AtomicU64,
}

impl Slot {
    /// Whether its source keeps the bucket at `now`, whoever needs one: it is not full, and it has denied packets or
    /// admitted more than [`CHEAP`].
    // The kernel's search has the same without branches: `a_newcomer_finds_no_room_where_all_buckets_are_held`.
    #[cfg(any(test, feature = "user"))]
    #[must_use]
    pub fn is_held(&self, now: Ticks) -> bool {
        let used = atomic::load(&self.dropped) > 0 || atomic::load(&self.passed) > CHEAP;
        used && atomic::load(&self.tat) > now
    }
}

/// Whose slot it is, and what few slots need. Same index as the slot; packets touch it on promotion,
/// and where the policy has a second tier, a shadow or a ban that asks for evidence.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Identity {
    /// The source, upper half.
    pub high: AtomicU64,
    /// The source, lower half.
    pub low: AtomicU64,
    /// What the bucket is for, and what speaks for its source being real: a [`ClassWord`].
    pub class: AtomicU64,
    /// The theoretical arrival time of the policy's second tier.
    pub second_tat: AtomicU64,
    /// That of its shadow.
    pub shadow_tat: AtomicU64,
    /// The shadow that what follows was counted for, 0 for none.
    pub shadow_id: AtomicU64,
    /// Packets that it has judged.
    pub shadow_packets: AtomicU64,
    /// Of those, how many it would have dropped.
    pub would_drop: AtomicU64,
}

impl Identity {
    /// The class that the bucket is for, and the evidence for its source.
    #[inline(always)]
    pub fn class(&self) -> ClassWord {
        ClassWord(atomic::load(&self.class))
    }

    /// The source. Two words, so a caller may meet the halves of two sources where the slot has just changed hands.
    #[inline(always)]
    pub fn key(&self) -> SourceKey {
        SourceKey { high: atomic::load(&self.high), low: atomic::load(&self.low) }
    }
}

/// Every byte of a word.
const EACH: u64 = 0x0101_0101_0101_0101;

/// The byte that stands for a hash among its set's fingerprints; never 0, which is an empty way. From
/// bits that choose neither the set nor a sketch's columns (of up to 2^24).
#[inline(always)]
pub const fn fingerprint(hash: Hash) -> u64 {
    let byte = hash.0 >> 56;
    if byte == 0 { 1 } else { byte }
}

/// The set of a hash among `mask + 1`.
#[inline(always)]
pub const fn set_of(hash: Hash, mask: u32) -> u32 {
    (hash.0 >> 32) as u32 & mask
}

/// Where a way of a set lies among the slots of `mask + 1` sets: all first ways, then all second
/// ones. Most sets use their first ways only, so the slots in use lie close together: with an eighth
/// of the pages in use, the processor finds nearly all of them in its TLB.
#[inline(always)]
pub const fn slot_index(set: u32, way: u32, mask: u32) -> u32 {
    way.wrapping_mul(mask.wrapping_add(1)).wrapping_add(set)
}

/// Some of the ways of a set: a flag in the top bit of each one's byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ways(u64);

impl Ways {
    /// Those that buckets under a policy may be in. A policy of gate 1 keeps out of [`SPARED`], which ones its slot tells:
    /// those of 56 slots in a row differ.
    #[inline(always)]
    #[must_use]
    pub const fn new(slot: u32, gate: u32) -> Self {
        if gate > 1 {
            return Self(EACH << 7);
        }
        // By the slot of its policy: all sources of one limit keep out of the same two, and other
        // limits out of others.
        let one = slot % WAYS;
        let other = (one + 1 + slot / WAYS % (WAYS - 1)) % WAYS;
        Self((EACH << 7) & !(0x80 << (8 * one)) & !(0x80 << (8 * other)))
    }

    /// The top bit if a way is none of them, else 0.
    #[inline(always)]
    #[must_use]
    pub const fn not(self, way: u32) -> u64 {
        !self.0 << (56 - 8 * (way % WAYS)) & 1 << 63
    }

    /// Those of them without a source.
    #[inline(always)]
    #[must_use]
    pub const fn empty(self, fingerprints: u64) -> Matches {
        Matches(Matches::new(fingerprints, 0).0 & self.0)
    }
}

/// The ways of a set whose fingerprint is a certain byte, lowest first. Other sources have the same byte, so look at the
/// slot.
#[derive(Clone, Copy, Debug)]
pub struct Matches(u64);

impl Matches {
    /// The ways of `fingerprints` that hold `byte`.
    #[inline(always)]
    pub const fn new(fingerprints: u64, byte: u64) -> Self {
        // Exact, unlike the search by a borrow, which flags a byte of 1 above a zero one too: an empty way above its
        // neighbour's equal fingerprint. A source that filled that way met itself there, and never got a bucket.
        let differing = fingerprints ^ (byte * EACH);
        let low = !(EACH << 7);
        Self(!(((differing & low) + low) | differing | low))
    }

    /// Whether there are none (left).
    #[inline(always)]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The lowest way; some way or other if there is none.
    #[inline(always)]
    pub const fn way(self) -> u32 {
        // The lowest flag, moved to the bottom of its byte, selects a byte of the constant: way w is
        // byte 7 − w. BPF cannot count trailing zeros.
        let lowest = (self.0 & self.0.wrapping_neg()) >> 7;
        (lowest.wrapping_mul(0x0001_0203_0405_0607) >> 56) as u32 % WAYS
    }

    /// Without the lowest way.
    #[inline(always)]
    pub const fn rest(self) -> Self {
        Self(self.0 & self.0.wrapping_sub(1))
    }
}

/// A way's byte among its set's fingerprints: 0 if it is empty.
#[inline(always)]
#[must_use]
pub const fn fingerprint_of(fingerprints: u64, way: u32) -> u64 {
    fingerprints >> ((way % WAYS) * 8) & 0xff
}

/// A set's fingerprints with another byte for a way.
#[inline(always)]
#[must_use]
pub const fn with_fingerprint(fingerprints: u64, way: u32, byte: u64) -> u64 {
    let shift = (way % WAYS) * 8;
    fingerprints & !(0xff << shift) | byte << shift
}

/// Takes away the fingerprint of a way that the caller has claimed, and nobody else may change.
#[inline(always)]
pub fn clear_fingerprint(fingerprints: &AtomicU64, way: u32) {
    let old = fingerprint_of(atomic::load(fingerprints), way);
    if old != 0 {
        // The byte is ours: taking it off changes it alone, whatever others do to theirs.
        atomic::add(fingerprints, (old << ((way % WAYS) * 8)).wrapping_neg());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn all(mut matches: Matches) -> Vec<u32> {
        let mut ways = Vec::new();
        while !matches.is_empty() {
            ways.push(matches.way());
            matches = matches.rest();
        }
        ways
    }

    #[test]
    fn a_slot_is_open_claimed_or_filled() {
        let states = [0, CLAIMED - 1, CLAIMED, FILLED - 1, FILLED, FILLED | 1];
        assert_eq!(states.map(is_claimed), [false, false, true, true, true, true]);
        assert_eq!(states.map(is_filled), [false, false, false, false, true, true]);
        // What a late charge adds to a claim does not fill it.
        assert!(!is_filled(CLAIMED + crate::gcra::MAX_COST));
    }

    #[test]
    fn limits_leave_different_ways_to_one_another() {
        let all: Vec<Ways> = (8..64).map(|slot| Ways::new(slot, 1)).collect();
        for (at, ways) in all.iter().enumerate() {
            // Whatever one of them takes, another one has a way that is its own to take.
            assert!(all[..at].iter().filter(|other| *other == ways).count() <= 1, "{at}");
        }
    }

    #[test]
    fn a_bucket_is_held_by_who_owes_more_than_a_packet_or_two() {
        let is_held = |passed, dropped, tat| {
            let slot = Slot::default();
            atomic::store(&slot.passed, passed);
            atomic::store(&slot.dropped, dropped);
            atomic::store(&slot.tat, tat);
            slot.is_held(10)
        };
        assert!(is_held(CHEAP + 1, 0, 11) && is_held(0, 1, 11));
        assert!(!is_held(CHEAP, 0, 11));
        assert!(!is_held(CHEAP + 1, 1, 10), "it is full");
    }

    #[test]
    fn a_fingerprint_is_a_byte_of_the_hash_but_never_that_of_an_empty_way() {
        assert_eq!([0, 1, 2, 0xff].map(|byte| fingerprint(Hash(byte << 56))), [1, 1, 2, 0xff]);
    }

    proptest! {
        #[test]
        fn empty_ways_are_found_exactly(bytes: [u8; 8], zeros: u8, slot: u32, gate in 1u32..3) {
            let byte = |way: usize| if zeros >> way & 1 == 1 { 0 } else { bytes[way] };
            let bytes: [u8; 8] = std::array::from_fn(byte);
            let ways = Ways::new(slot, gate);
            let expected: Vec<u32> =
                (0..WAYS).filter(|&way| bytes[way as usize] == 0 && ways.not(way) == 0).collect();
            prop_assert_eq!(all(ways.empty(u64::from_le_bytes(bytes))), expected);
            let usable = (0..WAYS).filter(|&way| ways.not(way) == 0).count();
            prop_assert_eq!(usable, if gate == 1 { 6 } else { 8 });
        }

        #[test]
        fn matches_are_found_exactly(bytes: [u8; 8], byte: u8) {
            // Bytes that differ by a bit or two at the most.
            let bytes = bytes.map(|other| byte ^ other & 3);
            let word = u64::from_le_bytes(bytes);
            let exact: Vec<u32> =
                (0..WAYS).filter(|&way| bytes[way as usize] == byte).collect();
            prop_assert_eq!(all(Matches::new(word, u64::from(byte))), exact);
        }

        #[test]
        fn a_fingerprint_changes_alone(bytes: [u8; 8], way in 0u32..8, byte: u8) {
            let word = AtomicU64::new(u64::from_le_bytes(bytes));
            let mut expected = bytes;
            expected[way as usize] = byte;
            let changed = with_fingerprint(atomic::load(&word), way, u64::from(byte));
            prop_assert_eq!(fingerprint_of(changed, way), u64::from(byte));
            prop_assert_eq!(changed.to_le_bytes(), expected);
            clear_fingerprint(&word, way);
            expected[way as usize] = 0;
            prop_assert_eq!(atomic::load(&word).to_le_bytes(), expected);
        }

        #[test]
        fn a_cached_drop_is_no_longer_than_it_is(ns in 0u64..1 << 60, lasts in 0u64..1 << 28) {
            let last = LastSeen::over_limit(ns, lasts);
            prop_assert!(last.is_over_limit() && last.ns() == ns & !1);
            let until = last.denies_until();
            prop_assert!(until <= ns + lasts && (until > 0) == (lasts >= 1 << 23));
            prop_assert!(until == 0 || until + (1 << 23) >= ns + lasts.min(15 << 23));
            prop_assert_eq!(last.alone(), LastSeen::over_limit(ns, 0));
            let passed = LastSeen::passed(ns);
            prop_assert!(!passed.is_over_limit() && passed.ns() == ns & !1 && passed.denies_until() == 0);
        }

        #[test]
        fn no_hash_has_the_fingerprint_of_an_empty_way(hash: u64) {
            prop_assert!((1..256).contains(&fingerprint(Hash(hash))));
        }
    }
}
