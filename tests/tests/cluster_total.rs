//! Real daemons that keep one limit of all sources together, by real packets.

use std::{
    net::{IpAddr, Ipv4Addr},
    thread::sleep,
    time::{Duration, Instant},
};

use tests::{
    frame,
    hosts::Hosts,
    sender::{Sender, Sending, Stream},
};

const RATE: f64 = 3000.0;
const BURST: f64 = 300.0;
/// What is sent to a host that is flooded, packets a second.
const FLOOD: f64 = 5000.0;

/// Three hosts with even shares and a limit for whom `limit` says, of 3000 packets a second.
fn three(limit: &[&str]) -> Hosts {
    let hosts = Hosts::start(3, &[]);
    let all = [0, 1, 2];
    let set = ["limit", "set", "3000pps", "--burst", "300", "--scope", "cluster"];
    hosts.daemons[1].cli().ok(&[&set, limit].concat());
    let _ = hosts.wait_limit(&all, "3000pps");
    hosts.wait_even(&all);
    hosts
}

/// Begins to send what comes from many sources to a host.
fn flood(hosts: &Hosts, host: usize) -> Sending {
    let source = |n| frame::udp(IpAddr::V4(Ipv4Addr::new(198, 51, 100, n)), 100);
    let stream = Stream::cycle((1..=100).map(source).collect(), FLOOD, 1 << 24);
    Sender::new(&hosts.fleet.hosts[host]).start(vec![stream])
}

#[test]
fn a_flood_that_moves_each_second_gets_one_total_from_three_hosts() {
    let hosts = three(&["--aggregate"]);
    let watch = hosts.watch_all();
    let begun = Instant::now();
    for second in 0..12 {
        let sending = flood(&hosts, second % 3);
        let end = begun + Duration::from_secs(second as u64 + 1);
        sleep(end.saturating_duration_since(Instant::now()));
        drop(sending.stop());
    }
    let admitted = watch.stop();
    admitted.print(12);
    admitted.assert_kept("a total under a flood that moves", RATE, BURST);
    let used = admitted.utilisation(RATE, 1.0, 12.0);
    println!("a total under a flood that moves: {used:.3} of the limit is used");
    let shown = hosts.daemons[2].cli().ok(&["show", "198.51.100.7"]);
    println!("{:#}", shown["shared"]);
    assert!(shown["shared"][0]["share"]["floor"].as_f64().is_some_and(|floor| floor > 0.0));
    assert!(used >= 0.9, "{used}");
}

#[test]
fn sources_of_a_prefix_get_one_limit_from_three_hosts() {
    let hosts = three(&["--for", "198.51.100.0/24", "--aggregate"]);
    let watch = hosts.watch_all();
    let sending: Vec<_> = (0..3).map(|host| flood(&hosts, host)).collect();
    sleep(Duration::from_secs(4));
    // Its buckets go on without it, and what it had is given to the others.
    let pid = hosts.daemons[1].pid();
    // SAFETY: kill takes plain numbers; the daemon is a child of this process, and not reaped yet.
    unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
    sleep(Duration::from_secs(8));
    drop(Sending::stop_all(sending));
    let admitted = watch.stop();
    admitted.print(12);
    admitted.assert_kept("sources of a prefix, one of three is killed", RATE, BURST);
    let [before, after] = [(1.0, 4.0), (9.0, 12.0)].map(|(a, b)| admitted.utilisation(RATE, a, b));
    println!("sources of a prefix: {before:.3} is used, {after:.3} after one of three was killed");
    assert!(before >= 0.9 && after >= 0.9, "{before} {after}");
}

#[test]
fn a_destination_gets_one_limit_from_three_hosts() {
    let hosts = three(&["--by", "destination"]);
    let watch = hosts.watch_all();
    // On all of them, then on one alone, whose share grows.
    let sending: Vec<_> = (0..3).map(|host| flood(&hosts, host)).collect();
    sleep(Duration::from_secs(5));
    let mut sending = sending.into_iter();
    let last = sending.next_back().expect("three");
    drop(Sending::stop_all(sending));
    sleep(Duration::from_secs(7));
    drop(last.stop());
    let admitted = watch.stop();
    admitted.print(12);
    admitted.assert_kept("a destination behind three hosts", RATE, BURST);
    let [all, one] = [(1.0, 5.0), (8.0, 12.0)].map(|(a, b)| admitted.utilisation(RATE, a, b));
    println!("a destination: {all:.3} is used by three hosts, {one:.3} by one");
    assert!(all >= 0.9 && one >= 0.9, "{all} {one}");
}
