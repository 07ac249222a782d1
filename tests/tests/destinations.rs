//! Limits by where packets go: of each source towards a service, and of each destination by itself.

use std::{net::Ipv4Addr, time::Duration};

use serde_json::Value;
use tests::{
    Daemon, DaemonOptions, Flood, Flooded, Lab, Observer, Sender, Sources, Stream, api, frame,
    observer::Then, pcap, v4, v6,
};

const RATE: u64 = 5000;
const BURST: u64 = 6000;

/// Who is flooded, and whoever is beside it.
const VICTIM: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);
const BESIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 8);

/// From one of the sources of a flood, which has 50,000.
fn crowd(packets: u64) -> Flood {
    let first = Ipv4Addr::new(10, 0, 0, 0).into();
    Flood::new(Sources::RoundRobin(first, 50_000), packets).to(VICTIM)
}

fn to(destination: Ipv4Addr, source: u8) -> Vec<u8> {
    frame::sent_to(frame::udp(v4(source), 100), destination)
}

fn dropped(daemon: &Daemon) -> u64 {
    daemon.cli().stats().packets("drop", "over_destination_limit")
}

/// The lines of `top --by destination`, and those of `top`.
fn lines(daemon: &Daemon) -> [Vec<Value>; 2] {
    ["destination", "source"].map(|by| {
        let top = daemon.cli().ok(&["top", "--by", by]);
        top["sources"].as_array().expect("a list").clone()
    })
}

#[test]
fn a_flood_of_many_sources_on_one_address_is_held_to_its_limit() {
    let lab = Lab::new(2);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    cli.limit("1000pps", Some("2000"), None);
    let rate = format!("{RATE}pps");
    let limit = ["limit", "set", &rate, "--burst", &BURST.to_string(), "--by", "destination"];
    let set = cli.ok(&limit);
    assert_eq!(set["limit"]["target"], "default any@each", "{set:#}");
    let observer = Observer::new(&lab, Then::Discard, &["10.0.0.0/16"]);
    // Of those beside it one has a bucket, and one has none. Who sends to both loses at one alone.
    let stream = |frame, rate: f64| Stream::new(frame, rate, rate as u64 * 8);
    let streams = vec![stream(to(BESIDE, 1), 800.0), stream(to(BESIDE, 2), 10.0)];
    let sending = Sender::new(&lab).on_cpu(0).start(streams);
    std::thread::sleep(Duration::from_secs(1));
    let flooded = crowd(2_000_000).at_rate(400_000).on_cpu(1).send(&lab);
    let sent = sending.join();
    let observed = observer.read();
    for (source, sent) in [1, 2].map(v4).iter().zip(&sent) {
        assert_eq!(observed.from(*source), sent.packets(), "{source} sends to a neighbour");
    }
    let allowed = BURST as f64 + RATE as f64 * Flooded::span(&[flooded]);
    let admitted = observed.crowd as f64;
    println!("{VICTIM}: {admitted} of {allowed:.0} from 50,000 sources");
    assert!(admitted <= 1.005 * allowed + 64.0, "{admitted} of {allowed}");
    assert!(admitted >= 0.97 * allowed, "{admitted} of {allowed}");
    // No source was over its own limit, and each packet is in one counter.
    let stats = daemon.assert_accounted(&lab);
    assert_eq!(stats.packets("drop", "over_limit"), 0);
    let lost = flooded.packets - observed.crowd;
    assert_eq!(stats.packets("drop", "over_destination_limit"), lost);
    assert_told(&daemon, lost);
}

/// Whether each place says who is flooded.
fn assert_told(daemon: &Daemon, lost: u64) {
    let [destinations, sources] = lines(daemon);
    let names: Vec<_> = destinations.iter().map(|line| line["source"].clone()).collect();
    assert_eq!(names, ["203.0.113.7/32", "203.0.113.8/32"], "{destinations:#?}");
    let victim = &destinations[0];
    assert_eq!((&victim["class"], &victim["dropped"]), (&"any@each".into(), &lost.into()));
    assert_eq!(victim["limit"]["rate"], format!("{RATE}pps"));
    assert!(
        sources.iter().all(|line| line["class"] != "any@each"),
        "destinations are no sources: {sources:#?}"
    );
    let told = format!("more is sent to {VICTIM} than its limit {RATE}pps");
    assert!(daemon.log().contains(&told), "{}", daemon.log());
    let shown = daemon.cli().ok(&["show", &VICTIM.to_string()]);
    assert_eq!(shown["classes"][0]["dropped"], lost, "{shown:#}");
    let (_, metrics) = api::get(&daemon.socket(), "/metrics", "text/plain");
    let line = |line: &&str| {
        line.starts_with("limiter_packets_total") && line.contains("over_destination_limit")
    };
    let line = metrics.lines().find(line).expect("a counter of the reason");
    assert!(line.ends_with(&format!(" {lost}")), "{line}");
}

/// What of `count` packets passes that go to each of these at once, from one source each.
fn passed(lab: &Lab, frames: &[Vec<u8>], count: u64) -> Vec<u64> {
    let observer = Observer::new(lab, Then::Discard, &[]);
    let streams = frames.iter().map(|frame| Stream::new(frame.clone(), 20_000.0, count)).collect();
    let sent = Sender::new(lab).send(streams);
    assert!(sent.iter().all(|sent| sent.packets() == count));
    let observed = observer.read();
    observer.end();
    let from = |frame: &Vec<u8>| observed.from(pcap::address(frame).expect("an address"));
    frames.iter().map(from).collect()
}

#[test]
fn a_source_has_a_limit_towards_a_service() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    let set = |rate: &str, burst: &str, more: &[&str]| {
        cli.ok(&[&["limit", "set", rate, "--burst", burst][..], more].concat())
    };
    set("2/hour", "500", &[]);
    set("1/hour", "100", &["--dst", "203.0.113.0/24"]);
    set("1/hour", "50", &["--dst", "203.0.113.8"]);
    set("1/hour", "20", &["--dst", "203.0.113.0/24", "--proto", "udp", "--dport", "53"]);
    let dns = |destination, source| frame::sent_to(frame::udp_to(v4(source), 100, 53), destination);
    let elsewhere = Ipv4Addr::new(203, 0, 114, 7);
    let frames = [
        to(elsewhere, 1),
        to(VICTIM, 2),
        to(BESIDE, 3),
        dns(VICTIM, 4),
        // The longest prefix goes before the port.
        dns(BESIDE, 5),
        dns(elsewhere, 6),
        frame::udp(v6(7, 1), 100),
    ];
    assert_eq!(passed(&lab, &frames, 600), [500, 100, 50, 20, 50, 500, 500]);
    // Each has a bucket of its own, and what it lost at one service it has at another.
    assert_eq!(passed(&lab, &[to(elsewhere, 2), to(VICTIM, 1)], 600), [500, 100]);
    let shown = cli.ok(&["show", &v4(2).to_string()]);
    let classes = shown["classes"].as_array().expect("a list");
    assert_eq!(
        (&classes[0]["class"], &classes[0]["passed"]),
        (&"any@203.0.113.0/24".into(), &100.into())
    );
    // Without the limits of a service, its packets are as any.
    cli.ok(&["limit", "unset", "--dst", "203.0.113.8"]);
    cli.ok(&["limit", "unset", "--dst", "203.0.113.0/24"]);
    assert_eq!(passed(&lab, &[to(BESIDE, 8), dns(BESIDE, 9)], 600), [500, 20]);
    daemon.assert_accounted(&lab);
}

#[test]
fn destinations_are_told_apart_by_protocol_and_prefix() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    let set = |burst: &str, more: &[&str]| {
        let limit = ["limit", "set", "1/hour", "--burst", burst, "--by", "destination"];
        cli.ok(&[&limit[..], more].concat())
    };
    set("300", &["--for", "203.0.113.0/24"]);
    set("100", &["--for", "203.0.113.8"]);
    set("50", &["--proto", "udp", "--dport", "53"]);
    set("200", &["--for", "2001:db8::/32"]);
    let dns = |destination, source| frame::sent_to(frame::udp_to(v4(source), 100, 53), destination);
    let elsewhere = Ipv4Addr::new(203, 0, 114, 7);
    let v6 = |source, destination: &str| {
        frame::sent_to_v6(frame::udp(v6(source, 1), 100), destination.parse().expect("an address"))
    };
    // Two sources share what a destination may get.
    let both = passed(&lab, &[to(VICTIM, 1), to(VICTIM, 2)], 600);
    assert_eq!(both.iter().sum::<u64>(), 300, "{both:?}");
    let frames = [
        to(BESIDE, 3),
        to(elsewhere, 4),
        dns(elsewhere, 5),
        // Of two addresses in one /64 each has its own.
        v6(6, "2001:db8:1::1"),
        v6(7, "2001:db8:1::2"),
        v6(8, "2001:db9::2"),
    ];
    assert_eq!(passed(&lab, &frames, 600), [100, 600, 50, 200, 200, 600]);
    // A prefix loses its limit, then the class its last one.
    cli.ok(&["limit", "unset", "--by", "destination", "--for", "203.0.113.8"]);
    // What it got before it owes.
    assert_eq!(passed(&lab, &[to(BESIDE, 9)], 600), [200]);
    assert_eq!(daemon.cli().ok(&["limit", "list"])["limits"].as_array().map(Vec::len), Some(3));
    daemon.assert_accounted(&lab);
}

#[test]
fn limits_by_destination_outlive_the_daemon() {
    let lab = Lab::new(2);
    let home = tempfile::tempdir().expect("a temporary folder");
    let file = home.path().join("limiter.toml");
    let text = "[[limit]]\nfor = \"default\"\nby = \"destination\"\nrate = \"1/hour\"\nburst = 100\n\n\
                [[limit]]\nfor = \"default\"\ndst = \"203.0.113.8\"\nrate = \"1/hour\"\nburst = 50\n";
    std::fs::write(&file, text).expect("the file can be written");
    let path = file.to_str().expect("a path");
    let mut daemon = Daemon::start_with(&lab, DaemonOptions::with(&["--config", path]));
    assert_eq!(passed(&lab, &[to(VICTIM, 1), to(BESIDE, 2)], 300), [100, 50]);
    // What is there is pinned: a crash takes nothing away, and a restart neither forgets nor forgives.
    daemon.kill();
    assert_eq!(crowd(10_000).send(&lab).packets, 10_000);
    daemon.restart(&lab);
    assert!(dropped(&daemon) >= 10_000 - 50, "{}", dropped(&daemon));
    assert!(passed(&lab, &[to(VICTIM, 3)], 300)[0] < 50);
    std::fs::write(&file, "").expect("the file can be written");
    daemon.cli().ok(&["reload"]);
    assert_eq!(passed(&lab, &[to(VICTIM, 4), to(BESIDE, 2)], 300), [300, 300]);
    daemon.assert_accounted(&lab);
}

#[test]
fn what_destinations_cannot_have_is_refused() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let refused = |more: &[&str], message: &str| {
        let answer = daemon.cli().run(&[&["limit", "set", "10pps"][..], more].concat());
        assert!(answer.code != 0 && answer.stderr.contains(message), "{more:?}: {answer:?}");
    };
    let by = ["--by", "destination"];
    refused(&[&by[..], &["--dst", "203.0.113.7"]].concat(), "--for PREFIX --by destination");
    refused(&[&by[..], &["--aggregate"]].concat(), "--dst PREFIX --aggregate");
    refused(&[&by[..], &["--ban-for", "10m"]].concat(), "cannot ban");
    refused(&[&by[..], &["--scope", "strict"]].concat(), "what destinations get");
    refused(&["--dst", "203.0.113.7/24"], "did you mean 203.0.113.0/24");
    refused(&["--dst", "default"], "neither an IP address nor a prefix");
    // The tables tell a packet's destination apart from the rest of it.
    daemon.cli().ok(&["limit", "set", "10pps", "--syn"]);
    daemon.cli().ok(&[
        "limit",
        "set",
        "10pps",
        "--dst",
        "203.0.113.7",
        "--proto",
        "tcp",
        "--dport",
        "443",
    ]);
    daemon.cli().ok(&["limit", "set", "10pps", "--proto", "udp", "--sport", "53"]);
    refused(&["--dst", "203.0.113.7", "--proto", "udp", "--dport", "123"], "overlaps");
}
