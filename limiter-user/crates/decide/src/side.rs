//! Where keys are that remember more than a word: sub-windows, the sliding log, and parts of a cluster's limits.
//!
//! Sets of four records, with a lock for each set. Of five keys that meet in one set, the one that was used least
//! recently is forgotten, first one that is as good as new: that is counted. So the table is to have room for a multiple of
//! the keys that are busy at once.

use std::sync::atomic::{AtomicU64 as Counter, Ordering};

use limiter_common::atomic::{self, AtomicU64};
use limiter_common::gcra::Ticks;

use crate::key::KeyHash;

/// "limside" and the number of the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"limside\x01");

/// Words before the sets: a cache line.
const HEADER_WORDS: usize = 8;
/// Words of a record for sub-windows or a log: 1 KiB.
pub const LONG: usize = 128;
/// Words of a record for a part of a cluster's limit: 64 bytes.
pub const SHORT: usize = 8;
/// Where a record's words lie; its state is the rest.
const LOW: usize = 0;
const HIGH: usize = 1;
const RENEWS: usize = 2;
const USED: usize = 3;
const STATE: usize = 4;

/// Records of a set. Its lock is in the first one's line before it.
const WAYS: usize = 4;
const LOCK_WORDS: usize = 8;
const fn set_words(record: usize) -> usize {
    LOCK_WORDS + WAYS * record
}

/// Looks at a lock before the thread lets others run.
const SPINS: u32 = 64;

/// Records of keys in `M`, of so many words.
#[derive(Debug)]
pub struct Side<M, const RECORD: usize = LONG> {
    memory: M,
    sets: usize,
    evicted_busy: Counter,
}

/// Bytes for so many keys at once, half of the room, whose records have so many words.
#[must_use]
pub fn bytes(keys: u64, record: usize) -> usize {
    let sets = keys.div_ceil(WAYS as u64 / 2).next_power_of_two().min(1 << 22) as usize;
    (HEADER_WORDS + sets * set_words(record)) * size_of::<u64>()
}

/// A set whose lock this thread holds.
struct Locked<'a, const RECORD: usize>(&'a [AtomicU64]);

impl<'a, const RECORD: usize> Locked<'a, RECORD> {
    fn records(&self) -> &'a [[AtomicU64; RECORD]] {
        self.0[LOCK_WORDS..].as_chunks().0
    }
}

impl<const RECORD: usize> Drop for Locked<'_, RECORD> {
    fn drop(&mut self) {
        atomic::store(&self.0[0], 0);
    }
}

impl<M: AsRef<[AtomicU64]>, const RECORD: usize> Side<M, RECORD> {
    /// A table in memory that is all 0, or that another process has left, of [`bytes`]; `None` if it is neither.
    pub fn open(memory: M) -> Option<Self> {
        let words = memory.as_ref();
        let sets = words.len().checked_sub(HEADER_WORDS)? / set_words(RECORD);
        let magic = atomic::load(words.first()?);
        if !sets.is_power_of_two()
            || words.len() != HEADER_WORDS + sets * set_words(RECORD)
            || ![0, MAGIC].contains(&magic)
        {
            return None;
        }
        atomic::store(&words[0], MAGIC);
        // Nobody holds a lock any more. What a killed thread was about to charge is charged, or not.
        for set in words[HEADER_WORDS..].chunks_exact(set_words(RECORD)) {
            atomic::store(&set[0], 0);
        }
        Some(Self { memory, sets, evicted_busy: Counter::new(0) })
    }

    /// How many keys were forgotten in this process though they were not as good as new.
    pub fn evicted_busy(&self) -> u64 {
        self.evicted_busy.load(Ordering::Relaxed)
    }

    fn lock(&self, key: KeyHash) -> Locked<'_, RECORD> {
        let set = (key.high >> 32) as usize & (self.sets - 1);
        let words = set_words(RECORD);
        let words = &self.memory.as_ref()[HEADER_WORDS + set * words..][..words];
        let mut spins = 0;
        while !atomic::replace(&words[0], 0, 1) {
            spins += 1;
            if spins % SPINS == 0 {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        Locked(words)
    }

    /// A key's state of so many `words`; 0 if it has none.
    pub fn read(&self, key: KeyHash, words: usize) -> Vec<u64> {
        let set = self.lock(key);
        let found = set.records().iter().find(|record| is_of(&record[..], key));
        found.map_or_else(|| vec![0; words], |record| state(record, words))
    }

    /// Hands a key's state of so many `words` to `change`, and keeps what that leaves. It returns when the state is as good
    /// as new, besides.
    pub fn change<T>(
        &self,
        key: KeyHash,
        words: usize,
        now: Ticks,
        change: impl FnOnce(&mut [u64]) -> (Ticks, T),
    ) -> T {
        let set = self.lock(key);
        let found = set.records().iter().find(|record| is_of(&record[..], key));
        let mut state = found.map_or_else(|| vec![0; words], |record| state(record, words));
        let record = found.unwrap_or_else(|| self.victim(&set, now));
        let (renews, outcome) = change(&mut state);
        // Half a key is no key: the low half is taken off first, and comes back last. A short state is safe between any two
        // of its words, and a killed process must not lose it.
        if found.is_none() || RECORD != SHORT {
            atomic::store(&record[LOW], 0);
        }
        for (word, value) in record[STATE..].iter().zip(state) {
            atomic::store(word, value);
        }
        for (at, value) in [(HIGH, key.high), (RENEWS, renews), (USED, now), (LOW, key.low)] {
            atomic::store(&record[at], value);
        }
        outcome
    }

    /// The record that a new key gets.
    fn victim<'a>(&self, set: &Locked<'a, RECORD>, now: Ticks) -> &'a [AtomicU64; RECORD] {
        let records = set.records();
        let worth = |record: &&[AtomicU64; RECORD]| {
            let busy = atomic::load(&record[LOW]) != 0 && atomic::load(&record[RENEWS]) > now;
            if busy { atomic::load(&record[USED]).max(1) } else { 0 }
        };
        let victim = records.iter().min_by_key(worth).unwrap_or(&records[0]);
        if worth(&victim) > 0 {
            self.evicted_busy.fetch_add(1, Ordering::Relaxed);
        }
        victim
    }
}

fn is_of(record: &[AtomicU64], key: KeyHash) -> bool {
    atomic::load(&record[LOW]) == key.low && atomic::load(&record[HIGH]) == key.high
}

fn state(record: &[AtomicU64], words: usize) -> Vec<u64> {
    record[STATE..].iter().take(words).map(atomic::load).collect()
}
