//! Maps that lead from sources, single ones or prefixes of many, to values.

use std::fmt::Display;
use std::net::IpAddr;

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{MapData, MapError};
use aya::{Ebpf, Pod};
use ipnet::IpNet;
use limiter_common::key::SourceKey;

use super::Error;
use super::exact::Exact;

/// What a value is found by.
pub(super) trait MapKey: Copy + Display {
    /// The key of a single source.
    type Single: Pod;
    /// The key of an IPv4 prefix.
    type V4: Pod;
    /// The key of an IPv6 prefix.
    type V6: Pod;

    /// The sources; `None` for all of them.
    fn net(&self) -> Option<IpNet>;
    /// Bits of an address that make a single source there, where so many make one most often (IPv4, IPv6).
    fn lengths(&self, usual: (u8, u8)) -> (u8, u8) {
        usual
    }
    /// Its key if it is a single source.
    fn single(&self) -> Self::Single;
    /// The place of a single source; a source's address has so many bits (IPv4, IPv6).
    fn from_single(key: &Self::Single, lengths: (u8, u8)) -> Self;
    /// Its key among IPv4 prefixes, if it is one or all.
    fn v4(&self) -> Option<Key<Self::V4>>;
    /// Its key among IPv6 prefixes, if it is one or all.
    fn v6(&self) -> Option<Key<Self::V6>>;
    /// The place of an IPv4 prefix; `None` if the key is none of ours.
    fn from_v4(key: &Key<Self::V4>) -> Option<Self>;
    /// The place of an IPv6 prefix, likewise.
    fn from_v6(key: &Key<Self::V6>) -> Option<Self>;
}

/// The key of a source.
pub(super) fn key_of(address: IpAddr) -> SourceKey {
    match address {
        IpAddr::V4(v4) => SourceKey::from_ipv4(v4.octets()),
        IpAddr::V6(v6) => SourceKey::from_ipv6(v6.octets()),
    }
}

/// The bits of a key that addresses in `net` have in common.
pub(super) fn mask_of(net: IpNet) -> u128 {
    let length = match net {
        IpNet::V4(net) => 96 + u32::from(net.prefix_len()),
        IpNet::V6(net) => u32::from(net.prefix_len()),
    };
    u128::MAX.checked_shl(128 - length).unwrap_or(0)
}

/// The source that a key stands for.
pub(super) fn source_of_key(key: SourceKey, lengths: (u8, u8)) -> IpNet {
    let address = key.address();
    let length = if address.is_ipv4() { lengths.0 } else { lengths.1 };
    // The lengths of the masks are never longer than an address.
    IpNet::new(address, length).map_or_else(|_| IpNet::from(address), |net| net.trunc())
}

/// The prefix of an address, whose length comes from a map.
pub(super) fn prefix_of(address: impl Into<IpAddr>, length: u32) -> Option<IpNet> {
    IpNet::new(address.into(), u8::try_from(length).ok()?).ok().map(|net| net.trunc())
}

impl MapKey for IpNet {
    type Single = SourceKey;
    type V4 = [u8; 4];
    type V6 = [u8; 16];

    fn net(&self) -> Option<IpNet> {
        Some(*self)
    }

    fn single(&self) -> SourceKey {
        key_of(self.network())
    }

    fn from_single(key: &SourceKey, lengths: (u8, u8)) -> Self {
        source_of_key(*key, lengths)
    }

    fn v4(&self) -> Option<Key<[u8; 4]>> {
        let Self::V4(v4) = self else { return None };
        Some(Key::new(u32::from(v4.prefix_len()), v4.network().octets()))
    }

    fn v6(&self) -> Option<Key<[u8; 16]>> {
        let Self::V6(v6) = self else { return None };
        Some(Key::new(u32::from(v6.prefix_len()), v6.network().octets()))
    }

    fn from_v4(key: &Key<[u8; 4]>) -> Option<Self> {
        prefix_of(key.data(), key.prefix_len())
    }

    fn from_v6(key: &Key<[u8; 16]>) -> Option<Self> {
        prefix_of(key.data(), key.prefix_len())
    }
}

/// A place whose value the kernel would not change, and why.
pub(super) type Refused<P> = (P, MapError);

/// What can be written by place. What is inserted may be written later, by [`Table::flush`] at the
/// latest.
pub(super) trait Table<P, V> {
    fn insert(&mut self, place: &P, value: V) -> Result<(), Refused<P>>;
    /// Removes what need not be there.
    fn remove(&mut self, place: &P) -> Result<(), Refused<P>>;
    fn flush(&mut self) -> Result<(), Refused<P>>;
    /// Forgets what has been inserted and not been written yet.
    fn forget(&mut self);

    /// Lets each place lead to a value, or nowhere.
    ///
    /// # Errors
    /// How many of the changes have been tried, what was refused, and why. Those before it may have
    /// been made or not, none after it has.
    fn write(
        &mut self,
        changes: impl IntoIterator<Item = (P, Option<V>)>,
    ) -> Result<(), (usize, Refused<P>)> {
        let mut tried = 0;
        let written = changes.into_iter().try_for_each(|(place, value)| {
            tried += 1;
            match value {
                Some(value) => self.insert(&place, value),
                None => self.remove(&place),
            }
        });
        written.and_then(|()| self.flush()).map_err(|refused| {
            // It would be written with the next change otherwise.
            self.forget();
            (tried, refused)
        })
    }
}

/// The two maps for prefixes.
pub(super) struct Prefixes<P: MapKey, V: Pod> {
    v4: LpmTrie<MapData, P::V4, V>,
    v6: LpmTrie<MapData, P::V6, V>,
}

impl<P: MapKey, V: Pod> Prefixes<P, V> {
    /// Takes the maps for IPv4 and IPv6 out of a loaded object.
    ///
    /// # Errors
    /// If one is not there, or is not what it should be.
    pub(super) fn take(ebpf: &mut Ebpf, [v4, v6]: [&'static str; 2]) -> Result<Self, Error> {
        Ok(Self { v4: super::take(ebpf, v4)?, v6: super::take(ebpf, v6)? })
    }

    /// Everything that leads somewhere now. What stands for all sources may come twice.
    ///
    /// # Errors
    /// If a map cannot be read.
    pub(super) fn present(&self) -> Result<Vec<(P, V)>, MapError> {
        let mut present = Vec::new();
        for item in self.v4.iter() {
            let (key, value) = item?;
            present.extend(P::from_v4(&key).map(|place| (place, value)));
        }
        for item in self.v6.iter() {
            let (key, value) = item?;
            present.extend(P::from_v6(&key).map(|place| (place, value)));
        }
        Ok(present)
    }

    /// Lets a place lead to a value, at once: tries of prefixes have no batches before Linux 5.13, and are few.
    pub(super) fn insert(&mut self, place: &P, value: V) -> Result<(), Refused<P>> {
        // What stands for all sources has a key in both tries. Where the second
        // one is refused the first stays: who changes limits undoes whole steps.
        let v4 = place.v4().map_or(Ok(()), |key| self.v4.insert(&key, value, 0));
        let both =
            v4.and_then(|()| place.v6().map_or(Ok(()), |key| self.v6.insert(&key, value, 0)));
        both.map_err(|error| (*place, error))
    }

    /// Removes a place that need not be there.
    pub(super) fn remove(&mut self, place: &P) -> Result<(), Refused<P>> {
        let v4 = place.v4().map_or(Ok(()), |key| gone(self.v4.remove(&key)));
        let both = v4.and_then(|()| place.v6().map_or(Ok(()), |key| gone(self.v6.remove(&key))));
        both.map_err(|error| (*place, error))
    }
}

/// What is not there need not be removed.
fn gone(removed: Result<(), MapError>) -> Result<(), MapError> {
    match removed {
        Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error))
            if error.io_error.kind() == std::io::ErrorKind::NotFound =>
        {
            Ok(())
        }
        other => other,
    }
}

/// The three maps: for single sources, for IPv4 prefixes and for IPv6 prefixes.
pub(super) struct SourceMaps<P: MapKey, V: Pod> {
    /// Apart from prefixes: a hash map finds one of a million at once, where a trie goes down bit by bit.
    exact: Exact<P::Single, V>,
    prefixes: Prefixes<P, V>,
    /// Bits of an address that make a source: (IPv4, IPv6).
    lengths: (u8, u8),
}

impl<P: MapKey, V: Pod> SourceMaps<P, V> {
    /// Takes the maps out of a loaded object: those for single sources, which have `lengths` bits, for
    /// IPv4 prefixes and for IPv6 prefixes.
    ///
    /// # Errors
    /// If one is not there, or is not what it should be.
    pub(super) fn take(
        ebpf: &mut Ebpf,
        [exact, v4, v6]: [&'static str; 3],
        lengths: (u8, u8),
    ) -> Result<Self, Error> {
        let exact = Exact::take(ebpf, exact)?;
        Ok(Self { exact, prefixes: Prefixes::take(ebpf, [v4, v6])?, lengths })
    }

    /// Bits of an address that make a source: (IPv4, IPv6).
    pub(super) const fn lengths(&self) -> (u8, u8) {
        self.lengths
    }

    /// Whether a place is one source rather than a prefix of many.
    // One source lies in a hash map: there may be a million, and a trie walks a node for each bit
    // that differs.
    pub(super) fn is_exact(&self, place: &P) -> bool {
        match place.net() {
            None => false,
            Some(IpNet::V4(v4)) => v4.prefix_len() == place.lengths(self.lengths).0,
            Some(IpNet::V6(v6)) => v6.prefix_len() == place.lengths(self.lengths).1,
        }
    }

    /// Everything that leads somewhere now. What stands for all sources may come twice.
    ///
    /// # Errors
    /// If a map cannot be read.
    pub(super) fn present(&self) -> Result<Vec<(P, V)>, MapError> {
        // The kernel is asked rather than the store: what a daemon before this one has written is
        // what packets go by.
        let mut present = self.prefixes.present()?;
        for item in self.exact.iter() {
            let (key, value) = item?;
            present.push((P::from_single(&key, self.lengths), value));
        }
        Ok(present)
    }
}

impl<P: MapKey, V: Pod> Table<P, V> for SourceMaps<P, V> {
    fn insert(&mut self, place: &P, value: V) -> Result<(), Refused<P>> {
        if !self.is_exact(place) {
            return self.prefixes.insert(place, value);
        }
        let inserted = self.exact.insert(place.single(), value);
        inserted.map_err(|(key, error)| (P::from_single(&key, self.lengths), error))
    }

    fn remove(&mut self, place: &P) -> Result<(), Refused<P>> {
        if !self.is_exact(place) {
            return self.prefixes.remove(place);
        }
        gone(self.exact.remove(&place.single())).map_err(|error| (*place, error))
    }

    fn flush(&mut self) -> Result<(), Refused<P>> {
        let flushed = self.exact.flush();
        flushed.map_err(|(key, error)| (P::from_single(&key, self.lengths), error))
    }

    fn forget(&mut self) {
        self.exact.forget();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Writes sources late and prefixes at once, as the maps do, and refuses one.
    #[derive(Default)]
    struct Fake {
        written: BTreeMap<IpNet, u64>,
        waiting: Vec<(IpNet, u64)>,
        refused: Option<IpNet>,
    }

    impl Fake {
        fn check(&self, net: &IpNet) -> Result<(), Refused<IpNet>> {
            if self.refused == Some(*net) { Err((*net, MapError::KeyNotFound)) } else { Ok(()) }
        }
    }

    impl Table<IpNet, u64> for Fake {
        fn insert(&mut self, net: &IpNet, value: u64) -> Result<(), Refused<IpNet>> {
            if net.prefix_len() == 32 {
                self.waiting.push((*net, value));
                return Ok(());
            }
            self.check(net)?;
            self.written.insert(*net, value);
            Ok(())
        }

        fn remove(&mut self, net: &IpNet) -> Result<(), Refused<IpNet>> {
            self.check(net)?;
            self.written.remove(net);
            Ok(())
        }

        fn flush(&mut self) -> Result<(), Refused<IpNet>> {
            for (net, value) in std::mem::take(&mut self.waiting) {
                self.check(&net)?;
                self.written.insert(net, value);
            }
            Ok(())
        }

        fn forget(&mut self) {
            self.waiting.clear();
        }
    }

    #[test]
    fn what_was_refused_is_not_written_with_the_next_change() {
        let nets: Vec<IpNet> = ["192.0.2.1/32", "198.51.100.0/24", "192.0.2.2/32", "192.0.2.3/32"]
            .map(|text| text.parse().unwrap())
            .into();
        let all = || nets[..3].iter().map(|net| (*net, Some(7)));
        for (refused, tried) in [(nets[1], 2), (nets[2], 3)] {
            let mut table = Fake { refused: Some(refused), ..Fake::default() };
            let error = table.write(all()).unwrap_err();
            assert_eq!((error.0, error.1.0), (tried, refused));
            table.written.clear();
            table.write([(nets[3], Some(9))]).unwrap();
            assert_eq!(table.written.into_iter().collect::<Vec<_>>(), [(nets[3], 9)]);
        }
        let mut table = Fake::default();
        table.write(all().chain([(nets[1], None)])).unwrap();
        assert_eq!(table.written.keys().copied().collect::<Vec<_>>(), [nets[0], nets[2]]);
    }

    #[test]
    fn a_mask_covers_the_family() {
        assert_eq!(mask_of("0.0.0.0/0".parse().unwrap()), !0 << 32);
        assert_eq!(mask_of("192.0.2.0/24".parse().unwrap()), !0 << 8);
        assert_eq!(mask_of("::/0".parse().unwrap()), 0);
        assert_eq!(mask_of("2001:db8::/32".parse().unwrap()), !0 << 96);
    }
}
