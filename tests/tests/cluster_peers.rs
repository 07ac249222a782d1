//! What hosts of a cluster say to each other is not limited, on the interface that carries it, whatever
//! limits, bans and floods with forged addresses there are.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use tests::{
    Daemon, DaemonOptions, Fleet, Lab, Observer, Sender, Stream,
    cli::limiter_binary,
    fleet::CONTROL,
    frame,
    hosts::{Hosts, PORT},
    lab::{RX_V4, RX_V6},
    observer::Then,
    process::{self, wait_for},
    program::Program,
    sender::{Sending, Sent},
    v4,
};

/// A limit that bans whoever a flood comes from, forged or not.
const BANS: [&str; 8] =
    ["1000pps", "--ban-for", "40s", "--ban-after", "3s", "--ban-factor", "5", "--ban-unverified"];
const TIMEOUT: Duration = Duration::from_secs(60);
const ALL: [usize; 3] = [0, 1, 2];
/// What is sent under a limit of the cluster, to the first host.
const SOURCE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
/// Somebody who keeps to the limit, at the first host.
const CONFORMING: u8 = 9;
const CONFORMING_PPS: f64 = 100.0;
/// Packets a second of a flood with one forged address.
const FLOOD: f64 = 12_000.0;

/// Three hosts with a program on both interfaces, and this limit of each host alone.
fn three(default: &[&str]) -> Hosts {
    let hosts = Hosts::start(3, &["-i", CONTROL]);
    for daemon in &hosts.daemons {
        daemon.cli().ok(&[&["limit", "set"][..], default].concat());
    }
    hosts
}

/// Sets a limit of the cluster on the first host, and waits until all have it.
fn share(hosts: &Hosts, target: &str) {
    let limit = ["limit", "set", "300pps", "--burst", "60", "--for", target, "--scope", "cluster"];
    hosts.daemons[0].cli().ok(&limit);
    let begun = Instant::now();
    for &host in &ALL {
        let cli = hosts.daemons[host].cli();
        wait_for(format!("the limit of the cluster on host {host}"), TIMEOUT, || {
            let list = cli.ok(&["limit", "list"])["limits"].to_string();
            list.contains("\"300pps\"").then_some(())
        });
    }
    println!("a limit of the cluster is on all hosts after {:.1} s", begun.elapsed().as_secs_f64());
}

/// Looks every second who sees whom until `until` has passed. Returns the looks that did not find all.
fn incomplete_looks(hosts: &Hosts, until: Duration) -> Vec<(f64, Vec<u64>)> {
    let begun = Instant::now();
    let mut incomplete = Vec::new();
    while begun.elapsed() < until {
        let seen = ALL.map(|host| hosts.status(host)["members"].as_u64().unwrap_or(0));
        if seen != [3; 3] {
            incomplete.push((begun.elapsed().as_secs_f64(), seen.to_vec()));
        }
        sleep(Duration::from_secs(1));
    }
    incomplete
}

fn send(hosts: &Hosts, host: usize, streams: Vec<Stream>) -> Sending {
    Sender::new(&hosts.fleet.hosts[host]).start(streams)
}

fn conforming() -> Stream {
    Stream::new(frame::udp(v4(CONFORMING), 100), CONFORMING_PPS, 1 << 20)
}

/// Asserts that all of it has passed at the first host.
fn assert_conforming(sent: &Sent, passed: u64) {
    println!("conforming: {} sent, {passed} passed", sent.packets());
    assert!(sent.packets() > 500 && passed == sent.packets(), "{passed} of {}", sent.packets());
}

#[test]
fn a_low_limit_parts_no_fleet() {
    let mut hosts = three(&["2pps"]);
    let incomplete = incomplete_looks(&hosts, Duration::from_secs(20));
    assert!(incomplete.is_empty(), "not all members were seen: {incomplete:?}");
    share(&hosts, "198.51.100.0/24");
    for daemon in &hosts.daemons {
        let stats = daemon.cli().stats();
        let [passed, over] = [("pass", "peer_frame"), ("drop", "over_peer_budget")]
            .map(|(verdict, reason)| stats.packets(verdict, reason));
        println!("{passed} frames of hosts passed, {over} were over their budget");
        assert!(passed > 100 && over == 0, "{stats:#?}");
    }
    let cli = hosts.daemons[0].cli();
    let (peer, stranger) = (Fleet::address(1).to_string(), Fleet::address(199).to_string());
    assert_eq!(
        cli.ok(&["show", &peer])["unlimited_frames"],
        format!("{}:{PORT}", Fleet::address(0))
    );
    assert!(cli.ok(&["show", &stranger])["unlimited_frames"].is_null());
    assert_eq!(hosts.status(0)["unlimited_peers"], 2, "{}", hosts.status(0));

    // What a daemon has left is there for the next one.
    hosts.kill(0);
    hosts.restart(0);
    let begun = Instant::now();
    hosts.wait_members(&ALL, 3);
    println!("a host is back after {:.1} s", begun.elapsed().as_secs_f64());
    let incomplete = incomplete_looks(&hosts, Duration::from_secs(5));
    assert!(incomplete.is_empty(), "not all members were seen: {incomplete:?}");
}

#[test]
fn a_ban_of_a_forged_address_parts_no_fleet() {
    let hosts = three(&BANS);
    share(&hosts, &SOURCE.to_string());
    hosts.wait_even(&ALL);
    let watch = hosts.watch(SOURCE);
    let under_limit = send(
        &hosts,
        0,
        vec![Stream::new(frame::udp(SOURCE.into(), 100), 1000.0, 1 << 20), conforming()],
    );
    sleep(Duration::from_secs(8));
    let forged = [1, 2]
        .map(|host| Stream::new(frame::udp(Fleet::address(host), 100), FLOOD, FLOOD as u64 * 10));
    let flood = send(&hosts, 0, forged.to_vec());
    let mut incomplete = incomplete_looks(&hosts, Duration::from_secs(10));
    let rates: Vec<_> = flood.join().iter().map(Sent::rate).collect();
    let lost = hosts.fleet.hosts[0].lost_on_wire();
    let banned = [1, 2].map(|host| {
        hosts.daemons[0].cli().ok(&["show", &Fleet::address(host).to_string()])["listed"].clone()
    });
    incomplete.extend(incomplete_looks(&hosts, Duration::from_secs(20)));
    let sent = under_limit.stop();
    let passed = watch.passed_of(0, v4(CONFORMING));
    let admitted = watch.stop();
    admitted.print(38);
    println!("floods of {rates:.0?} a second, {lost} lost on the wire; banned: {banned:?}");
    let used = |from, to| admitted.utilisation(300.0, from, to);
    let (before, during, after) = (used(4.0, 8.0), used(8.0, 18.0), used(18.0, 36.0));
    println!("used of the limit: {before:.3}, during the flood {during:.3}, afterwards {after:.3}");
    assert!(incomplete.is_empty(), "not all members were seen: {incomplete:?}");
    assert!(banned.iter().all(|entry| entry["ban"] == true), "no ban: {banned:?}");
    // On a busy machine the flood itself keeps the daemon from its work; a fleet that is parted has a third.
    assert!(during >= 0.45 * before && after >= 0.9 * before, "{before} {during} {after}");
    assert_conforming(&sent[1], passed);
    // Frames go on to pass while their address is banned.
    let frames = || hosts.daemons[0].cli().stats().packets("pass", "peer_frame");
    let so_far = frames();
    sleep(Duration::from_secs(2));
    assert!(frames() > so_far + 10, "{} after {so_far}", frames());
}

#[test]
fn a_flood_of_forged_frames_is_bounded_and_counted() {
    const SECONDS: u64 = 10;
    let hosts = three(&BANS);
    let observer = Observer::new(&hosts.fleet.hosts[0], Then::Deliver, &[]);
    let others = send(&hosts, 0, vec![conforming()]);
    let cli = hosts.daemons[0].cli();
    let counted = || {
        let stats = cli.stats();
        [stats.packets("pass", "peer_frame"), stats.packets("drop", "over_peer_budget")]
    };
    let before = counted();
    let IpAddr::V4(here) = Fleet::address(0) else { unreachable!() };
    let forged = frame::sent_to(frame::udp_to(Fleet::address(1), 100, PORT), here);
    let flood = send(&hosts, 0, vec![Stream::new(forged, FLOOD, FLOOD as u64 * SECONDS)]);
    let incomplete = incomplete_looks(&hosts, Duration::from_secs(SECONDS));
    let sent = flood.join().remove(0);
    let after = counted();
    let [passed, over] = [after[0] - before[0], after[1] - before[1]];
    println!(
        "{} forged frames in {:.2} s: {passed} frames passed, {over} were over the budget",
        sent.packets(),
        sent.seconds()
    );
    println!("looks during the flood that did not find all members: {incomplete:?}");
    // 4,000 at once and 4,000 a second, and what the third host said meanwhile.
    let budget = 4000.0 * (1.0 + sent.seconds());
    assert!(
        (passed as f64) >= 0.95 * budget && (passed as f64) <= 1.05 * budget + 1000.0,
        "{passed}"
    );
    assert!(passed + over >= sent.packets(), "{passed} {over}");
    assert!(cli.run(&["status"]).json["warnings"].to_string().contains("address of a host"));
    // Nobody is banned for it, and the fleet is whole when it is over.
    assert!(cli.ok(&["show", &Fleet::address(1).to_string()])["listed"].is_null());
    let begun = Instant::now();
    hosts.wait_members(&ALL, 3);
    println!("all members are seen {:.1} s after the flood", begun.elapsed().as_secs_f64());
    assert!(begun.elapsed() < Duration::from_secs(15));
    share(&hosts, &SOURCE.to_string());
    let sent = others.stop().remove(0);
    assert_conforming(&sent, observer.read().from(v4(CONFORMING)));
}

/// A daemon that listens on `listen` of a lab, and knows nobody but a seed.
fn alone(lab: &Lab, folder: &Path, listen: IpAddr, seed: IpAddr) -> Daemon {
    let key = folder.join(format!("{}.key", listen.is_ipv4()));
    process::run(tools::own(limiter_binary()).args(["cluster", "key", "generate"]).arg(&key));
    let at = |ip| SocketAddr::new(ip, PORT).to_string();
    let (listen, seed, key) = (at(listen), at(seed), key.display().to_string());
    Daemon::start_with(
        lab,
        DaemonOptions::with(&[
            "--cluster-name",
            "alone",
            "--cluster-listen",
            &listen,
            "--cluster-key-file",
            &key,
            "--cluster-seeds",
            &seed,
        ]),
    )
}

#[test]
fn frames_of_a_seed_are_known_before_it_is_a_member_tagged_or_not() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let six = |net: u16| -> IpAddr { Ipv6Addr::new(0x2001, 0xdb8, 7, net, 0, 0, 0, 1).into() };
    for (listen, seed, stranger) in [(RX_V4.into(), v4(1), v4(2)), (RX_V6.into(), six(7), six(8))] {
        let lab = Lab::new(1);
        let mut daemon = alone(&lab, folder.path(), listen, seed);
        daemon.cli().ok(&["limit", "set", "1pps", "--burst", "1"]);
        let source = if seed.is_ipv4() { "198.51.100.1" } else { "2001:db8:7:7::/64" };
        daemon.cli().ok(&["deny", "add", source]);
        let mut program = Program::new(&daemon);
        let frame = |source| frame::udp_to(source, 100, PORT);
        for frame in [
            frame(seed),
            frame::tagged(&frame(seed), frame::TAG, 7),
            frame::tagged(&frame::tagged(&frame(seed), frame::TAG, 7), frame::SERVICE_TAG, 8),
        ] {
            for _ in 0..20 {
                assert_eq!(program.judge(&frame), ("pass", "peer_frame"), "{listen}");
            }
        }
        assert_eq!(program.judge(&frame::udp_to(seed, 100, PORT + 1)), ("drop", "denied"));
        let met: Vec<_> = (0..20).map(|_| program.judge(&frame(stranger))).collect();
        assert_eq!(met[19], ("drop", "over_limit"), "{met:?}");
        // Nor does it take a daemon.
        daemon.kill();
        assert_eq!(program.judge(&frame(seed)), ("pass", "peer_frame"), "{listen}");
    }
}
