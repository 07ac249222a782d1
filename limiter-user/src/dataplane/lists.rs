//! Makes the lists the kernel's.
//!
//! A packet asks the filter first, so a new entry is in the maps before its bits are in the filter, and
//! bits are cleared after the entry has gone.

use std::sync::atomic::AtomicU64;

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{MapData, MapError};
use ipnet::IpNet;
use limiter_common::abi::{Config, LISTED_PREFIXES, Layout};
use limiter_common::atomic;
use limiter_common::key::SourceKey;
use limiter_common::lists::{Entry, PREFIX, PREFIX_WORDS, SINGLE, bits_of, neighbourhoods};

use super::Error;
use super::exact::Exact;
use super::kernel;
use super::memory::Elements;
use super::publish::key_of;
use crate::policy::lists::{Action, ListChanges, Listing, Lists, now};

/// The maps of the lists.
pub(super) struct ListMaps {
    pub(super) single: Exact<u64>,
    pub(super) prefixes4: LpmTrie<MapData, [u8; 4], u64>,
    pub(super) prefixes6: LpmTrie<MapData, [u8; 16], u64>,
    pub(super) filter: Elements<AtomicU64>,
    /// How many sources `single` holds at the most.
    pub(super) max_single: usize,
    /// Whoever no entry may shut out: allowed, whatever the lists say.
    pub(super) exempt: Lists,
}

/// An entry as the kernel has it. What remains of its life is told in time since boot.
fn entry_of(listing: &Listing, wall: u32, boot: u64) -> Entry {
    let until = listing.until.map_or(0, |until| {
        let left = u64::from(until.saturating_sub(wall));
        u32::try_from(boot + left).unwrap_or(u32::MAX).max(1)
    });
    Entry::new(listing.action.kernel(), until)
}

impl ListMaps {
    /// Lets these through from the next [`ListMaps::publish`] on, whatever the lists say.
    pub(super) fn exempt(&mut self, nets: &[IpNet]) {
        let listing = Listing { action: Action::Allow, reason: None, added: 0, until: None };
        self.exempt = nets.iter().map(|net| (*net, listing.clone())).collect();
    }

    /// Makes exactly `lists` the entries in force.
    ///
    /// # Errors
    /// If there are too many, or the kernel refuses.
    pub(super) fn publish(
        &mut self,
        lists: &Lists,
        layout: &Layout,
        config: &Config,
    ) -> Result<(), Error> {
        let present = self.present(layout).map_err(Error::map("read the lists in force"))?;
        let gone = present.into_iter().filter(|net| !lists.contains_key(net));
        let mut changes: ListChanges = gone.map(|net| (net, None)).collect();
        changes.extend(self.exempt.keys().map(|net| (*net, None)));
        changes.extend(lists.iter().map(|(net, listing)| (*net, Some(listing.clone()))));
        self.change(&changes, lists, layout, config)?;
        self.rebuild(lists, layout);
        Ok(())
    }

    /// Changes entries. `after` is what the lists are then.
    ///
    /// # Errors
    /// If there would be too many, before anything is changed; if the kernel refuses, some may have
    /// been changed.
    pub(super) fn change(
        &mut self,
        changes: &ListChanges,
        after: &Lists,
        layout: &Layout,
        config: &Config,
    ) -> Result<(), Error> {
        let [single, ipv4, ipv6] = self.check_room(after, layout)?;
        let (wall, boot) = (now(), kernel::monotonic_ns() / 1_000_000_000);
        for (net, listing) in changes {
            let written = match self.exempt.get(net).or(listing.as_ref()) {
                Some(listing) => self.insert(net, entry_of(listing, wall, boot).0, layout),
                None => self.remove(net, layout),
            };
            written.map_err(Error::map(format!("change the entry of {net}")))?;
        }
        self.single.flush().map_err(|(_, error)| Error::map("write a list")(error))?;
        let mut removed = false;
        for (net, listing) in changes {
            match self.exempt.get(net).or(listing.as_ref()) {
                Some(_) => self.set_bits(net, layout),
                None => removed = true,
            }
        }
        let kinds = if single > 0 { SINGLE } else { 0 } | if ipv4 + ipv6 > 0 { PREFIX } else { 0 };
        atomic::swap(&config.listed, kinds);
        if removed {
            self.rebuild(after, layout);
        }
        Ok(())
    }

    fn is_single(net: &IpNet, layout: &Layout) -> bool {
        let (v4, v6) = layout.masks.lengths();
        net.prefix_len() == if net.addr().is_ipv4() { v4 } else { v6 }
    }

    fn check_room(&self, after: &Lists, layout: &Layout) -> Result<[usize; 3], Error> {
        let mut wanted = [0; 3];
        for net in after.keys().chain(self.exempt.keys()) {
            let family = 1 + usize::from(net.addr().is_ipv6());
            wanted[if Self::is_single(net, layout) { 0 } else { family }] += 1;
        }
        let prefixes = LISTED_PREFIXES as usize;
        let hint = "combine neighbouring prefixes";
        let kinds = [
            ("listed sources", self.max_single, "run the daemon with a larger --max-listed"),
            ("listed IPv4 prefixes", prefixes, hint),
            ("listed IPv6 prefixes", prefixes, hint),
        ];
        for ((kind, room, hint), wanted) in kinds.into_iter().zip(wanted) {
            if wanted > room {
                return Err(Error::TooMany { kind, wanted, room, hint });
            }
        }
        Ok(wanted)
    }

    fn insert(&mut self, net: &IpNet, entry: u64, layout: &Layout) -> Result<(), MapError> {
        if Self::is_single(net, layout) {
            return self.single.insert(key_of(net.network()), entry).map_err(|(_, error)| error);
        }
        let length = u32::from(net.prefix_len());
        match net {
            IpNet::V4(v4) => {
                self.prefixes4.insert(&Key::new(length, v4.network().octets()), entry, 0)
            }
            IpNet::V6(v6) => {
                self.prefixes6.insert(&Key::new(length, v6.network().octets()), entry, 0)
            }
        }
    }

    /// Removes an entry, which need not be there.
    fn remove(&mut self, net: &IpNet, layout: &Layout) -> Result<(), MapError> {
        let length = u32::from(net.prefix_len());
        let removed = if Self::is_single(net, layout) {
            self.single.remove(&key_of(net.network()))
        } else {
            match net {
                IpNet::V4(v4) => self.prefixes4.remove(&Key::new(length, v4.network().octets())),
                IpNet::V6(v6) => self.prefixes6.remove(&Key::new(length, v6.network().octets())),
            }
        };
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

    /// Calls `visit` with each word of the filter that an entry concerns, and its bits there.
    fn bits(net: &IpNet, layout: &Layout, mut visit: impl FnMut(u32, u64)) {
        let key = layout.masks.apply(key_of(net.network()));
        if Self::is_single(net, layout) {
            let (word, bits) = bits_of(layout.hash_key.hash(key), layout.filter_words);
            visit(word, bits);
        } else {
            let length = u32::from(net.prefix_len());
            neighbourhoods(key, length, |near| visit(near / 64, 1 << (near % 64)));
        }
    }

    fn set_bits(&self, net: &IpNet, layout: &Layout) {
        Self::bits(net, layout, |word, bits| {
            if let Some(word) = self.filter.all().get(word as usize) {
                atomic::store(word, atomic::load(word) | bits);
            }
        });
    }

    /// Clears the bits that no entry needs. A word is replaced at once, so that no entry misses its own.
    fn rebuild(&self, lists: &Lists, layout: &Layout) {
        let mut words = vec![0; (PREFIX_WORDS + layout.filter_words) as usize];
        for net in lists.keys().chain(self.exempt.keys()) {
            Self::bits(net, layout, |word, bits| words[word as usize] |= bits);
        }
        for (word, bits) in self.filter.all().iter().zip(words) {
            if atomic::load(word) != bits {
                atomic::store(word, bits);
            }
        }
    }

    /// Every entry there is.
    fn present(&self, layout: &Layout) -> Result<Vec<IpNet>, MapError> {
        let (v4, v6) = layout.masks.lengths();
        let mut present = Vec::new();
        for item in self.single.iter() {
            let (key, _): (SourceKey, u64) = item?;
            let address = key.address();
            let length = if address.is_ipv4() { v4 } else { v6 };
            present.extend(IpNet::new(address, length).map(|net| net.trunc()));
        }
        for item in self.prefixes4.iter() {
            let (key, _) = item?;
            let length = u8::try_from(key.prefix_len()).unwrap_or(32);
            present.extend(IpNet::new(key.data().into(), length).map(|net| net.trunc()));
        }
        for item in self.prefixes6.iter() {
            let (key, _) = item?;
            let length = u8::try_from(key.prefix_len()).unwrap_or(128);
            present.extend(IpNet::new(key.data().into(), length).map(|net| net.trunc()));
        }
        Ok(present)
    }
}
