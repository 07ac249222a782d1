use std::time::Duration;

use super::*;
use crate::fake::Fake;
use crate::rules::{confirm, limits};
use model::Limit;
use model::management::Management;

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn listing(action: Action, reason: &str) -> Listing {
    Listing::new(action, None, Some(reason.into())).unwrap()
}

fn now_() -> ChangeOptions {
    ChangeOptions::default()
}

fn within(seconds: u64) -> ChangeOptions {
    ChangeOptions { confirm: Some(Duration::from_secs(seconds)), ..ChangeOptions::default() }
}

/// What the data plane has: each target, and whether it is denied.
fn published(fake: &Fake) -> Vec<(String, bool)> {
    let state = fake.state();
    let entries = state.lists.iter();
    entries.map(|(net, listing)| (net.to_string(), listing.action == Action::Deny)).collect()
}

fn entries(expected: &[(&str, bool)]) -> Vec<(String, bool)> {
    expected.iter().map(|(net, denied)| ((*net).to_owned(), *denied)).collect()
}

#[test]
fn a_dry_run_tells_all_and_changes_nothing() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    let mut core = fake.core(&directory);
    let deny = |reason| listing(Action::Deny, reason);
    add(&mut core.rules, &nets(&["192.0.2.1/32"]), &deny("old"), &now_()).unwrap();
    let asked = ChangeOptions { dry_run: true, ..ChangeOptions::default() };
    let both = nets(&["192.0.2.1/32", "192.0.2.2/32"]);
    let diff = add(&mut core.rules, &both, &deny("new"), &asked).unwrap().applied.dry_run.unwrap();
    assert_eq!(diff.summary(), "1 added, 1 changed, 0 removed");
    assert_eq!(diff.changed[0].old.reason.as_deref(), Some("old"));
    let removed = remove(&mut core.rules, Action::Deny, &both[..1], &asked).unwrap();
    assert_eq!(removed.applied.dry_run.unwrap().removed[0].target, both[0]);
    // What would be refused is refused, by the data plane too.
    remove(&mut core.rules, Action::Deny, &both, &asked).unwrap_err();
    add(&mut core.rules, &both, &listing(Action::Allow, ""), &asked).unwrap_err();
    fake.state().fail_publish = true;
    add(&mut core.rules, &both, &deny("new"), &asked).unwrap_err();
    assert_eq!(published(&fake), entries(&[("192.0.2.1/32", true)]));
}

#[test]
fn an_unconfirmed_change_is_reverted_also_after_a_crash() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    let mut core = fake.core(&directory);
    let ours = nets(&["192.0.2.1/32", "198.51.100.0/24"]);
    add(&mut core.rules, &ours[..1], &listing(Action::Deny, "for good"), &now_()).unwrap();
    let before = list(&core.rules, Action::Deny);
    let added = add(&mut core.rules, &ours, &listing(Action::Deny, "tried"), &within(60)).unwrap();
    let confirm = added.applied.confirm.unwrap();
    assert_eq!(confirm.what, "deny entry for 192.0.2.1, deny entry for 198.51.100.0/24");
    assert_eq!(confirm.targets, 2);
    // Neither lists nor limits can be changed meanwhile.
    let limit = Limit::new("default".parse().unwrap(), "5pps".parse().unwrap(), None).unwrap();
    let more = nets(&["192.0.2.9/32"]);
    limits::set(&mut core.rules, &limit, &now_()).unwrap_err();
    add(&mut core.rules, &more, &listing(Action::Allow, ""), &now_()).unwrap_err();
    let refused = remove(&mut core.rules, Action::Deny, &ours, &now_()).unwrap_err();
    assert!(refused.hint.is_some_and(|hint| hint.contains("limiter confirm")));
    // A crash, and back in time.
    drop(core);
    let mut core = fake.core(&directory);
    confirm::resume(&mut core.rules).unwrap();
    core.rules.enforce().unwrap();
    assert_eq!(list(&core.rules, Action::Deny).entries.len(), 2);
    assert_eq!(confirm::abort(&mut core.rules).unwrap().targets, 2);
    assert_eq!(list(&core.rules, Action::Deny), before);
    assert_eq!(published(&fake), entries(&[("192.0.2.1/32", true)]));
    // And back too late, from a removal.
    remove(&mut core.rules, Action::Deny, &ours[..1], &within(1)).unwrap();
    assert_eq!(published(&fake), []);
    drop(core);
    std::thread::sleep(Duration::from_millis(1050));
    let mut core = fake.core(&directory);
    confirm::resume(&mut core.rules).unwrap();
    core.rules.enforce().unwrap();
    assert_eq!(list(&core.rules, Action::Deny), before);
    assert_eq!(published(&fake), entries(&[("192.0.2.1/32", true)]));
    assert_eq!(core.status().unwrap().confirm, None);
    // A limit that waits guards the lists, too.
    limits::set(&mut core.rules, &limit, &within(60)).unwrap();
    add(&mut core.rules, &more, &listing(Action::Allow, ""), &now_()).unwrap_err();
    confirm::confirm(&mut core.rules).unwrap();
    add(&mut core.rules, &more, &listing(Action::Allow, ""), &within(60)).unwrap();
    confirm::confirm(&mut core.rules).unwrap();
    assert_eq!(list(&core.rules, Action::Allow).entries.len(), 1);
}

#[test]
fn a_change_that_fails_leaves_nothing_to_revert() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    let mut core = fake.core(&directory);
    let ours = nets(&["192.0.2.1/32"]);
    fake.state().fail_publish = true;
    add(&mut core.rules, &ours, &listing(Action::Deny, ""), &within(60)).unwrap_err();
    assert_eq!((core.status().unwrap().confirm, published(&fake)), (None, Vec::new()));
    assert_eq!(core.rules.store.note("unconfirmed").unwrap(), None);
    assert!(list(&core.rules, Action::Deny).entries.is_empty());
}

#[test]
fn a_session_is_warned_when_it_comes_to_be_shut_out() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    let mut core = fake.core(&directory);
    let how =
        ChangeOptions { session: Some("192.0.2.7".parse().unwrap()), ..ChangeOptions::default() };
    let deny = listing(Action::Deny, "");
    let mut warned = |texts: &[&str]| {
        let added = add(&mut core.rules, &nets(texts), &deny, &how).unwrap();
        added.applied.warnings.join(" ")
    };
    assert_eq!(warned(&["198.51.100.0/24"]), "");
    let text = warned(&["192.0.2.0/24"]);
    assert!(text.contains("192.0.2.7") && text.contains("192.0.2.0/24"), "{text}");
    assert!(text.contains("--confirm"), "{text}");
    assert_eq!(warned(&["192.0.2.7/32"]), "", "it was shut out before");
    remove(&mut core.rules, Action::Deny, &nets(&["192.0.2.7/32"]), &how).unwrap();
    add(&mut core.rules, &nets(&["192.0.2.7/32"]), &listing(Action::Allow, ""), &how).unwrap();
    let removed = remove(&mut core.rules, Action::Allow, &nets(&["192.0.2.7/32"]), &how).unwrap();
    assert!(removed.applied.warnings[0].contains("192.0.2.0/24"), "the prefix comes to apply");
    core.rules.protect(&nets(&["192.0.2.7/32"]));
    remove(&mut core.rules, Action::Deny, &nets(&["192.0.2.0/24"]), &how).unwrap();
    let exempt = add(&mut core.rules, &nets(&["192.0.2.0/24"]), &deny, &how).unwrap();
    assert!(exempt.applied.warnings.is_empty());
}

#[test]
fn a_program_denies_nobody_whom_an_operator_lets_pass_and_shortens_nothing() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    let mut core = fake.core(&directory);
    let rules = &mut core.rules;
    let for_ = |seconds| {
        let span = Some(Duration::from_secs(seconds));
        Listing::new(Action::Deny, span, Some("rule web".into())).unwrap()
    };
    rules.management = Management::new(&nets(&["198.51.100.1/32"]), (32, 64));
    add(rules, &nets(&["192.0.2.0/24"]), &listing(Action::Allow, "ours"), &now_()).unwrap();
    add(rules, &nets(&["203.0.113.1/32"]), &listing(Action::Deny, "for good"), &now_()).unwrap();
    for (source, why) in [
        ("192.0.2.7/32", "192.0.2.7/32 is on the allow list"),
        ("198.51.100.1/32", "198.51.100.1/32 is a management address"),
    ] {
        let both = nets(&["203.0.113.2/32", source]);
        let refused = deny_sources(rules, &both, &for_(60), &now_()).unwrap_err();
        assert_eq!((refused.code, refused.message.as_str()), (exit::NEGATIVE, why));
    }
    let mut deny = |source, seconds| {
        deny_sources(rules, &nets(&[source]), &for_(seconds), &now_()).unwrap().changed
    };
    // What is for good stays so. Twice at once is one change, and one for longer is another.
    assert_eq!(deny("203.0.113.1/32", 60), 0);
    assert_eq!(["203.0.113.2/32"; 2].map(|source| deny(source, 60)), [1, 0]);
    assert_eq!(deny("203.0.113.2/32", 600), 1);
    assert_eq!(list(&core.rules, Action::Deny).entries.len(), 2);
}
