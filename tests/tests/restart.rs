//! Protection without the daemon: it stays in the kernel when the daemon dies, and the next daemon
//! takes it over without a gap.

use std::{fs, path::PathBuf, time::Duration};

use serde_json::Value;
use tests::{
    Daemon, DaemonOptions, Lab, Observer, Sender, Stream, api,
    cli::{answer, limiter_binary},
    frame,
    lab::RX,
    observer::Then,
    process,
    reports::Stats,
    v4, v6,
};

/// Twice the limit's worth of frames from `source` for `seconds`, and more.
fn flood(source: std::net::IpAddr, seconds: f64) -> Stream {
    Stream::new(frame::udp(source, 100), 10_000.0, (10_000.0 * seconds) as u64)
}

fn pause(seconds: f64) {
    std::thread::sleep(Duration::from_secs_f64(seconds));
}

fn assert_no_counter_fell(before: &Stats, after: &Stats) {
    for counter in &before.counters {
        let now = after.packets(&counter.verdict, &counter.reason);
        assert!(now >= counter.packets, "{counter:?} was {now} after the restart");
    }
}

/// Whether the kernel has an XDP program on the protected interface.
fn has_xdp(lab: &Lab) -> bool {
    let text = process::run(lab.receiver.ip(&["-json", "link", "show", RX]));
    let links: Value = serde_json::from_str(&text).expect("ip prints JSON");
    !links[0]["xdp"].is_null()
}

#[test]
fn a_killed_daemon_leaves_no_gap() {
    let lab = Lab::new(1);
    let mut daemon = Daemon::start(&lab);
    let limit = daemon.cli().limit("1000pps", Some("2000"), None);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let conforming = Stream::new(frame::udp(v4(10), 100), 900.0, 9000);
    let sending = Sender::new(&lab).start(vec![flood(v4(1), 9.0), conforming]);
    pause(2.0);
    let before = daemon.cli().stats();
    let link = daemon.cli().ok(&["status"])["interfaces"][0]["link_id"].clone();
    assert!(link.is_u64(), "{link}");
    daemon.kill();
    assert!(has_xdp(&lab), "the program stays");
    // A source that nobody has seen before is limited without a daemon, too.
    let orphans = Sender::new(&lab).send(vec![flood(v6(1, 1), 2.0)]);
    let orphaned = observer.read().from(v6(1, 1));
    limit.assert_admitted("a new source, no daemon", orphaned, [&orphans[0]]);
    daemon.restart(&lab);
    let after = daemon.cli().stats();
    assert_no_counter_fell(&before, &after);
    assert_eq!(daemon.cli().ok(&["status"])["interfaces"][0]["link_id"], link, "the same link");
    daemon.kill();
    daemon.restart(&lab);
    let sent = sending.join();
    let observed = observer.read();
    limit.assert_admitted("across two crashes", observed.from(v4(1)), [&sent[0]]);
    assert_eq!(observed.from(v4(10)), sent[1].packets(), "a conforming source");
    assert_eq!(daemon.cli().limits(), [limit]);
    let stats = daemon.assert_accounted(&lab);
    assert_eq!(stats.verdict("pass"), observed.all, "no frame passed uncounted");
}

/// Id of the program on the protected interface.
fn program(lab: &Lab) -> u64 {
    let text = process::run(lab.receiver.ip(&["-json", "link", "show", RX]));
    let links: Value = serde_json::from_str(&text).expect("ip prints JSON");
    links[0]["xdp"]["prog"]["id"].as_u64().unwrap_or_else(|| panic!("no program: {text}"))
}

/// Replaces the daemon by `next` again and again under a flood: no frame passes unjudged, no source
/// gets a fresh burst, each daemon has a program of its own, and all of them one link.
fn assert_replaced_without_a_gap(what: &str, next: impl Fn(&mut Daemon, &Lab)) {
    const TIMES: u64 = 3;
    let lab = Lab::new(1);
    let mut daemon = Daemon::start(&lab);
    // A fresh burst would be more than all the time between two daemons earns.
    let limit = daemon.cli().limit("1000pps", Some("3000"), None);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    // One source on its own, one beside others, so that a restart meets buckets of any state.
    let others = (2..50).map(|host| frame::udp(v4(host), 100)).collect();
    let streams = vec![
        Stream::new(frame::udp(v4(1), 100), 6000.0, u64::MAX),
        Stream::new(frame::udp(v6(1, 1), 100), 3000.0, u64::MAX),
        Stream::cycle(others, 2000.0, u64::MAX),
    ];
    let sending = Sender::new(&lab).start(streams);
    pause(1.5);
    let link = |daemon: &Daemon| daemon.cli().ok(&["status"])["interfaces"][0]["link_id"].clone();
    let (first, mut programs) = (link(&daemon), vec![program(&lab)]);
    for _ in 0..TIMES {
        let before = daemon.cli().stats();
        next(&mut daemon, &lab);
        assert_no_counter_fell(&before, &daemon.cli().stats());
        assert_eq!(link(&daemon), first, "{what}: the link stays");
        programs.push(program(&lab));
        pause(0.5);
    }
    let sent = sending.stop();
    let different: std::collections::BTreeSet<_> = programs.iter().collect();
    assert_eq!(different.len(), programs.len(), "{what}: a program each, {programs:?}");
    let observed = observer.read();
    for (sent, source) in sent.iter().zip([v4(1), v6(1, 1)]) {
        let (admitted, allowed) = (observed.from(source), limit.exact(sent) as f64);
        let ratio = 100.0 * admitted as f64 / allowed;
        println!(
            "{what}: {source} got {admitted} of {allowed:.0} in {:.2} s, {ratio:.3} %",
            sent.seconds()
        );
        // A fresh burst would be far more than the one percent.
        assert!(limit.burst_amount as f64 > 3.0 * 0.01 * allowed, "{allowed}: it took too long");
        assert!((99.0..=101.0).contains(&ratio), "{what}: {admitted} of {allowed}");
    }
    for host in 2..50_u8 {
        let count = sent[2].packets();
        let sent = count / 48 + u64::from(count % 48 > u64::from(host) - 2);
        assert_eq!(observed.from(v4(host)), sent, "{what}: a conforming source");
    }
    // Every frame the interface received went through one of the programs.
    let stats = daemon.assert_accounted(&lab);
    assert_eq!(stats.verdict("pass"), observed.all, "{what}: no frame passed unjudged");
    assert_eq!(stats.sum(), sent.iter().map(tests::Sent::packets).sum::<u64>());
}

#[test]
fn a_restart_leaves_no_gap() {
    assert_replaced_without_a_gap("SIGTERM and start", |daemon, lab| {
        let status = daemon.terminate();
        assert!(status.success(), "{status}");
        daemon.restart(lab);
    });
}

#[test]
fn a_crash_leaves_no_gap() {
    assert_replaced_without_a_gap("SIGKILL and start", |daemon, lab| {
        daemon.kill();
        daemon.restart(lab);
    });
}

#[test]
fn an_upgrade_leaves_no_gap() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let upgraded = folder.path().join("limiter-upgraded");
    fs::copy(limiter_binary(), &upgraded).expect("a copy of the program");
    assert_replaced_without_a_gap("upgrade", |daemon, lab| {
        // The new program beside the old one is refused as long as that runs, and changes nothing.
        let mut early = daemon.command_as(lab, &upgraded);
        let before = program(lab);
        let refused = answer(early.arg("--json"));
        assert_eq!(refused.code, 2, "{refused:#?}");
        assert_eq!(program(lab), before, "the old one's program goes on");
        let _stopped = daemon.terminate();
        daemon.restart_as(lab, &upgraded);
        let running = fs::read_link(format!("/proc/{}/exe", daemon.pid())).expect("it runs");
        assert_eq!(running, upgraded, "it is the other file that runs");
    });
}

#[test]
fn a_stopped_daemon_keeps_protection_by_default() {
    let lab = Lab::new(1);
    let mut daemon = Daemon::start(&lab);
    let limit = daemon.cli().limit("1000pps", Some("1000"), None);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let status = daemon.terminate();
    assert!(status.success(), "{status}");
    assert!(!daemon.socket().exists(), "the socket is removed");
    let sent = Sender::new(&lab).send(vec![flood(v4(1), 2.0)]);
    limit.assert_admitted("without a daemon", observer.read().from(v4(1)), [&sent[0]]);
    assert!(has_xdp(&lab));
    daemon.restart(&lab);
    daemon.assert_accounted(&lab);
}

#[test]
fn a_stopped_daemon_takes_protection_away_if_told_so() {
    let lab = Lab::new(1);
    let mut daemon = Daemon::start_with(&lab, DaemonOptions::with(&["--on-exit", "detach"]));
    let limit = daemon.cli().limit("10pps", Some("10"), None);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let status = daemon.terminate();
    assert!(status.success(), "{status}");
    assert!(!has_xdp(&lab), "the interface is free");
    let pins = fs::read_dir(daemon.pins()).map_or(0, Iterator::count);
    assert_eq!(pins, 0, "nothing stays pinned in {:?}", daemon.pins());
    let sent = Sender::new(&lab).send(vec![flood(v4(1), 1.0)]);
    assert_eq!(observer.read().from(v4(1)), sent[0].packets(), "nothing is limited");
    // Limits are kept for the next time.
    daemon.restart(&lab);
    assert_eq!(daemon.cli().limits(), [limit]);
    assert!(has_xdp(&lab));
}

/// The main file of the store.
fn store(daemon: &Daemon) -> PathBuf {
    daemon.state_folder().join("limits.redb")
}

/// Sets limits, kills the daemon, damages its store, and asserts that the next daemon knows the
/// limits and enforces them.
fn assert_survives(what: &str, damage: impl FnOnce(&mut Vec<u8>)) {
    let lab = Lab::new(1);
    let mut daemon = Daemon::start(&lab);
    daemon.cli().limit("500pps", Some("500"), None);
    let address = daemon.cli().limit("1000pps", Some("1000"), Some("198.51.100.1"));
    daemon.cli().limit("10mbit", None, Some("2001:db8::/48"));
    let before = daemon.cli().limits();
    assert_eq!(before.len(), 3);
    daemon.kill();
    let path = store(&daemon);
    let mut bytes = fs::read(&path).expect("the store can be read");
    let length = bytes.len();
    damage(&mut bytes);
    println!("{what}: {path:?} had {length} bytes and has {}", bytes.len());
    fs::write(&path, bytes).expect("the store can be written");
    daemon.restart(&lab);
    assert_eq!(daemon.cli().limits(), before, "{what}");
    let store = daemon.cli().run(&["status"]).json["store"].clone();
    assert!(["ok", "recovered"].contains(&store["state"].as_str().unwrap_or_default()), "{store}");
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let sent = Sender::new(&lab).send(vec![flood(v4(1), 1.5)]);
    address.assert_admitted(what, observer.read().from(v4(1)), [&sent[0]]);
    // And it takes new ones, which last.
    let new = daemon.cli().limit("700pps", Some("700"), Some("198.51.100.2"));
    daemon.kill();
    daemon.restart(&lab);
    assert!(daemon.cli().limits().contains(&new), "{what}: a new limit lasts");
    assert_eq!(daemon.cli().limits().len(), 4);
    daemon.assert_accounted(&lab);
}

#[test]
fn limits_survive_a_kill() {
    assert_survives("an intact store", |_| {});
}

#[test]
fn limits_survive_garbage_after_the_store() {
    assert_survives("garbage appended", |bytes| bytes.extend([0xa5; 1000]));
}

#[test]
fn limits_survive_a_store_cut_short() {
    assert_survives("100 bytes cut off", |bytes| bytes.truncate(bytes.len() - 100));
    assert_survives("half cut off", |bytes| bytes.truncate(bytes.len() / 2));
}

#[test]
fn limits_survive_a_store_with_an_overwritten_tail() {
    assert_survives("4 KiB of tail overwritten", |bytes| {
        let tail = bytes.len().saturating_sub(4096);
        bytes[tail..].fill(0xff);
    });
}

#[test]
fn who_changed_what_is_known_after_a_kill() {
    let lab = Lab::new(1);
    let mut daemon = Daemon::start(&lab);
    let changes = |daemon: &Daemon| {
        let (_, text) = api::get(&daemon.socket(), "/v1/changes", "application/json");
        let report: Value = serde_json::from_str(&text).expect("JSON");
        report["changes"].as_array().expect("a list").clone()
    };
    let _limit = daemon.cli().limit("1000pps", Some("2000"), None);
    let before = changes(&daemon);
    let last = before.last().expect("a change");
    assert_eq!((&last["event"], &last["by"]["user"]), (&"policy".into(), &"root".into()));
    daemon.kill();
    daemon.restart(&lab);
    let after = changes(&daemon);
    assert!(after.len() >= before.len());
    assert_eq!(after[..before.len()], before, "what an earlier daemon has noted");
}
