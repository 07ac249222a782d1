//! Many entries of the allow and deny lists, by address and by when they end.

use std::collections::{BTreeMap, BTreeSet, btree_map};

use ipnet::IpNet;

use super::{ListChanges, Listing};

/// Entries by source or prefix.
#[derive(Clone, Debug, Default)]
pub struct Lists {
    entries: BTreeMap<IpNet, Listing>,
    /// How many prefixes have each length, by whether they are IPv6.
    // The kernel asks no map of a kind without entries. Counted here, that is known without a pass
    // over a million.
    lengths: BTreeMap<(bool, u8), usize>,
    /// Those that end, soonest first.
    ends: BTreeSet<(u32, IpNet)>,
}

impl PartialEq for Lists {
    fn eq(&self, other: &Self) -> bool {
        // The rest follows from them.
        self.entries == other.entries
    }
}

impl Eq for Lists {}

impl Lists {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entry for this very source or prefix.
    pub fn get(&self, net: &IpNet) -> Option<&Listing> {
        self.entries.get(net)
    }

    /// As [`Lists::get`], and whom it is for.
    pub fn get_key_value(&self, net: &IpNet) -> Option<(&IpNet, &Listing)> {
        self.entries.get_key_value(net)
    }

    /// Whether there is an entry for this very source or prefix.
    pub fn contains_key(&self, net: &IpNet) -> bool {
        self.entries.contains_key(net)
    }

    /// All of them, by address.
    pub fn iter(&self) -> btree_map::Iter<'_, IpNet, Listing> {
        self.entries.iter()
    }

    /// Their targets.
    pub fn keys(&self) -> btree_map::Keys<'_, IpNet, Listing> {
        self.entries.keys()
    }

    /// Adds an entry, in the place of another one for the same target.
    pub fn insert(&mut self, net: IpNet, listing: Listing) {
        self.ends.extend(listing.until.map(|until| (until, net)));
        match self.entries.insert(net, listing) {
            None => *self.lengths.entry(length(&net)).or_default() += 1,
            Some(former) => {
                // The new entry may end when the former one did: then what was just noted is the
                // same.
                let stays = self.entries.get(&net).and_then(|listing| listing.until);
                if let Some(until) = former.until.filter(|until| Some(*until) != stays) {
                    self.ends.remove(&(until, net));
                }
            }
        }
    }

    /// Removes an entry, if it is there.
    pub fn remove(&mut self, net: &IpNet) {
        let Some(former) = self.entries.remove(net) else { return };
        if let Some(until) = former.until {
            self.ends.remove(&(until, *net));
        }
        if let Some(count) = self.lengths.get_mut(&length(net)) {
            *count -= 1;
        }
    }

    /// Makes all `changes`.
    pub fn apply(&mut self, changes: &ListChanges) {
        for (net, listing) in changes {
            match listing {
                Some(listing) => self.insert(*net, listing.clone()),
                None => self.remove(net),
            }
        }
    }

    /// The changes that undo `changes`, made before they are.
    pub fn undoing(&self, changes: &ListChanges) -> ListChanges {
        changes.iter().map(|(net, _)| (*net, self.get(net).cloned())).collect()
    }

    /// The entries that are over at `now`, in seconds since 1970.
    pub fn over(&self, now: u32) -> impl Iterator<Item = IpNet> {
        // Only those that end are in there, soonest first: whoever asks every second must not go
        // through a million.
        self.ends.iter().take_while(move |(until, _)| *until <= now).map(|(_, net)| *net)
    }

    /// How many there are for single sources, which have so many bits, for IPv4 prefixes and for IPv6
    /// prefixes.
    pub fn kinds(&self, (v4, v6): (u8, u8)) -> [usize; 3] {
        let mut kinds = [0; 3];
        for (&(is_ipv6, length), count) in &self.lengths {
            let single = length == if is_ipv6 { v6 } else { v4 };
            kinds[if single { 0 } else { 1 + usize::from(is_ipv6) }] += count;
        }
        kinds
    }
}

fn length(net: &IpNet) -> (bool, u8) {
    (net.addr().is_ipv6(), net.prefix_len())
}

impl FromIterator<(IpNet, Listing)> for Lists {
    fn from_iter<I: IntoIterator<Item = (IpNet, Listing)>>(entries: I) -> Self {
        let mut lists = Self::default();
        entries.into_iter().for_each(|(net, listing)| lists.insert(net, listing));
        lists
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::lists::Action;

    fn listing(until: Option<u32>) -> Listing {
        Listing { added: 1, until, ..Listing::new(Action::Deny, None, None).unwrap() }
    }

    proptest! {
        #[test]
        fn counts_and_ends_follow_the_entries(
            changes in prop::collection::vec((0..6u8, 0..3u8, prop::option::of(prop::option::of(1..5u32))), 0..60),
        ) {
            let mut lists = Lists::default();
            for (number, length, change) in changes {
                let net: IpNet = match length {
                    0 => format!("192.0.2.{number}/32"),
                    1 => format!("10.{number}.0.0/16"),
                    _ => format!("2001:db8:{number}::/48"),
                }.parse().unwrap();
                let change = vec![(net, change.map(listing))];
                let (before, undo) = (lists.clone(), lists.undoing(&change));
                lists.apply(&change);
                let mut undone = lists.clone();
                undone.apply(&undo);
                prop_assert_eq!(&undone, &before);
                prop_assert_eq!(&undone.ends, &before.ends);
                let singles = lists.keys().filter(|net| net.prefix_len() == 32).count();
                let four = lists.keys().filter(|net| net.prefix_len() == 16).count();
                prop_assert_eq!(lists.kinds((32, 64)), [singles, four, lists.len() - singles - four]);
                for now in 0..6 {
                    let mut over: Vec<_> = lists.over(now).collect();
                    over.sort();
                    let expected = lists.iter().filter(|(_, listing)| listing.is_over(now));
                    prop_assert_eq!(over, expected.map(|(net, _)| *net).collect::<Vec<_>>());
                }
            }
        }
    }
}
