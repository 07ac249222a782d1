//! The heaviest prefixes and classes of the whole cluster.
//!
//! A group's sums over all hosts are what hosts have of it, added up. Which prefixes are a row depends on what
//! all of them have, since many neighbours are one row: so hosts tell their own rows, with what they know to be
//! a spread, and [`merge`] rolls these up once more. Rows that may become one are a [`family`].
//!
//! Who has few rows tells all. Else a host names its heaviest families; then each is asked for all that any has
//! named, as in [`super::top`]. A row that nobody has named can weigh no more than what is left out, which is
//! less than the lightest family that each host has told of, together.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::MAX_PLACES;
use crate::HostId;
use model::Class;
use model::{
    rollup::{Rollup, Row, Sums, Tally, family},
    traffic::{Sort, Weight},
};

/// Rows that a host tells at once, at most: fewer than an answer has room for.
pub const MAX_ROWS: usize = 1500;

/// What is summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Group {
    /// The sources of a prefix; `spread` as in [`Row`].
    Net {
        /// The prefix.
        net: IpNet,
        /// Whether so much of it has a bucket that it is one row.
        spread: bool,
    },
    /// All sources of a class of packets.
    Class(Class),
}

/// What a host has of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Grouped {
    /// Which one.
    pub group: Group,
    /// What its buckets have counted.
    pub tally: Tally,
    /// When the first of them got its bucket, ms since 1970.
    pub first_seen_ms: Option<u64>,
    /// The last packet of any of them, ms since 1970.
    pub last_seen_ms: Option<u64>,
}

/// The groups of a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Groups {
    /// The heaviest families first.
    pub rows: Vec<Grouped>,
    /// Buckets that the host has, those of other groups among them.
    pub tracked: u64,
    /// Groups that it has, or has of what it was asked for, and does not tell.
    pub left_out: u64,
    /// What those weigh at most.
    pub bar: f64,
}

/// A moment as it is sent.
fn ms(at: SystemTime) -> Option<u64> {
    u64::try_from(at.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}

/// A moment that was sent; what lies far ahead is none.
pub fn moment(ms: Option<u64>, now: SystemTime) -> Option<SystemTime> {
    let at = UNIX_EPOCH.checked_add(Duration::from_millis(ms?))?;
    Some(at).filter(|at| *at < now + Duration::from_secs(1 << 33))
}

impl Grouped {
    /// A group with its sums.
    pub fn new(group: Group, sums: &Sums) -> Self {
        Self {
            group,
            tally: sums.tally,
            first_seen_ms: sums.first_seen.and_then(ms),
            last_seen_ms: sums.last_seen.and_then(ms),
        }
    }

    fn sums(&self, now: SystemTime) -> Sums {
        Sums {
            tally: self.tally,
            first_seen: moment(self.first_seen_ms, now),
            last_seen: moment(self.last_seen_ms, now),
        }
    }
}

/// What is told of these rows of prefixes: the heaviest `n` families at most.
pub fn choose(sort: Sort, n: usize, rows: impl Iterator<Item = Row>) -> Groups {
    let mut families: HashMap<IpNet, (Weight, Vec<Row>)> = HashMap::new();
    let mut told = Groups::default();
    for row in rows {
        told.tracked = told.tracked.saturating_add(row.sums.tally.sources);
        let (weight, rows) = families.entry(family(row.net)).or_default();
        *weight += row.sums.tally.weight(sort);
        rows.push(row);
    }
    let mut families: Vec<_> = families.into_iter().collect();
    families
        .sort_unstable_by(|(net, (a, _)), (other, (b, _))| a.heavier_first(b).then(net.cmp(other)));
    for (at, (_, (weight, mut rows))) in families.into_iter().enumerate() {
        // Whole families only, and none after one that was left out: so `bar` bounds all that is not told.
        let full = told.left_out > 0 || at >= n || told.rows.len() + rows.len() > MAX_ROWS;
        if full {
            told.left_out += rows.len() as u64;
            told.bar = told.bar.max(weight.sorted_by);
            continue;
        }
        rows.sort_unstable_by_key(|row| row.net);
        let group = |row: &Row| Group::Net { net: row.net, spread: row.spread };
        told.rows.extend(rows.iter().map(|row| Grouped::new(group(row), &row.sums)));
    }
    told
}

/// Whom to ask all hosts for: the families that any has named, the heaviest of them if they are many, and what
/// one that is not among them can weigh at most.
pub fn union(sort: Sort, hosts: &BTreeMap<HostId, Groups>) -> (Vec<IpNet>, f64) {
    let mut sums: BTreeMap<IpNet, Weight> = BTreeMap::new();
    let mut bar = 0.0;
    for groups in hosts.values() {
        bar += groups.bar;
        for row in &groups.rows {
            if let Group::Net { net, .. } = row.group {
                *sums.entry(family(net)).or_default() += row.tally.weight(sort);
            }
        }
    }
    let mut named: Vec<_> = sums.into_iter().collect();
    named.sort_unstable_by(|(net, a), (other, b)| a.heavier_first(b).then(net.cmp(other)));
    if named.len() > MAX_PLACES {
        // On each host where one of these is not named it has less than the bar.
        bar += named.drain(MAX_PLACES..).map(|(_, sum)| sum.sorted_by).fold(0.0, f64::max);
    }
    (named.into_iter().map(|(net, _)| net).collect(), bar)
}

/// A group, as all hosts together have it.
#[derive(Clone, Debug, PartialEq)]
pub struct Merged {
    /// The prefix or the class.
    pub name: String,
    /// The sums.
    pub sums: Sums,
    /// Hosts where something of it has a bucket.
    pub hosts: usize,
}

/// All groups of what hosts have told, the heaviest first; of equals, by name.
pub fn merge<'a>(
    sort: Sort,
    hosts: impl Iterator<Item = &'a [Grouped]> + Clone,
    now: SystemTime,
) -> Vec<Merged> {
    let mut rollup = Rollup::default();
    let mut classes: BTreeMap<Class, (Sums, usize)> = BTreeMap::new();
    for rows in hosts.clone() {
        // A host that tells of a group twice is believed once.
        let mut told = BTreeSet::new();
        for row in rows.iter().filter(|row| told.insert(row.group)) {
            let sums = row.sums(now);
            match row.group {
                Group::Net { net, spread } => rollup.add_row(&Row { net, spread, sums }),
                Group::Class(class) => {
                    let (sum, hosts) = classes.entry(class).or_default();
                    sum.add(&sums);
                    *hosts += 1;
                }
            }
        }
    }
    // Hosts are counted a second time through: which rows there are is known only when all are rolled up.
    let mut nets: HashMap<IpNet, (Sums, usize)> =
        rollup.rows().map(|row| (row.net, (row.sums, 0))).collect();
    for rows in hosts {
        // Once for each host, however many of its rows are a part of one.
        let mut found = BTreeSet::new();
        for row in rows {
            if let Group::Net { net, .. } = row.group {
                found.extend(holder(&nets, net));
            }
        }
        for net in found {
            nets.entry(net).and_modify(|(_, hosts)| *hosts += 1);
        }
    }
    let nets = nets.into_iter().map(|(net, sums)| (net.to_string(), sums));
    let classes = classes.into_iter().map(|(class, sums)| (class.to_string(), sums));
    let mut merged: Vec<_> =
        nets.chain(classes).map(|(name, (sums, hosts))| Merged { name, sums, hosts }).collect();
    merged.sort_unstable_by(|a, b| {
        let weight = |merged: &Merged| merged.sums.tally.weight(sort);
        weight(a).heavier_first(&weight(b)).then_with(|| a.name.cmp(&b.name))
    });
    merged
}

/// The row that a host's row has become a part of.
fn holder(rows: &HashMap<IpNet, (Sums, usize)>, net: IpNet) -> Option<IpNet> {
    let least = family(net).prefix_len();
    let lengths = (least..=net.prefix_len()).rev();
    let mut holders =
        lengths.filter_map(|length| Some(IpNet::new(net.addr(), length).ok()?.trunc()));
    holders.find(|net| rows.contains_key(net))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: SystemTime = UNIX_EPOCH;

    /// The rows of a host with these sources, each with as many packets.
    fn host(sources: &[(IpNet, u64)]) -> Vec<Row> {
        let mut rollup = Rollup::default();
        for (source, passed) in sources {
            let tally = Tally { sources: 1, passed: *passed, ..Tally::default() };
            rollup.add(source, &Sums { tally, ..Sums::default() });
        }
        rollup.rows().collect()
    }

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    /// What a host answers when it is asked for some families.
    fn points(rows: &[Row], nets: &[IpNet]) -> Groups {
        let rows = rows.iter().filter(|row| nets.contains(&family(row.net)));
        choose(Sort::Packets, MAX_PLACES, rows.copied())
    }

    #[test]
    fn neighbours_on_several_hosts_are_a_spread() {
        let part = |from: u64| -> Vec<_> {
            (from..from + 4).map(|i| (net(&format!("2001:db8:0:{i:x}::/64")), 1)).collect()
        };
        let hosts = [host(&part(0)), host(&part(4)), host(&[(net("192.0.2.7/32"), 5)])];
        let told: Vec<_> =
            hosts.iter().map(|rows| choose(Sort::Packets, 10, rows.iter().copied()).rows).collect();
        let merged = merge(Sort::Packets, told.iter().map(Vec::as_slice), NOW);
        let found: Vec<_> =
            merged.iter().map(|it| (it.name.as_str(), it.sums.tally.passed, it.hosts)).collect();
        assert_eq!(found, [("2001:db8::/56", 8, 2), ("192.0.2.0/24", 5, 1)]);
    }

    #[test]
    fn what_a_host_says_twice_counts_once_and_nothing_overflows() {
        let class = |passed, bytes| {
            let tally = Tally { sources: 1, passed, bytes, ..Tally::default() };
            Grouped::new(Group::Class(Class::ANY), &Sums { tally, ..Sums::default() })
        };
        let hosts = [vec![class(3, u64::MAX), class(9, 1)], vec![class(4, 1)]];
        let merged = merge(Sort::Packets, hosts.iter().map(Vec::as_slice), NOW);
        assert_eq!((merged[0].sums.tally.passed, merged[0].sums.tally.bytes), (7, u64::MAX));
        assert_eq!((merged.len(), merged[0].hosts), (1, 2));
    }

    #[test]
    fn what_does_not_fit_is_told_of() {
        let many: Vec<_> = (0..4000_u32)
            .map(|at| {
                let address = std::net::Ipv4Addr::from_bits(0x0a00_0000 + (at << 8));
                (IpNet::from(std::net::IpAddr::from(address)), u64::from(4000 - at))
            })
            .collect();
        let told = choose(Sort::Packets, MAX_PLACES, host(&many).into_iter());
        assert_eq!((told.rows.len(), told.left_out, told.tracked), (1500, 2500, 4000));
        assert_eq!(told.bar, 2500.0);
        let bytes = super::super::Answer::Groups(told).bytes();
        assert!(bytes.len() < super::super::MAX_ANSWER, "{} bytes", bytes.len());
    }

    proptest! {
        #[test]
        fn the_heaviest_are_those_of_one_table(
            v4 in prop::collection::vec((0u32..400, 0usize..3, 1u64..1000), 0..150),
            v6 in prop::collection::vec((0u64..6, 0u64..10, 0u64..12, 0usize..3, 1u64..1000), 0..150),
            n in 1usize..20,
        ) {
            let v4 = v4.into_iter().map(|(host, at, count)| {
                let address = std::net::Ipv4Addr::from_bits(host << 6);
                (IpNet::from(std::net::IpAddr::from(address)), at, count)
            });
            let v6 = v6.into_iter().map(|(site, high, low, at, count)| {
                let text = format!("2001:db8:{site:x}:{:x}::/64", high << 8 | low);
                (net(&text), at, count)
            });
            let mut sources = vec![Vec::new(); 3];
            for (source, at, count) in v4.chain(v6) {
                sources[at].push((source, count));
            }
            let all: Vec<_> = sources.concat();
            let one: Vec<_> = host(&all);
            let mut wanted: Vec<_> = one.iter().map(|row| row.sums.tally.passed).collect();
            wanted.sort_unstable_by(|a, b| b.cmp(a));
            wanted.truncate(n);
            let hosts: Vec<_> = sources.iter().map(|sources| host(sources)).collect();
            let mut exact = false;
            for asked in [n, 4 * n, 1000] {
                let named: BTreeMap<_, _> = (1..)
                    .map(HostId)
                    .zip(hosts.iter().map(|rows| choose(Sort::Packets, asked, rows.iter().copied())))
                    .collect();
                let (nets, bar) = union(Sort::Packets, &named);
                let told: Vec<_> = hosts.iter().map(|rows| points(rows, &nets).rows).collect();
                let merged = merge(Sort::Packets, told.iter().map(Vec::as_slice), NOW);
                let weight = |merged: &Merged| merged.sums.tally.passed;
                exact = bar <= 0.0 || merged.get(n - 1).is_some_and(|it| weight(it) as f64 >= bar);
                if exact {
                    let found: Vec<_> = merged.iter().take(n).map(weight).collect();
                    prop_assert_eq!(&found, &wanted);
                }
                for merged in &merged {
                    let row = one.iter().find(|row| row.net.to_string() == merged.name);
                    prop_assert_eq!(row.map(|row| row.sums), Some(merged.sums));
                }
            }
            prop_assert!(exact);
        }
    }
}
