//! Takes over maps of an older layout without an unprotected moment and without a fresh burst.
//!
//! The program of this version gets maps of its own for what the store can fill again: limits, lists
//! and how they are found. Of the rest it uses the very maps that the older program uses, if they
//! are what it would make itself: a bucket is then one word for both programs, whichever of them
//! judges a packet while one interface after the other is switched, and every packet is in the same
//! counters. So nothing has to be copied while it changes.
//!
//! Who has a bucket lies in a map whose layout has changed. It is copied before the switch, and
//! again afterwards for sources that the older program has given a bucket in between. A tag is the
//! hash of its source, so what belongs together is known. No verdict depends on it.
//!
//! What a bucket remembers of its policy means another one in the new maps. It is not touched: the
//! generation that it is from is one that is never published.
//!
//! Classes and shared limits are not carried over, neither the numbers of the ones nor the buckets of
//! the others: they came with layout 4, so nothing that is migrated this way has any. From that version
//! on all maps are used as they are ([`ADOPTED_ABI`]).

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use aya::maps::{MapData, MapInfo};
use limiter_common::abi::{ABI_VERSION, Config, Counters, Layout, PolicyWord, UNLIMITED_SLOT};
use limiter_common::atomic;
use limiter_common::denial::{DENIALS, Denial};
use limiter_common::hash::HashKey;
use limiter_common::key::SourceKey;
use limiter_common::table::{Identity, Slot, WAYS, is_claimed};

use super::Error;
use super::memory::Elements;
use super::object::pin_of;
use super::view::Memory;

/// The oldest layout version that can be migrated. From it on, a slot, a hash and a cell of the sketch
/// are what they are now.
pub(super) const OLDEST_ABI: u32 = 3;

/// The oldest layout version whose maps are used as they are: nothing in them has changed since, and what
/// has come since lies in maps of its own, which start empty.
pub(super) const ADOPTED_ABI: u32 = 4;

const _: () = assert!(
    ABI_VERSION == 7 && ADOPTED_ABI == 4,
    "layout 4 has classes and shared limits: carry them over, or raise OLDEST_ABI; layouts 5 to 7 only add maps"
);

/// How a data plane came by its buckets, if not from its own version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// The layout version that was there.
    pub from_abi: u32,
    /// Buckets that sources had at the switch.
    pub buckets: u64,
}

/// A map that both versions can use.
struct Common {
    name: &'static str,
    value_size: usize,
    elements: u32,
    /// Without it there is nothing to migrate.
    needed: bool,
}

/// The maps that are used on, if they are what this version would make.
fn common(layout: &Layout) -> [Common; 6] {
    let sets = layout.set_mask + 1;
    let map = |name, value_size, elements, needed| Common { name, value_size, elements, needed };
    [
        map("SLOTS", size_of::<Slot>(), sets * WAYS, true),
        map("FINGERPRINTS", size_of::<AtomicU64>(), sets, true),
        map("IDENTITIES", size_of::<Identity>(), sets * WAYS, false),
        map("SKETCH", size_of::<AtomicU64>(), layout.sketch.cells(), false),
        map("COUNTERS", size_of::<Counters>(), 1, false),
        map("DENIED", size_of::<Denial>() * DENIALS, 1, false),
    ]
}

/// A migration on its way.
pub(super) struct Migration {
    from_abi: u32,
    pin_dir: PathBuf,
    config: Elements<Config>,
    /// Absent if both versions use the same ones.
    identities: Option<Identities>,
}

impl Migration {
    /// Pins what `layout` has in common with the maps in `pin_dir`, which are of version `from_abi`, in
    /// `staging` as well.
    ///
    /// # Errors
    /// If a bucket is not what it is in this version, or a map cannot be opened or pinned.
    pub(super) fn begin(
        pin_dir: &Path,
        from_abi: u32,
        staging: &Path,
        layout: &Layout,
    ) -> Result<Self, Error> {
        let mut identities = None;
        for Common { name, value_size, elements, needed } in common(layout) {
            let map = open(pin_dir, name)?;
            let info = map.info().map_err(Error::map(format!("look at the map {name}")))?;
            if is(&info, value_size, elements) {
                map.pin(pin_of(staging, name)).map_err(|error| Error::Map {
                    action: format!("pin the map {name} once more"),
                    source: Box::new(error),
                })?;
            } else if needed {
                return Err(unsuitable(name, &info));
            } else if name == "IDENTITIES" {
                identities = Some(Identities::new(&map, layout)?);
            } else {
                tracing::warn!("what the map {name} holds cannot be migrated and is lost");
            }
        }
        let config = Elements::new(&open(pin_dir, "CONFIG")?, "CONFIG")?;
        Ok(Self { from_abi, pin_dir: pin_dir.into(), config, identities })
    }

    /// Says of an error that it ended the migration.
    pub(super) fn failed(&self, source: Error) -> Error {
        failed(&self.pin_dir, self.from_abi, source)
    }

    /// Lets the generations in `config`, which is fresh, start where no bucket remembers one and the
    /// older program gets to none.
    ///
    /// # Errors
    /// Without random numbers.
    pub(super) fn start_generations(&self, config: &Config) -> Result<(), Error> {
        let mut random = [0; 4];
        getrandom::fill(&mut random).map_err(|error| Error::Load(Box::new(error)))?;
        let former = PolicyWord(atomic::load(&self.config().policy)).generation();
        let first = far_from(former, u32::from_ne_bytes(random));
        atomic::store(&config.policy, PolicyWord::new(first, UNLIMITED_SLOT).0);
        Ok(())
    }

    /// Copies what the older program has written so far. The new one does not run yet.
    pub(super) fn copy(&self, memory: &Memory) {
        // A promotion in the moment to the switch finds the noise too low by what comes in that moment;
        // less than what each CPU may hold back of it anyway.
        atomic::store(&memory.config().sketch_total, atomic::load(&self.config().sketch_total));
        self.name_buckets(memory);
    }

    /// Completes it when the older program does not run any more.
    pub(super) fn complete(self, memory: &Memory) -> Migrated {
        let (buckets, nameless) = self.name_buckets(memory);
        if nameless > 0 {
            tracing::warn!("{nameless} buckets of an interrupted migration show no source");
        }
        Migrated { from_abi: self.from_abi, buckets }
    }

    /// Sees to it that each bucket has its source's name. Returns how many buckets there are, and how
    /// many of them still have not.
    fn name_buckets(&self, memory: &Memory) -> (u64, u64) {
        let (mut buckets, mut nameless) = (0, 0);
        let names = memory.identities.all();
        memory.occupied(|bucket, slot| {
            buckets += 1;
            let (Some(name), Some(former)) = (names.get(bucket), &self.identities) else { return };
            nameless += u64::from(!mend(&memory.layout.hash_key, slot, name, former.at(bucket)));
        });
        (buckets, nameless)
    }

    fn config(&self) -> &Config {
        // The map has one element, or it could not be mapped as what it is.
        &self.config.all()[0]
    }
}

/// The error that ended the migration of the maps in `pin_dir`.
pub(super) fn failed(pin_dir: &Path, from_abi: u32, source: Error) -> Error {
    Error::Migrate { path: pin_dir.into(), found: from_abi, source: Box::new(source) }
}

fn open(pin_dir: &Path, name: &'static str) -> Result<MapData, Error> {
    MapData::from_pin(pin_of(pin_dir, name)).map_err(Error::map(format!("open the map {name}")))
}

fn is(info: &MapInfo, value_size: usize, elements: u32) -> bool {
    info.value_size() as usize == value_size && info.max_entries() == elements
}

fn unsuitable(name: &str, info: &MapInfo) -> Error {
    let found = format!("{} elements of {} bytes", info.max_entries(), info.value_size());
    let problem = std::io::Error::other(format!("it has {found}"));
    Error::Map { action: format!("use the map {name}"), source: Box::new(problem) }
}

/// A generation from which it takes more changes to any that comes soon before or after `former` than
/// anybody makes. Two migrations from the same one, of which the first was interrupted, differ.
fn far_from(former: u32, random: u32) -> u32 {
    former.wrapping_add(1 << 31).wrapping_add(random >> 2)
}

/// Source and class of a bucket.
type Name = [u64; 3];

/// The identities of an older version: words, of which the first are a [`Name`] as far as there is one.
struct Identities {
    words: Elements<AtomicU64>,
    /// Words of an element.
    stride: usize,
}

impl Identities {
    fn new(map: &MapData, layout: &Layout) -> Result<Self, Error> {
        let info = map.info().map_err(Error::map("look at the map IDENTITIES"))?;
        let stride = info.value_size() as usize / size_of::<u64>();
        if info.max_entries() != (layout.set_mask + 1) * WAYS || stride < 2 {
            return Err(unsuitable("IDENTITIES", &info));
        }
        Ok(Self { words: Elements::words(map, "IDENTITIES")?, stride })
    }

    fn at(&self, bucket: usize) -> Name {
        let at = bucket * self.stride;
        name_in(self.words.all().get(at..at + self.stride).unwrap_or_default())
    }
}

/// The name in the words of an identity; without a class in those of a version that knows none.
fn name_in(words: &[AtomicU64]) -> Name {
    [0, 1, 2].map(|at| words.get(at).map_or(0, atomic::load))
}

/// Whether a bucket with `tag` is that of `name`.
fn is_named(hash_key: &HashKey, tag: u64, [high, low, class]: Name) -> bool {
    // A class is a small number in its word.
    hash_key.hash(SourceKey { high, low }).of_class(class as u32).0 == tag
}

/// Gives a bucket the name that it had, unless it has its own. Whether it has that then.
fn mend(hash_key: &HashKey, slot: &Slot, identity: &Identity, former: Name) -> bool {
    let words = [&identity.high, &identity.low, &identity.class];
    let tag = atomic::load(&slot.tag);
    let present = words.map(atomic::load);
    if is_named(hash_key, tag, present) {
        return true;
    }
    if !is_named(hash_key, tag, former) {
        return false;
    }
    let mut replaced = [false; 3];
    for (at, word) in words.into_iter().enumerate() {
        replaced[at] = atomic::replace(word, present[at], former[at]);
    }
    if !is_claimed(atomic::load(&slot.tat)) && atomic::load(&slot.tag) == tag {
        return true;
    }
    // The bucket is being given to another source, whose name it gets: what was replaced may be a part
    // of that.
    for (at, word) in words.into_iter().enumerate() {
        if replaced[at] {
            atomic::replace(word, former[at], present[at]);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any large number: the hash is made of the upper halves of products.
    const KEY: HashKey = HashKey { words: [0x9e37_79b9_7f4a_7c15; 10] };

    fn name(address: [u8; 4], class: u64) -> Name {
        let SourceKey { high, low } = SourceKey::from_ipv4(address);
        [high, low, class]
    }

    fn slot_of([high, low, class]: Name) -> Slot {
        let hash = KEY.hash(SourceKey { high, low }).of_class(class as u32);
        Slot { tag: hash.0.into(), tat: 1.into(), ..Slot::default() }
    }

    fn identity([high, low, class]: Name) -> Identity {
        Identity { high: high.into(), low: low.into(), class: class.into(), ..Identity::default() }
    }

    fn named(identity: &Identity) -> Name {
        [&identity.high, &identity.low, &identity.class].map(atomic::load)
    }

    #[test]
    fn a_bucket_gets_the_name_that_its_tag_is_the_hash_of() {
        let (source, other) = (name([198, 51, 100, 1], 0), name([198, 51, 100, 2], 0));
        let classed = name([198, 51, 100, 1], 7);
        for whose in [source, classed] {
            let slot = slot_of(whose);
            // Copied, or promoted since the copy in the place of another.
            for before in [[0; 3], other] {
                let identity = identity(before);
                assert!(mend(&KEY, &slot, &identity, whose));
                assert_eq!(named(&identity), whose);
            }
            // What the new program has written stays, whatever was there before.
            let own = identity(whose);
            assert!(mend(&KEY, &slot, &own, other));
            assert_eq!(named(&own), whose);
            // Nobody knows: it keeps what it has.
            let lost = identity([0; 3]);
            assert!(!mend(&KEY, &slot, &lost, other));
            assert_eq!(named(&lost), [0; 3]);
        }
        assert!(!mend(&KEY, &slot_of(classed), &identity([0; 3]), source), "a class of its own");
    }

    #[test]
    fn a_bucket_that_is_given_away_meanwhile_keeps_what_is_written() {
        let (former, coming) = (name([198, 51, 100, 1], 0), name([198, 51, 100, 2], 0));
        let slot = slot_of(former);
        atomic::store(&slot.tat, limiter_common::table::CLAIMED);
        let identity = identity(coming);
        mend(&KEY, &slot, &identity, former);
        assert_eq!(named(&identity), coming);
    }

    #[test]
    fn an_identity_is_read_as_far_as_it_goes() {
        let words: Vec<AtomicU64> = (1..=8).map(AtomicU64::new).collect();
        assert_eq!(name_in(&words[..2]), [1, 2, 0], "before there were classes");
        assert_eq!(name_in(&words), [1, 2, 3]);
        assert_eq!(name_in(&[]), [0; 3]);
    }

    #[test]
    fn generations_stay_away_from_former_ones() {
        for former in [0, 1, 1_000_000, u32::MAX] {
            for random in [0, 1, u32::MAX] {
                let first = far_from(former, random);
                let (after, before) = (first.wrapping_sub(former), former.wrapping_sub(first));
                assert!(after >= 1 << 31 && before > 1 << 30, "{former} {random}: {first}");
            }
        }
    }

    #[test]
    fn what_is_common_has_the_size_of_the_layout() {
        let layout = Layout {
            abi: 3,
            window_shift: 27,
            sketch: limiter_common::sketch::Shape { mask: 1023, depth: 2 },
            set_mask: 15,
            cpus: 2,
            filter_words: 1,
            padding: 0,
            masks: limiter_common::key::PrefixMasks::default(),
            hash_key: KEY,
        };
        let sizes = common(&layout).map(|map| (map.name, map.value_size, map.elements));
        assert_eq!(sizes[0], ("SLOTS", 64, 128));
        assert_eq!(sizes[1], ("FINGERPRINTS", 8, 16));
        assert_eq!(sizes[3], ("SKETCH", 8, 2048));
        assert_eq!(sizes[5], ("DENIED", 8192, 1));
    }
}
