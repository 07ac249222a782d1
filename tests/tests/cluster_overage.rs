//! What would let a limit of a cluster be exceeded if shares went by names, and mistakes that would: a host is
//! renamed, its state directory is copied, or put back to what it was before it had given shares away. Mistakes have to
//! be told, and the limit kept.

use std::{fs, net::Ipv4Addr, thread, time::Duration};

use serde_json::Value;
use tests::{api, hosts::Hosts, process::wait_for, sender::Sending};

const SOURCE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const RATE: f64 = 3000.0;
const TIMEOUT: Duration = Duration::from_secs(60);

/// The value of a sample of the limit of all sources.
fn metric(hosts: &Hosts, host: usize, name: &str) -> Option<f64> {
    let (_, metrics) = api::get(&hosts.daemons[host].socket(), "/metrics", "text/plain");
    let start = format!("{name}{{limit=\"default\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&start))?;
    Some(line.parse().expect("a number"))
}

fn warns(report: &Value) -> bool {
    report["warnings"].to_string().contains("of the limit for default through")
}

#[test]
fn a_state_directory_that_goes_back_is_told_and_the_limit_kept() {
    let mut hosts = Hosts::start(1, &[]);
    let file = hosts.daemons[0].state_folder().join("cluster.json");
    let whole = wait_for("the founder to have all shares", TIMEOUT, || {
        (hosts.kept(0)["state"]["shares"]["home"].as_u64()? > 0)
            .then(|| fs::read(&file).expect("the file"))
    });
    hosts.join(&[]);
    hosts.join(&[]);
    let all = [0, 1, 2];
    hosts.wait_members(&all, 3);
    hosts.daemons[1].cli().ok(&["limit", "set", "3000pps", "--burst", "300", "--scope", "cluster"]);
    hosts.wait_limit(&all, "3000pps");
    hosts.wait_even(&all);

    // As long as nothing is wrong none of it is told.
    let watch = hosts.watch(SOURCE);
    let sending: Vec<_> = all.map(|host| hosts.send(host, SOURCE, 4000.0)).into();
    wait_for("the limit to be judged", TIMEOUT, || {
        let ratio = metric(&hosts, 2, "limiter_cluster_overage_ratio")?;
        assert!(ratio <= 1.02, "{ratio} of the limit");
        // It is counted so that it never says too much: all of the limit may be three quarters of that.
        (ratio > 0.7).then_some(())
    });
    let status = hosts.daemons[2].cli().run(&["status"]);
    assert!(status.code == 0 && !warns(&status.json), "{status:?}");
    drop(Sending::stop_all(sending));
    watch.stop().assert_kept("before", RATE, 300.0);

    hosts.kill(0);
    fs::write(&file, whole).expect("the file can be written");
    hosts.restart(0);
    hosts.wait_members(&all, 3);
    // It has been given everything back. All shares have been counted since, so it has none of that, and what it had
    // is used by votes alone for a home lease.
    let watch = hosts.watch(SOURCE);
    let sending: Vec<_> = all.map(|host| hosts.send(host, SOURCE, 4000.0)).into();
    let homes = wait_for("the host to give up what it had", TIMEOUT, || {
        let homes: f64 = all.iter().map(|&host| hosts.home(host)).sum();
        (homes < 0.7).then_some(homes)
    });
    println!("home shares of all hosts: {homes:.3}");
    assert!((0.66..0.67).contains(&homes), "{homes}");
    let status = wait_for("status to tell of it", TIMEOUT, || {
        let status = hosts.daemons[0].cli().run(&["status"]);
        status.json["warnings"]
            .to_string()
            .contains("went back to an earlier copy")
            .then_some(status)
    });
    assert_eq!((status.code, &status.json["state"]), (1, &"degraded".into()), "{status:?}");
    thread::sleep(Duration::from_secs(10));
    for host in all {
        let ratio = metric(&hosts, host, "limiter_cluster_overage_ratio");
        assert!(ratio.is_none_or(|ratio| ratio <= 1.02), "{ratio:?} of the limit");
        let status = hosts.daemons[host].cli().run(&["status"]);
        assert!(!warns(&status.json), "{status:?}");
    }
    drop(Sending::stop_all(sending));
    let admitted = watch.stop();
    admitted.assert_kept("after", RATE, 300.0);
    // The others go on.
    assert!(admitted.busiest() as f64 > 0.43 * RATE, "{} of {RATE}", admitted.busiest());
}

#[test]
fn a_host_that_is_renamed_keeps_its_shares() {
    let mut hosts = Hosts::start(1, &[]);
    hosts.join(&[]);
    hosts.join(&[]);
    let all = [0, 1, 2];
    hosts.wait_members(&all, 3);
    hosts.wait_even(&all);
    let ledger = |hosts: &Hosts| hosts.kept(1)["state"]["ledger"].as_u64().expect("a number");
    let (before, home) = (ledger(&hosts), hosts.home(1));
    assert_eq!(hosts.daemons[1].terminate().code(), Some(0));
    hosts.daemons[1].restart_with(&hosts.fleet.hosts[1], "--cluster-name", "renamed");
    hosts.wait_members(&all, 3);
    let part = hosts.home(1);
    assert!((part - home).abs() < 0.01, "{home} before and {part} after");
    assert_eq!(ledger(&hosts), before);
    assert_eq!(hosts.status(1)["name"], "renamed");
    let peers = hosts.daemons[0].cli().ok(&["peers"]);
    let peer = |id: &str| {
        let peers = peers["peers"].as_array().expect("a list").iter();
        peers.filter(|peer| peer["id"] == id).map(|peer| peer["host"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(peer(&format!("{before:016x}")), ["renamed"], "{peers}");
    assert_eq!(peers["peers"].as_array().map(Vec::len), Some(3), "{peers}");
    let homes: f64 = all.iter().map(|&host| hosts.home(host)).sum();
    assert!((0.99..1.001).contains(&homes), "{homes}");
    for host in all {
        let status = hosts.daemons[host].cli().run(&["status"]);
        assert!(!status.json["warnings"].to_string().contains("lost hosts"), "{status:?}");
    }
}

fn wait_told(hosts: &Hosts, host: usize, what: &str) {
    wait_for(format!("edge-{} to say: {what}", host + 1), TIMEOUT, || {
        let status = hosts.daemons[host].cli().run(&["status"]);
        status.json["warnings"].to_string().contains(what).then_some(())
    });
}

#[test]
fn of_two_hosts_with_one_ledger_the_later_has_no_part() {
    let mut hosts = Hosts::start(3, &[]);
    let all = [0, 1, 2];
    hosts.wait_even(&all);
    hosts.daemons[2].cli().ok(&["cluster", "leave"]);
    assert_eq!(hosts.daemons[2].terminate().code(), Some(0));
    let file = |hosts: &Hosts, host: usize| hosts.daemons[host].state_folder().join("cluster.json");
    fs::copy(file(&hosts, 0), file(&hosts, 2)).expect("a copy");
    hosts.restart(2);
    for host in all {
        wait_told(&hosts, host, "has the share ledger of edge-1 at ");
    }
    wait_for("the copy to be degraded", TIMEOUT, || {
        (hosts.daemons[2].cli().run(&["status"]).json["state"] == "degraded").then_some(())
    });
    assert!(hosts.log(2).contains("edge-3 at 10.99.0.3:7700 has the share ledger of edge-1"));
    hosts.wait_members(&[0, 1], 2);
    // What the warning says helps.
    assert!(hosts.daemons[2].terminate().success());
    fs::remove_file(file(&hosts, 2)).expect("the copy goes");
    hosts.restart(2);
    hosts.wait_members(&all, 3);
    hosts.wait_even(&all);
}

#[test]
fn two_hosts_with_one_name_both_have_a_part_and_are_told_of() {
    let mut hosts = Hosts::start(2, &[]);
    hosts.join_as("edge-1", &[]);
    let all = [0, 1, 2];
    hosts.wait_members(&all, 3);
    hosts.wait_even(&all);
    for host in all {
        wait_told(&hosts, host, "2 hosts are called edge-1, at ");
    }
    let distinct = hosts.daemons[1].cli().ok(&["peers"])["distinct"].to_string();
    assert!(distinct.contains("edge-1 at ") && distinct.contains("\"edge-2\""), "{distinct}");
}
