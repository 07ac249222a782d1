//! The allow and deny lists, with real packets.

use std::{
    fmt::Write as _,
    io::Write as _,
    net::IpAddr,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use tests::{
    Daemon, DaemonOptions, Lab, Observer, Sender, Sent, Stream, frame, observer::Then, v4, v6,
};

/// A wire with a count of what comes through.
struct Wire<'lab> {
    observer: Observer<'lab>,
    lab: &'lab Lab,
}

impl<'lab> Wire<'lab> {
    fn new(lab: &'lab Lab) -> Self {
        Self { observer: Observer::new(lab, Then::Discard, &[]), lab }
    }

    /// Sends `packets` of each source at 1000 pps and returns how many arrived of each.
    fn arrived(&self, sources: &[IpAddr], packets: u64) -> Vec<u64> {
        self.send(sources, packets).0
    }

    /// As [`Wire::arrived`], and how long it took, in seconds.
    fn send(&self, sources: &[IpAddr], packets: u64) -> (Vec<u64>, f64) {
        let before = self.observer.read();
        let stream = |source: &IpAddr| Stream::new(frame::udp(*source, 100), 1000.0, packets);
        let sent = Sender::new(self.lab).send(sources.iter().map(stream).collect());
        let after = self.observer.read();
        let arrived = |source: &IpAddr| after.from(*source) - before.from(*source);
        let seconds = Sent::span(&sent.iter().collect::<Vec<_>>());
        (sources.iter().map(arrived).collect(), seconds)
    }
}

fn counted(daemon: &Daemon, reason: &str) -> u64 {
    let stats = daemon.cli().ok(&["stats"]);
    let counters = stats["counters"].as_array().expect("counters").iter();
    counters.filter(|c| c["reason"] == reason).filter_map(|c| c["packets"].as_u64()).sum()
}

/// Runs `limiter ARGUMENTS` with `text` as its standard input; whether it succeeded, and its JSON.
fn feed(daemon: &Daemon, arguments: &[&str], text: &str) -> (bool, serde_json::Value) {
    let mut child = Command::new(tests::cli::limiter_binary())
        .arg("--socket")
        .arg(daemon.socket())
        .arg("--json")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("limiter starts");
    child.stdin.take().expect("its input").write_all(text.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("limiter ends");
    let json = serde_json::from_slice(&output.stdout).expect("JSON");
    (output.status.success(), json)
}

#[test]
fn denied_sources_are_dropped_and_allowed_ones_pass_whatever_they_send() {
    let lab = &Lab::new(1);
    let wire = Wire::new(lab);
    let mut daemon = Daemon::start(lab);
    let cli = daemon.cli();
    cli.limit("100pps", Some("100"), None);
    let (denied, allowed, inside, spared, neighbour, six) =
        (v4(1), v4(2), "203.0.113.7", "203.0.113.200", v4(5), v6(1, 1));
    let address = |text: &str| text.parse::<IpAddr>().expect("an address");
    cli.ok(&["deny", "add", &denied.to_string(), "203.0.113.0/24", "--reason", "scanner"]);
    cli.ok(&["deny", "add", "2001:db8::/32"]);
    cli.ok(&["allow", "add", &allowed.to_string(), spared]);
    let sources = [denied, allowed, address(inside), address(spared), neighbour, six];
    let (counts, seconds) = wire.send(&sources, 1000);
    assert_eq!(counts[..4], [0, 1000, 0, 1000], "exactly");
    let allowed = 100.0 + 100.0 * seconds;
    assert!((counts[4] as f64 - allowed).abs() <= 2.0, "a neighbour: {counts:?} of {allowed}");
    assert_eq!(counts[5], 0);
    assert_eq!((counted(&daemon, "denied"), counted(&daemon, "allowed")), (3000, 2000));
    daemon.assert_accounted(lab);

    let shown = cli.ok(&["show", inside]);
    assert_eq!(shown["listed"]["target"], "203.0.113.0/24", "{shown}");
    assert_eq!(shown["listed"]["reason"], "scanner", "{shown}");
    let list = cli.ok(&["deny", "list"]);
    assert_eq!(list["entries"].as_array().map(Vec::len), Some(3), "{list}");

    // Removed, the next packet is an ordinary one; so it is after a restart.
    cli.ok(&["deny", "del", &denied.to_string()]);
    assert!(wire.arrived(&[denied], 50)[0] == 50);
    daemon.terminate();
    daemon.restart(lab);
    assert_eq!(wire.arrived(&[denied, address(inside)], 20), [20, 0]);
}

#[test]
fn an_entry_ends_on_time_also_without_a_daemon() {
    let lab = &Lab::new(1);
    let wire = Wire::new(lab);
    let mut daemon = Daemon::start(lab);
    let cli = daemon.cli();
    cli.ok(&["deny", "add", &v4(1).to_string(), "--ttl", "3s"]);
    let start = Instant::now();
    assert_eq!(wire.arrived(&[v4(1)], 100), [0]);
    daemon.kill();
    assert_eq!(wire.arrived(&[v4(1)], 10), [0], "a dead daemon protects");
    std::thread::sleep(Duration::from_millis(4100).saturating_sub(start.elapsed()));
    assert_eq!(wire.arrived(&[v4(1)], 100), [100]);
    daemon.restart(lab);
    let list = daemon.cli().ok(&["deny", "list"]);
    assert_eq!(list["entries"].as_array().map(Vec::len), Some(0), "{list}");
}

#[test]
fn many_entries_are_added_at_once_or_not_at_all() {
    let lab = &Lab::new(1);
    let wire = Wire::new(lab);
    let daemon = Daemon::start(lab);
    let mut text = String::new();
    for number in 0..50_000u32 {
        let address = std::net::Ipv4Addr::from_bits(0x1400_0000 + number * 7);
        writeln!(text, "{address}").expect("a string takes it");
    }
    let bad = text.replacen("20.0.0.7\n", "20.0.0.7\n20.0.0.300\n", 1);
    let (good, failure) = feed(&daemon, &["deny", "add", "-"], &bad);
    assert!(!good && failure.to_string().contains("line 3"), "{failure}");
    assert_eq!(wire.arrived(&["20.0.0.7".parse().expect("an address")], 10), [10]);
    let start = Instant::now();
    let (good, report) = feed(&daemon, &["deny", "add", "-"], &text);
    println!("50,000 entries: {:.2} s", start.elapsed().as_secs_f64());
    assert!(good && report["changed"] == 50_000, "{report}");
    let last = std::net::Ipv4Addr::from_bits(0x1400_0000 + 49_999 * 7);
    let between = std::net::Ipv4Addr::from_bits(0x1400_0001);
    assert_eq!(wire.arrived(&[last.into(), between.into()], 100), [0, 100]);
}

#[test]
fn bad_entries_are_refused_and_change_nothing() {
    let lab = &Lab::new(1);
    let daemon = Daemon::start(lab);
    let cli = daemon.cli();
    cli.ok(&["allow", "add", "192.0.2.1"]);
    for (arguments, code, part) in [
        (&["deny", "add", "192.0.2.300"][..], 2, "192.0.2.300"),
        (&["deny", "add", "default"], 2, "default"),
        (&["deny", "add", "192.0.2.1/24"], 2, "192.0.2.0/24"),
        (&["deny", "add", "2001:db8::1"], 2, "2001:db8::1"),
        (&["deny", "add", "192.0.2.7", "192.0.2.7"], 2, "line 2"),
        (&["deny", "add", "192.0.2.7", "--ttl", "0s"], 2, "second"),
        (&["deny", "add", "192.0.2.7", "--ttl", "-5m"], 2, "ttl"),
        (&["deny", "add", "192.0.2.7", "192.0.2.1"], 1, "allow list"),
        (&["deny", "del", "192.0.2.9"], 1, "not on the deny list"),
    ] {
        let outcome = cli.run(arguments);
        assert_eq!(outcome.code, code, "{arguments:?}: {}", outcome.json);
        assert!(outcome.json.to_string().contains(part), "{arguments:?}: {}", outcome.json);
    }
    let list = cli.ok(&["deny", "list"]);
    assert_eq!(list["entries"].as_array().map(Vec::len), Some(0), "{list}");
}

#[test]
fn management_addresses_cannot_be_shut_out() {
    let lab = &Lab::new(1);
    let wire = Wire::new(lab);
    let own = "198.51.100.16/28";
    let daemon = Daemon::start_with(lab, DaemonOptions::with(&["--management", own]));
    let cli = daemon.cli();
    cli.ok(&["deny", "add", "198.51.100.0/24", own]);
    let address = |text: &str| text.parse::<IpAddr>().expect("an address");
    let sources = [address("198.51.100.17"), address("198.51.100.99")];
    assert_eq!(wire.arrived(&sources, 100), [100, 0]);
    let refused = cli.run(&["deny", "add", "198.51.100.17"]);
    assert_eq!(refused.code, 2, "{}", refused.json);
    cli.ok(&["deny", "del", own]);
    assert_eq!(wire.arrived(&sources, 100), [100, 0]);
}

#[test]
fn a_limit_that_is_not_enforced_counts_what_it_would_drop() {
    let lab = &Lab::new(1);
    let wire = Wire::new(lab);
    let daemon = Daemon::start(lab);
    let cli = daemon.cli();
    cli.ok(&["limit", "set", "100pps", "--burst", "100", "--no-enforce"]);
    let (arrived, seconds) = wire.send(&[v4(1)], 2000);
    assert_eq!(arrived, [2000]);
    let would_drop = counted(&daemon, "would_drop") as f64;
    let expected = 2000.0 - 100.0 - 100.0 * seconds;
    // But for the gate, at most once.
    assert!((would_drop - expected).abs() <= 14.0, "{would_drop} of {expected}");
    assert_eq!(counted(&daemon, "over_limit"), 0);
    // Enforced, with the bucket as it is: no fresh burst.
    cli.ok(&["limit", "set", "100pps", "--burst", "100"]);
    let (arrived, seconds) = wire.send(&[v4(1)], 1000);
    let most = 100.0 * (seconds + 0.5);
    assert!((arrived[0] as f64) < most, "{arrived:?} of {most}");
    daemon.assert_accounted(lab);
}
