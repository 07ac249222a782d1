//! Sums over sources that are neighbours: who spreads what it sends over many addresses is one row.
//!
//! IPv4 sources are summed by /24. IPv6 sources are summed by /64, which is what one customer's network
//! has at the least. Where 8 or more /64s of a /56 have a bucket, they are one row, the /56;
//! where 8 or more /56s of a /48 have, they are one row, the /48, whatever else of it has.
//! Sources that are wider than a row would be are rows of their own. Nothing is counted twice.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, SystemTime};

use ipnet::IpNet;

use crate::dataplane::Member;

/// So many sibling prefixes with a bucket are a spread.
const SIBLINGS: usize = 8;

/// Packets and bytes that a source has offered, and in which time.
pub type Recent = ((u64, u64), Duration);

/// Sums over the buckets of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    /// Buckets.
    pub sources: u64,
    /// Of those, with drops.
    pub limited: u64,
    /// Packets passed.
    pub passed: u64,
    /// Packets dropped.
    pub dropped: u64,
    /// Bytes offered.
    pub bytes: u64,
    /// Packets offered per second.
    pub pps: f64,
    /// Bits offered per second.
    pub bps: f64,
    /// When the first got its bucket.
    pub first_seen: Option<SystemTime>,
    /// The last packet of any.
    pub last_seen: Option<SystemTime>,
}

impl Sums {
    /// One bucket, with what its source has offered in a time, if that is known.
    pub fn of(member: &Member, offered: Option<Recent>) -> Self {
        let counts = &member.counts;
        let time = offered.map_or(1.0, |(_, time)| time.as_secs_f64().max(1e-3));
        let (packets, bytes) = offered.map_or((0, 0), |(offered, _)| offered);
        Self {
            sources: 1,
            limited: u64::from(counts.dropped > 0),
            passed: counts.passed,
            dropped: counts.dropped,
            bytes: counts.bytes,
            pps: packets as f64 / time,
            bps: 8.0 * bytes as f64 / time,
            first_seen: Some(member.first_seen),
            last_seen: Some(member.last_seen),
        }
    }

    /// Adds others'.
    pub fn add(&mut self, other: &Self) {
        self.sources += other.sources;
        self.limited += other.limited;
        self.passed += other.passed;
        self.dropped += other.dropped;
        self.bytes += other.bytes;
        self.pps += other.pps;
        self.bps += other.bps;
        let first = [self.first_seen, other.first_seen].into_iter().flatten().min();
        (self.first_seen, self.last_seen) = (first, self.last_seen.max(other.last_seen));
    }
}

/// Sums by prefix.
#[derive(Debug, Default)]
pub struct Rollup {
    /// By the first 24 bits and how many of them count.
    v4: HashMap<(u32, u8), Sums>,
    /// By the first 64 bits and how many of them count.
    v6: HashMap<(u64, u8), Sums>,
}

/// The first `length` bits of the 64.
const fn cut(bits: u64, length: u8) -> u64 {
    if length == 0 { 0 } else { bits & u64::MAX << (64 - length) }
}

/// Sums rows by wider prefixes of `length` where there are many below one. Those wider than that stay.
fn widen(rows: HashMap<(u64, u8), Sums>, length: u8) -> HashMap<(u64, u8), Sums> {
    // Siblings are told apart eight bits below.
    let mut siblings: HashMap<u64, Vec<u64>> = HashMap::new();
    for &(bits, own) in rows.keys() {
        if own > length {
            let known = siblings.entry(cut(bits, length)).or_default();
            let sibling = cut(bits, length + 8);
            if known.len() < SIBLINGS && !known.contains(&sibling) {
                known.push(sibling);
            }
        }
    }
    let mut widened: HashMap<(u64, u8), Sums> = HashMap::with_capacity(rows.len());
    for ((bits, own), sums) in rows {
        let parent = cut(bits, length);
        let spread = own > length && siblings.get(&parent).is_some_and(|s| s.len() >= SIBLINGS);
        let key = if spread { (parent, length) } else { (bits, own) };
        widened.entry(key).or_default().add(&sums);
    }
    widened
}

impl Rollup {
    /// Adds what a source counts.
    pub fn add(&mut self, source: &IpNet, sums: &Sums) {
        match source {
            IpNet::V4(net) => {
                let length = net.prefix_len().min(24);
                let bits = u64::from(net.network().to_bits()) << 32;
                let key = ((cut(bits, length) >> 32) as u32, length);
                self.v4.entry(key).or_default().add(sums);
            }
            IpNet::V6(net) => {
                let length = net.prefix_len().min(64);
                let bits = (net.network().to_bits() >> 64) as u64;
                self.v6.entry((cut(bits, length), length)).or_default().add(sums);
            }
        }
    }

    /// The rows: no source is in two of them.
    pub fn rows(self) -> impl Iterator<Item = (IpNet, Sums)> {
        let v4 = self
            .v4
            .into_iter()
            .map(|((bits, length), sums)| (net(Ipv4Addr::from_bits(bits).into(), length), sums));
        let v6 = widen(widen(self.v6, 56), 48).into_iter().map(|((bits, length), sums)| {
            (net(Ipv6Addr::from_bits(u128::from(bits) << 64).into(), length), sums)
        });
        v4.chain(v6)
    }
}

/// A prefix; lengths are never longer than an address.
fn net(address: IpAddr, length: u8) -> IpNet {
    IpNet::new(address, length).unwrap_or_else(|_| IpNet::from(address))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(passed: u64) -> Sums {
        Sums { sources: 1, passed, bytes: 64 * passed, ..Sums::default() }
    }

    fn rows(sources: &[&str]) -> Vec<(String, u64)> {
        let mut rollup = Rollup::default();
        for source in sources {
            rollup.add(&source.parse().unwrap(), &one(1));
        }
        let mut rows: Vec<_> =
            rollup.rows().map(|(net, sums)| (net.to_string(), sums.sources)).collect();
        rows.sort();
        rows
    }

    #[test]
    fn neighbours_are_one_row() {
        assert_eq!(
            rows(&["192.0.2.1/32", "192.0.2.9/32", "192.0.3.1/32", "10.0.0.0/8"]),
            [("10.0.0.0/8".into(), 1), ("192.0.2.0/24".into(), 2), ("192.0.3.0/24".into(), 1)]
        );
        // A /128 belongs to its /64.
        assert_eq!(rows(&["2001:db8::1/128", "2001:db8::2/128"]), [("2001:db8::/64".into(), 2)]);
    }

    #[test]
    fn many_siblings_are_a_spread() {
        let siblings = |n: u32| -> Vec<String> {
            (0..n).map(|i| format!("2001:db8:0:{:x}::/64", 0x1100 + i)).collect()
        };
        let of = |names: &[String]| rows(&names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(of(&siblings(7)).len(), 7);
        assert_eq!(of(&siblings(8)), [("2001:db8:0:1100::/56".into(), 8)]);
        // Eight /56s of a /48, with one /64 each or with many.
        let mut spread: Vec<_> = (0..8).map(|i| format!("2001:db8:0:{:x}::/64", i << 8)).collect();
        spread.extend(siblings(9));
        assert_eq!(of(&spread[..7]).len(), 7);
        assert_eq!(of(&spread), [("2001:db8::/48".into(), 17)]);
    }

    proptest! {
        #[test]
        fn sums_are_kept_and_no_source_is_in_two_rows(
            v4 in prop::collection::vec((0u32..2000, 8u8..=32, 0u64..1000), 0..60),
            v6 in prop::collection::vec((0u64..40, 0u64..12, 40u8..=128, 0u64..1000), 0..200),
        ) {
            let v4 = v4.into_iter().map(|(host, length, count)| {
                (net(Ipv4Addr::from_bits(host << 6).into(), length).trunc(), count)
            });
            let v6 = v6.into_iter().map(|(high, low, length, count)| {
                let bits = u128::from(0x2001_0db8_0000_0000 | high << 8 | low) << 64;
                (net(Ipv6Addr::from_bits(bits).into(), length).trunc(), count)
            });
            let sources: Vec<(IpNet, u64)> = v4.chain(v6).collect();
            let mut rollup = Rollup::default();
            for (source, count) in &sources {
                rollup.add(source, &one(*count));
            }
            let rows: Vec<_> = rollup.rows().collect();
            let sum = |f: fn(&Sums) -> u64| rows.iter().map(|(_, sums)| f(sums)).sum::<u64>();
            prop_assert_eq!(sum(|sums| sums.sources), sources.len() as u64);
            prop_assert_eq!(sum(|sums| sums.passed), sources.iter().map(|(_, count)| count).sum::<u64>());
            prop_assert_eq!(sum(|sums| sums.bytes), 64 * sum(|sums| sums.passed));
            let mut names: Vec<_> = rows.iter().map(|(net, _)| *net).collect();
            names.sort();
            names.dedup();
            prop_assert_eq!(names.len(), rows.len());
            for (source, _) in &sources {
                prop_assert!(names.iter().any(|row| row.contains(&source.network())));
            }
            // Rows of at most 56 bits that were made by widening hold no narrower row beside them.
            for (row, sums) in &rows {
                let made = sources.iter().all(|(source, _)| source != row);
                if made && row.addr().is_ipv6() && row.prefix_len() <= 56 {
                    prop_assert!(sums.sources >= SIBLINGS as u64);
                    let inside = names.iter().filter(|other| *other != row && row.contains(*other));
                    prop_assert_eq!(inside.filter(|other| other.prefix_len() > 56).count(), 0);
                }
            }
        }
    }
}
