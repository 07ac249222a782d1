//! Makes the lists the kernel's.
//!
//! A packet asks the filter first, so a new entry is in the maps before its bits are in the filter, and
//! bits are cleared after the entry has gone: not at once, because that takes a look at all entries, but
//! before they are many.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use aya::Ebpf;
use ipnet::IpNet;
use limiter_common::abi::{Config, LISTED_PREFIXES};
use limiter_common::atomic;
use limiter_common::lists::{
    Entry, PREFIX, PREFIX_BITMAP_WORDS, PREFIX_WORDS, SINGLE, Word, in_use, prefix_bits,
    source_bits, words_for,
};

use super::Error;
use super::kernel;
use super::memory::Elements;
use super::publish::{published, renew};
use super::sources::{SourceMaps, Table, key_of};
use super::view::Memory;
use model::lists::{Action, ListChanges, Listing, Lists, now};

/// One in so many entries may have been removed since the filter was made.
const STALE: usize = 8;

/// The filter may be so many times as large as its entries need.
const SPACIOUS: u32 = 4;

/// The maps of the lists, and their filter. Apart from limits: what is listed is never asked for one. The two have
/// the generation in common, which lets CPUs forget what they remember of sources.
pub struct ListMaps {
    memory: Arc<Memory>,
    maps: SourceMaps<IpNet, u64>,
    prefix_bitmap: Elements<AtomicU64>,
    filter: Elements<AtomicU64>,
    /// How many single sources there is room for.
    max_single: usize,
    /// Whoever no entry may shut out: allowed, whatever the lists say.
    exempt: Vec<IpNet>,
    /// Words of the filter that are in use for single sources; 0 before the first entries.
    words: u32,
    /// Entries whose bits may still be in the filter.
    stale: usize,
}

/// An entry as the kernel has it. What remains of its life is told in time since boot.
fn entry_of(listing: &Listing, wall: u32, boot: u64) -> Entry {
    let until = listing.until.map_or(0, |until| {
        // The kernel program reads no wall clock, which may jump, so the end is told in time since
        // boot.
        let left = u64::from(until.saturating_sub(wall));
        // Not 0, which stands for an entry without an end.
        u32::try_from(boot + left).unwrap_or(u32::MAX).max(1)
    });
    Entry::new(listing.action.kernel(), until)
}

impl ListMaps {
    /// Takes the maps out of a loaded object; they have room for `max_single` single sources.
    ///
    /// # Errors
    /// If one is not there, or is not what it should be.
    pub(super) fn take(
        ebpf: &mut Ebpf,
        memory: Arc<Memory>,
        max_single: usize,
    ) -> Result<Self, Error> {
        let names = ["LISTED", "LISTED4", "LISTED6"];
        Ok(Self {
            maps: SourceMaps::take(ebpf, names, memory.layout.masks.lengths())?,
            prefix_bitmap: super::elements(ebpf, "PREFIX_BITMAP")?,
            filter: super::elements(ebpf, "FILTER")?,
            memory,
            max_single,
            exempt: Vec::new(),
            words: 0,
            stale: 0,
        })
    }

    /// Whether some are let through whatever the lists say.
    pub(super) fn has_exempt(&self) -> bool {
        !self.exempt.is_empty()
    }

    /// Lets these through from the next [`ListMaps::publish_lists`] on, whatever the lists say.
    pub(super) fn exempt(&mut self, nets: &[IpNet]) {
        self.exempt = nets.to_vec();
    }

    /// As [`super::Dataplane::publish_lists`], by a program that serves lists.
    pub(super) fn publish_lists(&mut self, lists: &Lists) -> Result<(), Error> {
        let published = self.publish(lists);
        self.renew();
        published
    }

    /// As [`super::Dataplane::change_lists`], by a program that serves lists.
    pub(super) fn change_lists(
        &mut self,
        changes: &ListChanges,
        after: &Lists,
    ) -> Result<(), Error> {
        let changed = self.change(changes, after);
        self.renew();
        changed
    }

    /// Whether there is room for `lists`.
    ///
    /// # Errors
    /// Too many of them.
    pub fn check_lists(&self, lists: &Lists) -> Result<(), Error> {
        self.check_room(lists).map(drop)
    }

    /// Raises the generation, also after a change that failed, as some entries may have been changed: packets of
    /// tracked sources skip the lists within a generation.
    fn renew(&self) {
        let config = self.memory.config();
        renew(config, published(config).slot());
    }

    fn publish(&mut self, lists: &Lists) -> Result<(), Error> {
        let kinds = self.check_room(lists)?;
        let present = self.maps.present().map_err(Error::map("read the lists in force"))?;
        let gone = present.into_iter().map(|(net, _)| net).filter(|net| !lists.contains_key(net));
        // Exempt ones are written anew in any case: the lists do not have them.
        let gone = gone.chain(self.exempt.iter().copied()).map(|net| (net, None));
        let gone: Vec<_> = gone.collect();
        let all = lists.iter().map(|(net, listing)| (*net, Some(listing)));
        self.write(gone.into_iter().chain(all))?;
        self.rebuild(lists, kinds);
        Ok(())
    }

    fn change(&mut self, changes: &ListChanges, after: &Lists) -> Result<(), Error> {
        let kinds = self.check_room(after)?;
        self.write(changes.iter().map(|(net, listing)| (*net, listing.as_ref())))?;
        for (net, listing) in changes {
            match destination(&self.exempt, net, listing.as_ref()) {
                // Without its bits a packet would not even ask for the entry, which is there
                // already.
                Some(_) => self.set_bits(net),
                None => self.stale += 1,
            }
        }
        let wanted = words_for(kinds[0], self.memory.layout.filter_words);
        // A filter that is too full lets all packets ask the maps, and one that is too spacious
        // does not fit the caches.
        let fits = wanted <= self.words && wanted >= self.words / SPACIOUS;
        if !fits || self.stale > after.len() / STALE {
            self.rebuild(after, kinds);
        } else {
            announce(kinds, self.words, self.memory.config());
        }
        Ok(())
    }

    /// Writes entries to the maps.
    fn write<'a>(
        &mut self,
        changes: impl Iterator<Item = (IpNet, Option<&'a Listing>)>,
    ) -> Result<(), Error> {
        let (wall, boot) = (now(), kernel::monotonic_ns() / 1_000_000_000);
        let Self { maps, exempt, .. } = self;
        let entries = changes.map(|(net, listing)| {
            let entry = destination(exempt, &net, listing).map(|fate| match fate {
                Fate::Exempt => Entry::new(Action::Allow.kernel(), 0).0,
                Fate::Listed(listing) => entry_of(listing, wall, boot).0,
            });
            (net, entry)
        });
        maps.write(entries)
            .map_err(|(_, (net, error))| Error::map(format!("change the entry of {net}"))(error))
    }

    /// How many single sources, IPv4 prefixes and IPv6 prefixes there are if the lists are `after`.
    ///
    /// # Errors
    /// If there is no room for so many.
    fn check_room(&self, after: &Lists) -> Result<[usize; 3], Error> {
        let mut wanted = after.kinds(self.maps.lengths());
        for net in self.exempt.iter().filter(|net| !after.contains_key(net)) {
            let family = 1 + usize::from(net.addr().is_ipv6());
            wanted[if self.maps.is_exact(net) { 0 } else { family }] += 1;
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

    /// Calls `visit` with each word of the filters that an entry concerns, and its bits there.
    fn bits(&self, net: &IpNet, visit: impl FnMut(Word, u64)) {
        let layout = &self.memory.layout;
        let key = layout.masks.apply(key_of(net.network()));
        if self.maps.is_exact(net) {
            source_bits(key, layout.hash_key.hash(key), self.words, visit);
        } else {
            prefix_bits(key, u32::from(net.prefix_len()), visit);
        }
    }

    fn set_bits(&self, net: &IpNet) {
        if self.words == 0 {
            return;
        }
        self.bits(net, |word, bits| {
            let word = match word {
                Word::Filter(word) => self.filter.all().get(word as usize),
                Word::Bitmap(word) => self.prefix_bitmap.all().get(word as usize),
            };
            if let Some(word) = word {
                atomic::store(word, atomic::load(word) | bits);
            }
        });
    }

    /// Makes the filter as large as `lists` need, whose entries are of these `kinds`, and clears the
    /// bits that no entry needs. A word is replaced at once, so that no entry misses its own.
    fn rebuild(&mut self, lists: &Lists, kinds: [usize; 3]) {
        let needed = words_for(kinds[0], self.memory.layout.filter_words);
        let before = std::mem::replace(&mut self.words, needed);
        let mut wanted = vec![0; (PREFIX_WORDS + self.words) as usize];
        let mut prefix_bitmap = [0; PREFIX_BITMAP_WORDS as usize];
        for net in lists.keys().chain(&self.exempt) {
            self.bits(net, |word, bits| match word {
                Word::Filter(word) => wanted[word as usize] |= bits,
                Word::Bitmap(word) => prefix_bitmap[word as usize] |= bits,
            });
        }
        replace(self.prefix_bitmap.all(), prefix_bitmap);
        let all = self.filter.all();
        let wanted = wanted.into_iter().chain(std::iter::repeat(0));
        if self.words != before {
            // Packets go by the former size until they are told of the new one: the bits of both.
            for (word, bits) in all.iter().zip(wanted.clone()).filter(|(_, bits)| *bits != 0) {
                atomic::store(word, atomic::load(word) | bits);
            }
        }
        announce(kinds, self.words, self.memory.config());
        if self.words != before {
            // A packet that has read the former size still looks where that leads to.
            kernel::wait_for_packets();
        }
        replace(all, wanted);
        self.stale = 0;
    }
}

/// Replaces the words that differ, each at once.
fn replace(all: &[AtomicU64], wanted: impl IntoIterator<Item = u64>) {
    for (word, bits) in all.iter().zip(wanted) {
        if atomic::load(word) != bits {
            atomic::store(word, bits);
        }
    }
}

/// Tells the kernel which kinds of entries there are, and how many words of the filter are in use for
/// those of single sources.
fn announce([single, ipv4, ipv6]: [usize; 3], words: u32, config: &Config) {
    let kinds = if single > 0 { SINGLE } else { 0 } | if ipv4 + ipv6 > 0 { PREFIX } else { 0 };
    let listed = if kinds == 0 { 0 } else { in_use(kinds, words) };
    // A swap is a full barrier: entries and bits are there before a packet is told to look for
    // them.
    atomic::swap(&config.listed, listed);
}

/// What an entry comes to.
#[derive(Debug, PartialEq)]
enum Fate<'a> {
    /// Let through, because it must not be shut out.
    Exempt,
    /// As it is listed.
    Listed(&'a Listing),
}

/// What comes of the entry for `net`. An exempt prefix itself always has one, what is in it only if it
/// is listed.
fn destination<'a>(
    exempt: &[IpNet],
    net: &IpNet,
    listing: Option<&'a Listing>,
) -> Option<Fate<'a>> {
    let within = exempt.iter().find(|exempt| exempt.contains(net));
    match within {
        Some(whole) if listing.is_some() || whole == net => Some(Fate::Exempt),
        _ => listing.map(Fate::Listed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_entry_shuts_out_a_part_of_what_is_exempt() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let exempt = [net("198.51.100.16/28")];
        let deny = Listing::new(Action::Deny, None, None).unwrap();
        for (text, listed, expected) in [
            ("198.51.100.16/28", None, Some(Fate::Exempt)),
            ("198.51.100.16/28", Some(&deny), Some(Fate::Exempt)),
            ("198.51.100.17/32", Some(&deny), Some(Fate::Exempt)),
            ("198.51.100.17/32", None, None),
            ("198.51.100.0/24", Some(&deny), Some(Fate::Listed(&deny))),
            ("198.51.100.99/32", None, None),
        ] {
            assert_eq!(destination(&exempt, &net(text), listed), expected, "{text}");
        }
    }
}
