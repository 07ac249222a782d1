//! Real daemons that keep one limit together, by real packets: spread, at one host, stepping from host to
//! host, through a crash and through a partition.

use std::{
    net::Ipv4Addr,
    thread::sleep,
    time::{Duration, Instant},
};

use tests::{hosts::Hosts, process::cpu_time, sender::Sending};

const SOURCE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const RATE: f64 = 3000.0;
const BURST: f64 = 300.0;
/// What is sent to a host that is flooded, packets a second.
const FLOOD: f64 = 5000.0;

fn seconds(seconds: f64) {
    sleep(Duration::from_secs_f64(seconds));
}

/// Three hosts with even shares, and a limit that was set on one of them.
fn three() -> Hosts {
    let hosts = Hosts::start(3, &[]);
    let all = [0, 1, 2];
    hosts.daemons[1].cli().ok(&["limit", "set", "3000pps", "--burst", "300", "--scope", "cluster"]);
    let taken = hosts.wait_limit(&all, "3000pps");
    println!("the limit is in force on all hosts after {:.2} s", taken.as_secs_f64());
    hosts.wait_even(&all);
    hosts
}

#[test]
fn one_source_gets_one_limit_from_three_hosts() {
    let hosts = three();
    let watch = hosts.watch(SOURCE);
    let sending: Vec<_> = (0..3).map(|host| hosts.send(host, SOURCE, FLOOD)).collect();
    let before: Vec<_> = hosts.daemons.iter().map(|daemon| cpu_time(daemon.pid())).collect();
    seconds(8.0);
    for (daemon, before) in hosts.daemons.iter().zip(before) {
        let took = (cpu_time(daemon.pid()) - before).as_secs_f64();
        println!("a daemon takes {:.1} % of a CPU", 100.0 * took / 8.0);
    }
    drop(Sending::stop_all(sending));
    let admitted = watch.stop();
    admitted.print(8);
    admitted.assert_kept("spread over three", RATE, BURST);
    let used = admitted.utilisation(RATE, 2.0, 8.0);
    println!("spread over three: {used:.3} of the limit is used");
    (0..3).for_each(|host| println!("{}", hosts.status(host)));
    assert!(used >= 0.9, "{used}");
}

/// What of the limit has to be used where one host has all demand: the floors of the others lie idle.
const ALONE: f64 = 0.9;

#[test]
fn demand_moves_from_host_to_host_and_the_limit_with_it() {
    let hosts = three();
    let watch = hosts.watch(SOURCE);
    let first = hosts.send(0, SOURCE, FLOOD);
    seconds(6.0);
    drop(first.stop());
    for host in [2, 1] {
        let next = hosts.send(host, SOURCE, FLOOD);
        seconds(6.0);
        drop(next.stop());
    }
    let admitted = watch.stop();
    admitted.print(18);
    admitted.assert_kept("one host, then another", RATE, BURST);
    let used = admitted.utilisation(RATE, 1.5, 5.5);
    let start = admitted.back(RATE, ALONE, 0.0, 4.0);
    let steps = [(6.0, 11.0), (12.0, 17.0)].map(|(from, to)| admitted.back(RATE, ALONE, from, to));
    println!("one loaded host: {used:.3} of the limit is used, from {start:?} s on");
    println!("a step to another host: {:.0} % used again after {steps:?} s", 100.0 * ALONE);
    assert!(used >= ALONE, "{used}");
    // A machine that does something else for a moment makes one of them late.
    assert!(steps.iter().flatten().any(|step| *step <= 1.5), "{steps:?}");
    assert!(steps.iter().all(|step| step.is_some_and(|step| step <= 3.0)), "{steps:?}");
}

#[test]
fn a_host_that_dies_costs_nothing_in_the_end_and_comes_back() {
    let mut hosts = three();
    // Its buckets go on without it.
    let (watch, sending) = {
        let watch = hosts.watch(SOURCE);
        let sending: Vec<_> = (0..3).map(|host| hosts.send(host, SOURCE, FLOOD)).collect();
        seconds(4.0);
        (watch, sending)
    };
    let pid = hosts.daemons[1].pid();
    // SAFETY: kill takes plain numbers; the daemon is a child of this process, and not reaped yet.
    unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
    seconds(10.0);
    drop(Sending::stop_all(sending));
    let admitted = watch.stop();
    admitted.print(14);
    admitted.assert_kept("one of three is killed", RATE, BURST);
    let after = admitted.utilisation(RATE, 9.0, 14.0);
    println!("one of three is killed: {after:.3} of the limit is used five seconds later");
    // The two others are a majority, and use what it had beside its floor, with which its kernel goes on.
    assert!((0.9..=1.01).contains(&after), "{after}");
    hosts.kill(1);
    let watch = Instant::now();
    hosts.restart(1);
    hosts.wait_members(&[0, 1, 2], 3);
    println!("it is back after {:.1} s", watch.elapsed().as_secs_f64());
    assert!((hosts.home(1) - 1.0 / 3.0).abs() < 0.05, "{}", hosts.status(1));
    let watch = hosts.watch(SOURCE);
    let sending: Vec<_> = (0..3).map(|host| hosts.send(host, SOURCE, FLOOD)).collect();
    seconds(7.0);
    drop(Sending::stop_all(sending));
    let admitted = watch.stop();
    admitted.print(7);
    admitted.assert_kept("it is back", RATE, BURST);
    let used = admitted.utilisation(RATE, 4.0, 7.0);
    println!("it is back: {used:.3} of the limit is used");
    assert!(used >= 0.9, "{used}");
}

#[test]
fn a_partition_costs_no_packet_too_many_and_heals() {
    let hosts = three();
    let watch = hosts.watch(SOURCE);
    let sending: Vec<_> = (0..3).map(|host| hosts.send(host, SOURCE, FLOOD)).collect();
    seconds(3.0);
    hosts.fleet.split(&[&[0, 1], &[2]]);
    seconds(9.0);
    hosts.fleet.split(&[&[0, 1, 2]]);
    seconds(8.0);
    drop(Sending::stop_all(sending));
    let admitted = watch.stop();
    admitted.print(20);
    admitted.assert_kept("a partition that heals", RATE, BURST);
    let (split, healed) =
        (admitted.utilisation(RATE, 8.0, 12.0), admitted.utilisation(RATE, 17.0, 20.0));
    println!("a partition: {split:.3} of the limit is used while it lasts, {healed:.3} afterwards");
    // Each side has what is its own.
    assert!(split >= 0.9, "{split}");
    assert!(healed >= 0.9, "{healed}");
    hosts.wait_members(&[0, 1, 2], 3);
}

#[test]
fn a_daemon_that_hangs_costs_no_packet_too_many() {
    let hosts = three();
    let watch = hosts.watch(SOURCE);
    let sending: Vec<_> = (0..3).map(|host| hosts.send(host, SOURCE, FLOOD)).collect();
    for _ in 0..2 {
        seconds(3.0);
        hosts.daemons[0].signal(libc::SIGSTOP);
        seconds(4.0);
        hosts.daemons[0].signal(libc::SIGCONT);
    }
    seconds(5.0);
    drop(Sending::stop_all(sending));
    let admitted = watch.stop();
    admitted.print(19);
    admitted.assert_kept("a daemon that hangs", RATE, BURST);
    let used = admitted.utilisation(RATE, 16.5, 19.0);
    println!("a daemon that hangs: {used:.3} of the limit is used when it goes on");
    assert!(used >= 0.9, "{used}");
}

#[test]
fn a_host_hands_over_what_it_has_and_comes_back() {
    let mut hosts = three();
    {
        let watch = hosts.watch(SOURCE);
        let sending: Vec<_> = (0..3).map(|host| hosts.send(host, SOURCE, FLOOD)).collect();
        seconds(2.0);
        let left = hosts.daemons[2].cli().ok(&["cluster", "leave"]);
        println!("left: {left}");
        assert_eq!(left["others"], 2);
        seconds(6.0);
        drop(Sending::stop_all(sending));
        let admitted = watch.stop();
        admitted.print(8);
        admitted.assert_kept("a host leaves", RATE, BURST);
    }
    hosts.wait_members(&[0, 1], 2);
    let homes = [hosts.home(0), hosts.home(1), hosts.home(2)];
    println!("home shares: {homes:.4?}");
    assert!(homes[0] + homes[1] > 0.9999 && homes[2] == 0.0, "{homes:?}");
    let status = hosts.daemons[2].cli().run(&["status"]);
    assert_eq!(status.code, 1, "{status:?}");
    assert!(status.json["warnings"].to_string().contains("has left the cluster"), "{status:?}");
    assert_eq!(hosts.daemons[2].terminate().code(), Some(0));
    hosts.restart(2);
    hosts.wait_members(&[0, 1, 2], 3);
    hosts.wait_even(&[0, 1, 2]);
    // Who restarts keeps what it has, and is seen to go and to come at once.
    assert_eq!(hosts.daemons[1].terminate().code(), Some(0));
    hosts.wait_members(&[0, 2], 2);
    hosts.restart(1);
    hosts.wait_members(&[0, 1, 2], 3);
    assert!((hosts.home(1) - 1.0 / 3.0).abs() < 0.05, "{}", hosts.status(1));
}
