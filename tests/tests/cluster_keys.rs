//! The key of a cluster is changed: under load, across restarts, and with a host that was away.

use std::{fs, net::Ipv4Addr, os::unix::fs::PermissionsExt, thread::sleep, time::Duration};

use serde_json::{Value, json};
use tests::{hosts::Hosts, process, sender::Sending};

const SOURCE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const RATE: f64 = 3000.0;
const BURST: f64 = 300.0;
const TIMEOUT: Duration = Duration::from_secs(60);

fn seconds(seconds: f64) {
    sleep(Duration::from_secs_f64(seconds));
}

fn keys(hosts: &Hosts, host: usize) -> Value {
    hosts.daemons[host].cli().ok(&["cluster", "key", "status"])
}

/// Waits until these hosts have only one key left, and returns it in short.
fn one_key(hosts: &Hosts, of: &[usize], number: u64) -> String {
    process::wait_for("one key on all hosts", TIMEOUT, || {
        let keys: Vec<Value> = of.iter().map(|&host| keys(hosts, host)).collect();
        let done = |keys: &Value| keys["stage"] == "forgotten" && keys["number"] == number;
        let same = keys.iter().all(|other| other["sealing"] == keys[0]["sealing"]);
        (keys.iter().all(done) && same)
            .then(|| keys[0]["sealing"].as_str().unwrap_or("").to_owned())
    })
}

#[test]
fn a_key_is_changed_under_load_without_a_lapse() {
    let hosts = Hosts::start(3, &[]);
    let all = [0, 1, 2];
    hosts.daemons[1].cli().ok(&["limit", "set", "3000pps", "--burst", "300", "--scope", "cluster"]);
    hosts.wait_limit(&all, "3000pps");
    let before = keys(&hosts, 0);
    assert_eq!((&before["number"], &before["accepted"]), (&json!(0), &Value::Null));
    let watch = hosts.watch(SOURCE);
    let sending: Vec<_> = all.iter().map(|&host| hosts.send(host, SOURCE, 5000.0)).collect();
    seconds(5.0);
    let started = std::time::Instant::now();
    let answer = hosts.daemons[2].cli().run(&["cluster", "key", "rotate"]);
    println!("the new key is used after {:.2} s", started.elapsed().as_secs_f64());
    assert_eq!(answer.code, 0, "{answer:?}");
    assert_eq!((&answer.json["number"], &answer.json["stage"]), (&json!(1), &json!("using")));
    let again = hosts.daemons[1].cli().run(&["cluster", "key", "rotate"]);
    assert_eq!(again.code, 1, "there is one under way: {again:?}");
    let new = one_key(&hosts, &all, 1);
    println!("the old key is forgotten after {:.2} s", started.elapsed().as_secs_f64());
    assert_ne!(new, before["sealing"], "another key");
    seconds(2.0);
    let end = 5.0 + started.elapsed().as_secs_f64();
    drop(Sending::stop_all(sending));
    let admitted = watch.stop();
    admitted.assert_kept("a rotation", RATE, BURST);
    let usual = admitted.utilisation(RATE, 2.0, 5.0);
    let windows = (0..((end - 6.0) * 2.0) as u32).map(|half| {
        let from = 5.0 + f64::from(half) / 2.0;
        admitted.utilisation(RATE, from, from + 1.0)
    });
    let mut windows: Vec<f64> = windows.collect();
    windows.sort_by(f64::total_cmp);
    let (least, middle) = (windows[0], windows[windows.len() / 2]);
    println!(
        "utilisation {usual:.3} before, {least:.3} in the worst second of the rotation, {middle:.3} in most"
    );
    // Without leases it would be the floor, a twentieth.
    assert!(middle >= 0.9 * usual && least >= 0.3 * usual, "{usual}, {least}, {middle}");
    for host in all {
        let keys = keys(&hosts, host);
        assert_eq!((&keys["refused"], &keys["members"]), (&json!(0), &json!(3)), "{keys}");
    }
}

#[test]
fn a_restart_in_between_and_a_host_that_was_away() {
    let mut hosts = Hosts::start(2, &[]);
    let old = keys(&hosts, 0)["sealing"].clone();
    let rotated = hosts.daemons[0].cli().ok(&["cluster", "key", "rotate"]);
    assert_eq!(rotated["stage"], "using");
    // Both keys are in use: it goes on with both.
    hosts.kill(1);
    hosts.restart(1);
    hosts.wait_members(&[0, 1], 2);
    let new = one_key(&hosts, &[0, 1], 1);
    assert_ne!(json!(new), old);
    let file = keys(&hosts, 0)["file"].as_str().expect("a file with the key").to_owned();
    let mode = fs::metadata(&file).expect("the file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // The key file still has the old key. Who knows the new one keeps it, who does not stays out.
    hosts.kill(1);
    hosts.restart(1);
    hosts.wait_members(&[0, 1], 2);
    hosts.join(&[]);
    process::wait_for("frames with the old key", TIMEOUT, || {
        (keys(&hosts, 0)["refused"].as_u64() > Some(0)).then_some(())
    });
    assert_eq!(hosts.status(2)["members"], 1);
    hosts.kill(2);
    fs::copy(&file, hosts.key_file()).expect("a key file for who was away");
    hosts.restart(2);
    hosts.wait_members(&[0, 1, 2], 3);
    assert_eq!(keys(&hosts, 2)["sealing"], json!(new));
    // And all together change it once more, asked on the one that came last.
    let again = hosts.daemons[2].cli().ok(&["cluster", "key", "rotate"]);
    assert_ne!(again["sealing"], json!(new), "{again}");
    let number = again["number"].as_u64().expect("a number");
    assert!(number >= 2, "{again}");
    assert_ne!(one_key(&hosts, &[0, 1, 2], number), new);
}

#[test]
fn without_a_cluster_there_is_no_key_to_change() {
    let lab = tests::Lab::new(1);
    let daemon = tests::Daemon::start(&lab);
    for arguments in [["cluster", "key", "rotate"], ["cluster", "key", "status"]] {
        let answer = daemon.cli().run(&arguments);
        assert_eq!(answer.code, 2, "{answer:?}");
        assert!(
            answer.json["error"]["hint"].to_string().contains("[cluster] listen"),
            "{answer:?}"
        );
    }
}
