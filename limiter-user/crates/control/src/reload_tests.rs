//! What is read again from the configuration file: lists beneath those set at run time, keys that change
//! at once, and what is not confirmed.

use std::path::PathBuf;
use std::time::Duration;

use clap::FromArgMatches;
use ipnet::IpNet;

use super::fake::Fake;
use crate::Core;
use crate::rules::{at_start, confirm, limits, lists, reload};
use api::LimitOrigin;
use api::requests::ChangeOptions;
use model::Limit;
use model::lists::{Action, Listing};
use settings::{Arguments, RunArgs};

/// A configuration file, and a daemon that has read it.
struct Stand {
    fake: Fake,
    home: tempfile::TempDir,
}

const FILE: &str = "\
[limits]
default = \"1000pps\"
[[deny]]
for = [\"198.51.100.0/24\", \"192.0.2.66\"]
reason = \"scanners\"
[[allow]]
for = \"198.51.100.99\"
";

impl Stand {
    fn new(text: &str) -> Self {
        let stand = Self { fake: Fake::default(), home: tempfile::tempdir().unwrap() };
        stand.write(text);
        stand
    }

    fn path(&self) -> PathBuf {
        self.home.path().join("limiter.toml")
    }

    fn write(&self, text: &str) {
        std::fs::write(self.path(), text).unwrap();
    }

    fn given(&self) -> Arguments {
        let matches = RunArgs::command().get_matches_from(["limiter", "run"]);
        let run = matches.subcommand_matches("run").unwrap();
        let arguments = RunArgs::from_arg_matches(run).unwrap();
        Arguments::new(
            arguments,
            "/run/limiter/limiter.sock".into(),
            Some(self.path()),
            None,
            &[run],
        )
    }

    /// Starts a daemon, as [`run`] does.
    fn start(&self) -> Core {
        let mut core = self.fake.core(&self.home);
        let given = self.given();
        let settings = given.with(given.read_file().unwrap()).unwrap();
        let start = at_start(&given, settings, &mut core.rules.store).unwrap();
        let management = start.settings.daemon().management;
        reload::start_from(&mut core.rules, given, start);
        core.rules.protect(&management);
        confirm::resume(&mut core.rules).unwrap();
        core.rules.enforce().unwrap();
        core
    }

    /// What the data plane has: the default limit's rate, and the denied and allowed.
    fn published(&self) -> (String, Vec<String>, Vec<String>) {
        let state = self.fake.state();
        let rate = state.limits.first().map(|limit| limit.rate.to_string()).unwrap_or_default();
        let listed = |action| {
            let entries = state.lists.iter().filter(|(_, listing)| listing.action == action);
            entries.map(|(net, _)| net.to_string()).collect()
        };
        (rate, listed(Action::Deny), listed(Action::Allow))
    }

    #[track_caller]
    fn assert_published(&self, rate: &str, denied: &[&str], allowed: &[&str]) {
        let own = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(self.published(), (rate.to_owned(), own(denied), own(allowed)));
    }
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn entry(action: Action) -> Listing {
    Listing::new(action, None, None).unwrap()
}

fn now_() -> ChangeOptions {
    ChangeOptions::default()
}

fn within(seconds: u64) -> ChangeOptions {
    ChangeOptions { confirm: Some(Duration::from_secs(seconds)), ..ChangeOptions::default() }
}

#[test]
fn entries_of_the_file_lie_beneath_those_set_at_run_time() {
    let stand = Stand::new(FILE);
    let mut core = stand.start();
    let denied = ["192.0.2.66/32", "198.51.100.0/24"];
    stand.assert_published("1000pps", &denied, &["198.51.100.99/32"]);
    let list = lists::list(&core.rules, Action::Deny);
    assert!(list.entries.iter().all(|entry| entry.origin == LimitOrigin::File), "{list:?}");
    // It cannot be removed at run time, but hidden, by the other list as well.
    let in_file =
        lists::remove(&mut core.rules, Action::Deny, &[net("192.0.2.66/32")], &now_()).unwrap_err();
    assert!(in_file.message.contains("limiter.toml"), "{in_file}");
    let hid = lists::add(&mut core.rules, &[net("192.0.2.66/32")], &entry(Action::Allow), &now_())
        .unwrap();
    assert!(hid.applied.warnings[0].contains("wins over"), "{hid:?}");
    let allowed = ["192.0.2.66/32", "198.51.100.99/32"];
    stand.assert_published("1000pps", &denied[1..], &allowed);
    let status = core.status().unwrap();
    assert_eq!((status.config.listed, status.config.listed_shadowed), (3, 1));
    assert!(status.warnings.iter().any(|text| text.contains("1 entries")), "{status:?}");
    // A failure changes nothing of it.
    stand.fake.state().fail_publish = true;
    lists::remove(&mut core.rules, Action::Allow, &[net("192.0.2.66/32")], &now_()).unwrap_err();
    stand.assert_published("1000pps", &denied[1..], &allowed);
    // So it is after a restart, and a reload tells what is hidden.
    drop(core);
    let mut core = stand.start();
    stand.assert_published("1000pps", &denied[1..], &allowed);
    let reload = reload::reload(&mut core.rules, &now_()).unwrap();
    assert_eq!((reload.lists_shadowed.len(), reload.count()), (1, 0), "{reload:?}");
    let asked = ChangeOptions { dry_run: true, ..ChangeOptions::default() };
    let diff =
        lists::remove(&mut core.rules, Action::Allow, &[net("192.0.2.66/32")], &asked).unwrap();
    assert_eq!(diff.applied.dry_run.unwrap().changed[0].new.origin, LimitOrigin::File);
    let back =
        lists::remove(&mut core.rules, Action::Allow, &[net("192.0.2.66/32")], &now_()).unwrap();
    assert!(back.applied.warnings[0].contains("in force then"), "{back:?}");
    stand.assert_published("1000pps", &denied, &["198.51.100.99/32"]);
    // One that ends uncovers the file's.
    let ends = Listing { until: Some(1), ..entry(Action::Allow) };
    lists::add(&mut core.rules, &[net("192.0.2.66/32")], &ends, &now_()).unwrap();
    stand.assert_published("1000pps", &denied[1..], &allowed);
    core.tick();
    stand.assert_published("1000pps", &denied, &["198.51.100.99/32"]);
}

#[test]
fn a_reload_takes_limits_lists_and_live_keys_or_nothing() {
    let stand = Stand::new(FILE);
    let mut core = stand.start();
    let new = "malformed = \"drop\"\nmax_sources = 64\n[management]\naddresses = [\"203.0.113.0/24\"]\n\
               [limits]\ndefault = \"5pps\"\n[[deny]]\nfor = \"198.51.100.0/24\"\n";
    stand.write(new);
    let asked = ChangeOptions { dry_run: true, ..ChangeOptions::default() };
    let told = reload::reload(&mut core.rules, &asked).unwrap();
    assert_eq!(told.lists.summary(), "0 added, 1 changed, 2 removed");
    assert_eq!(
        told.live.iter().map(|d| d.key.as_str()).collect::<Vec<_>>(),
        ["malformed", "management"]
    );
    assert_eq!(told.restart.iter().map(|d| d.key.as_str()).collect::<Vec<_>>(), ["max_sources"]);
    let before = stand.published();
    stand.fake.state().fail_publish = true;
    reload::reload(&mut core.rules, &now_()).unwrap_err();
    assert_eq!(stand.published(), before);
    assert!(stand.fake.state().exempt.is_empty() && !stand.fake.state().drop_malformed);
    let done = reload::reload(&mut core.rules, &now_()).unwrap();
    assert_eq!((&done.lists, &done.live), (&told.lists, &told.live));
    stand.assert_published("5pps", &["198.51.100.0/24"], &[]);
    assert_eq!(stand.fake.state().exempt, [net("203.0.113.0/24")]);
    assert!(stand.fake.state().drop_malformed);
    assert_eq!(core.rules.management.nets(), [net("203.0.113.0/24")]);
    // The same again is nothing new, but for what needs a restart.
    let again = reload::reload(&mut core.rules, &now_()).unwrap();
    assert_eq!((again.count(), again.restart.len()), (0, 1), "{again:?}");
    // The new management addresses count for the file's own rules.
    stand.write(&new.replace("for = \"198.51.100.0/24\"", "for = \"203.0.113.7\""));
    let refused = reload::reload(&mut core.rules, &now_()).unwrap_err();
    assert!(
        refused.message.contains(":8:7") && refused.message.contains("203.0.113.0/24"),
        "{refused}"
    );
    stand.write("admin_group = \"limiter-no-such-group\"\n");
    let refused = reload::reload(&mut core.rules, &now_()).unwrap_err();
    assert!(refused.message.contains("limiter-no-such-group"), "{refused}");
    stand.assert_published("5pps", &["198.51.100.0/24"], &[]);
}

#[test]
fn a_reload_limits_groups_or_changes_nothing() {
    let stand = Stand::new(FILE);
    let mut core = stand.start();
    let of_groups = || stand.fake.state().groups.map(|limit| limit.to_string());
    stand.write("group_limit = \"10kpps\"\n[limits]\ndefault = \"5pps\"\n");
    stand.fake.state().fail_groups = true;
    reload::reload(&mut core.rules, &now_()).unwrap_err();
    stand.assert_published("1000pps", &["192.0.2.66/32", "198.51.100.0/24"], &["198.51.100.99/32"]);
    assert_eq!(of_groups(), None);
    stand.fake.state().fail_groups = false;
    let how = ChangeOptions { confirm: Some(Duration::from_secs(60)), ..now_() };
    let done = reload::reload(&mut core.rules, &how).unwrap();
    assert_eq!(done.live.iter().map(|d| d.key.as_str()).collect::<Vec<_>>(), ["group_limit"]);
    assert_eq!(of_groups().as_deref(), Some("10kpps,12000"));
    confirm::abort(&mut core.rules).unwrap();
    assert_eq!(of_groups(), None);
    stand.write("group_limit = \"10kpps\"\nipv4_prefix = 24\n");
    let refused = reload::reload(&mut core.rules, &now_()).unwrap_err();
    assert!(refused.message.contains(":1:") && refused.hint.is_some(), "{refused}");
}

#[test]
fn an_unconfirmed_file_is_not_in_force_after_a_crash_either() {
    let stand = Stand::new(FILE);
    let mut core = stand.start();
    let before = stand.published();
    let new = "malformed = \"drop\"\n[limits]\ndefault = \"5pps\"\n";
    stand.write(new);
    let report = reload::reload(&mut core.rules, &within(60)).unwrap();
    assert!(report.confirm.is_some_and(|confirm| confirm.targets == 5), "5");
    stand.assert_published("5pps", &[], &[]);
    reload::reload(&mut core.rules, &now_()).unwrap_err();
    assert_eq!(core.status().unwrap().config.refused, None, "it is in force");
    // A crash in between, and another.
    for _ in 0..2 {
        drop(core);
        core = stand.start();
        assert_eq!(stand.published(), before);
        let status = core.status().unwrap();
        assert!(status.config.refused.is_some() && status.confirm.is_none(), "{status:?}");
        assert!(status.warnings.iter().any(|text| text.contains("limiter reload")), "{status:?}");
    }
    // Tried again, confirmed, and there to stay.
    reload::reload(&mut core.rules, &within(60)).unwrap();
    confirm::confirm(&mut core.rules).unwrap();
    assert_eq!(core.status().unwrap().config.refused, None);
    drop(core);
    core = stand.start();
    stand.assert_published("5pps", &[], &[]);
    // Aborted: the keys are as before, too.
    stand.write(FILE);
    reload::reload(&mut core.rules, &within(60)).unwrap();
    assert!(!stand.fake.state().drop_malformed);
    assert_eq!(confirm::abort(&mut core.rules).unwrap().targets, 5);
    stand.assert_published("5pps", &[], &[]);
    assert!(stand.fake.state().drop_malformed);
    assert!(core.status().unwrap().config.refused.is_some());
    drop(core);
    core = stand.start();
    stand.assert_published("5pps", &[], &[]);
    // Whoever reloads without a word takes it.
    reload::reload(&mut core.rules, &now_()).unwrap();
    assert_eq!(stand.published(), before);
    drop(core);
    stand.start();
    assert_eq!(stand.published(), before);
}

#[test]
fn a_file_that_was_refused_and_then_changed_is_taken() {
    let stand = Stand::new(FILE);
    let mut core = stand.start();
    stand.write("[limits]\ndefault = \"5pps\"\n");
    reload::reload(&mut core.rules, &within(60)).unwrap();
    drop(core);
    stand.write("[limits]\ndefault = \"7pps\"\n");
    let mut core = stand.start();
    stand.assert_published("7pps", &[], &[]);
    assert_eq!(core.rules.store.note("refused").unwrap(), None);
    // A note that makes no sense is told and forgotten.
    core.rules.store.set_note("refused", Some("{}")).unwrap();
    drop(core);
    let mut core = stand.start();
    let warnings = core.status().unwrap().warnings;
    assert!(warnings.iter().any(|text| text.contains("cannot be used")), "{warnings:?}");
    assert_eq!(core.rules.store.note("refused").unwrap(), None);
    stand.assert_published("7pps", &[], &[]);
}

#[test]
fn what_cannot_be_taken_leaves_no_record() {
    let stand = Stand::new(FILE);
    let mut core = stand.start();
    let before = stand.published();
    stand.write("[limits]\ndefault = \"5pps\"\n");
    stand.fake.state().fail_publish = true;
    reload::reload(&mut core.rules, &within(60)).unwrap_err();
    assert_eq!((stand.published(), core.status().unwrap().confirm), (before, None));
    assert_eq!(core.rules.store.note("refused").unwrap(), None);
    // What changes nothing needs no confirmation.
    stand.write(&format!("{FILE}# a comment\n"));
    let same = reload::reload(&mut core.rules, &within(60)).unwrap();
    assert_eq!((same.count(), same.confirm), (0, None));
    let limit = Limit::new("default".parse().unwrap(), "9pps".parse().unwrap(), None).unwrap();
    limits::set(&mut core.rules, &limit, &now_()).unwrap();
}
