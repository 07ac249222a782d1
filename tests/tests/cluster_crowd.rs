//! A hundred thousand sources at once, under one limit of the cluster: hosts ask for as many as they have the time for,
//! and who was there before is not disturbed.

use std::{
    net::Ipv4Addr,
    thread::sleep,
    time::{Duration, Instant},
};

use serde_json::Value;
use tests::{
    Sender, Sent, Stream, frame,
    hosts::{Hosts, Watch, flood},
    process::{cpu_time, own_memory, wait_for},
    sender::Sending,
};

/// More than its limit at each host, all the time.
const SOURCE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const RATE: f64 = 3000.0;
const BURST: f64 = 300.0;
const TIMEOUT: Duration = Duration::from_secs(30);

fn seconds(seconds: f64) {
    sleep(Duration::from_secs_f64(seconds));
}

#[test]
fn a_hundred_thousand_sources_at_once_are_bounded_and_disturb_nobody() {
    const MANY: u32 = 100_000;
    /// A part of the limit of these at each host, 0.8 of it, less than a floor and half of it at one host.
    const GOOD: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);
    const ALONE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 6);
    const LITTLE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);
    const HALF: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 8);
    /// Some of the many.
    const SAMPLES: [u32; 2] = [7, 99_999];
    let hosts = Hosts::start(3, &[]);
    let all = [0, 1, 2];
    let limits = [
        ("3000pps", "300", "default"),
        ("30/minute", "2", "10.0.0.0/8"),
        ("600pps", "300", "203.0.113.0/24"),
    ];
    for (rate, burst, whom) in limits {
        let set = ["limit", "set", rate, "--burst", burst, "--for", whom, "--scope", "cluster"];
        hosts.daemons[0].cli().ok(&set);
    }
    hosts.wait_limits(&all, limits.len());
    hosts.wait_even(&all);
    let first = Ipv4Addr::new(10, 0, 0, 0).to_bits();
    let watch = Watch::new(&hosts.fleet, SOURCE);
    let watch_alone = Watch::new(&hosts.fleet, ALONE);
    let watch_little = Watch::new(&hosts.fleet, LITTLE);
    let watch_good = Watch::new(&hosts.fleet, GOOD);
    let samples = SAMPLES.map(|at| hosts.watch(Ipv4Addr::from_bits(first + at)));
    let begun = Instant::now();
    let sending: Vec<_> = all.map(|host| flood(&hosts.fleet, host, SOURCE, 2000.0)).into();
    let mut good: Vec<_> = all.map(|host| flood(&hosts.fleet, host, GOOD, 150.0)).into();
    good.push(flood(&hosts.fleet, 2, ALONE, 480.0));
    good.push(flood(&hosts.fleet, 1, LITTLE, 5.0));
    good.push(flood(&hosts.fleet, 2, HALF, 300.0));
    seconds(4.0);
    let dropped = |host: usize, source: Ipv4Addr| {
        hosts.daemons[host].cli().ok(&["show", &source.to_string()])["dropped"].as_u64().unwrap()
    };
    let half_lost = dropped(2, HALF);
    let pids = all.map(|host| hosts.daemons[host].pid());
    let before = pids.map(|pid| (cpu_time(pid), own_memory(pid)));
    let from = begun.elapsed().as_secs_f64();
    let frames: Vec<_> =
        (0..MANY).map(|at| frame::udp(Ipv4Addr::from_bits(first + at).into(), 64)).collect();
    let many: Vec<_> = [0, 1]
        .map(|host| {
            let stream = Stream::cycle(frames.clone(), 20_000.0, 1 << 24);
            Sender::new(&hosts.fleet.hosts[host]).start(vec![stream])
        })
        .into();
    seconds(15.0);
    let to = begun.elapsed().as_secs_f64();
    let told: Vec<String> = [0, 1].map(|host| hosts.peers(host).to_string()).into();
    // So does another host, whose questions may take a while to come through.
    let left_out = |peer: &Value| peer["details"]["left_out"].as_u64().filter(|count| *count > 0);
    wait_for("what hosts leave at their floor, as another one sees it", TIMEOUT, || {
        let seen = hosts.peers(2);
        let (warnings, seen) = (seen["warnings"].to_string(), seen["peers"].as_array()?.clone());
        let others: Vec<_> = seen.iter().filter(|peer| peer["state"] != "this").collect();
        let said = |peer: &Value, count: u64| {
            format!("{} leaves {count} sources", peer["host"].as_str().unwrap_or_default())
        };
        let told =
            |peer: &&Value| left_out(peer).is_some_and(|n| warnings.contains(&said(peer, n)));
        others.into_iter().any(|peer| told(&peer)).then_some(())
    });
    for (host, (cpu, memory)) in all.into_iter().zip(before) {
        let part = (cpu_time(pids[host]) - cpu).as_secs_f64() / (to - from);
        let grown = own_memory(pids[host]).saturating_sub(memory);
        let status = hosts.status(host);
        println!(
            "{}: {:.0} % of a CPU, {} KiB more than {} KiB; {} sources are shared, {} limited",
            tests::hosts::name(host),
            100.0 * part,
            grown >> 10,
            memory >> 10,
            status["sources"],
            status["limited"]
        );
        println!("  {status}");
        println!("  {} datagrams found no room", hosts.no_room(host));
        assert!(grown < 128 << 20, "{grown} bytes more");
        assert_eq!(status["members"], 3, "{status}");
        // What is asked for is bounded, whatever comes.
        assert!(status["sources"].as_u64().is_some_and(|sources| sources <= 1 << 14), "{status}");
    }
    let sent: u64 = Sending::stop_all(many).iter().map(Sent::packets).sum();
    drop(Sending::stop_all(sending));
    drop(Sending::stop_all(good));
    let admitted = watch.stop();
    println!("{:.0} packets/s of {MANY} sources", sent as f64 / (to - from));
    admitted.print(to as u32);
    admitted.assert_kept("beside 100,000 sources", RATE, BURST);
    println!(
        "beside 100,000 sources: {:.3} of the limit is used, {:.3} before",
        admitted.utilisation(RATE, from + 1.0, to),
        admitted.utilisation(RATE, 2.0, from)
    );
    // Whose demands fit is disturbed by nobody, whatever hosts keep for those that they do not track.
    let lost = all.map(|host| dropped(host, GOOD));
    let good = watch_good.stop().utilisation(450.0, from, to);
    println!("three quarters of a limit at three hosts: {good:.3} of it passes, {lost:?} are lost");
    assert!(good > 0.99, "{good}");
    let half_lost = [half_lost, dropped(2, HALF)];
    println!("half of a limit at one host: {half_lost:?} are lost before the flood and in the end");
    assert!(half_lost[1] <= half_lost[0] + 1, "{half_lost:?}");
    for (sample, at) in samples.into_iter().zip(SAMPLES) {
        sample.stop().assert_kept(&format!("one of the many, {at}"), 0.5, 2.0);
    }
    // Who was there before has its grants in time. In the end two hosts keep half of their parts: two thirds of the limit
    // are left at the third one.
    let alone = watch_alone.stop();
    let (before, at_once, in_the_end) = (
        alone.utilisation(480.0, 2.0, from),
        alone.utilisation(480.0, from, to - 5.0),
        alone.utilisation(480.0, to - 5.0, to),
    );
    println!(
        "0.8 of a limit at one host: {before:.3} of it passes before, then {at_once:.3}, then {in_the_end:.3}"
    );
    assert!(at_once > 0.85 && in_the_end > 0.8, "{at_once} {in_the_end}");
    let little = watch_little.stop().utilisation(5.0, 2.0, to);
    println!("less than a floor: {little:.3} of it passes");
    assert!(little > 0.9, "{little}");
    // What the others have is told, with the reason.
    let why = "more sources send at once than this host has the time";
    assert!(told.iter().any(|told| told.contains(why)), "{told:?}");
}
