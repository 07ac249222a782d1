//! Collections for what a host has of many keys, and of many hosts for each of them.

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;

use crate::{HostId, KeyId};

/// Something of each key. A key is a hash that nobody without the cluster's secret can choose, and all that depends on
/// an order is sorted: the same happens in every run.
pub(super) type Keys<T> = HashMap<KeyId, T, FixedState>;

/// Keys that something is to be done about before the next round.
pub(super) type Dirty = HashSet<KeyId, FixedState>;

/// Those keys in their order; there are none from then on.
pub(super) fn take(dirty: &mut Dirty) -> Vec<KeyId> {
    let mut keys: Vec<KeyId> = std::mem::take(dirty).into_iter().collect();
    keys.sort_unstable();
    keys
}

/// Something of each of some hosts, in their order and in one piece.
#[derive(Clone, Debug)]
// A sorted list and no map: most keys have a few hosts, and there may be 65,536 keys.
pub(super) struct ByHost<T>(Vec<(HostId, T)>);

impl<T> Default for ByHost<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> ByHost<T> {
    fn find(&self, host: HostId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&host, |(its, _)| *its)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn get(&self, host: HostId) -> Option<&T> {
        self.find(host).ok().map(|at| &self.0[at].1)
    }

    pub(super) fn get_mut(&mut self, host: HostId) -> Option<&mut T> {
        self.find(host).ok().map(|at| &mut self.0[at].1)
    }

    /// That of a host, `Default` if there is none yet; `None` if that would be more than `most`.
    pub(super) fn get_or_add(&mut self, host: HostId, most: usize) -> Option<&mut T>
    where
        T: Default,
    {
        let at = match self.find(host) {
            Ok(at) => at,
            // Entries come of what other hosts report: no host may add them without end.
            Err(_) if self.0.len() >= most => return None,
            Err(at) => {
                self.0.insert(at, (host, T::default()));
                at
            }
        };
        Some(&mut self.0[at].1)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (HostId, &T)> {
        self.0.iter().map(|(host, its)| (*host, its))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (HostId, &mut T)> {
        self.0.iter_mut().map(|(host, its)| (*host, its))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, its)| its)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map(|(_, its)| its)
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(HostId, &mut T) -> bool) {
        self.0.retain_mut(|(host, its)| keep(*host, its));
    }
}

/// A walk over something in the order of hosts that is asked for hosts in their order.
pub(super) struct Walk<'a, T> {
    rest: &'a [(HostId, T)],
}

impl<'a, T> Walk<'a, T> {
    pub(super) fn new(all: &'a [(HostId, T)]) -> Self {
        Self { rest: all }
    }

    /// That of a host; none before it is asked for any more.
    pub(super) fn find(&mut self, host: HostId) -> Option<&'a T> {
        let at = self.rest.iter().position(|(its, _)| *its >= host).unwrap_or(self.rest.len());
        self.rest = &self.rest[at..];
        self.rest.first().filter(|(its, _)| *its == host).map(|(_, found)| found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_found_in_their_order_and_bounded() {
        let mut all = ByHost::<u32>::default();
        for host in [5, 1, 9, 5] {
            *all.get_or_add(HostId(host), 3).unwrap() += host as u32;
        }
        assert_eq!(all.get_or_add(HostId(2), 3), None);
        let found: Vec<_> = all.iter().map(|(host, its)| (host.0, *its)).collect();
        assert_eq!(found, [(1, 1), (5, 10), (9, 9)]);
        all.retain(|host, _| host != HostId(5));
        assert_eq!((all.get(HostId(5)), all.get(HostId(9))), (None, Some(&9)));
        assert_eq!(all.values().count(), 2);
    }

    #[test]
    fn a_walk_finds_what_there_is() {
        let all = [1, 3, 4, 8].map(|host| (HostId(host), host * 10));
        let mut walk = Walk::new(&all);
        let found = [0, 1, 2, 4, 8, 9].map(|host| walk.find(HostId(host)).copied());
        assert_eq!(found, [None, Some(10), None, Some(40), Some(80), None]);
        assert_eq!(Walk::<u64>::new(&[]).find(HostId(1)), None);
    }

    #[test]
    fn what_is_taken_is_sorted_and_gone() {
        let mut dirty: Dirty = [7, 3, 5].map(KeyId).into_iter().collect();
        assert_eq!(take(&mut dirty), [3, 5, 7].map(KeyId));
        assert!(dirty.is_empty());
    }
}
