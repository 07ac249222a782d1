//! Floods of random sources: they get no state, push nobody out, and cost others nothing.

use std::net::Ipv4Addr;

use tests::{
    Daemon, DaemonOptions, Flood, Flooded, Lab, Observer, Sender, Sources, Stream, frame,
    observer::Then,
    reports::{Limit, Stats},
    v4, v6,
};

/// Sources of the floods: 10.0.0.0/8 and 2001:db8:8000::/40, apart from all others.
const CROWD: [&str; 2] = ["10.0.0.0/8", "2001:db8:8000::/40"];

fn random_v4() -> Sources {
    Sources::Random(Ipv4Addr::new(10, 0, 0, 0).into(), 24)
}

fn random_v6() -> Sources {
    Sources::Random("2001:db8:8000::".parse().expect("an address"), 24)
}

/// Sends `flood` beside a source over its limit and two that keep to theirs, and asserts that these
/// get what they are due. Returns the counters.
fn assert_undisturbed(flood: Flood) -> (Stats, Limit, Flooded, u64) {
    let lab = Lab::new(2);
    let daemon = Daemon::start(&lab);
    let limit = daemon.cli().limit("1000pps", Some("2000"), None);
    let observer = Observer::new(&lab, Then::Discard, &CROWD);
    let stream = |source, rate: f64| Stream::new(frame::udp(source, 100), rate, rate as u64 * 5);
    let sending = Sender::new(&lab).on_cpu(0).start(vec![
        stream(v4(66), 5000.0),
        stream(v4(10), 950.0).with_burst(1000),
        stream(v6(1, 1), 500.0),
    ]);
    std::thread::sleep(std::time::Duration::from_secs(1));
    let flooded = flood.on_cpu(1).send(&lab);
    let sent = sending.join();
    let observed = observer.read();
    println!("{:.0} pps of flood", flooded.packets as f64 / Flooded::span(&[flooded]));
    assert_eq!(observed.from(v4(10)), sent[1].packets(), "a conforming source");
    assert_eq!(observed.from(v6(1, 1)), sent[2].packets(), "a conforming source over IPv6");
    let seconds = sent[0].seconds();
    let (admitted, allowed) = (observed.from(v4(66)), limit.allowance(seconds));
    println!("limited source: admitted {admitted} of {allowed:.1} in {seconds:.4} s");
    assert!((admitted as f64 - allowed).abs() <= 0.01 * allowed, "{admitted} of {allowed}");
    let shown = daemon.cli().show(v4(66));
    // Before it had the bucket: one less than the gate, and less than twice that if a window of the sketch began meanwhile.
    let before = admitted - shown.passed;
    assert!((15..=30).contains(&before), "{before}: {shown:?}");
    assert_eq!(
        before + shown.passed + shown.dropped,
        sent[0].packets(),
        "it keeps its bucket: {shown:?}"
    );
    let stats = daemon.assert_accounted(&lab);
    assert_eq!(stats.verdict("pass"), observed.all);
    println!("{:?}", stats.internal);
    (stats, limit, flooded, observed.crowd)
}

/// A million random sources, slow enough for the sketch to tell them from heavy ones.
fn assert_no_state(sources: Sources) {
    let flood = Flood::new(sources, 1_000_000).at_rate(500_000);
    let (stats, _, flooded, crowd) = assert_undisturbed(flood);
    assert_eq!((flooded.packets, crowd), (1_000_000, 1_000_000), "light sources pass");
    assert!(stats.internal.promotions <= 3, "only three sources deserve a bucket");
    assert_eq!((stats.internal.evictions, stats.internal.set_full), (0, 0));
}

#[test]
fn random_ipv4_sources_get_no_state() {
    assert_no_state(random_v4());
}

#[test]
fn random_ipv6_sources_get_no_state() {
    assert_no_state(random_v6());
}

#[test]
fn a_flood_beyond_the_sketch_disturbs_nobody() {
    // At full speed the sketch cannot tell; whoever is promoted by mistake still loses nothing.
    let (_, _, flooded, crowd) = assert_undisturbed(Flood::new(random_v4(), 6_000_000));
    assert!(crowd as f64 >= 0.999 * flooded.packets as f64, "{crowd} of {flooded:?}");
}

#[test]
fn a_few_thousand_heavy_sources_are_each_limited() {
    const SOURCES: u32 = 2000;
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let limit = daemon.cli().limit("10pps", Some("100"), None);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let first = Ipv4Addr::new(10, 0, 0, 0);
    // 500 packets of each source in two seconds.
    let flood = Flood::new(Sources::RoundRobin(first.into(), SOURCES), 1_000_000).at_rate(500_000);
    let seconds = Flooded::span(&[flood.on_cpu(0).send(&lab)]);
    let observed = observer.read();
    let allowed = limit.allowance(seconds);
    for index in 0..SOURCES {
        let source = Ipv4Addr::from(u32::from(first) + index);
        let admitted = observed.from(source) as f64;
        assert!(admitted <= allowed + 12.0, "{source}: {admitted} of {allowed} and the gate's 12");
        assert!(admitted >= 0.9 * allowed, "{source}: {admitted} of {allowed}");
    }
    println!("{SOURCES} sources: admitted {} in all, {allowed:.1} allowed each", observed.all);
    let stats = daemon.assert_accounted(&lab);
    assert!(stats.internal.promotions >= u64::from(SOURCES), "{:?}", stats.internal);
}

/// Spoofed sources under a slow limit send a packet each, enough of them to fill the table; newcomers under another
/// limit send five times as much as that allows.
#[test]
fn a_flood_under_a_slow_limit_disarms_no_other_limit() {
    const NEWCOMERS: u32 = 1000;
    for on_full in ["pass", "evict-oldest"] {
        let lab = Lab::new(2);
        let daemon = Daemon::start_with(&lab, DaemonOptions::with(&["--on-full", on_full]));
        let limit = daemon.cli().limit("100pps", Some("100"), None);
        let slow = daemon.cli().limit("1/minute", Some("1"), Some("10.0.0.0/8"));
        let crowd = Sources::Random(Ipv4Addr::new(10, 0, 0, 0).into(), 23);
        let observer = Observer::new(&lab, Then::Discard, &["10.0.0.0/9"]);
        let conforming = |host| Stream::new(frame::udp(v4(host), 100), 90.0, 90 * 8);
        let mut streams: Vec<_> = (1..=20).map(conforming).collect();
        let attacker = Ipv4Addr::new(10, 200, 0, 1);
        streams.push(Stream::new(frame::udp(attacker.into(), 100), 10.0, 80));
        let sending = Sender::new(&lab).on_cpu(0).start(streams);
        let _filled = Flood::new(crowd, 1_200_000).at_rate(400_000).on_cpu(1).send(&lab);
        let full = daemon.cli().run(&["status"]).json;
        let filling = Flood::new(crowd, 60_000).at_rate(20_000).on_cpu(1).start(&lab);
        let first = Ipv4Addr::new(172, 16, 0, 0);
        // Five times the limit, for a second.
        let packets = u64::from(NEWCOMERS) * 500;
        let newcomers = Flood::new(Sources::RoundRobin(first.into(), NEWCOMERS), packets);
        let seconds = Flooded::span(&[newcomers.at_rate(packets).on_cpu(0).send(&lab)]);
        let _filled = filling.join();
        let sent = sending.join();
        let observed = observer.read();
        let allowed = limit.allowance(seconds) + 16.0;
        let admitted =
            (0..NEWCOMERS).map(|at| observed.from(Ipv4Addr::from(u32::from(first) + at)));
        let most = admitted.max().unwrap_or_default();
        println!(
            "{on_full}: {} buckets busy; each newcomer sent {}, at the most {most} admitted of {allowed:.0}; under the \
             slow limit {} of {}",
            full["table"]["busy"],
            packets / u64::from(NEWCOMERS),
            observed.from(attacker),
            slow.allowance(sent[20].seconds()),
        );
        // Busy, but held by nobody: a packet or two are not worth a bucket.
        assert!(full["table"]["busy"].as_u64() > Some(350_000), "{full:#}");
        assert!(full["table"]["full_sets"].as_u64() < Some(100), "{full:#}");
        let unlimited = |at: &u32| {
            let admitted = observed.from(Ipv4Addr::from(u32::from(first) + at));
            admitted as f64 > 1.02 * allowed
        };
        // What the daemon knows of them tells why.
        for at in (0..NEWCOMERS).filter(unlimited) {
            let source = Ipv4Addr::from(u32::from(first) + at).to_string();
            println!("{source}: {:#}", daemon.cli().run(&["show", &source]).json);
            println!("{:#}", daemon.cli().ok(&["stats"]));
        }
        assert!(most as f64 <= 1.02 * allowed, "{on_full}: {most} of {allowed}");
        assert!(observed.from(attacker) <= 4, "{}", observed.from(attacker));
        for host in 1..=20 {
            let index = usize::from(host) - 1;
            assert_eq!(observed.from(v4(host)), sent[index].packets(), "a conforming source");
        }
        daemon.assert_accounted(&lab);
    }
}
