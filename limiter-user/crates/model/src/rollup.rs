//! Sums over sources that are neighbours: who spreads what it sends over many addresses is one row.
//!
//! IPv4 sources are summed by /24. IPv6 sources are summed by /64, which is what one customer's network
//! has at the least. Where 8 or more /64s of a /56 have a bucket, they are one row, the /56;
//! where 8 or more /56s of a /48 have, they are one row, the /48, whatever else of it has.
//! Sources that are wider than a row would be are rows of their own. Nothing is counted twice.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::source::Member;
use crate::traffic::{Sort, Weight};

/// So many sibling prefixes with a bucket are a spread.
const SIBLINGS: usize = 8;

/// The shortest prefix that sources are summed by because they are many.
// A /56 is what providers give a home, a /48 a site (RFC 6177): who has one can send from all of
// it.
const WIDEST: u8 = 48;

/// Packets and bytes that a source has offered, and in which time.
pub type Recent = ((u64, u64), Duration);

/// What the buckets of a group have counted together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// Sources with a bucket in it; of a prefix, a source counts for each class that it has one for.
    pub sources: u64,
    /// Of those, how many have had packets dropped since they got it.
    pub limited: u64,
    /// Packets of theirs that passed since they got it.
    pub passed: u64,
    /// Packets of theirs that were dropped since then.
    pub dropped: u64,
    /// Bytes that they have offered since then.
    pub bytes: u64,
    /// What they offer at present, packets per second.
    pub pps: f64,
    /// The same, bits per second.
    pub bps: f64,
}

/// Sums over the buckets of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    /// What they have counted.
    pub tally: Tally,
    /// When the first got its bucket.
    pub first_seen: Option<SystemTime>,
    /// The last packet of any.
    pub last_seen: Option<SystemTime>,
}

impl Sums {
    /// One bucket, with what its source has offered in a time, if that is known.
    pub fn new(member: &Member, offered: Option<Recent>) -> Self {
        let counts = &member.counts;
        // Two looks may be so close that a rate by them would be nonsense.
        let time = offered.map_or(1.0, |(_, time)| time.as_secs_f64().max(1e-3));
        let (packets, bytes) = offered.map_or((0, 0), |(offered, _)| offered);
        Self {
            tally: Tally {
                sources: 1,
                limited: u64::from(counts.dropped > 0),
                passed: counts.passed,
                dropped: counts.dropped,
                bytes: counts.bytes,
                pps: packets as f64 / time,
                bps: 8.0 * bytes as f64 / time,
            },
            first_seen: Some(member.first_seen),
            last_seen: Some(member.last_seen),
        }
    }

    /// Adds others'.
    pub fn add(&mut self, other: &Self) {
        self.tally.add(&other.tally);
        let first = [self.first_seen, other.first_seen].into_iter().flatten().min();
        (self.first_seen, self.last_seen) = (first, self.last_seen.max(other.last_seen));
    }
}

impl Tally {
    /// Adds others'.
    pub fn add(&mut self, other: &Self) {
        for (sum, other) in [
            (&mut self.sources, other.sources),
            (&mut self.limited, other.limited),
            (&mut self.passed, other.passed),
            (&mut self.dropped, other.dropped),
            (&mut self.bytes, other.bytes),
        ] {
            *sum = sum.saturating_add(other);
        }
        self.pps += other.pps;
        self.bps += other.bps;
    }

    /// What groups are compared by.
    pub fn weight(&self, sort: Sort) -> Weight {
        let packets = self.passed as f64 + self.dropped as f64;
        let sorted_by = match sort {
            Sort::Dropped => self.dropped as f64,
            Sort::Pps => self.pps,
            Sort::Bits => self.bps,
            Sort::Packets => packets,
            Sort::Bytes => self.bytes as f64,
        };
        Weight::new(sorted_by, self.pps, packets)
    }
}

/// A row, as others can go on with it: hosts of a cluster put theirs together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// The prefix, without host bits.
    pub net: IpNet,
    /// Whether it is a row because so much of it has a bucket: then all narrower rows of others belong to it.
    pub spread: bool,
    /// Its sums.
    pub sums: Sums,
}

/// The prefix that holds all rows that can become one with this one, whatever others have.
pub fn family(net: IpNet) -> IpNet {
    let longest = if net.addr().is_ipv4() { 24 } else { WIDEST };
    self::net(net.addr(), net.prefix_len().min(longest)).trunc()
}

/// Sums by prefix.
#[derive(Debug, Default)]
pub struct Rollup {
    /// By the first 24 bits and how many of them count.
    v4: HashMap<(u32, u8), Sums>,
    v6: Nets,
    /// Those of `v6` that are known to be a spread.
    spread: HashSet<(u64, u8)>,
}

/// IPv6 rows, by the first 64 bits and how many of them count.
type Nets = HashMap<(u64, u8), Sums>;

/// The first `length` bits of the 64.
const fn cut(bits: u64, length: u8) -> u64 {
    if length == 0 { 0 } else { bits & u64::MAX << (64 - length) }
}

/// Sums rows by wider prefixes of `length` where there are many below one, or it is among `spread`; notes
/// those there. Rows wider than that stay.
fn widen(rows: Nets, length: u8, spread: &mut HashSet<(u64, u8)>) -> Nets {
    // Siblings are told apart eight bits below.
    let mut siblings: HashMap<u64, Vec<u64>> = HashMap::new();
    for &(bits, own) in rows.keys() {
        if own > length {
            let known = siblings.entry(cut(bits, length)).or_default();
            let sibling = cut(bits, length + 8);
            // More need not be known than that they are many.
            if known.len() < SIBLINGS && !known.contains(&sibling) {
                known.push(sibling);
            }
        }
    }
    let many = siblings.into_iter().filter(|(_, siblings)| siblings.len() >= SIBLINGS);
    spread.extend(many.map(|(parent, _)| (parent, length)));
    let mut widened = Nets::with_capacity(rows.len());
    for ((bits, own), sums) in rows {
        let parent = (cut(bits, length), length);
        let key = if own > length && spread.contains(&parent) { parent } else { (bits, own) };
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

    /// Adds a row of others.
    pub fn add_row(&mut self, row: &Row) {
        self.add(&row.net, &row.sums);
        // Whether so much of it has a bucket cannot be seen from one row any more, and is what
        // makes others' rows part of it.
        if let (IpNet::V6(net), true) = (&row.net, row.spread) {
            let (bits, length) = ((net.network().to_bits() >> 64) as u64, net.prefix_len());
            // Others are not summed by anything else.
            if length == 56 || length == WIDEST {
                self.spread.insert((cut(bits, length), length));
            }
        }
    }

    /// The rows: no source is in two of them.
    pub fn rows(mut self) -> impl Iterator<Item = Row> {
        let spread = &mut self.spread;
        // First /56s, then /48s, of which those are the siblings.
        let v6 = widen(widen(self.v6, 56, spread), WIDEST, spread);
        let spread = self.spread;
        let v4 = self.v4.into_iter().map(|((bits, length), sums)| {
            let net = net(Ipv4Addr::from_bits(bits).into(), length);
            Row { net, spread: false, sums }
        });
        let v6 = v6.into_iter().map(move |((bits, length), sums)| {
            let net = net(Ipv6Addr::from_bits(u128::from(bits) << 64).into(), length);
            Row { net, spread: spread.contains(&(bits, length)), sums }
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
        let tally = Tally { sources: 1, passed, bytes: 64 * passed, ..Tally::default() };
        Sums { tally, ..Sums::default() }
    }

    fn rows(sources: &[&str]) -> Vec<(String, u64)> {
        let mut rollup = Rollup::default();
        for source in sources {
            rollup.add(&source.parse().unwrap(), &one(1));
        }
        let mut rows: Vec<_> =
            rollup.rows().map(|row| (row.net.to_string(), row.sums.tally.sources)).collect();
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
            let rows: Vec<_> = rollup.rows().map(|row| (row.net, row.sums.tally)).collect();
            let sum = |f: fn(&Tally) -> u64| rows.iter().map(|(_, sums)| f(sums)).sum::<u64>();
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

        #[test]
        fn rows_of_hosts_add_up_to_those_of_one(
            v4 in prop::collection::vec((0u32..2000, 8u8..=32, 0usize..3), 0..40),
            v6 in prop::collection::vec((0u64..12, 0u64..12, 40u8..=64, 0usize..3), 0..150),
        ) {
            let v4 = v4.into_iter().map(|(host, length, at)| {
                (net(Ipv4Addr::from_bits(host << 6).into(), length).trunc(), at)
            });
            let v6 = v6.into_iter().map(|(high, low, length, at)| {
                let bits = u128::from(0x2001_0db8_0000_0000 | high << 8 | low) << 64;
                (net(Ipv6Addr::from_bits(bits).into(), length).trunc(), at)
            });
            let (mut one, mut hosts) = (Rollup::default(), <[Rollup; 3]>::default());
            for (passed, (source, at)) in (1..).zip(v4.chain(v6)) {
                one.add(&source, &self::one(passed));
                hosts[at].add(&source, &self::one(passed));
            }
            let mut all = Rollup::default();
            for row in hosts.into_iter().flat_map(Rollup::rows) {
                prop_assert!(family(row.net).contains(&row.net));
                all.add_row(&row);
            }
            let sorted = |rollup: Rollup| {
                let mut rows: Vec<_> = rollup.rows().collect();
                rows.sort_by_key(|row| row.net);
                rows
            };
            prop_assert_eq!(sorted(all), sorted(one));
        }
    }
}
