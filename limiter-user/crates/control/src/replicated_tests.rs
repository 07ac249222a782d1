//! What one daemon sets for the cluster is in force on all, and goes with what each has by itself.

use std::time::Duration;

use super::fake::Fake;
use crate::Core;
use crate::rules::{Rules, confirm, limits, lists, overrides, replicated};
use ::cluster::limits::Now;
use ::cluster::{ClusterConfig, HostId, Moment};
use api::error::exit;
use api::requests::ChangeOptions;
use model::lists::{Action, Listing};
use model::overrides::{Descriptor, Override};
use model::{Limit, Partition, Scope, Target};
use telemetry::{Event, What};

/// Daemons in a cluster.
struct Fleet {
    hosts: Vec<(String, Fake, Core, tempfile::TempDir)>,
    time: u64,
}

fn config(name: &str) -> ClusterConfig {
    let listen = Some("192.0.2.10:7700".parse().unwrap());
    ClusterConfig { name: Some(name.into()), listen, ..ClusterConfig::default() }
}

fn limit(target: &str, rate: &str) -> Limit {
    Limit::new(target.parse().unwrap(), rate.parse().unwrap(), None).unwrap()
}

fn wide(target: &str, rate: &str) -> Limit {
    limit(target, rate).scoped(Scope::Cluster { partition: Partition::Conservative }).unwrap()
}

fn id(host: usize) -> HostId {
    HostId(host as u64 + 1)
}

fn join(core: &mut Core, name: &str) {
    let Rules { replicated, store, .. } = &mut core.rules;
    replicated.join(&config(name), store.replica());
}

impl Fleet {
    fn new(names: &[&str]) -> Self {
        let hosts = names.iter().map(|name| {
            let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
            let mut core = fake.core(&directory);
            join(&mut core, name);
            ((*name).to_owned(), fake, core, directory)
        });
        let mut fleet = Self { hosts: hosts.collect(), time: 1000 };
        fleet.meet();
        fleet
    }

    fn meet(&mut self) {
        let members: Vec<_> = (0..self.hosts.len()).map(id).collect();
        for (host, (_, _, core, _)) in self.hosts.iter_mut().enumerate() {
            core.rules.replicated.replica_mut().unwrap().set_members(id(host), members.clone());
        }
    }

    fn core(&mut self, host: usize) -> &mut Core {
        &mut self.hosts[host].2
    }

    /// Lets so many ms pass, in which all hear all others.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms / 100 {
            self.time += 100;
            let now = Now { wall: replicated::wall(), moment: Moment(self.time * 1_000_000) };
            let digests: Vec<_> = self
                .hosts
                .iter_mut()
                .map(|(_, _, core, _)| core.rules.replicated.replica_mut().unwrap().digest())
                .collect();
            let mut packets = Vec::new();
            for (me, (name, _, core, _)) in self.hosts.iter_mut().enumerate() {
                for (host, digest) in digests.iter().enumerate() {
                    core.rules.replicated.replica_mut().unwrap().heard(now, id(host), *digest);
                }
                let sent = replicated::packets(&mut core.rules, now).unwrap();
                packets.extend(sent.into_iter().map(|(to, bytes)| (me, name.clone(), to, bytes)));
            }
            for (from, by, HostId(to), bytes) in packets {
                // What cannot be put in force is told by `status`.
                let rules = &mut self.hosts[to as usize - 1].2.rules;
                let _ = replicated::receive(rules, now, id(from), &by, &bytes);
            }
        }
    }

    /// The limits that the kernel has.
    fn limits(&self, host: usize) -> Vec<String> {
        let state = self.hosts[host].1.state();
        state.limits.iter().map(|l| format!("{} {}", l.target.short(), l.rate)).collect()
    }

    fn denied(&self, host: usize) -> usize {
        self.hosts[host].1.state().lists.len()
    }

    fn warnings(&self, host: usize) -> String {
        self.hosts[host].2.status().unwrap().warnings.join("\n")
    }
}

#[test]
fn a_limit_for_the_cluster_reaches_all_and_so_does_its_end() {
    let mut fleet = Fleet::new(&["a", "b", "c"]);
    let how = ChangeOptions::default();
    limits::set(&mut fleet.core(0).rules, &wide("default", "1000pps"), &how).unwrap();
    limits::set(&mut fleet.core(1).rules, &limit("192.0.2.1", "5pps"), &how).unwrap();
    fleet.pass(200);
    assert_eq!(fleet.limits(0), ["default 1000pps"]);
    assert_eq!(fleet.limits(1), ["default 1000pps", "192.0.2.1 5pps"], "local ones stay");
    assert_eq!(fleet.limits(2), ["default 1000pps"]);
    let report = &limits::list(&fleet.core(2).rules).limits[0];
    assert_eq!(
        (report.scope, report.partition),
        (model::Reach::Cluster, Some(Partition::Conservative))
    );
    // Who has done it is told.
    let told = fleet.core(2).rules.events.changes().changes;
    let by_a = |event: &Event| {
        matches!(&event.what, What::Policy { what, by: Some(by), .. }
            if what.contains("1000pps") && what.contains("cluster-wide") && by.user == "cluster: a")
    };
    assert!(told.iter().any(by_a), "{told:?}");
    // Another host changes it, and a third one removes it.
    limits::set(&mut fleet.core(2).rules, &wide("default", "9pps"), &how).unwrap();
    fleet.pass(200);
    assert_eq!((fleet.limits(0), fleet.limits(1).len()), (vec!["default 9pps".to_owned()], 2));
    limits::unset(&mut fleet.core(1).rules, &Target::DEFAULT, &how).unwrap();
    fleet.pass(200);
    assert!(fleet.limits(0).is_empty() && fleet.limits(2).is_empty());
    assert_eq!(fleet.limits(1), ["192.0.2.1 5pps"]);
    assert!(limits::unset(&mut fleet.core(0).rules, &Target::DEFAULT, &how).unwrap().is_none());
}

#[test]
fn a_local_limit_hides_that_of_the_cluster_until_it_is_removed() {
    let mut fleet = Fleet::new(&["a", "b"]);
    let how = ChangeOptions::default();
    limits::set(&mut fleet.core(1).rules, &limit("default", "7pps"), &how).unwrap();
    limits::set(&mut fleet.core(0).rules, &wide("default", "1000pps"), &how).unwrap();
    fleet.pass(200);
    assert_eq!(fleet.limits(1), ["default 7pps"]);
    limits::unset(&mut fleet.core(1).rules, &Target::DEFAULT, &how).unwrap();
    assert_eq!(fleet.limits(1), ["default 1000pps"], "the cluster's follows");
    // The other way round it is told.
    let warnings = limits::set(&mut fleet.core(0).rules, &limit("default", "8pps"), &how)
        .unwrap()
        .applied
        .warnings;
    assert!(warnings.iter().any(|text| text.contains("--scope cluster")), "{warnings:?}");
    fleet.pass(2000);
    assert_eq!(
        (fleet.limits(0), fleet.limits(1)),
        (vec!["default 8pps".into()], vec!["default 1000pps".into()])
    );
    // What changes meanwhile is in force when it comes to light.
    limits::set(&mut fleet.core(1).rules, &wide("default", "1001pps"), &how).unwrap();
    fleet.pass(200);
    let dry = ChangeOptions { dry_run: true, ..how };
    let diff = limits::unset(&mut fleet.core(0).rules, &Target::DEFAULT, &dry)
        .unwrap()
        .unwrap()
        .applied
        .dry_run
        .unwrap();
    assert_eq!((diff.changed.len(), diff.removed.len()), (1, 0));
    limits::unset(&mut fleet.core(0).rules, &Target::DEFAULT, &how).unwrap();
    assert_eq!(fleet.limits(0), ["default 1001pps"]);
}

#[test]
fn a_change_that_fails_changes_nothing_anywhere() {
    let mut fleet = Fleet::new(&["a", "b"]);
    let how = ChangeOptions::default();
    fleet.hosts[0].1.state().fail_publish = true;
    limits::set(&mut fleet.core(0).rules, &wide("default", "5pps"), &how).unwrap_err();
    fleet.hosts[0].1.state().fail_publish = false;
    fleet.pass(2000);
    assert!(fleet.limits(1).is_empty());
    assert_eq!(fleet.core(0).rules.replicated.replica().unwrap().report().live, 0);
    // Where another host cannot take it, that is told, and it comes again.
    limits::set(&mut fleet.core(0).rules, &wide("default", "5pps"), &how).unwrap();
    fleet.hosts[1].1.state().fail_publish = true;
    fleet.pass(300);
    assert!(fleet.warnings(1).contains("cannot be put in force"), "{}", fleet.warnings(1));
    fleet.hosts[1].1.state().fail_publish = false;
    fleet.pass(10_000);
    assert_eq!(fleet.limits(1), ["default 5pps"]);
    assert!(!fleet.warnings(1).contains("cannot be put in force"));
}

#[test]
fn what_waits_to_be_confirmed_is_reverted_everywhere() {
    let mut fleet = Fleet::new(&["a", "b"]);
    let how = ChangeOptions::default();
    limits::set(&mut fleet.core(0).rules, &wide("default", "1000pps"), &how).unwrap();
    fleet.pass(200);
    let confirm = ChangeOptions { confirm: Some(Duration::from_secs(60)), ..how };
    limits::set(&mut fleet.core(0).rules, &wide("default", "1pps"), &confirm).unwrap();
    fleet.pass(200);
    assert_eq!(fleet.limits(1), ["default 1pps"]);
    // Meanwhile what others say waits.
    limits::set(&mut fleet.core(1).rules, &wide("192.0.2.1", "2pps"), &how).unwrap();
    fleet.pass(200);
    assert_eq!(fleet.limits(0), ["default 1pps"]);
    confirm::abort(&mut fleet.core(0).rules).unwrap();
    fleet.pass(10_000);
    for host in [0, 1] {
        assert_eq!(fleet.limits(host), ["default 1000pps", "192.0.2.1 2pps"], "{host}");
    }
}

#[test]
fn the_cluster_is_remembered_over_a_restart_and_without_it() {
    let mut fleet = Fleet::new(&["a", "b"]);
    let how = ChangeOptions::default();
    limits::set(&mut fleet.core(0).rules, &wide("default", "1000pps"), &how).unwrap();
    limits::set(&mut fleet.core(0).rules, &wide("192.0.2.1", "5pps"), &how).unwrap();
    limits::unset(&mut fleet.core(0).rules, &"192.0.2.1".parse().unwrap(), &how).unwrap();
    fleet.pass(200);
    let digest = fleet.core(0).rules.replicated.replica_mut().unwrap().digest();
    // Without [cluster] for a while.
    let (_, fake, core, directory) = fleet.hosts.remove(1);
    drop(core);
    let mut core = fake.core(&directory);
    replicated::settle(&mut core.rules).unwrap();
    core.rules.enforce().unwrap();
    let told = core.status().unwrap().warnings.join("\n");
    assert!(told.contains("1 limits are for the cluster, but this daemon is in none"), "{told}");
    let failure = limits::set(&mut core.rules, &wide("default", "3pps"), &how).unwrap_err();
    assert!(failure.code == exit::USAGE && failure.hint.unwrap().contains("[cluster]"));
    limits::set(&mut core.rules, &limit("default", "3pps"), &how).unwrap();
    limits::unset(&mut core.rules, &Target::DEFAULT, &how).unwrap();
    assert!(fake.state().limits.is_empty());
    drop(core);
    // And back again.
    let mut core = fake.core(&directory);
    join(&mut core, "b");
    replicated::settle(&mut core.rules).unwrap();
    core.rules.enforce().unwrap();
    assert_eq!(core.rules.replicated.replica_mut().unwrap().digest(), digest);
    assert_eq!(fake.state().limits, [wide("default", "1000pps")]);
}

#[test]
fn denials_of_the_cluster_reach_all_and_end_everywhere() {
    let mut fleet = Fleet::new(&["a", "b"]);
    let (how, nets) = (ChangeOptions::default(), |text: &str| vec![text.parse().unwrap()]);
    let listing = Listing::new(Action::Deny, None, Some("scanner".into())).unwrap();
    let everywhere = Listing { cluster: true, ..listing.clone() };
    let wide =
        lists::add(&mut fleet.core(0).rules, &nets("0.0.0.0/0"), &everywhere, &how).unwrap_err();
    assert_eq!(wide.code, exit::USAGE);
    lists::add(&mut fleet.core(0).rules, &nets("198.51.100.0/24"), &everywhere, &how).unwrap();
    lists::add(&mut fleet.core(0).rules, &nets("192.0.2.1/32"), &listing, &how).unwrap();
    fleet.pass(200);
    assert_eq!((fleet.denied(0), fleet.denied(1)), (2, 1));
    // One that a host lets through by itself stays let through.
    let allowed = Listing::new(Action::Allow, None, None).unwrap();
    lists::add(&mut fleet.core(1).rules, &nets("203.0.113.7/32"), &allowed, &how).unwrap();
    lists::add(&mut fleet.core(0).rules, &nets("203.0.113.7/32"), &everywhere, &how).unwrap();
    fleet.pass(200);
    let lists = fleet.hosts[1].1.state().lists.clone();
    assert_eq!(lists.get(&"203.0.113.7/32".parse().unwrap()).unwrap().action, Action::Allow);
    // Once it does not any more, the cluster's follows.
    lists::remove(&mut fleet.core(1).rules, Action::Allow, &nets("203.0.113.7/32"), &how).unwrap();
    let lists = fleet.hosts[1].1.state().lists.clone();
    assert_eq!(lists.get(&"203.0.113.7/32".parse().unwrap()).unwrap().action, Action::Deny);
    lists::remove(&mut fleet.core(1).rules, Action::Deny, &nets("198.51.100.0/24"), &how).unwrap();
    fleet.pass(200);
    assert_eq!((fleet.denied(0), fleet.denied(1)), (2, 1));
}

#[test]
fn what_does_not_fit_a_host_is_told_there_and_in_force_elsewhere() {
    let mut fleet = Fleet::new(&["a", "b"]);
    let how = ChangeOptions::default();
    fleet.core(1).rules.protect(&["192.0.2.0/24".parse().unwrap()]);
    limits::set(&mut fleet.core(1).rules, &limit("default *:50-60", "5pps"), &how).unwrap();
    limits::set(&mut fleet.core(0).rules, &wide("192.0.2.1", "5pps"), &how).unwrap();
    limits::set(&mut fleet.core(0).rules, &wide("default *:55-65", "5pps"), &how).unwrap();
    limits::set(&mut fleet.core(0).rules, &wide("default", "5pps"), &how).unwrap();
    fleet.pass(200);
    assert_eq!(fleet.limits(0).len(), 3);
    assert_eq!(fleet.limits(1), ["default 5pps", "default *:50-60 5pps"]);
    assert!(fleet.warnings(1).contains("2 limits of the cluster are not in force here"));
    limits::unset(&mut fleet.core(0).rules, &"192.0.2.1".parse().unwrap(), &how).unwrap();
    limits::unset(&mut fleet.core(0).rules, &"default *:55-65".parse().unwrap(), &how).unwrap();
    fleet.pass(200);
    assert!(!fleet.warnings(1).contains("not in force here"), "{}", fleet.warnings(1));
}

#[test]
fn the_limit_of_a_descriptor_reaches_all_and_a_local_one_hides_it() {
    let mut fleet = Fleet::new(&["a", "b"]);
    let how = ChangeOptions::default();
    let user = Descriptor::new("api", [("user", "1")]).unwrap();
    let limit = |rate: &str, cluster| {
        let limit = model::meter::Limit::of_rate(rate).unwrap();
        vec![(user.clone(), Some(Override::new(limit, None, cluster).unwrap()))]
    };
    let rates = |fleet: &mut Fleet| {
        [0, 1].map(|host| {
            let all = overrides::list(&fleet.core(host).rules, None).overrides;
            all.iter().map(|it| it.limit.to_string()).collect::<Vec<_>>().join(", ")
        })
    };
    overrides::set(&mut fleet.core(0).rules, &limit("5/second", true), &how).unwrap();
    let mut follower = overrides::follow(&fleet.core(1).rules);
    fleet.pass(200);
    assert_eq!(rates(&mut fleet), ["5/second", "5/second"]);
    assert_eq!(follower.try_recv().unwrap().len(), 1);
    overrides::set(&mut fleet.core(1).rules, &limit("7/second", false), &how).unwrap();
    overrides::set(&mut fleet.core(0).rules, &limit("6/second", true), &how).unwrap();
    fleet.pass(200);
    assert_eq!(rates(&mut fleet), ["6/second", "7/second"]);
    overrides::unset(&mut fleet.core(1).rules, vec![user.clone()], &how).unwrap();
    assert_eq!(rates(&mut fleet), ["6/second", "6/second"]);
    overrides::unset(&mut fleet.core(1).rules, vec![user], &how).unwrap();
    fleet.pass(200);
    assert_eq!(rates(&mut fleet), ["", ""]);
}
