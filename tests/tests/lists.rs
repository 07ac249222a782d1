//! The allow and deny lists, with real packets.

use std::{
    fmt::Write as _,
    io::{Seek as _, Write as _},
    net::IpAddr,
    time::{Duration, Instant},
};

use tests::{
    Daemon, DaemonOptions, Lab, Observer, Sender, Sent, Stream,
    cli::{Answer, answer, limiter_binary},
    frame,
    observer::Then,
    process::wait_for,
    v4, v6,
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

    /// As [`Wire::arrived`], and what was sent of each.
    fn send(&self, sources: &[IpAddr], packets: u64) -> (Vec<u64>, Vec<Sent>) {
        let before = self.observer.read();
        let stream = |source: &IpAddr| Stream::new(frame::udp(*source, 100), 1000.0, packets);
        let sent = Sender::new(self.lab).send(sources.iter().map(stream).collect());
        let after = self.observer.read();
        let arrived = |source: &IpAddr| after.from(*source) - before.from(*source);
        (sources.iter().map(arrived).collect(), sent)
    }
}

fn counted(daemon: &Daemon, reason: &str) -> u64 {
    let stats = daemon.cli().ok(&["stats"]);
    let counters = stats["counters"].as_array().expect("counters").iter();
    counters.filter(|c| c["reason"] == reason).filter_map(|c| c["packets"].as_u64()).sum()
}

/// Runs `limiter ARGUMENTS` with `text` as its standard input.
fn feed(daemon: &Daemon, arguments: &[&str], text: &str) -> Answer {
    let mut input = tempfile::tempfile().expect("a temporary file");
    input.write_all(text.as_bytes()).expect("room for the text");
    input.rewind().expect("a file has a beginning");
    let mut command = tools::own(limiter_binary());
    command.arg("--socket").arg(daemon.socket()).arg("--json").args(arguments);
    answer(command.stdin(input))
}

#[test]
fn denied_sources_are_dropped_and_allowed_ones_pass_whatever_they_send() {
    let lab = &Lab::new(1);
    let wire = Wire::new(lab);
    let mut daemon = Daemon::start(lab);
    let cli = daemon.cli();
    let limit = cli.limit("100pps", Some("100"), None);
    let (denied, allowed, inside, spared, neighbour, six) =
        (v4(1), v4(2), "203.0.113.7", "203.0.113.200", v4(5), v6(1, 1));
    let address = |text: &str| text.parse::<IpAddr>().expect("an address");
    cli.ok(&["deny", "add", &denied.to_string(), "203.0.113.0/24", "--reason", "scanner"]);
    cli.ok(&["deny", "add", "2001:db8::/32"]);
    cli.ok(&["allow", "add", &allowed.to_string(), spared]);
    let sources = [denied, allowed, address(inside), address(spared), neighbour, six];
    let (counts, sent) = wire.send(&sources, 1000);
    assert_eq!(counts[..4], [0, 1000, 0, 1000], "exactly");
    limit.assert_admitted("a neighbour", counts[4], &sent[4..5]);
    assert_eq!(counts[5], 0);
    assert_eq!((counted(&daemon, "denied"), counted(&daemon, "allowed")), (3000, 2000));
    daemon.assert_accounted(lab);

    let shown = cli.ok(&["show", inside]);
    assert_eq!(shown["listed"]["target"], "203.0.113.0/24", "{shown}");
    assert_eq!(shown["listed"]["reason"], "scanner", "{shown}");
    assert_eq!(shown["last_drop"], "denied", "{shown}");
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
    let refused = feed(&daemon, &["deny", "add", "-"], &bad);
    assert!(refused.code == 2 && refused.json.to_string().contains("line 3"), "{refused:#?}");
    assert_eq!(wire.arrived(&["20.0.0.7".parse().expect("an address")], 10), [10]);
    let start = Instant::now();
    let added = feed(&daemon, &["deny", "add", "-"], &text);
    println!("50,000 entries: {:.2} s", start.elapsed().as_secs_f64());
    assert!(added.code == 0 && added.json["changed"] == 50_000, "{added:#?}");
    let last = std::net::Ipv4Addr::from_bits(0x1400_0000 + 49_999 * 7);
    let between = std::net::Ipv4Addr::from_bits(0x1400_0001);
    assert_eq!(wire.arrived(&[last.into(), between.into()], 100), [0, 100]);
}

#[test]
fn a_denied_source_stays_so_while_the_lists_grow_and_shrink() {
    let lab = &Lab::new(1);
    let wire = Wire::new(lab);
    let daemon = Daemon::start(lab);
    daemon.cli().ok(&["deny", "add", &v4(1).to_string()]);
    let others = |count: u32| {
        (0..count).fold(String::new(), |mut text, number| {
            let address = std::net::Ipv4Addr::from_bits(0x1400_0000 + number * 7);
            writeln!(text, "{address}").expect("a string takes it");
            text
        })
    };
    let before = wire.observer.read();
    let stream = |source| Stream::new(frame::udp(source, 100), 10_000.0, 1 << 22);
    let flood = Sender::new(lab).start(vec![stream(v4(1)), stream(v4(2))]);
    // Each is several times the one before: the filter is made anew for it.
    for count in [10, 300, 5000, 40_000] {
        let added = feed(&daemon, &["deny", "add", "-"], &others(count));
        assert_eq!(added.code, 0, "{added:#?}");
    }
    let removed = feed(&daemon, &["deny", "del", "-"], &others(40_000));
    assert_eq!(removed.code, 0, "{removed:#?}");
    let sent = flood.stop();
    assert!(sent[0].packets() > 1000, "{} packets are no flood", sent[0].packets());
    let after = wire.observer.read();
    let arrived = |source| after.from(source) - before.from(source);
    assert_eq!([arrived(v4(1)), arrived(v4(2))], [0, sent[1].packets()]);
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
        (&["deny", "add", "192.0.2.7", "192.0.2.7"], 2, "192.0.2.7 is there twice"),
        (&["deny", "add", "192.0.2.7", "--ttl", "0s"], 2, "second"),
        (&["deny", "add", "192.0.2.7", "--ttl", "-5m"], 2, "write 5m"),
        (&["deny", "add", "192.0.2.7", "--ttl", "12"], 2, "write 12s, 12m or 12h"),
        (&["deny", "add", "192.0.2.7", "192.0.2.1"], 1, "allow list"),
        (&["deny", "del", "192.0.2.9"], 1, "not on the deny list"),
    ] {
        let outcome = cli.run(arguments);
        assert_eq!(outcome.code, code, "{arguments:?}: {}", outcome.json);
        assert!(outcome.json.to_string().contains(part), "{arguments:?}: {}", outcome.json);
        assert!(!outcome.json.to_string().contains("line "), "{}", outcome.json);
        assert!(outcome.json["error"]["hint"].is_string(), "{}", outcome.json);
    }
    let list = cli.ok(&["deny", "list"]);
    assert_eq!(list["entries"].as_array().map(Vec::len), Some(0), "{list}");
}

#[test]
fn very_wide_entries_need_a_yes_everywhere() {
    let lab = &Lab::new(1);
    let wire = Wire::new(lab);
    let home = tempfile::tempdir().expect("a temporary folder");
    let file = home.path().join("limiter.toml");
    let write = |text: &str| std::fs::write(&file, text).expect("own folder");
    write("");
    let path = file.to_str().expect("an ASCII path");
    let daemon = Daemon::start_with(lab, DaemonOptions::with(&["--config", path]));
    let cli = daemon.cli();
    let one = v4(1).to_string();
    let refused = |outcome: &Answer, hint: &str| {
        assert_eq!(outcome.code, 2, "{outcome:#?}");
        let error = &outcome.json["error"];
        assert!(error["message"].to_string().contains("all IPv4 addresses"), "{outcome:#?}");
        assert!(error["hint"].to_string().contains(hint), "{outcome:#?}");
    };
    refused(&cli.run(&["deny", "add", &one, "0.0.0.0/0"]), "--yes");
    refused(&feed(&daemon, &["deny", "add", "-"], &format!("{one}\n0.0.0.0/0\n")), "--yes");
    write("[[deny]]\nfor = \"0.0.0.0/0\"\n");
    refused(&cli.run(&["config", "check", path]), "yes = true");
    refused(&cli.run(&["reload"]), "yes = true");
    let asked = cli.ok(&["deny", "add", "0.0.0.0/0", "--dry-run"]);
    assert!(asked["warnings"][0].to_string().contains("needs --yes"), "{asked:#}");
    assert_eq!(wire.arrived(&[v4(1), v4(2)], 50), [50, 50], "not half of it");

    let added = cli.ok(&["deny", "add", "0.0.0.0/0", "--yes"]);
    assert!(added["warnings"][0].to_string().contains("4.29 billion"), "{added:#}");
    assert_eq!(wire.arrived(&[v4(1)], 50), [0]);
    let kept = cli.run(&["deny", "clear"]);
    assert!(kept.code == 2 && kept.stderr.contains("--yes"), "{kept:#?}");
    assert_eq!(wire.arrived(&[v4(1)], 50), [0]);
    assert_eq!(cli.ok(&["deny", "clear", "--yes"])["changed"], 1);
    assert_eq!(wire.arrived(&[v4(1)], 50), [50]);

    write("[[deny]]\nfor = \"0.0.0.0/0\"\nyes = true\n");
    let checked = cli.ok(&["config", "check", path]);
    assert!(checked["warnings"][0].to_string().contains("all IPv4 addresses"), "{checked:#}");
    let reload = cli.ok(&["reload"]);
    assert!(reload["warnings"][0].to_string().contains("all IPv4 addresses"), "{reload:#}");
    assert_eq!(cli.ok(&["deny", "clear", "--yes"])["changed"], 0, "the file's stay");
    assert_eq!(wire.arrived(&[v4(1)], 50), [0]);
    daemon.assert_accounted(lab);
}

#[test]
fn a_dry_run_of_the_lists_changes_no_verdict() {
    let lab = &Lab::new(1);
    let wire = Wire::new(lab);
    let daemon = Daemon::start(lab);
    let cli = daemon.cli();
    let (one, other) = (v4(1).to_string(), v4(2).to_string());
    cli.ok(&["deny", "add", &one, "--reason", "old"]);
    let asked = cli.ok(&["deny", "add", &one, &other, "--reason", "new", "--dry-run"]);
    let diff = &asked["dry_run"];
    assert_eq!(diff["added"][0]["target"], format!("{other}/32"), "{asked:#}");
    assert_eq!(diff["changed"][0]["old"]["reason"], "old", "{asked:#}");
    let removed = cli.ok(&["deny", "del", &one, "--dry-run"]);
    assert_eq!(removed["dry_run"]["removed"][0]["action"], "deny", "{removed:#}");
    assert_eq!(cli.run(&["deny", "del", &other, "--dry-run"]).code, 1);
    assert_eq!(cli.run(&["deny", "add", "192.0.2.1/24", "--dry-run"]).code, 2);
    assert_eq!(wire.arrived(&[v4(1), v4(2)], 100), [0, 100]);
    assert_eq!(cli.ok(&["deny", "list"])["entries"].as_array().map(Vec::len), Some(1));
}

#[test]
fn an_unconfirmed_entry_is_lifted_also_after_a_crash() {
    let lab = &Lab::new(1);
    let wire = Wire::new(lab);
    let mut daemon = Daemon::start(lab);
    let cli = daemon.cli();
    let (one, other) = (v4(1).to_string(), v4(2).to_string());
    cli.ok(&["deny", "add", &one]);
    let tried = cli.ok(&["deny", "add", &other, "--confirm", "3s"]);
    assert!(tried["confirm"]["seconds_left"].as_f64().is_some_and(|left| left > 2.0), "{tried:#}");
    assert_eq!(wire.arrived(&[v4(1), v4(2)], 50), [0, 0]);
    // Neither lists nor limits change meanwhile.
    for change in [["deny", "del", &one].as_slice(), &["allow", "add", "192.0.2.9"]] {
        let refused = cli.run(change);
        assert_eq!(refused.code, 1, "{refused:#?}");
        assert!(refused.json.to_string().contains("limiter confirm"), "{refused:#?}");
    }
    assert_eq!(cli.run(&["limit", "set", "5pps"]).code, 1);
    daemon.kill();
    assert_eq!(wire.arrived(&[v4(2)], 10), [0], "a dead daemon reverts nothing");
    daemon.restart(lab);
    wait_for("the revert", Duration::from_secs(10), || {
        daemon.cli().run(&["status"]).json["confirm"].is_null().then_some(())
    });
    assert_eq!(wire.arrived(&[v4(1), v4(2)], 50), [0, 50]);
    // A removal is reverted as well, one that is confirmed is not.
    cli.ok(&["deny", "del", &one, "--confirm", "1h"]);
    assert_eq!(wire.arrived(&[v4(1)], 50), [50]);
    assert_eq!(cli.ok(&["confirm", "--abort"])["outcome"], "reverted");
    assert_eq!(wire.arrived(&[v4(1)], 50), [0]);
    cli.ok(&["deny", "del", &one, "--confirm", "1h"]);
    cli.ok(&["confirm"]);
    assert_eq!(wire.arrived(&[v4(1)], 50), [50]);
    daemon.assert_accounted(lab);
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
fn an_entry_from_before_does_not_shut_out_management_addresses() {
    let lab = &Lab::new(1);
    let wire = Wire::new(lab);
    let home = tempfile::tempdir().expect("a temporary folder");
    let file = home.path().join("limiter.toml");
    std::fs::write(&file, "").expect("own folder");
    let path = file.to_str().expect("an ASCII path");
    let mut daemon = Daemon::start_with(lab, DaemonOptions::with(&["--config", path]));
    daemon.cli().ok(&["deny", "add", "198.51.100.17"]);
    let source: IpAddr = "198.51.100.17".parse().expect("an address");
    assert_eq!(wire.arrived(&[source], 50), [0]);
    std::fs::write(&file, "[management]\naddresses = [\"198.51.100.16/28\"]\n").expect("own");
    let reload = daemon.cli().ok(&["reload"]);
    assert_eq!(reload["live"][0]["key"], "management", "{reload:#}");
    assert_eq!(wire.arrived(&[source], 50), [50]);
    daemon.kill();
    daemon.restart(lab);
    assert_eq!(wire.arrived(&[source], 50), [50]);
    // Off the list again, the entry holds.
    std::fs::write(&file, "").expect("own");
    daemon.cli().ok(&["reload"]);
    assert_eq!(wire.arrived(&[source], 50), [0]);
}

#[test]
fn a_limit_that_is_not_enforced_counts_what_it_would_drop() {
    let lab = &Lab::new(1);
    let wire = Wire::new(lab);
    let daemon = Daemon::start(lab);
    let cli = daemon.cli();
    cli.ok(&["limit", "set", "100pps", "--burst", "100", "--no-enforce"]);
    let begun = Instant::now();
    let (arrived, sent) = wire.send(&[v4(1)], 2000);
    let seconds = sent[0].seconds();
    assert_eq!(arrived, [2000]);
    // With the last packet, at the earliest.
    let empty = begun + Duration::from_secs_f64(seconds);
    let would_drop = counted(&daemon, "would_drop") as f64;
    let expected = 2000.0 - 100.0 - 100.0 * seconds;
    // But for the gate, at most once.
    assert!((would_drop - expected).abs() <= 14.0, "{would_drop} of {expected}");
    assert_eq!(counted(&daemon, "over_limit"), 0);
    // Enforced, with the bucket as it is: no fresh burst, but what it earns from now on.
    println!("{would_drop} of {expected}; asked for {:?}", empty.elapsed());
    cli.ok(&["limit", "set", "100pps", "--burst", "100"]);
    let (arrived, _) = wire.send(&[v4(1)], 1000);
    let most = 100.0 * (empty.elapsed().as_secs_f64() + 0.1);
    println!("{arrived:?} of {most}");
    assert!((arrived[0] as f64) < most, "{arrived:?} of {most}");
    daemon.assert_accounted(lab);
}
