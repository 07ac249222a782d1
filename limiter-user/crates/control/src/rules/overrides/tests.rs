use std::time::Duration;

use super::*;
use crate::fake::Fake;
use crate::rules::{confirm, lists};
use model::lists::{Action, Listing};
use model::meter::Limit;

fn descriptor(user: u32) -> Descriptor {
    Descriptor::new("api", [("user", user.to_string().as_str())]).unwrap()
}

/// A limit of a user.
fn limit(user: u32, rate: &str, ttl: Option<u64>) -> (Descriptor, Option<Override>) {
    let ttl = ttl.map(Duration::from_secs);
    (descriptor(user), Some(Override::new(Limit::of_rate(rate).unwrap(), ttl, false).unwrap()))
}

fn now_() -> ChangeOptions {
    ChangeOptions::default()
}

/// Who has which limit.
fn all(rules: &Rules) -> Vec<String> {
    let entry = |it: OverrideEntry| format!("{} {}", it.descriptor, it.limit);
    list(rules, None).overrides.into_iter().map(entry).collect()
}

#[test]
fn limits_are_kept_over_restarts_and_told_to_followers() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    let mut core = fake.core(&directory);
    let mut follower = follow(&core.rules);
    let both = vec![limit(2, "5/second", None), limit(1, "9/day", None)];
    let changed = set(&mut core.rules, &both, &now_()).unwrap();
    assert_eq!(
        (changed.changed, changed.first.summary().as_str()),
        (2, "2 added, 0 changed, 0 removed")
    );
    assert_eq!(*follower.try_recv().unwrap(), both);
    assert!(matches!(core.rules.events.changes().changes.first(), Some(event)
        if format!("{:?}", event.what).contains("rule api user=2: 5/second")));
    drop(core);
    let mut core = fake.core(&directory);
    assert_eq!(all(&core.rules), ["api user=1 9/day", "api user=2 5/second"]);
    assert_eq!(list(&core.rules, Some("other")).overrides, []);
    let first = page(&core.rules, None, 1);
    assert_eq!(first[0].descriptor, Some(descriptor(1)));
    assert_eq!(page(&core.rules, first[0].descriptor.as_ref(), 9).len(), 1);
    unset(&mut core.rules, vec![descriptor(1)], &now_()).unwrap();
    assert_eq!(all(&core.rules), ["api user=2 5/second"]);
}

#[test]
fn what_cannot_be_changes_nothing() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    let mut core = fake.core(&directory);
    let rules = &mut core.rules;
    let twice =
        vec![limit(1, "5/second", None), limit(2, "5/second", None), limit(1, "6/second", None)];
    assert!(set(rules, &twice, &now_()).unwrap_err().message.contains("user=1 is there twice"));
    let missing = unset(rules, vec![descriptor(7)], &now_()).unwrap_err();
    assert_eq!(
        (missing.code, missing.message.as_str()),
        (exit::NEGATIVE, "api user=7 has no limit of its own")
    );
    let for_all = Override { cluster: true, ..limit(1, "5/second", None).1.unwrap() };
    let refused = set(rules, &vec![(descriptor(1), Some(for_all))], &now_()).unwrap_err();
    assert!(refused.message.contains("cluster"), "{refused}");
    let dry = ChangeOptions { dry_run: true, ..now_() };
    let diff = set(rules, &twice[..1].to_vec(), &dry).unwrap().applied.dry_run.unwrap();
    assert_eq!(diff.summary(), "1 added, 0 changed, 0 removed");
    assert!(all(rules).is_empty());
}

#[test]
fn an_unconfirmed_limit_is_reverted_also_after_a_crash() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    let mut core = fake.core(&directory);
    set(&mut core.rules, &vec![limit(1, "5/second", None)], &now_()).unwrap();
    let within = ChangeOptions { confirm: Some(Duration::from_secs(60)), ..now_() };
    let tried = vec![limit(1, "6/second", None), limit(2, "7/second", None)];
    let waits = set(&mut core.rules, &tried, &within).unwrap().applied.confirm.unwrap();
    assert_eq!(
        (waits.what.as_str(), waits.targets),
        ("rule api user=1: 6/second, api user=2: 7/second", 2)
    );
    // Neither these nor the lists can be changed meanwhile.
    unset(&mut core.rules, vec![descriptor(1)], &now_()).unwrap_err();
    let denied = Listing::new(Action::Deny, None, None).unwrap();
    lists::add(&mut core.rules, &["192.0.2.1/32".parse().unwrap()], &denied, &now_()).unwrap_err();
    drop(core);
    let mut core = fake.core(&directory);
    confirm::resume(&mut core.rules).unwrap();
    assert_eq!(all(&core.rules), ["api user=1 6/second", "api user=2 7/second"]);
    let mut follower = follow(&core.rules);
    confirm::abort(&mut core.rules).unwrap();
    assert_eq!(all(&core.rules), ["api user=1 5/second"]);
    assert_eq!(follower.try_recv().unwrap()[1], (descriptor(2), None));
}

#[test]
fn what_has_ended_goes() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    let mut core = fake.core(&directory);
    let (whose, mut ended) = limit(1, "5/second", Some(1));
    ended.as_mut().unwrap().until = Some(now());
    set(&mut core.rules, &vec![(whose, ended), limit(2, "5/second", Some(3_600))], &now_())
        .unwrap();
    let mut follower = follow(&core.rules);
    expire(&mut core.rules);
    assert_eq!(all(&core.rules), ["api user=2 5/second"]);
    assert_eq!(*follower.try_recv().unwrap(), [(descriptor(1), None)]);
    expire(&mut core.rules);
    assert!(follower.try_recv().is_err());
}
