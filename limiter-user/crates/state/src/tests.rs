use model::{Explain as _, Fault};
use std::fs;

use super::file::SCHEMA;
use super::*;
use model::{Change, Limit, Partition, Scope};

fn limit(target: &str, rate: &str) -> Limit {
    Limit::new(target.parse().unwrap(), rate.parse().unwrap(), None).unwrap()
}

/// A closed store with three limits, set one after the other.
fn filled() -> (tempfile::TempDir, Limits) {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open(directory.path()).unwrap();
    for (target, rate) in
        [("default", "1000pps"), ("198.51.100.7", "400/minute"), ("2001:db8::/48", "10mbit")]
    {
        store.apply(&Change::Set(limit(target, rate)).into()).unwrap();
    }
    let limits = store.limits().clone();
    (directory, limits)
}

fn corrupt_files(directory: &Path) -> usize {
    fs::read_dir(directory)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains("corrupt-"))
        .count()
}

#[test]
fn limits_are_there_again() {
    let (directory, limits) = filled();
    let mut store = Store::open(directory.path()).unwrap();
    assert_eq!((store.limits(), store.recovered()), (&limits, None));
    let target = "198.51.100.7".parse().unwrap();
    let changes = [Change::Unset(target), Change::Set(limit("192.0.2.0/24", "5/hour"))];
    store.apply(&changes.into_iter().collect()).unwrap();
    let limits = store.limits().clone();
    assert_eq!(limits.len(), 3);
    drop(store);
    assert_eq!(Store::open(directory.path()).unwrap().limits(), &limits);
}

#[test]
fn two_daemons_cannot_share_a_directory() {
    let (directory, _) = filled();
    let _first = Store::open(directory.path()).unwrap();
    let error = Store::open(directory.path()).map(drop).unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }) && error.fault() == Fault::Input, "{error}");
}

/// Ways to damage a file of `n` bytes.
type Damage = fn(&mut Vec<u8>);
const DAMAGES: [(&str, Damage); 9] = [
    ("emptied", Vec::clear),
    ("truncated to a few bytes", |bytes| bytes.truncate(100)),
    ("truncated by half", |bytes| bytes.truncate(bytes.len() / 2)),
    ("truncated by a few bytes", |bytes| bytes.truncate(bytes.len() - 7)),
    ("garbage appended", |bytes| bytes.extend((0..5000u32).map(|i| (i * 7919) as u8))),
    ("a garbage tail", |bytes| {
        let from = bytes.len() - bytes.len() / 3;
        bytes[from..].iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 31) as u8);
    }),
    ("zeroed tail", |bytes| {
        let from = bytes.len() / 2;
        bytes[from..].fill(0);
    }),
    ("zeroed header", |bytes| bytes[..320].fill(0)),
    ("all garbage", |bytes| bytes.fill(0xa5)),
];

#[test]
fn a_damaged_main_file_is_recovered_from_the_mirror() {
    for (damage, apply) in DAMAGES {
        let (directory, limits) = filled();
        let path = directory.path().join(MAIN);
        let mut bytes = fs::read(&path).unwrap();
        apply(&mut bytes);
        fs::write(&path, &bytes).unwrap();
        let store = Store::open(directory.path()).unwrap_or_else(|e| panic!("{damage}: {e}"));
        assert_eq!(store.limits(), &limits, "{damage}");
        // Either the database could still vouch for every page, or the file was set aside.
        let kept = corrupt_files(directory.path());
        assert_eq!(kept, usize::from(store.recovered().is_some()), "{damage}");
        if kept == 1 {
            let aside = fs::read_dir(directory.path())
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .find(|path| path.to_string_lossy().contains("corrupt-"))
                .unwrap();
            assert_eq!(fs::read(aside).unwrap(), bytes, "{damage}: kept as it was");
        }
        drop(store);
        let again = Store::open(directory.path()).unwrap();
        assert_eq!((again.limits(), again.recovered()), (&limits, None), "{damage}");
    }
}

#[test]
fn flipped_bits_never_change_a_limit() {
    let (directory, limits) = filled();
    let path = directory.path().join(MAIN);
    let whole = fs::read(&path).unwrap();
    let mut recovered = 0;
    // Every byte of the header, and a stride over the rest that meets every page.
    let places = (0..320).step_by(5).chain((320..whole.len()).step_by(whole.len() / 150 + 1));
    for place in places {
        let mut bytes = whole.clone();
        bytes[place] ^= 1 << (place % 8);
        fs::write(&path, &bytes).unwrap();
        let store = Store::open(directory.path()).unwrap_or_else(|e| panic!("{place}: {e}"));
        assert_eq!(store.limits(), &limits, "byte {place}");
        recovered += usize::from(store.recovered().is_some());
    }
    assert!(recovered > 0, "some of the flips must have been noticed");
}

#[test]
fn a_damaged_mirror_is_made_anew() {
    for (damage, apply) in DAMAGES {
        let (directory, limits) = filled();
        let path = directory.path().join(MIRROR);
        let mut bytes = fs::read(&path).unwrap();
        apply(&mut bytes);
        fs::write(&path, &bytes).unwrap();
        assert_eq!(Store::open(directory.path()).unwrap().limits(), &limits, "{damage}");
        fs::remove_file(directory.path().join(MAIN)).unwrap();
        let store = Store::open(directory.path()).unwrap();
        assert_eq!(store.limits(), &limits, "{damage}: the mirror serves again");
        assert!(store.recovered().is_some_and(|note| note.contains("missing")), "{damage}");
    }
}

#[test]
fn with_both_damaged_nothing_is_touched() {
    let (directory, _) = filled();
    let paths = [MAIN, MIRROR].map(|name| directory.path().join(name));
    for path in &paths {
        fs::write(path, b"damaged").unwrap();
    }
    let error = Store::open(directory.path()).map(drop).unwrap_err();
    assert!(
        matches!(error, StoreError::Corrupt { .. }) && error.fault() == Fault::Input,
        "{error}"
    );
    assert!(error.hint().unwrap().contains("nothing was changed"));
    for path in &paths {
        assert_eq!(fs::read(path).unwrap(), b"damaged");
    }
    assert_eq!(corrupt_files(directory.path()), 0);
}

#[test]
fn a_main_file_of_yesterday_loses_to_the_mirror() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(MAIN);
    let mut store = Store::open(directory.path()).unwrap();
    store.apply(&Change::Set(limit("default", "1000pps")).into()).unwrap();
    drop(store);
    let yesterday = fs::read(&path).unwrap();
    let mut store = Store::open(directory.path()).unwrap();
    store.apply(&Change::Set(limit("default", "5pps")).into()).unwrap();
    let limits = store.limits().clone();
    drop(store);
    fs::write(&path, yesterday).unwrap();
    let store = Store::open(directory.path()).unwrap();
    assert_eq!(store.limits(), &limits);
    assert!(store.recovered().is_some_and(|note| note.contains("last changes")));
}

#[test]
fn a_crash_between_the_files_is_no_damage() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(MIRROR);
    let mut store = Store::open(directory.path()).unwrap();
    store.apply(&Change::Set(limit("default", "1000pps")).into()).unwrap();
    drop(store);
    let before = fs::read(&path).unwrap();
    let mut store = Store::open(directory.path()).unwrap();
    store.apply(&Change::Set(limit("default", "5pps")).into()).unwrap();
    let limits = store.limits().clone();
    drop(store);
    fs::write(&path, before).unwrap();
    let store = Store::open(directory.path()).unwrap();
    assert_eq!((store.limits(), store.recovered()), (&limits, None));
    assert_eq!(store.mirror.revision, store.main.revision);
}

#[test]
fn a_store_of_another_version_is_refused() {
    let (directory, _) = filled();
    let path = directory.path().join(MAIN);
    let database = redb::Database::open(&path).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction
        .open_table(redb::TableDefinition::<&str, u64>::new("meta"))
        .unwrap()
        .insert("schema", SCHEMA + 1)
        .unwrap();
    transaction.commit().unwrap();
    drop(database);
    let error = Store::open(directory.path()).map(drop).unwrap_err();
    assert!(matches!(error, StoreError::Version { found, .. } if found > SCHEMA), "{error}");
    assert_eq!(corrupt_files(directory.path()), 0);
}

#[test]
fn rows_tell_all_of_a_limit() {
    let ban = Some(model::Ban { after: 1, factor: 2, lasts: 3, unverified: true });
    let both = limit("default", "5pps").and("1mbit".parse().unwrap(), Some(9000)).unwrap();
    let changes: Changes = [
        Change::Set(both.banning(ban).unwrap()),
        Change::Set(limit("10.0.0.0/8 icmp aggregate", "5pps").enforced(false)),
        Change::Set(
            limit("10.0.0.0/8", "5pps")
                .scoped(Scope::Cluster { partition: Partition::Conservative })
                .unwrap(),
        ),
        Change::Unset("default tcp:80".parse().unwrap()),
    ]
    .into_iter()
    .collect();
    let rows = to_rows(&changes);
    let mut again: Vec<_> = from_rows(&rows).unwrap().iter().collect();
    again.sort_by_key(|change| matches!(change, Change::Unset(_)));
    assert_eq!(again.len(), 4);
    assert!(changes.iter().all(|change| again.contains(&change)), "{rows:?}");
    for (target, record) in [
        ("default tcp:0", r#"{"rate":"5pps","burst":5}"#),
        ("default", r#"{"rate":"5pps","burst":5,"also":{"rate":"6pps","burst":6}}"#),
        (
            "default",
            r#"{"rate":"5pps","burst":5,"ban":{"after_seconds":0,"factor":1,"for_seconds":1}}"#,
        ),
        (
            "10.0.0.0/8 aggregate",
            r#"{"rate":"5pps","burst":5,"ban":{"after_seconds":1,"factor":1,"for_seconds":1}}"#,
        ),
        ("10.0.0.0/8", r#"{"rate":"5pps","burst":5,"reserve":9}"#),
    ] {
        from_rows(&[(target.into(), Some(record.into()))]).unwrap_err();
    }
    let of = |partition: &str| {
        let scope = format!(r#"{{"cluster":{{"partition":"{partition}"}}}}"#);
        let record = format!(r#"{{"rate":"5pps","burst":5,"scope":{scope}}}"#);
        from_rows(&[("default".into(), Some(record))])
    };
    // A later version has set it: nothing of the limit is taken.
    let error = of("lucky").unwrap_err().to_string();
    assert!(error.contains("lucky") && error.contains("majority-reclaim"), "{error}");
    for partition in Partition::ALL {
        let rows = of(partition.name()).unwrap();
        let Some(Change::Set(limit)) = rows.iter().next() else { panic!("{rows:?}") };
        assert_eq!(limit.scope, Scope::Cluster { partition });
    }
}

#[test]
fn what_follows_a_change_comes_after_it_is_durable() {
    let (directory, _) = filled();
    let path = directory.path().join(MAIN);
    let mut store = Store::open(directory.path()).unwrap();
    let change = Change::Set(limit("192.0.2.1", "5pps")).into();
    // As after a crash at this very moment.
    let left = tempfile::tempdir().unwrap();
    store.apply_then(&change, || fs::copy(&path, left.path().join(MAIN)).unwrap()).unwrap();
    assert_eq!((store.mirror.revision, store.mirror_problem()), (store.main.revision, None));
    assert_eq!(Store::open(left.path()).unwrap().limits(), store.limits());
}

#[test]
fn a_mirror_that_fell_behind_is_made_anew() {
    let (directory, _) = filled();
    let mut store = Store::open(directory.path()).unwrap();
    store.mirror.revision -= 1;
    store.apply(&Change::Set(limit("192.0.2.1", "5pps")).into()).unwrap();
    assert_eq!((store.mirror.revision, store.mirror_problem()), (store.main.revision, None));
    let limits = store.limits().clone();
    assert_eq!(limits.len(), 4);
    drop(store);
    fs::remove_file(directory.path().join(MAIN)).unwrap();
    assert_eq!(Store::open(directory.path()).unwrap().limits(), &limits);
}

#[test]
fn lists_survive_and_the_mirror_has_them_too() {
    use model::lists::{Action, Listing};

    let (directory, _) = filled();
    let net = "198.51.100.0/24".parse().unwrap();
    let listing = Listing::new(Action::Deny, None, Some("scanner".into())).unwrap();
    {
        let mut store = Store::open(directory.path()).unwrap();
        store
            .list_then(&vec![(net, Some(listing.clone()))], |lists| assert_eq!(lists.len(), 1))
            .unwrap();
    }
    std::fs::write(directory.path().join(MAIN), b"garbage").unwrap();
    let mut store = Store::open(directory.path()).unwrap();
    assert_eq!(store.lists().get(&net), Some(&listing));
    assert!(store.recovered().is_some());
    store.list_then(&vec![(net, None)], |lists| assert!(lists.is_empty())).unwrap();
    drop(store);
    assert!(Store::open(directory.path()).unwrap().lists().is_empty());
}

#[test]
fn what_is_replicated_is_in_the_transaction_of_what_follows_from_it() {
    let (directory, limits) = filled();
    let row = |key: &str, row: Option<&str>| (key.to_owned(), row.map(str::to_owned));
    {
        let mut store = Store::open(directory.path()).unwrap();
        assert!(store.replica().is_empty());
        let rows = [row("default", Some("1")), row("denied 192.0.2.1/32", Some("2"))];
        store.apply_with(&Change::Unset(Target::DEFAULT).into(), &rows, || ()).unwrap();
        let rows = [row("default", None), row("forgotten", Some("3"))];
        store.list_with(&vec![], &rows, |_| ()).unwrap();
    }
    // The mirror has it, too.
    fs::write(directory.path().join(MAIN), b"garbage").unwrap();
    let mut store = Store::open(directory.path()).unwrap();
    let kept: Vec<_> = store.replica().iter().map(|(key, row)| format!("{key}={row}")).collect();
    assert_eq!(kept, ["denied 192.0.2.1/32=2", "forgotten=3"]);
    assert_eq!((store.limits().len(), store.recovered().is_some()), (limits.len() - 1, true));
    // A mirror that is made anew has all of it.
    store.mirror.revision -= 1;
    store.apply_with(&Changes::default(), &[row("default", Some("4"))], || ()).unwrap();
    drop(store);
    fs::remove_file(directory.path().join(MAIN)).unwrap();
    assert_eq!(Store::open(directory.path()).unwrap().replica().len(), 3);
}

#[test]
fn a_note_lasts_in_both_files_until_it_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open(directory.path()).unwrap();
    store.set_note("a", Some("one")).unwrap();
    store.set_note("b", Some("two")).unwrap();
    store.set_note("b", None).unwrap();
    let main = store.path().to_owned();
    drop(store);
    fs::remove_file(main).unwrap();
    let mut store = Store::open(directory.path()).unwrap();
    assert_eq!(store.note("a").unwrap().as_deref(), Some("one"));
    assert_eq!(store.note("b").unwrap(), None);
}

#[test]
fn overrides_are_there_again_from_either_file() {
    let user = |number: u32| {
        model::overrides::Descriptor::new("api", [("user", number.to_string().as_str())]).unwrap()
    };
    let limit = model::meter::Limit::of_rate("5/second").unwrap();
    let set = model::overrides::Override::new(limit, None, false).unwrap();
    // A file of an earlier version has none, and no table for them.
    let (directory, _) = filled();
    let mut store = Store::open(directory.path()).unwrap();
    assert!(store.overrides().is_empty());
    let changes = (1..=3).map(|number| (user(number), Some(set))).collect();
    let rows = [("a key".to_owned(), Some("a row".to_owned()))];
    store.override_with(&changes, &rows).unwrap();
    store.override_with(&vec![(user(2), None)], &[]).unwrap();
    let expected = store.overrides().clone();
    assert_eq!((expected.len(), store.replica().len()), (2, 1));
    drop(store);
    for name in [MAIN, MIRROR] {
        fs::write(directory.path().join(name), "damage").unwrap();
        let store = Store::open(directory.path()).unwrap();
        assert_eq!((store.overrides(), store.replica().len()), (&expected, 1));
    }
}
