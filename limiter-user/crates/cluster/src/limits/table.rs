//! The entries in an order that hosts can compare: by hash, so that parts of it are about equal.

use std::collections::{BTreeMap, BTreeSet};

use super::clock::{Stamp, WallMs};
use super::entry::{Content, Entry, Item, KEPT_MS};

/// Bits of a place that a level of parts takes, and so how many parts each has.
/// Six: a word has a bit for each of 64 parts (`Body::Want`), and all their sums fit a packet.
const BITS: u32 = 6;
pub(super) const PARTS: usize = 1 << BITS;

/// The deepest level whose parts are compared.
/// Ten levels take 60 bits of a place: one level more, as a peer might name it, would overflow the shift.
const DEEPEST: u8 = 9;

/// A part of all entries: those whose places begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Part {
    level: u8,
    first: u64,
}

impl Part {
    /// All there is.
    pub(super) const ALL: Self = Self { level: 0, first: 0 };

    /// The part with a level and a first place, if there is one.
    pub(super) fn new(level: u8, first: u64) -> Option<Self> {
        let part = Self { level, first };
        (level <= DEEPEST && first & part.mask() == 0).then_some(part)
    }

    /// Its level and its first place.
    pub(super) const fn numbers(self) -> (u8, u64) {
        (self.level, self.first)
    }

    const fn mask(self) -> u64 {
        u64::MAX >> (self.level as u32 * BITS)
    }

    /// The first and the last place in it.
    pub(super) const fn places(self) -> (u64, u64) {
        (self.first, self.first | self.mask())
    }

    /// One of its [`PARTS`] parts.
    pub(super) const fn part(self, number: usize) -> Self {
        let shift = u64::BITS - (self.level as u32 + 1) * BITS;
        Self { level: self.level + 1, first: self.first | (number as u64) << shift }
    }

    /// Whether its parts can be compared in turn.
    pub(super) const fn has_parts(self) -> bool {
        self.level <= DEEPEST
    }

    /// In which of its parts a place is.
    const fn number_of(self, place: u64) -> usize {
        let shift = u64::BITS - (self.level as u32 + 1) * BITS;
        (place >> shift) as usize % PARTS
    }
}

struct Stored {
    entry: Entry,
    hash: u64,
    /// When it can be forgotten, ms since 1970.
    until: Option<WallMs>,
}

/// All entries.
#[derive(Default)]
pub(super) struct Table {
    // By item, too: two of them may hash to one place.
    entries: BTreeMap<(u64, Item), Stored>,
    /// When entries can be forgotten, soonest first.
    ends: BTreeSet<(WallMs, u64, Item)>,
    /// The sum of all hashes in each part of [`Part::ALL`].
    sums: Vec<u64>,
    live: usize,
}

impl Table {
    pub(super) fn new() -> Self {
        Self { sums: vec![0; PARTS], ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Those that say that there is something.
    pub(super) const fn live(&self) -> usize {
        self.live
    }

    pub(super) fn get(&self, item: &Item) -> Option<&Entry> {
        self.entries.get(&(item.place(), item.clone())).map(|kept| &kept.entry)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Item, &Entry)> {
        self.entries.iter().map(|((_, item), kept)| (item, &kept.entry))
    }

    /// Puts an entry in the place of what there was; `end` is when it ends by itself. Returns what there was.
    pub(super) fn put(&mut self, item: Item, entry: Entry, end: Option<WallMs>) -> Option<Entry> {
        let former = self.remove(&item);
        let until = until(&entry, end);
        let (place, hash) = (item.place(), entry.hash(&item));
        self.live += usize::from(entry.is_live());
        self.add(place, hash);
        self.ends.extend(until.map(|until| (until, place, item.clone())));
        self.entries.insert((place, item), Stored { entry, hash, until });
        former
    }

    /// Removes an entry without a trace. Returns it.
    pub(super) fn remove(&mut self, item: &Item) -> Option<Entry> {
        let place = item.place();
        let Stored { entry, hash, until } = self.entries.remove(&(place, item.clone()))?;
        // A sum can be taken back: so a change costs one entry, not a walk over a million.
        self.add(place, hash.wrapping_neg());
        self.live -= usize::from(entry.is_live());
        if let Some(until) = until {
            self.ends.remove(&(until, place, item.clone()));
        }
        Some(entry)
    }

    fn add(&mut self, place: u64, hash: u64) {
        if let Some(sum) = self.sums.get_mut(Part::ALL.number_of(place)) {
            *sum = sum.wrapping_add(hash);
        }
    }

    /// One item whose entry can be forgotten at `wall`.
    pub(super) fn over(&self, wall: WallMs) -> Option<Item> {
        self.ends.first().filter(|(until, ..)| *until <= wall).map(|(.., item)| item.clone())
    }

    /// Whether an entry that ends at `end`, if it does, could be forgotten at once.
    pub(super) fn is_over(entry: &Entry, end: Option<WallMs>, wall: WallMs) -> bool {
        until(entry, end).is_some_and(|until| until <= wall)
    }

    /// The latest change.
    pub(super) fn latest(&self) -> Stamp {
        self.entries.values().map(|kept| kept.entry.stamp).max().unwrap_or_default()
    }

    /// A number that differs where anything does.
    pub(super) fn digest(&self) -> u64 {
        self.sums.iter().fold(0, |sum, part| sum.wrapping_add(*part))
    }

    /// The sum of hashes in each part of `part`.
    pub(super) fn sums(&self, part: Part) -> Vec<u64> {
        if part == Part::ALL {
            return self.sums.clone();
        }
        let mut sums = vec![0u64; PARTS];
        for ((place, _), kept) in self.entries.range(range(part.places())) {
            if let Some(sum) = sums.get_mut(part.number_of(*place)) {
                *sum = sum.wrapping_add(kept.hash);
            }
        }
        sums
    }

    /// How many entries there are in a part, counted to `most`.
    pub(super) fn count(&self, part: Part, most: usize) -> usize {
        self.entries.range(range(part.places())).take(most).count()
    }

    /// The entries from one place to another, with their places.
    pub(super) fn between(&self, places: (u64, u64)) -> impl Iterator<Item = (u64, &Item, &Entry)> {
        self.entries.range(range(places)).map(|((place, item), kept)| (*place, item, &kept.entry))
    }
}

/// When an entry can be forgotten that ends by itself at `end`, if it does.
fn until(entry: &Entry, end: Option<WallMs>) -> Option<WallMs> {
    let since = match &entry.content {
        Content::Gone(since) => Some(*since),
        // One that has ended says as much as one that was removed.
        Content::Is(_) => end.map(|end| end.max(entry.stamp.wall())),
    };
    since.map(|since| since.saturating_add(KEPT_MS))
}

/// All keys from one place to another, both included.
fn range((first, last): (u64, u64)) -> impl std::ops::RangeBounds<(u64, Item)> {
    use std::ops::Bound::{Excluded, Included, Unbounded};

    // The least item: limits come before denials, everyone before prefixes.
    let least = Item::Limit(model::Target::DEFAULT);
    let end = match last.checked_add(1) {
        Some(next) => Excluded((next, least.clone())),
        None => Unbounded,
    };
    (Included((first, least)), end)
}
