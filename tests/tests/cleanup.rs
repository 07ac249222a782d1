//! `limiter cleanup` removes what dead daemons left, nothing that lives, and nothing else.

use std::{fs, os::unix::net::UnixListener, path::PathBuf, time::Duration};

use serde_json::Value;
use tests::{
    Daemon, DaemonOptions, Lab, Namespace,
    cli::{Answer, answer, limiter_binary},
    lab::RX,
    process,
};

/// Runs `limiter cleanup` for what `daemon` uses, in the receiving namespace.
fn cleanup(lab: &Lab, daemon: &Daemon, arguments: &[&str]) -> Answer {
    let mut command = lab.receiver.own(limiter_binary());
    command.arg("--socket").arg(daemon.socket()).args(["--json", "cleanup"]);
    answer(command.arg("--pin-dir").arg(daemon.pins()).args(arguments))
}

/// Asserts that a command is refused, with a hint, and speaks of `about`.
#[track_caller]
fn assert_refused(answer: &Answer, about: &str) {
    assert_eq!(answer.code, 1, "{answer:#?}");
    let error = &answer.json["error"];
    assert!(error["message"].as_str().is_some_and(|text| text.contains(about)), "{answer:#?}");
    assert!(error["hint"].is_string(), "{answer:#?}");
}

fn kinds(answer: &Answer) -> Vec<&str> {
    assert_eq!(answer.code, 0, "{answer:#?}");
    let remnants = answer.json["remnants"].as_array().expect("a list");
    remnants.iter().map(|remnant| remnant["kind"].as_str().unwrap_or_default()).collect()
}

fn has_xdp(lab: &Lab) -> bool {
    let text = process::run(lab.receiver.ip(&["-json", "link", "show", RX]));
    let links: Value = serde_json::from_str(&text).expect("ip prints JSON");
    !links[0]["xdp"].is_null()
}

fn staging(daemon: &Daemon) -> PathBuf {
    let mut name = daemon.pins().as_os_str().to_owned();
    name.push("+new");
    name.into()
}

#[test]
fn a_dead_daemons_remains_are_removed_and_a_live_ones_are_not() {
    let lab = Lab::new(1);
    let mut daemon = Daemon::start(&lab);
    daemon.cli().limit("1000pps", None, None);
    let pid = daemon.pid().to_string();
    assert_refused(&cleanup(&lab, &daemon, &["--yes"]), &pid);
    // A daemon with another socket would not answer, but holds the maps.
    let mut other = lab.receiver.own(limiter_binary());
    other.arg("--socket").arg(daemon.state_folder().join("other.sock"));
    other.args(["--json", "cleanup", "--yes", "--pin-dir"]).arg(daemon.pins());
    assert_refused(&answer(&mut other), &format!("process {pid} uses"));
    assert!(has_xdp(&lab) && daemon.cli().run(&["status"]).code <= 1, "nothing has changed");

    daemon.kill();
    fs::create_dir(staging(&daemon)).expect("a BPF file system");
    let dry = cleanup(&lab, &daemon, &["--dry-run"]);
    assert_eq!(kinds(&dry), ["data-plane", "staging", "socket"]);
    assert_eq!(dry.json["remnants"][0]["attached"][0]["name"], RX);
    assert_eq!(dry.json["dry_run"], true);
    assert_refused(&cleanup(&lab, &daemon, &[]), RX);
    assert!(has_xdp(&lab) && daemon.socket().exists() && staging(&daemon).exists());

    let done = cleanup(&lab, &daemon, &["--yes"]);
    assert_eq!(kinds(&done), ["data-plane", "staging", "socket"]);
    assert!(!daemon.pins().exists() && !daemon.socket().exists() && !staging(&daemon).exists());
    // The kernel frees a link a moment after its last holder has gone.
    process::wait_for("a free interface", Duration::from_secs(5), || {
        (!has_xdp(&lab)).then_some(())
    });
    assert!(kinds(&cleanup(&lab, &daemon, &[])).is_empty(), "nothing is left");
    daemon.restart(&lab);
    assert_eq!(daemon.cli().limits().len(), 1, "the store is not a remnant");
}

#[test]
fn a_data_plane_without_an_interface_needs_no_yes() {
    let lab = Lab::new(1);
    let mut daemon = Daemon::start(&lab);
    daemon.kill();
    process::run(lab.receiver.ip(&["link", "del", RX]));
    process::wait_for("the link's end", Duration::from_secs(5), || {
        let dry = cleanup(&lab, &daemon, &["--dry-run"]);
        dry.json["remnants"][0]["attached"].as_array().expect("a list").is_empty().then_some(())
    });
    assert_eq!(kinds(&cleanup(&lab, &daemon, &[])), ["data-plane", "socket"]);
    assert!(!daemon.pins().exists());
}

#[test]
fn protection_in_another_namespace_is_seen() {
    let lab = Lab::new(1);
    let mut daemon = Daemon::start(&lab);
    daemon.kill();
    let elsewhere = Namespace::new("else");
    let mut command = elsewhere.own(limiter_binary());
    command.arg("--socket").arg(daemon.socket()).args(["--json", "cleanup", "--pin-dir"]);
    assert_refused(&answer(command.arg(daemon.pins())), "of another network namespace");
    assert!(has_xdp(&lab));
}

#[test]
fn what_is_not_ours_stays() {
    let lab = Lab::new(1);
    let mut daemon = Daemon::start_with(&lab, DaemonOptions::idle());
    let _stopped = daemon.terminate();
    // A daemon that never attached leaves its maps; somebody else's folder lies among them.
    let foreign = daemon.pins().join("precious");
    fs::create_dir(&foreign).expect("a BPF file system");
    let refused = cleanup(&lab, &daemon, &["--yes"]);
    assert_eq!(refused.code, 2, "{refused:#?}");
    assert!(foreign.exists() && daemon.pins().join("abi").exists());
    fs::remove_dir(&foreign).expect("it is there");
    // Another program that listens on the socket is not taken for a remnant.
    let listener = UnixListener::bind(daemon.socket()).expect("a free name");
    assert_refused(&cleanup(&lab, &daemon, &["--yes"]), "already serves");
    drop(listener);
    assert_eq!(kinds(&cleanup(&lab, &daemon, &[])), ["data-plane", "socket"]);
}
