//! What the daemon makes of many packets together, with real ones: a table that fills up, a neighbourhood
//! that attacks, sources that are suddenly many. Each is told once, by `limiter monitor` and in the log.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    time::{Duration, SystemTime},
};

use limiter_common::abi::Counters;
use model::Distinct;
use serde_json::Value;
use telemetry::{
    Sample,
    history::{History, Keeper},
};
use tests::{
    Daemon, DaemonOptions, Flood, Lab, Monitor, Sources, monitor::is, process::wait_for,
    program::now_ns,
};

/// A monitor of a daemon that listens when this returns.
fn listening(daemon: &Daemon) -> Monitor {
    let (cli, monitor) = (daemon.cli(), Monitor::start(&daemon.socket(), &[]));
    wait_for("the first event that is heard", Duration::from_secs(10), || {
        cli.ok(&["limit", "set", "90pps", "--for", "203.0.113.1"]);
        cli.ok(&["limit", "unset", "--for", "203.0.113.1"]);
        monitor.line(Duration::from_millis(300))
    });
    monitor
}

/// How many lines of the log have `text`.
fn logged(daemon: &Daemon, text: &str) -> usize {
    daemon.log().lines().filter(|line| line.contains(text)).count()
}

fn number(event: &Value, name: &str) -> f64 {
    event[name].as_f64().unwrap_or_else(|| panic!("no {name} in {event}"))
}

#[test]
fn a_table_that_fills_up_is_told_and_so_is_room() {
    let lab = &Lab::new(1);
    let daemon = Daemon::start_with(lab, DaemonOptions::with(&["--max-sources", "4096"]));
    // A packet keeps its bucket busy for 7.5 s, and there is no gate.
    let limit = daemon.cli().limit("8/minute", Some("8"), None);
    assert_eq!(limit.gate, 1);
    let monitor = listening(&daemon);
    let first = Ipv4Addr::new(10, 0, 0, 0).into();
    let _few = Flood::new(Sources::RoundRobin(first, 2000), 2000).send(lab);
    let quiet = monitor.events(Duration::from_millis(1500));
    assert!(!quiet.iter().any(is("table_pressure")), "half of it is no pressure: {quiet:?}");
    let _flooded = Flood::new(Sources::RoundRobin(first, 4600), 4600).send(lab);
    let high = monitor.event(Duration::from_secs(7), is("table_pressure"));
    let table = daemon.cli().run(&["status"]).json["table"].clone();
    println!("{high} with {table}");
    assert_eq!((&high["high"], &high["severity"]), (&true.into(), &"warning".into()), "{high}");
    let busy = number(&table, "busy") / number(&table, "capacity");
    assert!((number(&high, "busy") - busy).abs() < 0.01 && busy > 0.65, "{high} {table}");
    let told = monitor.events(Duration::from_secs(4));
    assert!(!told.iter().any(is("table_pressure")), "it is told once: {told:?}");
    // The buckets are full of tokens again.
    let low = monitor.event(Duration::from_secs(12), is("table_pressure"));
    println!("{low}");
    assert_eq!((&low["high"], &low["severity"]), (&false.into(), &"info".into()), "{low}");
    assert!(number(&low, "busy") < 0.5, "{low}");
    assert_eq!(logged(&daemon, "the bucket table is nearly full: "), 1, "{}", daemon.log());
    assert_eq!(logged(&daemon, "the bucket table is no longer nearly full: "), 1);
    daemon.assert_accounted(lab);
}

#[test]
fn a_neighbourhood_that_attacks_is_told() {
    let lab = &Lab::new(1);
    let daemon = Daemon::start(lab);
    daemon.cli().limit("100pps", Some("100"), None);
    let monitor = listening(&daemon);
    let site = |site| Ipv6Addr::new(0x2001, 0xdb8, site, 0, 0, 0, 0, 1).into();
    // Fifteen are few.
    let few = Flood::new(Sources::RoundRobin(site(7), 15), u64::MAX).at_rate(15_000).start(lab);
    let quiet = monitor.events(Duration::from_secs(2));
    let _few = few.stop();
    let limited: Vec<_> = quiet.iter().filter(|event| is("limited")(event)).collect();
    assert_eq!(limited.len(), 15, "{quiet:?}");
    assert!(!quiet.iter().any(is("spread")), "{quiet:?}");
    // Forty /64s of a /48.
    let many = Flood::new(Sources::RoundRobin(site(8), 40), u64::MAX).at_rate(40_000).start(lab);
    let spread = monitor.event(Duration::from_secs(5), is("spread"));
    println!("{spread}");
    assert_eq!(spread["prefix"], "2001:db8:8::/48", "{spread}");
    assert_eq!((&spread["sources"], &spread["severity"]), (&16.into(), &"warning".into()));
    let told = monitor.events(Duration::from_secs(3));
    let _many = many.stop();
    assert!(!told.iter().any(is("spread")), "it is told once: {told:?}");
    // Of the sources not all are told one by one, and how many were not is told.
    let one_by_one = told.iter().filter(|event| is("limited")(event)).count() as u64;
    let rest = told.iter().filter(|event| is("suppressed")(event) && event["kind"] == "limited");
    let rest: u64 = rest.filter_map(|event| event["count"].as_u64()).sum();
    println!("{one_by_one} told after it, {rest} as a number");
    assert_eq!((one_by_one + rest, rest > 0), (40 - 16, true), "{told:?}");
    let text = "16 sources of 2001:db8:8::/48 were limited within a minute";
    assert_eq!(logged(&daemon, text), 1, "{}", daemon.log());
    daemon.assert_accounted(lab);
}

/// Writes what a daemon that ran until now would have kept of two minutes with 100 sources in each window.
fn prepare_history(daemon: &Daemon) {
    const SECONDS: u64 = 120;
    let (present, now) = (now_ns(), SystemTime::now());
    let sample = |ago: u64| Sample {
        time: now - Duration::from_secs(ago),
        monotonic_ns: present - ago * 1_000_000_000,
        counters: Counters::default(),
        noise: 0.0,
        distinct: Some(Distinct { sources: 100.0, standard_error: 0.01625, window_s: 1.0737 }),
    };
    let path = daemon.state_folder().join("history");
    std::fs::remove_file(&path).expect("the daemon has kept history");
    let (mut keeper, mut history, problem) = Keeper::open(&path, &sample(0), true);
    assert_eq!(problem, None);
    assert_eq!(history.series(Duration::from_secs(60), Duration::ZERO, None).points.len(), 0);
    for ago in (0..SECONDS).rev() {
        history.record(&sample(ago));
    }
    let patch = History::patch(&mut history, &keeper);
    keeper.write(&patch).expect("history can be written");
}

#[test]
fn sources_that_are_suddenly_many_are_told() {
    const CROWD: u32 = 20_000;
    let lab = &Lab::new(1);
    let mut daemon = Daemon::start(lab);
    daemon.cli().limit("1000pps", Some("2000"), None);
    // What is usual takes a minute to know, or is known from before.
    daemon.terminate();
    prepare_history(&daemon);
    daemon.restart(lab);
    let monitor = listening(&daemon);
    let first = Ipv4Addr::new(198, 18, 0, 0).into();
    // Nine times as many are no jump.
    let few = Flood::new(Sources::RoundRobin(first, 900), u64::MAX).at_rate(20_000).start(lab);
    let quiet = monitor.events(Duration::from_secs(3));
    let _few = few.stop();
    assert!(!quiet.iter().any(is("distinct_jump")), "{quiet:?}");
    let crowd = Sources::RoundRobin(first, CROWD);
    let flooding = Flood::new(crowd, u64::MAX).at_rate(200_000).start(lab);
    let jump = monitor.event(Duration::from_secs(5), is("distinct_jump"));
    println!("{jump}");
    let (sources, median) = (number(&jump, "sources"), number(&jump, "median"));
    assert!((median - 100.0).abs() < 1.0, "{jump}");
    // The first window may have got only a part of them.
    assert!((1000.0..f64::from(CROWD) * 1.1).contains(&sources), "{jump}");
    assert_eq!(jump["severity"], "warning");
    let told = monitor.events(Duration::from_secs(4));
    let _flooded = flooding.stop();
    assert!(!told.iter().any(is("distinct_jump")), "it is told once: {told:?}");
    assert_eq!(logged(&daemon, "× the hour's median: likely spoofed"), 1, "{}", daemon.log());
    daemon.assert_accounted(lab);
}
