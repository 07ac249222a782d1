//! What hosts of a cluster have to have alike, and what they say where they have not.

use std::{fs, path::Path, time::Duration};

use serde_json::Value;
use tests::{Fleet, cli::Answer, hosts::Hosts, process::wait_for};

const TIMEOUT: Duration = Duration::from_secs(60);

fn says(answer: &Answer, what: &str) -> bool {
    answer.json["warnings"].to_string().contains(what)
}

/// Waits until `status` is degraded and says all of this.
fn wait_degraded(hosts: &Hosts, host: usize, what: &[&str]) {
    wait_for(format!("edge-{} to say {what:?}", host + 1), TIMEOUT, || {
        let status = hosts.daemons[host].cli().run(&["status"]);
        let told = what.iter().all(|what| says(&status, what));
        (told && status.code == 1 && status.json["state"] == "degraded").then_some(())
    });
}

fn wait_well(hosts: &Hosts, hosts_of: &[usize]) {
    for &host in hosts_of {
        let mut last = Value::Null;
        wait_for(format!("edge-{} to be well", host + 1), TIMEOUT, || {
            let status = hosts.daemons[host].cli().run(&["status"]);
            if status.json["warnings"] != last {
                eprintln!("  edge-{}: {}", host + 1, status.json["warnings"]);
                last = status.json["warnings"].clone();
            }
            (status.code == 0).then_some(())
        });
    }
}

#[test]
fn hosts_with_other_source_prefixes_refuse_each_other() {
    let mut hosts = Hosts::start(1, &["--ipv6-prefix", "64"]);
    hosts.join(&["--ipv6-prefix", "56"]);
    for (host, values) in [(0, "/64 here and /56 there"), (1, "/56 here and /64 there")] {
        let other = format!("edge-{} at {}:7700 is refused", 2 - host, Fleet::address(1 - host));
        wait_degraded(&hosts, host, &[&other, "ipv6_prefix is", values]);
        let peers = hosts.daemons[host].cli().run(&["peers"]);
        assert!(says(&peers, &other) && says(&peers, values), "{peers:?}");
        let list = peers.json["peers"].as_array().cloned().unwrap_or_default();
        assert_eq!(list.len(), 1, "{peers:?}");
        let refused = list[0]["details"]["refused"].as_array().cloned().unwrap_or_default();
        assert!(refused.iter().any(|it| it["reason"] == "disagreement"), "{refused:?}");
    }
    assert!(hosts.home(0) > 0.999 && hosts.home(1) <= 0.0, "{}", hosts.status(1));
    assert_eq!(hosts.daemons[1].terminate().code(), Some(0));
    // Buckets of other sources are of no use.
    fs::remove_dir_all(hosts.daemons[1].pins()).expect("the maps go");
    hosts.daemons[1].restart_with(&hosts.fleet.hosts[1], "--ipv6-prefix", "64");
    hosts.wait_members(&[0, 1], 2);
    hosts.wait_even(&[0, 1]);
    wait_well(&hosts, &[0, 1]);
}

const LIMIT: &str =
    "[[limit]]\nfor = \"198.51.0.0/16\"\nrate = \"200pps\"\nburst = 200\nscope = \"cluster\"\n";

fn limits_same(hosts: &Hosts, host: usize) -> (i32, bool) {
    let peers = hosts.daemons[host].cli().run(&["peers"]);
    (peers.code, peers.json["limits_same"] == true)
}

#[test]
fn a_limit_that_one_file_lacks_is_named_on_both_hosts() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let [with, changed] = ["with.toml", "changed.toml"].map(|name| home.path().join(name));
    let write = |file: &Path, text: &str| fs::write(file, text).expect("the file can be written");
    let other = "[[limit]]\nfor = \"203.0.113.0/24\"\nrate = \"1000pps\"\n";
    write(&with, LIMIT);
    write(&changed, other);
    let path = |file: &Path| file.display().to_string();
    let mut hosts = Hosts::start_apart(1, &[0, 1], &["--config", &path(&with)]);
    hosts.daemons[0].cli().ok(&["cluster", "init"]);
    hosts.start_one(&[0, 1], &["--config", &path(&changed)]);
    hosts.wait_members(&[0, 1], 2);
    let target = "the limit of the cluster for 198.51.0.0/16";
    wait_degraded(&hosts, 0, &[target, "200pps burst 200", "none on edge-2"]);
    wait_degraded(&hosts, 1, &[target, "none here", "on edge-1"]);
    assert_eq!([limits_same(&hosts, 0), limits_same(&hosts, 1)], [(1, false); 2]);
    // Limits of their own may differ; one that is there with other words is named with both.
    write(&changed, &format!("{other}{}", LIMIT.replace("200pps", "300pps")));
    hosts.daemons[1].cli().ok(&["reload"]);
    wait_degraded(&hosts, 0, &[target, "200pps burst 200", "300pps burst 200"]);
    wait_degraded(&hosts, 1, &[target, "200pps burst 200", "300pps burst 200"]);
    write(&changed, &format!("{other}{LIMIT}"));
    hosts.daemons[1].cli().ok(&["reload"]);
    wait_well(&hosts, &[0, 1]);
    assert_eq!([limits_same(&hosts, 0), limits_same(&hosts, 1)], [(0, true); 2]);
}
