use std::sync::atomic::AtomicUsize;

use super::*;

fn memory(keys: u64) -> Vec<AtomicU64> {
    (0..bytes(keys) / 8).map(|_| AtomicU64::new(0)).collect()
}

fn table(keys: u64) -> Table<Vec<AtomicU64>> {
    Table::create(memory(keys), Secret([3, 4]), 5).unwrap()
}

fn key(number: u64) -> KeyHash {
    Secret([3, 4]).hash(crate::key::Space::Named, &number.to_le_bytes())
}

/// When these tests begin: some time after 1970.
const START: Ticks = 1 << 58;

/// Charges a key to a word that counts, and lasts until then. Times are since the start.
fn charge(table: &Table<Vec<AtomicU64>>, key: KeyHash, until: Ticks, now: Ticks) -> bool {
    let Some(bucket) = table.bucket(key, START + now) else { return false };
    matches!(bucket.change(|word| Some(word.max(START + until) + 1)), Change::Done(_))
}

/// A key's word, since the start.
fn word(table: &Table<Vec<AtomicU64>>, key: KeyHash) -> Option<u64> {
    table.find(key)?.word()?.checked_sub(START)
}

#[test]
fn a_key_has_its_bucket_and_no_other_one() {
    let table = table(100_000);
    for number in 0..100_000 {
        assert!(table.find(key(number)).is_none());
        assert!(charge(&table, key(number), 100 + number, 1));
    }
    for number in 0..100_000 {
        assert_eq!(word(&table, key(number)), Some(101 + number));
    }
    assert_eq!(table.keys(), 100_000);
    assert_eq!(table.counts(), Counts { inserted: 100_000, ..Counts::default() });
    assert!(bytes(1_000_000) <= 60_000_000);
}

/// Keys whose home is the first word, in a table of one set.
fn at_home() -> impl Iterator<Item = KeyHash> {
    (0..).map(key).filter(|&key| home(key) == 0)
}

#[test]
fn a_key_has_a_way_of_its_home_then_of_others() {
    let table = table(1);
    let keys: Vec<KeyHash> = at_home().take(64).collect();
    for &key in &keys {
        assert!(charge(&table, key, 100, 1));
    }
    let word = |key: &KeyHash| table.find(*key).unwrap().way / WAYS;
    assert!(keys[..8].iter().all(|key| word(key) == 0));
    assert!(keys[8..].iter().all(|key| word(key) > 0));
    assert_eq!((table.keys(), table.counts().inserted), (64, 64));
}

#[test]
fn whoever_owes_nothing_makes_room_first_then_who_came_least_recently_and_who_was_denied_never() {
    let table = table(1);
    let second = 1 << USED_SHIFT;
    let keys: Vec<KeyHash> = at_home().take(70).collect();
    for (at, &key) in keys[..64].iter().enumerate() {
        assert!(charge(&table, key, 100 * second, (at as u64 + 1) * second));
    }
    // The fifth one owes nothing at that time.
    table.find(keys[4]).unwrap().change(|_| Some(START + 65 * second));
    assert!(charge(&table, keys[64], 100 * second, 70 * second));
    assert!(table.find(keys[4]).is_none());
    assert_eq!((table.counts().evicted, table.counts().evicted_busy), (1, 0));
    // Then the first one, who came least recently. It was denied something, so the second one.
    table.find(keys[0]).unwrap().note(START + second, true);
    assert!(charge(&table, keys[65], 100 * second, 70 * second));
    assert!(table.find(keys[0]).is_some() && table.find(keys[1]).is_none());
    assert_eq!((table.counts().evicted, table.counts().evicted_busy), (1, 1));
    for &key in &keys[..66] {
        if let Some(bucket) = table.find(key) {
            bucket.note(START + 71 * second, true);
        }
    }
    assert!(table.bucket(keys[66], START + 72 * second).is_none());
    assert_eq!(table.counts().full, 1);
    // As soon as one of them owes nothing any more there is room.
    assert!(table.bucket(keys[66], START + 101 * second).is_some());
}

#[test]
fn memory_that_is_no_table_is_refused() {
    assert_eq!(Table::open(memory(10)).unwrap_err(), TableError::Foreign);
    assert_eq!(Table::open(Vec::new()).unwrap_err(), TableError::Foreign);
    assert!(Table::create(Vec::new(), Secret([0; 2]), 0).is_err());
    let mut short = table(10).memory;
    short.pop();
    assert!(matches!(Table::open(short).unwrap_err(), TableError::Size { .. }));
}

#[test]
fn another_process_goes_on_where_a_killed_one_stopped() {
    let before = table(100);
    for number in 0..50 {
        charge(&before, key(number), 1_000, 1);
    }
    let found = |number| before.find(key(number)).unwrap();
    // Killed while it filled a bucket, which is named by then, or is not.
    atomic::store(&found(7).slot()[WORD], filled(key(7)));
    let unnamed = found(8);
    atomic::store(&unnamed.slot()[WORD], filled(key(8)));
    clear_fingerprint(unnamed.set.word(unnamed.way), unnamed.way);
    // Or it had only begun.
    atomic::store(&found(9).slot()[WORD], CLAIMED);
    let after = Table::open(before.memory).unwrap();
    assert_eq!((after.secret(), after.epoch()), (Secret([3, 4]), 5));
    assert_eq!(word(&after, key(6)), Some(1_001));
    assert_eq!(after.find(key(7)).and_then(|bucket| bucket.word()), Some(fresh(key(7))));
    assert!(after.find(key(8)).is_none() && after.find(key(9)).is_none());
    let claimed = |set: u32| {
        (0..SET_WAYS).any(|way| is_claimed(atomic::load(&after.set(set).slot(way)[WORD])))
    };
    assert!(!(0..after.sets).any(claimed));
    assert!(charge(&after, key(8), 1, 1) && charge(&after, key(9), 1, 1));
}

#[test]
fn of_two_buckets_that_are_filled_for_a_key_the_one_that_is_open_stays_else_the_first() {
    let key = at_home().next().unwrap();
    let fill = |table: &Table<Vec<AtomicU64>>, way: u32| {
        let set = table.set(0);
        let slot = set.slot(way);
        atomic::store(&slot[HIGH], key.high);
        atomic::store(&slot[LOW], key.low);
        atomic::store(&slot[WORD], filled(key));
        set.name(Bucket { key, set, way });
    };
    // None is open: whichever thread looks at whichever bucket, it is the first one.
    for looks_at in [3, 12] {
        let table = table(1);
        fill(&table, 12);
        fill(&table, 3);
        let set = table.set(0);
        Bucket { key, set, way: looks_at }.confirm();
        assert_eq!(
            table.find(key).map(|bucket| (bucket.word(), bucket.way)),
            Some((Some(fresh(key)), 3))
        );
        assert_eq!(table.keys(), 1);
    }
    // The later one is open, and was charged.
    let table = table(1);
    fill(&table, 12);
    assert!(charge(&table, key, 100, 1));
    fill(&table, 3);
    assert_eq!(Bucket { key, set: table.set(0), way: 3 }.word(), None);
    assert_eq!(
        (word(&table, key), table.find(key).map(|bucket| bucket.way)),
        (Some(101), Some(12))
    );
    assert_eq!(table.keys(), 1);
}

#[test]
fn threads_that_meet_charge_one_bucket() {
    // One set, in which keys come and go. All threads charge the same keys.
    let (table, threads, rounds) = (&table(1), 4, 20_000);
    let keys: &Vec<KeyHash> = &at_home().take(97).collect();
    let total = &AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                for round in 0..rounds {
                    if charge(table, keys[0], 1 << 50, 1) {
                        total.fetch_add(1, Ordering::Relaxed);
                    }
                    // Never evicted.
                    table.find(keys[0]).unwrap().note(START, true);
                    let other = 1 + (round * threads + thread) % (keys.len() - 1);
                    charge(table, keys[other], 0, 1_000_000);
                }
            });
        }
    });
    assert_eq!(word(table, keys[0]), Some((1 << 50) + total.load(Ordering::Relaxed) as u64));
    let set = table.set(0);
    let mut seen = std::collections::HashSet::new();
    for way in (0..SET_WAYS).filter(|&way| set.is_named(way)) {
        assert!(seen.insert(atomic::load(&set.slot(way)[LOW])), "a key has two buckets");
    }
}
