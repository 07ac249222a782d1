//! How many distinct sources all hosts have seen together.
//!
//! Registers of a HyperLogLog merge by their maximum, where the hash that fills them has the same key on
//! all hosts. A host derives that from the cluster's key when it makes its maps, and keeps it as long as
//! those are there; so hosts may have different ones, after the cluster's key was changed or where a host
//! had its maps before it came to a cluster. They are told apart by a number that stands for the key, and
//! counted by themselves.
//!
//! Windows are of wall-clock time, and each host tells of its last full one when it is asked. So those that
//! are merged may differ by a window, and what is estimated is then at most what was seen in both windows,
//! and at least the most that one host has seen.

use std::collections::BTreeMap;

use limiter_common::hll::{MAX_RANK, REGISTERS, Ranks};

use super::Distinct;
use crate::HostId;

/// Enough for the highest rank. Whole bytes would make each answer a third longer.
const BITS: usize = 6;

/// Bytes of packed registers.
const PACKED: usize = REGISTERS * BITS / 8;

/// Registers as they are sent.
pub fn pack(ranks: &Ranks) -> Vec<u8> {
    let mut packed = Vec::with_capacity(PACKED);
    for four in ranks.ranks().chunks_exact(4) {
        let word = four.iter().fold(0_u32, |word, rank| word << BITS | u32::from(*rank));
        packed.extend(&word.to_be_bytes()[1..]);
    }
    packed
}

/// Registers as they came; `None` if they are none.
pub fn unpack(packed: &[u8]) -> Option<Ranks> {
    let mut ranks = [0; REGISTERS];
    if packed.len() != PACKED {
        return None;
    }
    for (three, four) in packed.chunks_exact(3).zip(ranks.chunks_exact_mut(4)) {
        let word = three.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte));
        for (lane, rank) in four.iter_mut().enumerate() {
            *rank = (word >> (BITS * (3 - lane)) & 0x3f) as u8;
        }
    }
    // A rank that no hash can have would win every merge, and spoil the estimate of all hosts.
    ranks.iter().all(|rank| u32::from(*rank) <= MAX_RANK).then(|| Ranks::new(ranks))
}

/// Hosts whose registers merge.
#[derive(Clone, Debug)]
pub struct Group {
    /// What their key is known by.
    pub key: u64,
    /// Who they are, and what each of them has seen.
    pub hosts: BTreeMap<HostId, f64>,
    /// How many distinct sources all of them have seen.
    pub sources: f64,
    /// How many windows apart theirs are, 0 or 1.
    pub apart: u16,
}

/// Hosts whose registers merge, the most hosts first. Of a host whose windows are more than one away from
/// those of others with its key, its clock is wrong: it makes a group of its own.
///
/// # Errors
/// The hosts whose registers are none.
pub fn merge(answers: &BTreeMap<HostId, Distinct>) -> (Vec<Group>, Vec<HostId>) {
    let mut groups: Vec<(Group, Ranks, u16)> = Vec::new();
    let mut broken = Vec::new();
    for (host, distinct) in answers {
        // Named rather than left out: an estimate without a host would look whole.
        let Some(ranks) = unpack(&distinct.ranks) else {
            broken.push(*host);
            continue;
        };
        let seen = ranks.estimate();
        // The first window of a group is the earliest one, the next one may belong to it.
        let fits = |(group, _, first): &&mut (Group, Ranks, u16)| {
            // Numbers of windows have 16 bits, and wrap.
            let offset = distinct.window.wrapping_sub(*first);
            group.key == distinct.key
                // An earlier one only while all are of one window: else two of a group would be two apart.
                && (offset == 0 || offset == 1 || (offset == u16::MAX && group.apart == 0))
        };
        if let Some((group, merged, first)) = groups.iter_mut().find(fits) {
            merged.merge(&ranks);
            match distinct.window.wrapping_sub(*first) {
                0 => {}
                1 => group.apart = 1,
                _ => (*first, group.apart) = (distinct.window, 1),
            }
            group.hosts.insert(*host, seen);
        } else {
            let hosts = BTreeMap::from([(*host, seen)]);
            let group = Group { key: distinct.key, hosts, sources: 0.0, apart: 0 };
            groups.push((group, ranks, distinct.window));
        }
    }
    let mut groups: Vec<_> = groups
        .into_iter()
        .map(|(group, ranks, _)| Group { sources: ranks.estimate(), ..group })
        .collect();
    groups.sort_by_key(|group| (std::cmp::Reverse(group.hosts.len()), group.key));
    (groups, broken)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use limiter_common::hash::HashKey;
    use limiter_common::hll::{LANES, add, epoch};
    use limiter_common::key::SourceKey;
    use proptest::prelude::*;

    use super::*;

    const KEY: HashKey = HashKey { words: [0x9e37_79b9_7f4a_7c15; 10] };
    const WINDOW: u64 = 1 << limiter_common::hll::WINDOW_SHIFT;

    fn seen(sources: std::ops::Range<u32>) -> Ranks {
        let registers: Vec<_> = (0..REGISTERS / LANES).map(|_| AtomicU64::new(0)).collect();
        let registers: Box<[AtomicU64; REGISTERS / LANES]> = registers.try_into().unwrap();
        for source in sources {
            add(&registers, KEY.hash(SourceKey::from_ipv4(source.to_be_bytes())), WINDOW);
        }
        Ranks::full(&registers, epoch(2 * WINDOW))
    }

    fn distinct(key: u64, window: u16, sources: std::ops::Range<u32>) -> Distinct {
        Distinct { key, window, ranks: pack(&seen(sources)) }
    }

    #[test]
    fn hosts_of_one_key_are_merged_and_others_beside_them() {
        let answers = BTreeMap::from([
            (HostId(1), distinct(7, 3, 0..10_000)),
            (HostId(2), distinct(7, 4, 5_000..15_000)),
            (HostId(3), distinct(8, 4, 0..3_000)),
            (HostId(4), distinct(7, 900, 0..500)),
            (HostId(5), Distinct { key: 7, window: 3, ranks: vec![0xff; PACKED] }),
            (HostId(6), Distinct { key: 7, window: 3, ranks: vec![0; PACKED - 1] }),
        ]);
        let (groups, broken) = merge(&answers);
        let near = |found: f64, wanted: f64| (found / wanted - 1.0).abs() < 0.07;
        assert_eq!(broken, [HostId(5), HostId(6)]);
        assert_eq!(groups.len(), 3);
        let all = &groups[0];
        assert!(all.key == 7 && all.hosts.len() == 2 && all.apart == 1, "{all:?}");
        assert!(near(all.sources, 15_000.0) && near(all.hosts[&HostId(1)], 10_000.0), "{all:?}");
        assert!(groups[1..].iter().all(|group| group.hosts.len() == 1));
    }

    #[test]
    fn three_windows_are_never_merged_whoever_comes_first() {
        for windows in [[3, 4, 5], [5, 4, 3], [4, 3, 5], [u16::MAX, 0, 1], [0, u16::MAX, 1]] {
            let answers: BTreeMap<_, _> = (1..)
                .zip(windows)
                .map(|(host, window)| (HostId(host), distinct(7, window, 0..10)))
                .collect();
            let (groups, _) = merge(&answers);
            assert_eq!(groups.len(), 2, "{windows:?}");
            assert!(groups.iter().all(|group| group.apart <= 1));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn what_is_packed_is_unpacked(first: u32, count in 0u32..30_000) {
            let ranks = seen(first / 2..first / 2 + count);
            prop_assert_eq!(unpack(&pack(&ranks)), Some(ranks));
        }

        #[test]
        fn merged_hosts_are_as_one_that_saw_all(
            parts in prop::collection::vec((0u32..20_000, 1u32..5_000), 1..6),
            turned in any::<prop::sample::Index>(),
        ) {
            let parts: Vec<_> = parts.into_iter().map(|(first, count)| first..first + count).collect();
            let mut all = Ranks::default();
            parts.iter().for_each(|part| all.merge(&seen(part.clone())));
            let answers = |order: Vec<std::ops::Range<u32>>| -> BTreeMap<_, _> {
                (0..).zip(order).map(|(host, part)| (HostId(host), distinct(7, 1, part))).collect()
            };
            let mut turned_parts = parts.clone();
            turned_parts.rotate_left(turned.index(parts.len()));
            for order in [parts, turned_parts] {
                let (groups, _) = merge(&answers(order));
                prop_assert_eq!(groups.len(), 1);
                prop_assert_eq!(groups[0].sources, all.estimate());
            }
        }

        #[test]
        fn no_registers_can_panic(packed in prop::collection::vec(any::<u8>(), PACKED)) {
            if let Some(ranks) = unpack(&packed) {
                prop_assert!(ranks.estimate() >= 0.0);
            }
        }
    }
}
