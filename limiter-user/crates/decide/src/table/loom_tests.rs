//! Two threads that meet in one set, in every order of their accesses that memory allows. Run by `cargo xtask schedules`.

use limiter_common::orders::explore;

use super::*;
use crate::key::Space;

/// When a bucket that was charged owes nothing any more, and now.
const UNTIL: Ticks = 1 << 59;
const NOW: Ticks = 1 << 58;

type Shared = Table<Vec<AtomicU64>>;

fn key(number: u64) -> KeyHash {
    (0..)
        .map(|salt: u64| Secret([1, 2]).hash(Space::Named, &(number << 32 | salt).to_le_bytes()))
        .find(|&key| home(key) == 0)
        .expect("one of two is at home there")
}

/// A table of one set, with so many busy keys at home in its first word.
fn table(busy: u64) -> Shared {
    let memory = (0..bytes(1) / 8).map(|_| AtomicU64::new(0)).collect();
    let table = Table::create(memory, Secret([1, 2]), 0).expect("it has the size");
    for number in 0..busy {
        charge(&table, key(100 + number));
    }
    table
}

fn charge(table: &Shared, key: KeyHash) {
    loop {
        let bucket = table.bucket(key, NOW).expect("there is room");
        match bucket.change(|word| Some(word.max(UNTIL) + 1)) {
            Change::Done(_) => return,
            // Its thread has not done yet.
            _ => loom::thread::yield_now(),
        }
    }
}

/// Two threads charge keys in a table with so many busy ones at home. Each key has one bucket then, with all its charges.
fn meet(busy: u64, keys: [u64; 2]) {
    let table = loom::sync::Arc::new(table(busy));
    let other = loom::sync::Arc::clone(&table);
    let thread = loom::thread::spawn(move || charge(&other, key(keys[1])));
    charge(&table, key(keys[0]));
    thread.join().expect("it does not panic");
    let set = table.set(0);
    for number in keys {
        let charges = keys.iter().filter(|&&other| other == number).count() as u64;
        assert_eq!(set.ways_of(key(number)).count(), 1, "a key has two buckets");
        let word = table.find(key(number)).and_then(|bucket| bucket.word());
        assert_eq!(word, Some(UNTIL + charges));
    }
    assert_eq!(table.keys(), busy + if keys[0] == keys[1] { 1 } else { 2 });
}

#[test]
fn a_key_that_two_threads_bring_has_one_bucket() {
    explore("two ways at home", || meet(6, [1, 1]));
    // The second one has to go elsewhere.
    explore("one way at home", || meet(7, [1, 1]));
}

#[test]
fn two_keys_that_want_one_way_have_one_each() {
    explore("two keys", || meet(7, [1, 2]));
}
