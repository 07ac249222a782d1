//! Who founds a cluster, and who does not: by an act, once, and never because something was lost.

use std::{fs, net::Ipv4Addr, thread::sleep, time::Duration};

use serde_json::Value;
use tests::{Fleet, cli::Answer, hosts::Hosts, process::wait_for, sender::Sending};

const SOURCE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const RATE: f64 = 3000.0;
const BURST: f64 = 300.0;
const FLOOD: f64 = 4000.0;
const TIMEOUT: Duration = Duration::from_secs(60);
const NO_CLUSTER: &str = "this host belongs to no cluster yet";
const OTHER_CLUSTER: &str = "another cluster with the same key";

fn status(hosts: &Hosts, host: usize) -> Answer {
    hosts.daemons[host].cli().run(&["status"])
}

fn says(answer: &Answer, what: &str) -> bool {
    answer.json["warnings"].to_string().contains(what)
}

/// Waits until `status` is degraded and says this.
fn wait_degraded(hosts: &Hosts, host: usize, what: &str) -> Answer {
    wait_for(format!("edge-{} to say: {what}", host + 1), TIMEOUT, || {
        let status = status(hosts, host);
        (status.code == 1 && status.json["state"] == "degraded" && says(&status, what))
            .then_some(status)
    })
}

fn wait_well(hosts: &Hosts, host: usize) {
    wait_for(format!("edge-{} to be well", host + 1), TIMEOUT, || {
        let status = status(hosts, host);
        (status.code == 0 && !says(&status, NO_CLUSTER) && !says(&status, OTHER_CLUSTER))
            .then_some(())
    });
}

fn cluster(hosts: &Hosts, host: usize) -> Option<String> {
    hosts.status(host)["cluster"].as_str().map(str::to_owned)
}

fn set_limit(hosts: &Hosts, hosts_with_it: &[usize]) {
    let set = ["limit", "set", "3000pps", "--burst", "300", "--scope", "cluster"];
    hosts.daemons[1].cli().ok(&set);
    hosts.wait_limit(hosts_with_it, "3000pps");
}

/// Floods all hosts for some seconds: what all admit is one limit, which is used by so much.
fn assert_one_limit(hosts: &Hosts, what: &str, used: f64) {
    let watch = hosts.watch(SOURCE);
    let sending: Vec<_> =
        (0..hosts.daemons.len()).map(|host| hosts.send(host, SOURCE, FLOOD)).collect();
    sleep(Duration::from_secs(8));
    drop(Sending::stop_all(sending));
    let admitted = watch.stop();
    admitted.print(8);
    admitted.assert_kept(what, RATE, BURST);
    let part = admitted.utilisation(RATE, 3.0, 8.0);
    println!("{what}: {part:.3} of the limit is used");
    assert!(part >= used, "{what}: {part}");
}

/// Ends the daemon of a host and takes its state directory.
fn lose_state(hosts: &mut Hosts, host: usize) {
    hosts.kill(host);
    fs::remove_dir_all(hosts.daemons[host].state_folder()).expect("the state directory goes");
}

/// Gives what the former ledger of edge-1 had to all: nothing can use it.
fn forget_former_edge_1(hosts: &Hosts) {
    let cli = hosts.daemons[1].cli();
    for (name, why) in [("edge-9", "no lost host is called edge-9"), ("edge-3", "edge-3 is there")]
    {
        let refused = cli.run(&["cluster", "forget", name]);
        assert!(refused.code == 1 && refused.stderr.contains(why), "{refused:?}");
    }
    let forget = ["cluster", "forget", "edge-1", "--now"];
    let asked = cli.run(&forget);
    println!("{}", asked.stderr);
    assert_eq!(asked.code, 1, "{asked:?}");
    for text in ["if edge-1 is still up, 33.", "% more than each limit", "--yes"] {
        assert!(asked.stderr.contains(text), "{asked:?}");
    }
    let forgotten = cli.ok(&[&forget[..], &["--yes"]].concat());
    println!("{forgotten}");
    assert!(forgotten["done"] == true && forgotten["name"] == "edge-1", "{forgotten}");
}

#[test]
fn a_founder_that_lost_its_state_joins_the_others() {
    let mut hosts = Hosts::start(3, &[]);
    let all = [0, 1, 2];
    set_limit(&hosts, &all);
    hosts.wait_even(&all);
    hosts.wait_counted(&all);
    // Nobody votes about a lost host that was not heard since then.
    sleep(Duration::from_secs(1));
    let founded = cluster(&hosts, 1);
    lose_state(&mut hosts, 0);
    // While nobody answers it waits. It has no seeds.
    hosts.fleet.connect(0, false);
    hosts.restart(0);
    let waiting = wait_degraded(&hosts, 0, NO_CLUSTER);
    assert!(says(&waiting, "limiter cluster init"), "{waiting:?}");
    sleep(Duration::from_secs(3));
    assert!(hosts.home(0) <= 0.0 && cluster(&hosts, 0).is_none(), "{}", hosts.status(0));
    // Others have it as their seed.
    hosts.fleet.connect(0, true);
    hosts.wait_members(&all, 3);
    wait_for("the limit of the others", TIMEOUT, || {
        (hosts.daemons[0].cli().ok(&["limit", "list"])["limits"][0]["rate"] == "3000pps")
            .then_some(())
    });
    assert_eq!(cluster(&hosts, 0), founded);
    let homes = all.map(|host| hosts.home(host));
    println!("home shares: {homes:.3?}");
    assert!(homes.iter().sum::<f64>() <= 0.67, "{homes:?}");
    // The two others are a majority.
    assert_one_limit(&hosts, "a founder that lost its state", 0.9);
    for host in all {
        wait_for("what lies idle", TIMEOUT, || {
            says(&status(&hosts, host), "of each limit of the cluster belongs to no host")
                .then_some(())
        });
    }
    // It would be a second one.
    let refused = hosts.daemons[0].cli().run(&["cluster", "init"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains(&founded.expect("a cluster")), "{refused:?}");
    forget_former_edge_1(&hosts);
    hosts.wait_even(&all);
    assert_one_limit(&hosts, "a ledger that was forgotten", 0.9);
    // It takes its part of what another one gives, with a new ledger that nobody remembers.
    hosts.daemons[2].cli().ok(&["cluster", "leave"]);
    wait_for("a part of that", TIMEOUT, || (hosts.home(0) > 0.1).then_some(()));
    hosts.daemons[0].cli().ok(&["cluster", "leave"]);
    wait_for("all that it gave", TIMEOUT, || (hosts.home(1) > 0.66).then_some(()));
}

#[test]
fn two_clusters_with_one_key_are_told_and_become_one() {
    // A seed that is nowhere.
    let mut hosts = Hosts::start_apart(2, &[199], &[]);
    for host in [0, 1] {
        let waiting = wait_degraded(&hosts, host, NO_CLUSTER);
        assert!(says(&waiting, "limiter cluster init"), "{waiting:?}");
        assert!(hosts.home(host) <= 0.0, "{}", hosts.status(host));
    }
    for host in [0, 1] {
        let founded = hosts.daemons[host].cli().ok(&["cluster", "init"]);
        assert_eq!(founded["cluster"].as_str().map(str::to_owned), cluster(&hosts, host));
        wait_well(&hosts, host);
        assert!((hosts.home(host) - 1.0).abs() < 1e-9, "{}", hosts.status(host));
        // Not a second time, not even after a restart.
        let again = hosts.daemons[host].cli().run(&["cluster", "init"]);
        let id = cluster(&hosts, host).expect("a cluster");
        assert!(again.code == 1 && again.stderr.contains(&id), "{again:?}");
    }
    let first = cluster(&hosts, 0).expect("a cluster");
    assert_ne!(Some(&first), cluster(&hosts, 1).as_ref());
    assert_eq!(hosts.daemons[1].terminate().code(), Some(0));
    let seed = format!("{}:7700", Fleet::address(0));
    hosts.daemons[1].restart_with(&hosts.fleet.hosts[1], "--cluster-seeds", &seed);
    for host in [0, 1] {
        let told = wait_degraded(&hosts, host, OTHER_CLUSTER);
        let other = format!("edge-{} at {}:7700", 2 - host, Fleet::address(1 - host));
        assert!(says(&told, &other) && says(&told, "limiter cluster leave"), "{told:?}");
        let peers = hosts.daemons[host].cli().run(&["peers"]);
        assert_eq!(peers.code, 1, "{peers:?}");
        assert!(says(&peers, OTHER_CLUSTER) && says(&peers, &other), "{peers:?}");
        let clusters: Vec<_> =
            peers.json["other_clusters"].as_array().into_iter().flatten().collect();
        assert_eq!(
            clusters[0]["address"],
            Value::from(format!("{}:7700", Fleet::address(1 - host)))
        );
    }
    // As it says.
    assert_eq!(hosts.daemons[1].cli().ok(&["cluster", "leave"])["disbanded"], true);
    assert_eq!(hosts.daemons[1].terminate().code(), Some(0));
    hosts.restart(1);
    hosts.wait_members(&[0, 1], 2);
    hosts.wait_even(&[0, 1]);
    for host in [0, 1] {
        wait_well(&hosts, host);
        assert_eq!(cluster(&hosts, host).as_ref(), Some(&first));
    }
}

#[test]
fn hosts_with_one_configuration_found_one_cluster() {
    let all = [0, 1, 2];
    let mut hosts = Hosts::start_apart(2, &all, &["--cluster-bootstrap-expect", "3"]);
    // Two of three wait.
    for host in [0, 1] {
        wait_degraded(&hosts, host, "it sees 2 of the 3 hosts");
    }
    hosts.start_one(&all, &["--cluster-bootstrap-expect", "3"]);
    hosts.wait_members(&all, 3);
    set_limit(&hosts, &all);
    hosts.wait_even(&all);
    let founded = cluster(&hosts, 0);
    for host in all {
        wait_well(&hosts, host);
        assert_eq!(cluster(&hosts, host), founded);
    }
    let founders = all.iter().filter(|&&host| hosts.log(host).contains("has founded the cluster"));
    assert_eq!(founders.count(), 1);
    assert_one_limit(&hosts, "founded together", 0.9);
    // Who keeps to the limit loses nothing, once that is divided for it.
    let conforming = Ipv4Addr::new(198, 51, 100, 8);
    let watch = hosts.watch(conforming);
    let sending: Vec<_> = all.map(|host| hosts.send(host, conforming, 300.0)).into();
    sleep(Duration::from_secs(5));
    drop(Sending::stop_all(sending));
    let passed = watch.stop().utilisation(900.0, 2.0, 4.5);
    println!("{passed:.3} of what a conforming source sends passes");
    assert!(passed > 0.99, "{passed}");
    // One that has lost its state sees the others, and founds nothing.
    lose_state(&mut hosts, 1);
    hosts.restart(1);
    hosts.wait_members(&all, 3);
    wait_for("the same cluster", TIMEOUT, || (cluster(&hosts, 1) == founded).then_some(()));
    hosts.wait_limit(&all, "3000pps");
    let homes = all.map(|host| hosts.home(host));
    assert!(homes.iter().sum::<f64>() <= 1.0 + 1e-9, "{homes:?}");
    assert_one_limit(&hosts, "one has lost its state", 0.3);
}
