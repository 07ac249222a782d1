//! The key table: buckets of 32 bytes in any memory, one for each key, found by a byte.
//!
//! It is the kernel's bucket table (see [`limiter_common::table`]) with wider sets: 64 ways, whose fingerprints are a cache
//! line of eight words. A key belongs to one of these words, its *home*. Where all eight ways of that are busy it gets
//! one of another word. So no set is full before nearly all are: a table of 0.56 keys a way loses one key in 100,000.
//!
//! Nobody waits for a lock. A way is claimed by a compare-and-swap of the bucket's word, which fails exactly if somebody
//! was charged there meanwhile. A new bucket is *filled* before it is open: whoever meets one first looks whether the key
//! has another one, as two threads may have found room in different words. The first one that is open stays.
//!
//! Time is that since 1970, in ticks of 2 ns: what is below 2^56, the first four years of it, is long ago.
//!
//! The memory holds all that there is. A process that maps it again goes on where a killed one stopped.

use std::sync::atomic::{AtomicU64 as Counter, Ordering};

use limiter_common::atomic::{self, AtomicU64};
use limiter_common::gcra::Ticks;
use limiter_common::hash::Hash;
use limiter_common::table::{
    CLAIMED, FILLED, Matches, WAYS, clear_fingerprint, fingerprint, fingerprint_of, is_claimed,
    is_filled, makes_room, with_fingerprint,
};

use crate::key::{KeyHash, Secret};

/// "limiter" and the number of the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"limiter\x01");

/// Words before the sets: a cache line.
const HEADER_WORDS: usize = 8;
/// Where the header's words lie.
const MAGIC_AT: usize = 0;
const SETS_AT: usize = 1;
const SECRET_AT: usize = 2;
const EPOCH_AT: usize = 4;

/// Words of a slot.
const SLOT_WORDS: usize = 4;

/// Words of fingerprints in a set, and ways of each.
// loom follows each word of memory: with two, it takes minutes instead of hours.
const WORDS: u32 = if cfg!(loom) { 2 } else { 8 };
/// Ways of a set.
const SET_WAYS: u32 = WORDS * WAYS;

/// Words of a set: its fingerprints, and then its slots, so that both are in one page as a rule.
const SET_WORDS: usize = WORDS as usize + SET_WAYS as usize * SLOT_WORDS;

/// Keys that a set has room for, nearly always.
// Of 36 on the average more than 64 meet in one set of 100,000.
const KEYS: u64 = 36;

/// The most sets: 2^28 ways, 8 GiB.
const MAX_SETS: u64 = 1 << 22;

/// log2 of the ticks between two moments of use that are told apart: 2 s.
const USED_SHIFT: u32 = 30;

/// When a bucket was used, and whether that was denied: `denied:1 | used:31`, below 32 bits of 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Info(u64);

impl Info {
    const DENIED: u64 = 1 << 31;

    const fn new(now: Ticks, denied: bool) -> Self {
        let used = now >> USED_SHIFT & (Self::DENIED - 1);
        Self(if denied { Self::DENIED | used } else { used })
    }
}

/// What memory is no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Something else.
    #[error("this is no key table, or one of another version")]
    Foreign,
    /// Less or more than its header tells.
    #[error("the key table has {found} bytes instead of {expected}")]
    Size {
        /// By its header.
        expected: usize,
        /// As it is.
        found: usize,
    },
}

/// How often something has happened, in this process.
#[derive(Debug, Default)]
pub struct Counters {
    inserted: Counter,
    evicted: Counter,
    evicted_busy: Counter,
    full: Counter,
}

/// What [`Counters`] have counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Keys that got an empty way.
    pub inserted: u64,
    /// Keys that lost a bucket which was as good as new: nothing is lost by it.
    pub evicted: u64,
    /// Keys that lost a bucket which was not.
    pub evicted_busy: u64,
    /// Keys that got none, because all that could make room were denied something and still owe.
    pub full: u64,
}

/// A table in `M`.
#[derive(Debug)]
pub struct Table<M> {
    memory: M,
    sets: u32,
    secret: Secret,
    epoch: u64,
    counters: Counters,
}

/// The fingerprints and slots of a set.
#[derive(Clone, Copy, Debug)]
struct Set<'a> {
    fingerprints: &'a [AtomicU64; WORDS as usize],
    slots: &'a [Slot; SET_WAYS as usize],
}

/// A bucket, whose it is, and since when.
type Slot = [AtomicU64; SLOT_WORDS];

/// A key's bucket; another key's by the time that it is looked at, perhaps.
#[derive(Clone, Copy, Debug)]
pub struct Bucket<'a> {
    key: KeyHash,
    set: Set<'a>,
    way: u32,
}

/// Where a slot's words lie.
const LOW: usize = 0;
const HIGH: usize = 1;
const WORD: usize = 2;
const INFO: usize = 3;

/// The word of a new bucket: a time long ago, another one for each key.
// With one word for all, a thread that was stopped before its compare-and-swap could charge another key's new bucket.
const fn fresh(key: KeyHash) -> u64 {
    key.low >> 8
}

/// The word of a bucket that is filled for a key, and not open yet.
const fn filled(key: KeyHash) -> u64 {
    FILLED | fresh(key)
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The word is another one now.
    Done(u64),
    /// It stays as it is.
    Refused(u64),
    /// The bucket is another key's by now.
    Gone,
}

/// The words of a table of so many sets.
const fn words(sets: usize) -> usize {
    HEADER_WORDS + sets * SET_WORDS
}

/// Bytes of a table for so many keys at once: 59 for each of many.
#[must_use]
pub fn bytes(keys: u64) -> usize {
    words(keys.div_ceil(KEYS).clamp(1, MAX_SETS) as usize) * size_of::<u64>()
}

/// Whether there is no table in some memory yet.
#[must_use]
pub fn is_empty(memory: &impl AsRef<[AtomicU64]>) -> bool {
    memory.as_ref().get(MAGIC_AT).is_none_or(|magic| atomic::load(magic) == 0)
}

impl<M: AsRef<[AtomicU64]>> Table<M> {
    /// Makes a table of memory that is all 0, of [`bytes`]. `epoch` is when the clock of its callers began, ns since 1970.
    ///
    /// # Errors
    /// If the memory is of no such size.
    pub fn create(memory: M, secret: Secret, epoch: u64) -> Result<Self, TableError> {
        let found = memory.as_ref().len();
        let sets = found.saturating_sub(HEADER_WORDS) / (words(1) - HEADER_WORDS);
        if !(1..=MAX_SETS).contains(&(sets as u64)) || words(sets) != found {
            return Err(TableError::Foreign);
        }
        let header = memory.as_ref();
        for (at, word) in [(SETS_AT, sets as u64), (EPOCH_AT, epoch)] {
            atomic::store(&header[at], word);
        }
        for (at, word) in secret.0.into_iter().enumerate() {
            atomic::store(&header[SECRET_AT + at], word);
        }
        // The last of all: a process that is killed before that leaves no table.
        atomic::store(&header[MAGIC_AT], MAGIC);
        Ok(Self::new(memory, sets as u32, secret, epoch))
    }

    /// Takes over a table that nobody uses any more. What a killed thread was about to write is given up.
    ///
    /// # Errors
    /// If it is none.
    pub fn open(memory: M) -> Result<Self, TableError> {
        let header = memory.as_ref();
        if header.len() < HEADER_WORDS || atomic::load(&header[MAGIC_AT]) != MAGIC {
            return Err(TableError::Foreign);
        }
        let sets = atomic::load(&header[SETS_AT]);
        if !(1..=MAX_SETS).contains(&sets) {
            return Err(TableError::Foreign);
        }
        let (expected, found) = (words(sets as usize), header.len());
        if expected != found {
            let size = size_of::<u64>();
            return Err(TableError::Size { expected: expected * size, found: found * size });
        }
        let secret = Secret([SECRET_AT, SECRET_AT + 1].map(|at| atomic::load(&header[at])));
        let epoch = atomic::load(&header[EPOCH_AT]);
        let table = Self::new(memory, sets as u32, secret, epoch);
        table.recover();
        Ok(table)
    }

    /// Takes the buckets of another table that still count at `now`. Both have one secret, and nobody uses them yet.
    pub fn take_over<N: AsRef<[AtomicU64]>>(&self, other: &Table<N>, now: Ticks) {
        for set in (0..other.sets).map(|at| other.set(at)) {
            for way in (0..SET_WAYS).filter(|&way| set.is_named(way)) {
                let [low, high, word, info] = set.slot(way).each_ref().map(atomic::load);
                if word <= now {
                    continue;
                }
                if let Some(bucket) = self.bucket(KeyHash { high, low }, now) {
                    bucket.change(|_| Some(word));
                    atomic::store(&bucket.slot()[INFO], info);
                }
            }
        }
    }

    fn new(memory: M, sets: u32, secret: Secret, epoch: u64) -> Self {
        Self { memory, sets, secret, epoch, counters: Counters::default() }
    }

    /// Opens or empties the ways that a killed process was filling.
    fn recover(&self) {
        for set in (0..self.sets).map(|at| self.set(at)) {
            for way in 0..SET_WAYS {
                let slot = set.slot(way);
                let key =
                    KeyHash { high: atomic::load(&slot[HIGH]), low: atomic::load(&slot[LOW]) };
                let bucket = Bucket { key, set, way };
                let word = atomic::load(&slot[WORD]);
                if is_filled(word) && set.is_named(way) {
                    bucket.confirm();
                } else if is_claimed(word) {
                    bucket.empty();
                }
            }
        }
    }

    /// What its keys are hashed with.
    #[must_use]
    pub const fn secret(&self) -> Secret {
        self.secret
    }

    /// When the clock of its callers began, ns since 1970.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// How many keys it has room for.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        u64::from(self.sets) * KEYS
    }

    /// How many keys it has, also those that are as good as new: a look at all sets.
    #[must_use]
    pub fn keys(&self) -> u64 {
        let named = |set: Set<'_>| (0..SET_WAYS).filter(|&way| set.is_named(way)).count() as u64;
        (0..self.sets).map(|at| named(self.set(at))).sum()
    }

    /// What has happened to its keys, in this process.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let Counters { inserted, evicted, evicted_busy, full } = &self.counters;
        let [inserted, evicted, evicted_busy, full] =
            [inserted, evicted, evicted_busy, full].map(|counter| counter.load(Ordering::Relaxed));
        Counts { inserted, evicted, evicted_busy, full }
    }

    fn set(&self, at: u32) -> Set<'_> {
        let words = &self.memory.as_ref()[HEADER_WORDS + at as usize * SET_WORDS..][..SET_WORDS];
        let (fingerprints, slots) = words.split_at(WORDS as usize);
        let (slots, _) = slots.as_chunks().0.as_chunks();
        Set { fingerprints: &fingerprints.as_chunks().0[0], slots: &slots[0] }
    }

    fn set_of(&self, key: KeyHash) -> Set<'_> {
        // The upper half, in proportion (Lemire 2019): the fingerprint and the home are of other bits.
        let upper = key.high >> 32;
        self.set(((upper * u64::from(self.sets)) >> 32) as u32)
    }

    /// A key's bucket, if it has one.
    #[must_use]
    pub fn find(&self, key: KeyHash) -> Option<Bucket<'_>> {
        self.set_of(key).find(key)
    }

    /// A key's bucket, a new one if it has none; `None` if there is no room, as all that could make room have been denied
    /// something and still owe.
    pub fn bucket(&self, key: KeyHash, now: Ticks) -> Option<Bucket<'_>> {
        let set = self.set_of(key);
        loop {
            if let Some(found) = set.find(key) {
                return Some(found);
            }
            match set.victim(key, now) {
                Victim::Way { way, before } => {
                    if let Some(bucket) = self.fill(set, way, before, key, now) {
                        return Some(bucket);
                    }
                }
                Victim::Filling => std::hint::spin_loop(),
                Victim::None => {
                    self.counters.full.fetch_add(1, Ordering::Relaxed);
                    return None;
                }
            }
        }
    }

    /// Claims a way whose word was `before` a moment ago, and fills it for the key; `None` if another thread was faster.
    fn fill<'a>(
        &self,
        set: Set<'a>,
        way: u32,
        before: u64,
        key: KeyHash,
        now: Ticks,
    ) -> Option<Bucket<'a>> {
        let slot = set.slot(way);
        let occupied = set.is_named(way);
        if !atomic::replace(&slot[WORD], before, CLAIMED) {
            return None;
        }
        // Half a key is no key: the low half is taken off first, and comes back last.
        clear_fingerprint(set.word(way), way);
        atomic::store(&slot[LOW], 0);
        atomic::store(&slot[HIGH], key.high);
        atomic::store(&slot[INFO], Info::new(now, false).0);
        atomic::swap(&slot[LOW], key.low);
        atomic::swap(&slot[WORD], filled(key));
        let bucket = Bucket { key, set, way };
        set.name(bucket);
        let counters = &self.counters;
        let counter = match occupied {
            true if before > now => &counters.evicted_busy,
            true => &counters.evicted,
            false => &counters.inserted,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        bucket.word().map(|_| bucket)
    }
}

/// Which way a key gets.
enum Victim {
    Way {
        way: u32,
        before: u64,
    },
    /// One is being filled.
    Filling,
    None,
}

/// The word of fingerprints that a key belongs to.
const fn home(key: KeyHash) -> u32 {
    key.low as u32 % WORDS
}

impl<'a> Set<'a> {
    fn slot(self, way: u32) -> &'a Slot {
        &self.slots[(way % SET_WAYS) as usize]
    }

    /// The fingerprints that a way's is among.
    fn word(self, way: u32) -> &'a AtomicU64 {
        &self.fingerprints[(way / WAYS % WORDS) as usize]
    }

    /// Whether a way has a key.
    fn is_named(self, way: u32) -> bool {
        fingerprint_of(atomic::load(self.word(way)), way) != 0
    }

    /// The words, from a key's home on.
    fn words(key: KeyHash) -> impl Iterator<Item = u32> {
        (0..WORDS).map(move |at| (home(key) + at) % WORDS)
    }

    /// The ways of a word, each key from another one on.
    fn ways(key: KeyHash, word: u32) -> impl Iterator<Item = u32> {
        (0..WAYS).map(move |at| word * WAYS + (at + (key.low >> 32) as u32) % WAYS)
    }

    /// The ways that a key has, in the order in which it is looked for.
    fn ways_of(self, key: KeyHash) -> impl Iterator<Item = Bucket<'a>> {
        Self::words(key).flat_map(move |word| {
            let fingerprints = atomic::load(&self.fingerprints[word as usize]);
            let mut matches = Matches::new(fingerprints, fingerprint(Hash(key.high)));
            std::iter::from_fn(move || {
                while !matches.is_empty() {
                    let bucket = Bucket { key, set: self, way: word * WAYS + matches.way() };
                    matches = matches.rest();
                    if bucket.is_its() {
                        return Some(bucket);
                    }
                }
                None
            })
        })
    }

    /// A key's bucket.
    fn find(self, key: KeyHash) -> Option<Bucket<'a>> {
        self.ways_of(key).find(|bucket| !makes_room(atomic::load(&bucket.slot()[WORD])))
    }

    /// Names a key among the fingerprints.
    fn name(self, bucket: Bucket<'_>) {
        let word = self.word(bucket.way);
        loop {
            let seen = atomic::load(word);
            let next = with_fingerprint(seen, bucket.way, fingerprint(Hash(bucket.key.high)));
            if atomic::replace(word, seen, next) {
                return;
            }
        }
    }

    /// The way that a key gets: an empty one, else one that is as good as new, of its home if it can be. Else the one of its
    /// home that was used least recently, of those at which nobody was denied.
    // Empty ways of all words first: keys that are as good as new are about to come back, and would take one each then.
    fn victim(self, key: KeyHash, now: Ticks) -> Victim {
        let mut filling = false;
        for only_empty in [true, false] {
            for way in Self::words(key).flat_map(|word| Self::ways(key, word)) {
                let empty = !self.is_named(way);
                if empty != only_empty {
                    continue;
                }
                let before = atomic::load(&self.slot(way)[WORD]);
                if is_claimed(before) {
                    filling = true;
                } else if empty && !self.is_named(way) || !empty && before <= now {
                    return Victim::Way { way, before };
                }
            }
        }
        let busy = (0..WAYS).map(|way| home(key) * WAYS + way).filter_map(|way| {
            let before = atomic::load(&self.slot(way)[WORD]);
            let info = atomic::load(&self.slot(way)[INFO]);
            (!is_claimed(before) && info < Info::DENIED).then_some((info, way, before))
        });
        match busy.min() {
            Some((_, way, before)) => Victim::Way { way, before },
            // Not waited for before there is nothing else: its thread may be stopped.
            None if filling => Victim::Filling,
            None => Victim::None,
        }
    }
}

impl<'a> Bucket<'a> {
    fn slot(&self) -> &'a Slot {
        self.set.slot(self.way)
    }

    /// Whether it is still the key's.
    fn is_its(&self) -> bool {
        // The low half first: it is taken off before the other one changes.
        atomic::load(&self.slot()[LOW]) == self.key.low
            && atomic::load(&self.slot()[HIGH]) == self.key.high
    }

    /// Its word; `None` if it is not the key's bucket any more.
    #[must_use]
    pub fn word(&self) -> Option<u64> {
        loop {
            let word = atomic::load(&self.slot()[WORD]);
            // The key after the word: whoever takes the bucket claims the word first.
            if makes_room(word) || !self.is_its() {
                return None;
            }
            if !is_filled(word) {
                return Some(word);
            }
            // The thread that has filled it may have been stopped.
            self.confirm();
        }
    }

    /// Opens a bucket that is filled, unless the key has another one: one that is open, or that it would be found in first.
    /// Each thread that meets it may do so at once.
    fn confirm(&self) {
        // The bucket is named, and only then the others are looked at. Of two threads one sees the other's.
        atomic::fence();
        let mut first = true;
        for other in self.set.ways_of(self.key) {
            if other.way == self.way {
                first = false;
                continue;
            }
            let word = atomic::load(&other.slot()[WORD]);
            // One that is found later makes room, unless it is open by now.
            let is_gone = makes_room(word) || !first && word == filled(self.key) && other.give_up();
            if !is_gone {
                self.give_up();
                return;
            }
        }
        // Only one of opening and giving up succeeds.
        atomic::replace(&self.slot()[WORD], filled(self.key), fresh(self.key));
    }

    /// Empties a bucket that is filled for the key, unless it is open by now.
    fn give_up(&self) -> bool {
        let is_claimed = atomic::replace(&self.slot()[WORD], filled(self.key), CLAIMED);
        if is_claimed {
            self.empty();
        }
        is_claimed
    }

    /// Empties a way that this thread has claimed.
    fn empty(&self) {
        clear_fingerprint(self.set.word(self.way), self.way);
        atomic::store(&self.slot()[LOW], 0);
        atomic::swap(&self.slot()[WORD], 0);
    }

    /// Changes its word as `next` says.
    pub fn change(&self, mut next: impl FnMut(u64) -> Option<u64>) -> Change {
        loop {
            let Some(word) = self.word() else { return Change::Gone };
            let Some(next) = next(word) else { return Change::Refused(word) };
            if atomic::replace(&self.slot()[WORD], word, next) {
                return Change::Done(next);
            }
        }
    }

    /// Notes when it was used, and whether that was denied.
    pub fn note(&self, now: Ticks, denied: bool) {
        let info = &self.slot()[INFO];
        let (before, next) = (atomic::load(info), Info::new(now, denied).0);
        if before != next && self.is_its() {
            // Compared: what another key's thread has written stays.
            atomic::replace(info, before, next);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(test)]
mod tests;
