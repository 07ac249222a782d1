//! What happens when something is used up: a set of the bucket table, the ring buffer of events, the
//! sketch's cells; by chance, or by somebody who computes collisions.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use limiter_common::{
    hash::HashKey,
    key::SourceKey,
    table::{SPARED, WAYS, set_of},
};
use serde_json::Value;
use tests::{
    Daemon, DaemonOptions, Lab, Program, frame,
    program::{layout, stay_on_cpu},
    v6,
};

/// Sources that a slow limit may have in a set.
const PLACES: u32 = WAYS - SPARED;

fn host(index: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0000 | index)
}

fn packet(source: impl Into<IpAddr>) -> Vec<u8> {
    frame::udp(source.into(), 80)
}

fn status(daemon: &Daemon) -> (i32, Value) {
    let answer = daemon.cli().run(&["status"]);
    (answer.code, answer.json)
}

fn internal(daemon: &Daemon, name: &str) -> u64 {
    let stats = daemon.cli().ok(&["stats"]);
    stats["internal"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {stats:#}"))
}

fn warns(status: &Value, about: &str) -> bool {
    let mut warnings = status["warnings"].as_array().into_iter().flatten();
    warnings.any(|warning| warning.as_str().is_some_and(|text| text.contains(about)))
}

/// A limit under which a bucket stays busy for the length of a test, and is given at once.
fn slow(daemon: &Daemon) {
    let limit = daemon.cli().limit("1/hour", Some("8"), None);
    assert_eq!(limit.gate, 1);
}

#[test]
fn a_full_set_does_as_it_is_told() {
    for (choice, passes, verdict) in
        [("pass", true, "pass"), ("drop", false, "drop"), ("evict-oldest", true, "pass")]
    {
        let lab = Lab::new(1);
        // One set.
        let ways = WAYS.to_string();
        let options = DaemonOptions::with(&["--max-sources", &ways, "--on-full", choice]);
        let daemon = Daemon::start_with(&lab, options);
        slow(&daemon);
        let program = Program::new(&daemon);
        // The first of them was used least recently. Whoever owes a packet or two makes room for others.
        for source in 0..PLACES {
            let packets = 3 + u64::from(source);
            assert_eq!(program.passing(&packet(host(source)), packets), packets);
        }
        let (code, full) = status(&daemon);
        assert_eq!((code, full["table"]["full_sets"].as_u64()), (1, Some(1)), "{full:#}");
        assert_eq!(full["table"]["busy"].as_u64(), Some(PLACES.into()));
        assert_eq!(full["table"]["held"].as_u64(), Some(PLACES.into()));
        assert!(warns(&full, "full"), "{full:#}");
        // Six buckets, each for an hour and a packet: what the operator is to know.
        let price = "hold 6 of 8 buckets: 0.002 forged packets a second";
        assert!(warns(&full, price), "{full:#}");
        let more = 20;
        let passed = program.passing(&packet(host(99)), more);
        let stats = daemon.cli().stats();
        let evictions = internal(&daemon, "busy_evictions");
        println!(
            "{choice}: {passed} of {more} passed, {} found no place, {evictions} evicted another",
            stats.internal.set_full
        );
        let newcomer = daemon.cli().show(host(99));
        if choice == "evict-oldest" {
            // It has a bucket like everyone, in the place of the first.
            assert_eq!((passed, stats.internal.set_full, evictions), (8, 1, 1));
            assert!(newcomer.tracked && !daemon.cli().show(host(0)).tracked);
        } else {
            assert_eq!((passed, evictions), (if passes { more } else { 0 }, 0));
            assert_eq!(stats.internal.set_full, more);
            assert_eq!(stats.packets(verdict, "set_full"), more);
            assert!(!newcomer.tracked);
        }
        // Whoever had a bucket before and still has it is limited as ever.
        let last = packet(host(PLACES - 1));
        assert_eq!(program.passing(&last, 20), 0);
    }
}

#[test]
fn more_events_than_anyone_reads_are_counted() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    daemon.cli().limit("1/hour", Some("1"), None);
    stay_on_cpu();
    let mut program = Program::new(&daemon);
    program.pause_daemon();
    // Each source has its first drop. Events are rationed, verdicts are not.
    let mut next = 0..;
    let mut limited = |program: &Program, sources: usize| {
        for source in next.by_ref().take(sources) {
            assert_eq!(program.passing(&packet(host(source)), 2), 1, "{}", host(source));
        }
    };
    limited(&program, 2000);
    program.resume_daemon();
    let suppressed = internal(&daemon, "events_suppressed");
    println!("2000 sources limited at once: {suppressed} events suppressed");
    assert!((1500..2000).contains(&suppressed), "{suppressed}");
    assert_eq!(internal(&daemon, "events_lost"), 0);
    // Without rations and without a reader, the ring buffer fills.
    program.pause_daemon();
    let events = 20_000;
    for _ in 0..events / 100 {
        program.forget_events();
        limited(&program, 100);
    }
    program.resume_daemon();
    let lost = internal(&daemon, "events_lost");
    println!("{events} events with nobody to read them: {lost} lost");
    assert!((1000..events).contains(&lost), "{lost}");
    let (_, status) = status(&daemon);
    assert_eq!(status["events"]["lost"].as_u64(), Some(lost), "{status:#}");
    assert!(status["events"]["suppressed"].as_u64() >= Some(suppressed), "{status:#}");
    assert!(warns(&status, "events were lost"), "{status:#}");
    let stats = daemon.cli().stats();
    assert_eq!(stats.packets("drop", "over_limit"), 2000 + events, "no verdict depends on it");
}

/// Sources that fall into set 0 of the table under `key`.
fn colliding(key: &HashKey, mask: u32) -> impl Iterator<Item = Ipv4Addr> {
    let all = (0..=0xff_ffff).map(host);
    all.filter(move |source| set_of(key.hash(SourceKey::from_ipv4(source.octets())), mask) == 0)
}

#[test]
fn collisions_take_the_key() {
    let lab = Lab::new(1);
    let daemon = Daemon::start_with(&lab, DaemonOptions::with(&["--max-sources", "65536"]));
    slow(&daemon);
    let program = Program::new(&daemon);
    let layout = layout(&daemon);
    // Somebody guesses the key and computes sources that would all be in one set.
    let guess = HashKey { words: layout.hash_key.words.map(|word| word ^ 0x5555_5555_5555_5555) };
    let guessed: Vec<_> = colliding(&guess, layout.set_mask).take(1000).collect();
    assert_eq!(guessed.len(), 1000);
    for source in &guessed {
        assert!(program.passes(&packet(*source)));
    }
    let (code, after) = status(&daemon);
    let (full, busy) = (&after["table"]["full_sets"], &after["table"]["busy"]);
    println!("1000 collisions under another key: {busy} buckets busy, {full} sets full");
    assert_eq!((code, full.as_u64(), busy.as_u64()), (0, Some(0), Some(1000)), "{after:#}");
    assert_eq!(internal(&daemon, "set_full"), 0);

    // With the key, which only root can read, one set is full; nobody else notices.
    let ways = WAYS as usize;
    let known: Vec<_> = colliding(&layout.hash_key, layout.set_mask).take(5 * ways).collect();
    assert_eq!(known.len(), 5 * ways);
    for source in &known {
        assert_eq!(program.passing(&packet(*source), 3), 3);
    }
    let (code, after) = status(&daemon);
    let turned_away = internal(&daemon, "set_full");
    println!(
        "{} collisions under the key: {} sets full, {turned_away} packets found no place",
        known.len(),
        after["table"]["full_sets"]
    );
    assert_eq!((code, after["table"]["full_sets"].as_u64()), (1, Some(1)), "{after:#}");
    // One of those before may have been there by chance.
    let most = 3 * (5 * u64::from(WAYS) - u64::from(PLACES));
    assert!((most..=most + 6).contains(&turned_away), "{turned_away}");
    let bystander = packet(Ipv4Addr::new(192, 0, 2, 77));
    assert_eq!(program.passing(&bystander, 20), 8, "others are limited as ever");
}

#[test]
fn a_saturated_sketch_is_told() {
    let lab = Lab::new(1);
    let options = ["--sketch-epsilon", "0.04", "--sketch-window", "60s"];
    let daemon = Daemon::start_with(&lab, DaemonOptions::with(&options));
    daemon.cli().limit("1000pps", Some("2000"), None);
    let program = Program::new(&daemon);
    let noise = |status: &Value| status["sketch"]["noise"].as_f64().unwrap_or(-1.0);
    let (_, quiet) = status(&daemon);
    assert!(noise(&quiet) < 0.1 && !warns(&quiet, "saturated"), "{quiet:#}");
    for source in 0..20_000 {
        assert!(program.passes(&packet(host(source))), "{} conforms", host(source));
    }
    let (_, loud) = status(&daemon);
    println!(
        "20000 sources in {} columns: noise {:.1}, {} buckets taken",
        loud["sketch"]["width"],
        noise(&loud),
        loud["table"]["occupied"]
    );
    assert!(noise(&loud) >= 16.0 && warns(&loud, "saturated"), "{loud:#}");
    assert!(loud["table"]["occupied"].as_u64() > Some(10_000), "light sources take buckets");
}

#[test]
fn a_flood_from_many_networks_of_one_site_is_seen_and_limited() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    cli.limit("1/hour", Some("100"), None);
    let program = Program::new(&daemon);
    // Hosts of one /64 share a bucket.
    let passed: u64 = (0..500).map(|host| program.passing(&packet(v6(1, host)), 1)).sum();
    assert_eq!(passed, 100);
    let shown = cli.show("2001:db8:7:1::1234");
    assert_eq!((shown.passed, shown.dropped), (100, 400), "{shown:?}");
    // A limit for the /48 holds for each /64 in it.
    cli.limit("1/hour", Some("10"), Some("2001:db8:8::/48"));
    let site = |network| Ipv6Addr::new(0x2001, 0xdb8, 8, network, 0, 0, 0, 1);
    let networks = 300;
    let passed: u64 = (0..networks).map(|n| program.passing(&packet(site(n)), 50)).sum();
    assert_eq!(passed, u64::from(networks) * 10);
    assert_eq!(program.passing(&packet(v6(2, 1)), 200), 100, "others keep the default");
    let top = cli.ok(&["top", "--once", "-n", "1000"]);
    let sources = top["sources"].as_array().expect("sources");
    let seen: Vec<_> = sources
        .iter()
        .filter(|source| source["source"].as_str().is_some_and(|s| s.starts_with("2001:db8:8:")))
        .collect();
    println!("{} networks of the site are in top: {}", seen.len(), seen[0]);
    // The network 0 is written without its zero.
    assert!(seen.len() >= usize::from(networks) - 1, "{}", seen.len());
    for source in &seen {
        assert_eq!((source["passed"].as_u64(), source["dropped"].as_u64()), (Some(10), Some(40)));
    }
}
