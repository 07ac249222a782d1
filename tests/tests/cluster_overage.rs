//! Mistakes that would let a limit of a cluster be exceeded: a host is renamed, or its state directory is put
//! back to what it was before it had given shares away. They have to be told, and the limit kept.

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
        (hosts.kept(0)["state"]["home"].as_u64()? > 0).then(|| fs::read(&file).expect("the file"))
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
    // It has been given everything back, and gives up what others have of that.
    let watch = hosts.watch(SOURCE);
    let sending: Vec<_> = all.map(|host| hosts.send(host, SOURCE, 4000.0)).into();
    hosts.wait_even(&all);
    let homes: f64 = all.iter().map(|&host| hosts.home(host)).sum();
    println!("home shares of all hosts: {homes:.3}");
    assert!((0.99..1.001).contains(&homes), "{homes}");
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
    // All of it is in use again.
    assert!(admitted.busiest() as f64 > 0.95 * RATE, "{} of {RATE}", admitted.busiest());
}

#[test]
fn a_host_with_shares_keeps_its_name_until_it_has_left() {
    let mut hosts = Hosts::start(1, &[]);
    hosts.join(&[]);
    hosts.join(&[]);
    let all = [0, 1, 2];
    hosts.wait_members(&all, 3);
    hosts.wait_even(&all);
    assert_eq!(hosts.daemons[1].terminate().code(), Some(0));
    hosts.daemons[1].restart_with(&hosts.fleet.hosts[1], "--cluster-name", "renamed");
    hosts.wait_members(&all, 3);
    hosts.wait_even(&all);
    let told = wait_for("status to tell of the name", TIMEOUT, || {
        let told = hosts.daemons[1].cli().run(&["status"]).json["warnings"].to_string();
        told.contains("not renamed").then_some(told)
    });
    assert!(told.contains("still called edge-2 in its cluster"), "{told}");
    assert_eq!(hosts.kept(1)["state"]["name"], "edge-2");

    hosts.daemons[1].cli().ok(&["cluster", "leave"]);
    assert_eq!(hosts.daemons[1].terminate().code(), Some(0));
    hosts.daemons[1].restart(&hosts.fleet.hosts[1]);
    hosts.wait_members(&all, 3);
    hosts.wait_even(&all);
    assert_eq!(hosts.kept(1)["state"]["name"], "renamed");
    let homes: f64 = all.iter().map(|&host| hosts.home(host)).sum();
    assert!((0.99..1.001).contains(&homes), "{homes}");
}
