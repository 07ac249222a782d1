//! How many distinct sources there were, against how many there really were.

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use tests::{Cli, Daemon, Flood, Lab, Sender, Sources, Stream, machine::median, pcap};

/// What a command says: how many, and the standard error.
fn distinct(cli: &Cli, arguments: &[&str]) -> (f64, f64) {
    // `status` has a warning when nothing is limited, and then another exit code.
    let json = cli.run(arguments).json;
    let report = &json["distinct"];
    let number = |name: &str| report[name].as_f64().unwrap_or_else(|| panic!("{name}: {json:#}"));
    assert!((number("window_s") - 1.0737).abs() < 0.001, "{report}");
    (number("sources"), number("standard_error"))
}

/// Asserts that estimates of `count` sources are within 2 standard errors in the median, which chance
/// alone breaks once in thousands of runs, and that none is far off.
fn assert_close(what: &str, count: u32, estimates: &[f64]) {
    let errors: Vec<f64> = estimates.iter().map(|n| 100.0 * (n / f64::from(count) - 1.0)).collect();
    let middle = median(&errors);
    println!("{what}: {count} sources, {middle:+.2} % in the median of {errors:+.2?}");
    assert!(middle.abs() < 2.0 * 1.625, "{what}: {errors:?}");
    assert!(errors.iter().all(|error| error.abs() < 5.0 * 1.625), "{what}: {errors:?}");
}

/// Floods of `count` sources each, which all send in each window: the estimates of windows that were
/// full of them.
fn estimates(lab: &Lab, cli: &Cli, count: u32, first: impl Fn(u8) -> IpAddr) -> Vec<f64> {
    let mut found = Vec::new();
    for round in 0..5 {
        // Each comes four times a window or more.
        let flood = Flood::new(Sources::RoundRobin(first(round), count), 1 << 30);
        let flooding = flood.at_rate(4 * u64::from(count)).start(lab);
        // Two windows and some.
        std::thread::sleep(Duration::from_millis(2800));
        let (sources, standard_error) = distinct(cli, &["status"]);
        let _sent = flooding.stop();
        assert!((standard_error - 0.01625).abs() < 1e-6, "{standard_error}");
        found.push(sources);
    }
    found
}

#[test]
fn the_sources_of_a_flood_are_counted() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    // Some are limited, and remembered as such.
    cli.limit("2pps", Some("2"), None);
    assert_eq!(distinct(&cli, &["status"]).0, 0.0, "nobody sends");
    let v4 = |round| Ipv4Addr::new(198, 18 + round, 0, 0).into();
    let v6 = |round: u8| Ipv6Addr::new(0x2001, 0xdb8, u16::from(round), 0, 0, 0, 0, 1).into();
    for (what, count, found) in [
        ("IPv4", 20_000, estimates(&lab, &cli, 20_000, v4)),
        ("IPv6", 3000, estimates(&lab, &cli, 3000, v6)),
    ] {
        assert_close(what, count, &found);
    }
    let (of_top, _) = distinct(&cli, &["top", "--once"]);
    assert!(of_top < 4000.0, "{of_top}");
    std::thread::sleep(Duration::from_millis(2300));
    assert_eq!(distinct(&cli, &["status"]).0, 0.0, "nobody sends any more");
    daemon.assert_accounted(&lab);
}

/// Replays `frames` over and over, all of them in each window, and returns what the limiter counts and
/// how many sources there really are.
fn replayed(lab: &Lab, cli: &Cli, frames: Vec<Vec<u8>>) -> (f64, u32) {
    let exact: HashSet<_> = frames.iter().filter_map(|frame| pcap::source(frame)).collect();
    // Four times a window.
    let rate = 4.0 * frames.len() as f64;
    let replaying = Sender::new(lab).start(vec![Stream::cycle(frames, rate, u64::MAX)]);
    std::thread::sleep(Duration::from_millis(2800));
    let (sources, _) = distinct(cli, &["status"]);
    let _sent = replaying.stop();
    (sources, exact.len() as u32)
}

#[test]
fn the_sources_of_a_real_capture_are_counted() {
    let Some(folder) = pcap::captures() else { return };
    // Of those that there are, the one with most sources.
    let frames = pcap::read(&folder.join("srvloc.pcap")).expect("a capture can be read");
    let mut frames = frames.expect("a pcap file of Ethernet");
    frames.retain(|frame| frame.len() <= 1514 && pcap::source(frame).is_some());
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    // Some of them are limited.
    cli.limit("2pps", Some("2"), None);
    // 300 sources are few for a HyperLogLog of 4096 registers, so in a second part there are 64 copies of
    // the capture at once, each with other sources. Every round has others again.
    for (what, copies, rounds) in [("srvloc.pcap", 1, 3), ("64 times srvloc.pcap", 64, 5)] {
        let mut estimates = Vec::new();
        let mut count = 0;
        for round in 0..rounds {
            let changes = (0..copies).map(|copy| ((copy << 8) | round) << 16);
            let frames = changes.flat_map(|change| {
                frames.iter().map(move |frame| pcap::with_other_source(frame, change))
            });
            let (estimate, exact) = replayed(&lab, &cli, frames.collect());
            estimates.push(estimate);
            assert!(exact >= 290 * copies && (count == 0 || count == exact), "{exact}, {count}");
            count = exact;
        }
        assert_close(what, count, &estimates);
    }
    daemon.assert_accounted(&lab);
}
