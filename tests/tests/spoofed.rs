//! The worst traffic: every IPv4 address out of 2^24 sends, at full speed, beside a source over its
//! limit and a hundred that keep to theirs.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tests::{
    Daemon, Flood, Flooded, Lab, Observer, Sender, Sent, Sources, Stream, frame, observer::Then,
    process::wait_for, reports::Limit, v4, v6,
};

/// The sources that the flood claims to be from, all 2^24 of them.
const CROWD: &str = "10.0.0.0/8";
const CROWD_BITS: u32 = 24;
/// Seconds of traffic beside the flood.
const SECONDS: f64 = 10.0;
/// Sources that keep to their limit; every fifth over IPv6.
const CONFORMING: u8 = 100;
/// A sender that a busy machine holds up for longer than a burst lasts makes conforming sources
/// send too much at once when it catches up. Such a try says nothing about them.
const TRIES: u32 = 3;

/// The two CPUs are needed for one test at a time.
static CPUS: Mutex<()> = Mutex::new(());

fn conforming(index: u8) -> IpAddr {
    if index.is_multiple_of(5) { v6(index.into(), 1) } else { v4(index) }
}

/// Rates from one packet per second to 99 % of the limit, a constant factor apart, and some of the
/// fast ones start with a burst.
fn stream(index: u8, limit: &Limit) -> Stream {
    let most = 0.99 * limit.rate_per_second;
    let rate = most.powf(f64::from(index) / f64::from(CONFORMING - 1));
    let stream = Stream::new(frame::udp(conforming(index), 100), rate, (rate * SECONDS) as u64);
    if index.is_multiple_of(7) { stream.with_burst((rate * 0.5) as u64) } else { stream }
}

/// Sends everything, the well-behaved first, so that the flood finds them there, or the flood first,
/// so that they find it there. Whether the senders kept to their pace.
fn try_to_disturb(crowd: Option<(&str, &str)>, flood_first: bool) -> bool {
    let limited = v4(200);
    let lab = Lab::new(2);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    let limit = cli.limit("1000pps", Some("2000"), None);
    if let Some((rate, burst)) = crowd {
        cli.limit(rate, Some(burst), Some(CROWD));
    }
    let observer = Observer::new(&lab, Then::Discard, &[CROWD]);
    let mut streams: Vec<_> = (0..CONFORMING).map(|index| stream(index, &limit)).collect();
    let rate = 8.0 * limit.rate_per_second;
    streams.push(Stream::new(frame::udp(limited, 100), rate, (rate * SECONDS) as u64));
    let flood =
        Flood::new(Sources::Random(Ipv4Addr::new(10, 0, 0, 0).into(), CROWD_BITS), u64::MAX);
    let start_flood = || flood.on_cpu(1).start(&lab);
    let start_senders = |streams| Sender::new(&lab).on_cpu(0).start(streams);
    let comes = |packets: u64| {
        let before = daemon.received(&lab);
        wait_for("packets", Duration::from_secs(10), || {
            (daemon.received(&lab) >= before + packets).then_some(())
        });
    };
    let (flooding, sending) = if flood_first {
        let flooding = start_flood();
        comes(100_000);
        (flooding, start_senders(streams))
    } else {
        let sending = start_senders(streams);
        // Until it is over its limit.
        comes(5 * limit.burst_amount);
        (start_flood(), sending)
    };
    let sent = sending.join();
    // A sender that was there first has ended first.
    if !flood_first {
        std::thread::sleep(Duration::from_secs(1));
    }
    let flooded = flooding.stop();
    let observed = observer.read();
    let stats = daemon.assert_accounted(&lab);
    let seconds = Flooded::span(&[flooded]);
    println!(
        "{} packets of random sources offered in {seconds:.2} s, {:.2} Mpps; {} lost on the wire",
        flooded.packets,
        flooded.packets as f64 / seconds / 1e6,
        lab.lost_on_wire()
    );
    let status = cli.run(&["status"]).json;
    println!(
        "{} promotions, {} evictions, {} packets found their set full; {} of {} sets are full, \
         noise {:.2}",
        stats.internal.promotions,
        stats.internal.evictions,
        stats.internal.set_full,
        status["table"]["full_sets"],
        status["table"]["sets"],
        status["sketch"]["noise"].as_f64().unwrap_or(-1.0)
    );
    assert!(seconds >= SECONDS, "the flood lasted {seconds:.2} s");
    assert_eq!(stats.verdict("pass"), observed.all, "what passes is what is behind XDP");

    let (flood, calm) = sent.split_last().expect("the limited source sends");
    let (admitted, allowed) = (observed.from(limited), limit.allowance(flood.seconds()));
    println!(
        "limited source: offered {}, admitted {admitted} of {allowed:.1} in {:.4} s, {:.3} %",
        flood.packets(),
        flood.seconds(),
        100.0 * admitted as f64 / allowed
    );
    assert!((admitted as f64 - allowed).abs() <= 0.01 * allowed, "{admitted} of {allowed}");

    let all: u64 = calm.iter().map(Sent::packets).sum();
    let mut kept_pace = true;
    for (index, sent) in (0u8..).zip(calm) {
        let source = conforming(index);
        let due = limit.exact(sent);
        kept_pace &= due == sent.packets();
        let admitted = observed.from(source);
        assert!(admitted >= due, "{source}: {admitted} of {due} admitted, {:.1} pps", sent.rate());
    }
    println!("{CONFORMING} conforming sources: {all} packets, all admitted: {kept_pace}");
    if kept_pace {
        // Nobody else was over a limit: not one of the random sources was dropped either.
        let dropped = stats.packets("drop", "over_limit");
        assert_eq!(dropped, flood.packets() - admitted, "drops of the limited source alone");
        assert_eq!(stats.verdict("drop"), dropped, "for no other reason");
    }
    kept_pace
}

fn assert_undisturbed(crowd: Option<(&str, &str)>, flood_first: bool) {
    let _alone = CPUS.lock().unwrap_or_else(PoisonError::into_inner);
    let kept_pace = (0..TRIES).any(|_| try_to_disturb(crowd, flood_first));
    assert!(kept_pace, "the sender could not keep to its rates in {TRIES} tries");
}

#[test]
fn sixteen_million_spoofed_sources_disturb_nobody() {
    assert_undisturbed(None, true);
}

#[test]
fn spoofed_sources_that_fill_the_table_disturb_nobody() {
    // A limit too slow for a gate: each packet of the flood asks for a bucket, and keeps it for a
    // second.
    assert_undisturbed(Some(("1pps", "64")), false);
}
