//! What arrives on several CPUs at once has one bucket, not several.

use std::time::Duration;

use tests::{Daemon, Flood, Flooded, Lab, Observer, Sender, Sent, Sources, Stream, frame};
use tests::{observer::Then, reports::Limit, v4, v6};

/// How long all CPUs flood one limit.
const FLOOD: Duration = Duration::from_secs(2);

/// Whether there are two CPUs; says why not.
fn two_cpus() -> bool {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus < 2 {
        println!("skipped: this needs two CPUs, and there is one");
    }
    cpus >= 2
}

/// P2 to the packet: never more than the bound, and the limit itself to a thousandth.
fn assert_shared(limit: &Limit, what: &str, admitted: u64, seconds: f64) {
    let allowed = limit.allowance(seconds);
    let gate = (limit.burst_amount / 8).max(2);
    println!("{what}: admitted {admitted} of {allowed:.1} in {seconds:.4} s");
    assert!(admitted as f64 <= allowed + gate as f64, "{what}: {admitted} of {allowed} + {gate}");
    assert!(admitted as f64 >= 0.999 * allowed, "{what}: {admitted} of {allowed}");
}

#[test]
fn two_senders_share_a_bucket() {
    if !two_cpus() {
        return;
    }
    let lab = Lab::new(2);
    let daemon = Daemon::start(&lab);
    let limit = daemon.cli().limit("1000pps", Some("2000"), None);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let start = |cpu| {
        let stream = |source| Stream::new(frame::udp(source, 100), 10_000.0, 50_000);
        Sender::new(&lab).on_cpu(cpu).start(vec![stream(v4(1)), stream(v6(1, 1))])
    };
    let senders = [start(0), start(1)];
    let sent = senders.map(tests::sender::Sending::join);
    let observed = observer.read();
    for (index, source) in [v4(1), v6(1, 1)].into_iter().enumerate() {
        let seconds = Sent::together([&sent[0][index], &sent[1][index]]).seconds();
        assert_shared(&limit, &source.to_string(), observed.from(source), seconds);
    }
    daemon.assert_accounted(&lab);
}

#[test]
fn two_floods_at_full_speed_share_a_bucket() {
    if !two_cpus() {
        return;
    }
    let lab = Lab::new(2);
    let daemon = Daemon::start(&lab);
    let limit = daemon.cli().limit("10kpps", Some("2000"), None);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    // Long enough that the tokens of the last clock tick, which may be due yet, are little.
    let flood = |cpu| Flood::new(Sources::One(v4(1)), 32_000_000).on_cpu(cpu).start(&lab);
    let floods = [flood(0), flood(1)].map(tests::flood::Flooding::join);
    let seconds = Flooded::span(&floods);
    println!("{:.0} pps offered", 64_000_000.0 / seconds);
    let stats = daemon.assert_accounted(&lab);
    // What passed below the gate did so before the source had its bucket, and never after.
    assert!(stats.packets("pass", "below_gate") <= 17, "{:?}", stats.counters);
    assert_shared(&limit, "two floods", observer.read().from(v4(1)), seconds);
    assert_eq!(stats.verdict("pass"), observer.read().all);
}

/// The limit for everybody, by source and then as one for all sources.
#[test]
fn floods_on_all_cpus_get_what_the_limit_is() {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    // A burst of 100 ms: floods pause for some 20 ms now and then.
    let limits = [("1000pps", "100"), ("10kpps", "1000"), ("100kpps", "10000")];
    for (shared, (rate, burst)) in
        [false, true].into_iter().flat_map(|it| limits.map(|limit| (it, limit)))
    {
        let lab = Lab::new(u32::try_from(cpus).unwrap());
        let daemon = Daemon::start(&lab);
        let mut set = vec!["limit", "set", rate, "--burst", burst];
        set.extend(shared.then_some("--aggregate"));
        let limit: Limit = serde_json::from_value(daemon.cli().ok(&set)["limit"].clone()).unwrap();
        let observer = Observer::new(&lab, Then::Discard, &[]);
        let flood = |cpu| Flood::new(Sources::One(v4(1)), u64::MAX / 2).on_cpu(cpu).start(&lab);
        let floods: Vec<_> = (0..cpus).map(flood).collect();
        std::thread::sleep(FLOOD);
        let floods: Vec<_> = floods.into_iter().map(tests::flood::Flooding::stop).collect();
        let seconds = Flooded::span(&floods);
        let offered = floods.iter().map(|flood| flood.packets).sum::<u64>() as f64 / seconds;
        let (admitted, allowed) = (observer.read().from(v4(1)), limit.allowance(seconds));
        println!(
            "{rate}, shared {shared}, {cpus} CPUs: {admitted} of {allowed:.0}, {:.3}; {offered:.0} pps offered",
            admitted as f64 / allowed
        );
        // Below the gate, or twice what CPUs hold; and a packet on each CPU that is still owed.
        let gate = (limit.burst_amount / 8).max(2);
        let more = if shared { 2 * limit.held_amount } else { gate };
        let most = allowed + (more + cpus as u64) as f64;
        assert!(admitted as f64 <= most, "{rate} {shared}: {admitted} of {most}");
        // In an emulated machine the coarse clock leaps, and a bucket is full before somebody looks.
        let least = if offered > 1e6 { 0.98 * allowed.min(offered * seconds) } else { 1.0 };
        assert!(admitted as f64 >= least, "{rate} {shared}: {admitted} of {least}");
        if shared && rate == "100kpps" && cpus <= 16 {
            assert!(limit.held_amount > 0 && admitted as f64 <= 1.005 * allowed, "{admitted}");
        }
    }
}
