//! Sources that hop inside a prefix: together they get what a group may have, and nobody else pays.

use std::{fs, net::IpAddr, time::Duration};

use serde_json::Value;
use tests::{
    Daemon, DaemonOptions, Flood, Flooded, Lab, Observer, Sender, Sources, Stream, api, frame,
    observer::Then, v4, v6,
};

/// Packets that pass uncounted when a group gets its bucket.
const GATE: f64 = 16.0;

/// A crowd: its first source, how many there are, the prefix they lie in, their group, another source of it, and how
/// fast they send together.
struct Crowd {
    first: &'static str,
    count: u32,
    prefix: &'static str,
    group: &'static str,
    neighbour: &'static str,
    rate: u64,
}

/// Each source stays far below its gate: 10 pps of each /64, 50 pps of each address.
const CROWDS: [Crowd; 2] = [
    Crowd {
        first: "2001:db8:7:1000::1",
        count: 4096,
        prefix: "2001:db8:7:1000::/52",
        group: "2001:db8:7::/48",
        neighbour: "2001:db8:7:1::1",
        rate: 40_000,
    },
    Crowd {
        first: "203.0.113.0",
        count: 100,
        prefix: "203.0.113.0/25",
        group: "203.0.113.0/24",
        neighbour: "203.0.113.200",
        rate: 5000,
    },
];

impl Crowd {
    fn flood(&self, seconds: u64) -> Flood {
        let first = self.first.parse().expect("an address");
        let sources = Sources::RoundRobin(first, self.count);
        Flood::new(sources, self.rate * seconds).at_rate(self.rate).on_cpu(1)
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn over_group(daemon: &Daemon) -> u64 {
    daemon.cli().stats().packets("drop", "over_group_limit")
}

fn warnings(daemon: &Daemon) -> String {
    daemon.cli().ok(&["status"])["warnings"].to_string()
}

/// Lets a crowd send for five seconds beside sources that keep to their limits.
fn assert_held(crowd: &Crowd) {
    let (rate, burst) = (2000, 3000);
    let lab = Lab::new(2);
    let options = DaemonOptions::with(&["--group-limit", &format!("{rate}pps,{burst}")]);
    let daemon = Daemon::start_with(&lab, options);
    let cli = daemon.cli();
    cli.limit("1000pps", Some("2000"), None);
    let observer = Observer::new(&lab, Then::Discard, &[crowd.prefix]);
    // Neighbours with a bucket, in the same group and elsewhere, and some that never get one elsewhere.
    let neighbour = address(crowd.neighbour);
    let (known, light) = ([neighbour, v4(10)], [address("2001:db8:8:1::1"), address("192.0.2.1")]);
    let stream = |source, rate: f64| Stream::new(frame::udp(source, 100), rate, rate as u64 * 8);
    let streams = known.map(|source| stream(source, 800.0)).into_iter();
    let streams = streams.chain(light.map(|source| stream(source, 20.0))).collect();
    let sending = Sender::new(&lab).on_cpu(0).start(streams);
    std::thread::sleep(Duration::from_secs(1));
    let flooded = crowd.flood(5).send(&lab);
    let seconds = Flooded::span(&[flooded]);
    let said = warnings(&daemon);
    let sent = sending.join();
    let observed = observer.read();
    for (source, sent) in known.into_iter().chain(light).zip(&sent) {
        assert_eq!(observed.from(source), sent.packets(), "{source} keeps to its limit");
    }
    let allowed = f64::from(burst) + f64::from(rate) * seconds;
    let admitted = observed.crowd as f64;
    println!("{}: admitted {admitted} of {allowed:.0} in {seconds:.3} s", crowd.group);
    assert!(admitted <= 1.005 * allowed + GATE, "{admitted} of {allowed}");
    assert!(admitted >= 0.97 * allowed, "{admitted} of {allowed}");
    // Each packet is in one counter, and none of the crowd has a bucket.
    let dropped = flooded.packets - observed.crowd;
    let stats = daemon.assert_accounted(&lab);
    assert_eq!(stats.packets("drop", "over_group_limit"), dropped);
    assert_eq!(stats.internal.promotions, 4, "the two known sources and their groups");
    assert_told(&daemon, crowd, &said, dropped);
}

/// Whether each place says which prefix spreads.
fn assert_told(daemon: &Daemon, crowd: &Crowd, warnings: &str, dropped: u64) {
    let cli = daemon.cli();
    assert!(warnings.contains(&format!("{} is over the group limit", crowd.group)), "{warnings}");
    let told = format!("{} exceeded the group limit of 2000pps", crowd.group);
    assert!(daemon.log().contains(&told), "{}", daemon.log());
    let top = cli.ok(&["top"]);
    let entries = top["sources"].as_array().expect("a list");
    let group = entries.iter().find(|entry| entry["group"] == true).expect("a group");
    assert_eq!((&group["source"], &group["dropped"]), (&crowd.group.into(), &dropped.into()));
    let shown = cli.ok(&["show", crowd.first]);
    assert_eq!(shown["tracked"], false, "{shown:#}");
    let shown = &shown["group"];
    assert_eq!((&shown["source"], &shown["dropped"]), (&crowd.group.into(), &dropped.into()));
    assert_eq!(
        (&shown["limit"]["burst_amount"], &shown["last_drop"]),
        (&3000.into(), &"over_group_limit".into())
    );
    let (_, metrics) = api::get(&daemon.socket(), "/metrics", "text/plain");
    let line = |line: &&str| {
        line.starts_with("limiter_packets_total") && line.contains("over_group_limit")
    };
    let line = metrics.lines().find(line).expect("a counter of the reason");
    assert!(line.ends_with(&format!(" {dropped}")), "{line}");
}

#[test]
fn sources_of_an_ipv6_prefix_are_held_together() {
    assert_held(&CROWDS[0]);
}

#[test]
fn sources_of_an_ipv4_prefix_are_held_together() {
    assert_held(&CROWDS[1]);
}

#[test]
fn groups_are_limited_from_a_reload_on_and_without_a_daemon() {
    let lab = Lab::new(2);
    let home = tempfile::tempdir().expect("a temporary folder");
    let file = home.path().join("limiter.toml");
    let write = |text: &str| fs::write(&file, text).expect("the file can be written");
    write("");
    let path = file.to_str().expect("a path");
    let mut daemon = Daemon::start_with(&lab, DaemonOptions::with(&["--config", path]));
    daemon.cli().limit("1000pps", Some("2000"), None);
    let dropped_of = |daemon: &Daemon, crowd: &Crowd, seconds| {
        let before = over_group(daemon);
        let flooded = crowd.flood(seconds).send(&lab);
        assert_eq!(flooded.packets, crowd.rate * seconds);
        over_group(daemon) - before
    };
    assert_eq!(
        dropped_of(&daemon, &CROWDS[0], 1),
        0,
        "groups have no limit unless somebody sets one"
    );
    write("group_limit = \"2000pps,2000\"\ngroup_ipv6_prefix = 56\n");
    let live = daemon.cli().ok(&["reload"])["live"].clone();
    let keys: Vec<&Value> =
        live.as_array().expect("a list").iter().map(|diff| &diff["key"]).collect();
    assert_eq!(keys, ["group_ipv6_prefix", "group_limit"], "{live}");
    assert!(dropped_of(&daemon, &CROWDS[1], 3) > 1000);
    // 4096 sources of sixteen /56, each with 2500 pps of 2000 and a burst.
    assert_eq!(dropped_of(&daemon, &CROWDS[0], 1), 0);
    write("group_limit = \"2000pps,2000\"\n");
    daemon.cli().ok(&["reload"]);
    assert!(dropped_of(&daemon, &CROWDS[0], 1) > 30_000);
    // A crash takes nothing away, and a restart neither forgets nor forgives.
    let before = over_group(&daemon);
    daemon.kill();
    assert_eq!(CROWDS[0].flood(1).send(&lab).packets, CROWDS[0].rate);
    daemon.restart(&lab);
    assert!(over_group(&daemon) > before + 30_000);
    let shown = daemon.cli().ok(&["show", CROWDS[0].first]);
    assert!(shown["group"]["dropped"].as_u64() > Some(60_000), "{shown:#}");
    write("");
    daemon.cli().ok(&["reload"]);
    assert_eq!(dropped_of(&daemon, &CROWDS[0], 1), 0);
    assert!(daemon.cli().ok(&["show", CROWDS[0].first])["group"].is_null());
    daemon.assert_accounted(&lab);
}

#[test]
fn who_spreads_with_buckets_is_pointed_out() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    daemon.cli().limit("10pps", Some("10"), None);
    let frames = (0..40).map(|site| frame::udp(v6(site, 1), 100)).collect();
    let sent = Sender::new(&lab).send(vec![Stream::cycle(frames, 4000.0, 6000)]);
    assert_eq!(sent[0].packets(), 6000);
    std::thread::sleep(Duration::from_millis(2500));
    let said = warnings(&daemon);
    assert!(said.contains("many sources of 2001:db8:7::/48 are over their limits"), "{said}");
    assert!(said.contains("--group-limit"), "{said}");
}

#[test]
fn pointless_groups_are_refused() {
    let lab = Lab::new(1);
    let refused = |arguments: &[&str], message: &str| {
        let daemon = Daemon::start(&lab);
        let mut command = daemon.command(&lab);
        let answer = tests::cli::answer(command.args(arguments));
        assert_eq!(answer.code, 2, "{answer:?}");
        assert!(answer.stderr.contains(message), "{answer:?}");
    };
    refused(&["--group-limit", "10kpps", "--ipv4-prefix", "24"], "makes that one source");
    refused(&["--group-ipv6-prefix", "52"], "give 48 or 56");
    refused(&["--group-limit", "10"], "group-limit");
}
