use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use super::fake::Fake;
use super::life::bring_up;
use super::*;
use crate::Core;
use crate::rules::{limits, lists};
use ::cluster::ClusterConfig;
use api::Health;
use api::error::exit;
use api::requests::ChangeOptions;
use dataplane::Options;
use model::input::LimitInput;
use model::interface::Mode;
use model::lists::{Action, Listing, Lists};
use model::traffic::{Sort, Whose};
use model::{Limit, Target};
use settings::web::WebConfig;
use settings::{DaemonConfig, OnExit};

fn limit(target: &str, rate: &str) -> Limit {
    Limit::new(target.parse().unwrap(), rate.parse().unwrap(), None).unwrap()
}

fn config(interfaces: &[&str]) -> DaemonConfig {
    DaemonConfig {
        cluster: ClusterConfig::default(),
        web: WebConfig::default(),
        interfaces: interfaces.iter().map(ToString::to_string).collect(),
        mode: Mode::Native,
        replace: false,
        socket: PathBuf::new(),
        socket_group: String::new(),
        admin_group: None,
        management: Vec::new(),
        state_dir: PathBuf::new(),
        on_exit: OnExit::Keep,
        instance: None,
        options: Options {
            epsilon: 0.01,
            delta: 0.01,
            max_sources: 16,
            max_limits: 16,
            max_listed: 16,
            ..Options::usual(PathBuf::new())
        },
    }
}

#[test]
fn a_limit_is_stored_and_in_force_or_neither() {
    let directory = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    let mut core = fake.core(&directory);
    let first = limit("default", "1000pps");
    assert!(limits::set(&mut core.rules, &first, &ChangeOptions::default()).unwrap().changed);
    assert!(!limits::set(&mut core.rules, &first, &ChangeOptions::default()).unwrap().changed);
    assert_eq!(fake.state().limits, std::slice::from_ref(&first));

    fake.state().fail_publish = true;
    let error = limits::set(&mut core.rules, &limit("default", "5pps"), &ChangeOptions::default())
        .unwrap_err();
    assert!(error.message.contains("stay as they were"), "{error}");
    assert_eq!(fake.state().limits, std::slice::from_ref(&first));
    fake.state().fail_publish = true;
    assert!(limits::unset(&mut core.rules, &Target::DEFAULT, &ChangeOptions::default()).is_err());
    assert_eq!(fake.state().limits, std::slice::from_ref(&first));
    assert_eq!(core.status().unwrap().state, Health::Ok);

    drop(core);
    let mut core = fake.core(&directory);
    assert_eq!(limits::list(&core.rules).limits.len(), 1);
    fake.state().limits.clear();
    core.rules.enforce().unwrap();
    assert_eq!(fake.state().limits, [first]);
    let mut unset =
        || limits::unset(&mut core.rules, &Target::DEFAULT, &ChangeOptions::default()).unwrap();
    assert!(unset().is_some());
    assert!(unset().is_none());
    assert!(fake.state().limits.is_empty());
}

#[test]
fn a_target_inside_a_source_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut core = Fake::default().core(&directory);
    let error =
        limits::set(&mut core.rules, &limit("2001:db8::1", "1000pps"), &ChangeOptions::default())
            .unwrap_err();
    assert_eq!(error.code, exit::USAGE);
    assert!(limits::list(&core.rules).limits.is_empty());
}

#[test]
fn a_start_that_fails_leaves_what_was_there() {
    let directory = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    fake.state().interfaces = vec!["eth0".into(), "eth1".into()];
    fake.state().attached = vec![("eth0".into(), Mode::Native)];
    let mut core = fake.core(&directory);
    fake.state().fail_publish = true;
    bring_up(&mut core, &config(&["eth1"]), true).unwrap_err();
    fake.state().fail_publish = false;
    assert_eq!(fake.state().attached, [("eth0".to_owned(), Mode::Native)]);
    assert!(!fake.state().removed);
    bring_up(&mut core, &config(&["eth1"]), true).unwrap();
    assert_eq!(core.attached(), ["eth0", "eth1"]);
}

#[test]
fn lists_are_in_force_before_limits() {
    let directory = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    let mut core = fake.core(&directory);
    let denied: IpNet = "192.0.2.1/32".parse().unwrap();
    let listing = Listing::new(Action::Deny, None, None).unwrap();
    lists::add(&mut core.rules, &[denied], &listing, &ChangeOptions::default()).unwrap();
    fake.state().lists = Lists::default();
    // Limits are what lets a fresh data plane take the place of another.
    fake.state().fail_publish = true;
    core.rules.enforce().unwrap_err();
    assert_eq!(fake.state().lists.get(&denied), Some(&listing));
}

#[test]
fn a_first_start_that_fails_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    fake.state().interfaces = vec!["eth0".into()];
    let mut core = fake.core(&directory);
    fake.state().taken = vec!["eth0".into()];
    let error = bring_up(&mut core, &config(&["eth0"]), false).unwrap_err();
    assert!(error.message.contains("eth0"), "{error}");
    assert!(fake.state().attached.is_empty() && fake.state().removed);
}

#[test]
fn status_says_what_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    fake.state().interfaces = vec!["eth0".into()];
    let mut core = fake.core(&directory);
    let warned = |core: &Core, about: &str| {
        core.status().unwrap().warnings.iter().any(|warning| warning.contains(about))
    };
    assert!(warned(&core, "no interface"));
    core.interfaces.attach(&mut core.rules, "eth0", Mode::Generic, false).unwrap();
    assert!(!warned(&core, "no interface") && warned(&core, "generic mode"));
    limits::set(&mut core.rules, &limit("192.0.2.1", "5pps"), &ChangeOptions::default()).unwrap();
    assert!(warned(&core, "sketch's window: 192.0.2.1"));
    assert_eq!(core.status().unwrap().state, Health::Ok);
    fake.state().full_sets = 2;
    assert!(warned(&core, "2 of 4 sets"));
    assert_eq!(core.status().unwrap().state, Health::Degraded);
}

#[test]
fn status_names_few_groups_and_counts_others() {
    let directory = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    let core = fake.core(&directory);
    let warnings = || core.status().unwrap().warnings.join("\n");
    assert!(!warnings().contains("group limit"));
    fake.state().groups = Some("10kpps".parse().unwrap());
    for i in 1..=5 {
        fake.state().limited_groups.push(std::net::IpAddr::from([192, 0, i, 9]));
    }
    let said = warnings();
    for i in 1..=3 {
        assert!(
            said.contains(&format!("192.0.{i}.0/24 is over the group limit of 10kpps")),
            "{said}"
        );
    }
    assert!(said.contains("2 more groups") && !said.contains("192.0.4.0"), "{said}");
    let shown = core.source([192, 0, 2, 9].into()).unwrap();
    assert_eq!(shown.group.unwrap().source, "192.0.2.0/24".parse().unwrap());
}

#[test]
fn top_orders_and_tells_rates() {
    let directory = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    fake.state().sources = (1..=9).map(|i| (format!("192.0.2.{i}"), (100 - i, i))).collect();
    let mut core = fake.core(&directory);
    // Without an earlier look nothing is known of rates.
    let top = core.top.now(&core.rules, 2, Sort::Dropped);
    let names: Vec<_> = top.sources.iter().map(|entry| entry.source.addr().to_string()).collect();
    assert_eq!((names, top.tracked), (vec!["192.0.2.9".into(), "192.0.2.8".into()], 9));
    assert_eq!((top.sources[0].pps_seconds, top.sources[0].pps), (0.0, 0.0));
    // That look was one to compare with.
    let wait = core.prepare_top(Whose::Sources).expect("the look is too young");
    assert!(wait <= Duration::from_millis(250));
    fake.state().sources.insert("192.0.2.5".into(), (1095, 5));
    std::thread::sleep(wait);
    assert_eq!(core.prepare_top(Whose::Sources), None);
    let top = core.top.now(&core.rules, 3, Sort::Pps);
    let first = &top.sources[0];
    assert_eq!((first.source.to_string(), top.sources[1].pps), ("192.0.2.5/32".into(), 0.0));
    assert!((first.pps * first.pps_seconds - 1000.0).abs() < 1e-6, "{first:?}");
    // Of those that are silent, the one that has sent most; of equals the first.
    assert_eq!(top.sources[1].source.to_string(), "192.0.2.1/32");
    assert_eq!(
        core.top.now(&core.rules, 1, Sort::Packets).sources[0].source.to_string(),
        "192.0.2.5/32"
    );
    // Still compared with the first look, the second one is too young.
    fake.state().sources.insert("192.0.2.3".into(), (2097, 3));
    let top = core.top.now(&core.rules, 1, Sort::Pps);
    assert_eq!(top.sources[0].source.to_string(), "192.0.2.3/32");
    assert!(top.sources[0].pps_seconds >= 0.2 && top.sources[0].pps > 0.0);
}

#[test]
fn where_nothing_is_dropped_top_lists_who_sends_most() {
    let directory = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    fake.state().sources = (1..=100).map(|i| (format!("192.0.2.{i}"), (1000 + i, 0))).collect();
    let mut core = fake.core(&directory);
    let wait = core.prepare_top(Whose::Sources).expect("there are no counts to compare with yet");
    fake.state().sources.insert("192.0.2.9".into(), (1500, 0));
    fake.state().sources.insert("192.0.2.7".into(), (1400, 0));
    std::thread::sleep(wait);
    assert_eq!(core.prepare_top(Whose::Sources), None);
    for live in [false, true] {
        let mut heaviest = if live {
            core.top(3, Sort::Dropped)
        } else {
            core.top.now(&core.rules, 3, Sort::Dropped)
        };
        let names = heaviest.sources.drain(..).map(|entry| entry.source.addr().to_string());
        let wanted = ["192.0.2.9", "192.0.2.7", "192.0.2.100"];
        assert_eq!(names.collect::<Vec<_>>(), wanted, "live: {live}");
    }
}

#[test]
fn rates_can_be_had_without_an_earlier_look() {
    let directory = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    fake.state().sources.insert("192.0.2.1".into(), (100, 0));
    let mut core = fake.core(&directory);
    let wait = core.prepare_top(Whose::Sources).expect("there are no counts to compare with yet");
    std::thread::sleep(wait);
    assert_eq!(core.prepare_top(Whose::Sources), None);
    assert_eq!(core.top.now(&core.rules, 1, Sort::Pps).sources[0].pps, 0.0);
}

#[test]
fn whoever_watches_shares_the_look_of_the_second() {
    let directory = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    fake.state().sources.insert("192.0.2.1".into(), (100, 5));
    let mut core = fake.core(&directory);
    assert_eq!(core.top(1, Sort::Dropped).tracked, 1);
    // Another source is heavier now; the look of this second does not know it, one for the moment does.
    fake.state().sources.insert("192.0.2.2".into(), (100, 50));
    let watched = core.top(1, Sort::Packets);
    assert_eq!(
        (watched.tracked, watched.sources[0].source.to_string()),
        (1, "192.0.2.1/32".into())
    );
    assert!(watched.age_seconds < 1.0 && watched.totals.is_none());
    std::thread::sleep(Duration::from_millis(220));
    core.tick();
    let watched = core.top(1, Sort::Dropped);
    assert_eq!(
        (watched.tracked, watched.sources[0].source.to_string()),
        (2, "192.0.2.2/32".into())
    );
    assert!(watched.totals.is_some_and(|totals| totals.seconds >= 0.2));
    // More lines than any look has found.
    fake.state().sources.insert("192.0.2.3".into(), (100, 60));
    assert_eq!(core.top(1000, Sort::Dropped).sources.len(), 3);
    assert_eq!(core.top.now(&core.rules, 2, Sort::Dropped).sources[0].dropped, 60);
}

#[tokio::test]
async fn after_a_panic_nothing_is_changed_any_more() {
    let directory = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    let shared = CoreHandle::new(fake.core(&directory));
    fake.state().panic_on_publish = true;
    let set = |core: &mut Core| {
        limits::set(&mut core.rules, &limit("default", "1000pps"), &ChangeOptions::default())
    };
    assert!(shared.with(set).await.unwrap_err().message.contains("in doubt"));
    fake.state().panic_on_publish = false;
    assert!(shared.with(set).await.unwrap_err().message.contains("in doubt"));
}

#[test]
fn frames_that_no_byte_limit_lets_pass_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    let mut core = fake.core(&directory);
    let small = LimitInput {
        rate: ["1mbit"].into_iter().collect(),
        burst: ["1514byte"].into_iter().collect(),
        ..LimitInput::default()
    };
    limits::set(&mut core.rules, &small.limit().unwrap(), &ChangeOptions::default()).unwrap();
    let told = |core: &Core| {
        let warnings = core.status().unwrap().warnings;
        warnings.into_iter().find(|text| text.contains("larger than the burst"))
    };
    assert_eq!(told(&core), None, "attached nowhere");
    fake.state().interfaces = ["eth0", "eth1"].map(String::from).to_vec();
    core.rules.plane.attach("eth0", Mode::Native, false).unwrap();
    assert_eq!(told(&core), None, "the burst holds a frame");
    core.rules.plane.attach("eth1", Mode::Generic, false).unwrap();
    let text = told(&core).unwrap();
    assert!(text.starts_with("eth1 takes frames of up to 65549 bytes"), "{text}");
    assert!(text.contains("such as default"), "{text}");
    limits::set(&mut core.rules, &limit("default", "1mbit"), &ChangeOptions::default()).unwrap();
    assert_eq!(told(&core), None);
}
