//! Limits that are counted in windows: each verdict, several CPUs, and what becomes of counts meanwhile.

use std::{
    net::IpAddr,
    thread,
    time::{Duration, Instant},
};

use limiter_common::{
    algorithm::{Algorithm as _, Window},
    gcra::{TICKS_PER_NS, Ticks, ticks},
};
use tests::{
    Daemon, Lab, Observer, Sender, Stream, Timeline, frame, observer::Then, program, timeline, v4,
};

const SECOND: Ticks = 1_000_000_000 * TICKS_PER_NS;
/// Packets in each window of a second: few enough that the first one needs a bucket, and that a busy machine sends more.
const LIMIT: u64 = 4;
/// By how much a packet may come earlier or later for the same verdict.
const TOLERANCE: Ticks = SECOND / 50;
const ALGORITHMS: [&str; 2] = ["fixed-window", "sliding-window"];

fn window(algorithm: &str) -> Window {
    let new = if algorithm == "fixed-window" { Window::fixed } else { Window::sliding };
    new(LIMIT, 0, SECOND).expect("a limit that fits")
}

fn now() -> Ticks {
    ticks(program::now_ns())
}

/// Sets the limit of a source.
fn limit(daemon: &Daemon, source: IpAddr, algorithm: &str) {
    let (rate, source) = (format!("{LIMIT}pps"), source.to_string());
    let set = daemon.cli().ok(&["limit", "set", &rate, "--for", &source, "--algorithm", algorithm]);
    assert_eq!(set["limit"]["algorithm"], algorithm, "{set}");
    assert_eq!(set["limit"]["burst_amount"], LIMIT, "{set}");
}

#[test]
fn each_packet_meets_the_verdict_of_the_algorithm() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let (observer, wire) = (Observer::new(&lab, Then::Discard, &[]), Sender::new(&lab).wire());
    let sources = [v4(1), v4(2)];
    let mut states = ALGORITHMS.map(|algorithm| (window(algorithm), [0]));
    for (source, algorithm) in sources.into_iter().zip(ALGORITHMS) {
        limit(&daemon, source, algorithm);
    }
    // Steps of a fixed sequence: many at once, then a while of nothing, and all between.
    let (mut random, mut judged) = (7_u64, [[0, 0]; 2]);
    let start = Instant::now();
    let is_enough = |judged: &[[u64; 2]; 2]| judged.iter().flatten().all(|count| *count > 15);
    // A busy machine takes longer.
    while !is_enough(&judged) && start.elapsed() < Duration::from_secs(60) {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        thread::sleep(Duration::from_micros((random >> 33) % 30_000));
        for (index, (window, state)) in states.iter_mut().enumerate() {
            let at = |time| window.room(state, time) > 0;
            let before = observer.read().from(sources[index]);
            let time = now();
            let verdict = at(time);
            if at(time - TOLERANCE) != verdict || at(time + TOLERANCE) != verdict {
                continue;
            }
            wire.send(&frame::udp(sources[index], 100));
            let sent = now();
            let passed = observer.read().from(sources[index]) > before;
            if sent - time >= TOLERANCE {
                // The machine stood still: nobody knows when the packet came. Until it counts no more:
                thread::sleep(Duration::from_millis(2100));
                *state = [0];
                continue;
            }
            assert_eq!(passed, verdict, "{} at {} ms", ALGORITHMS[index], time * 1000 / SECOND);
            window.take(state, time, 1);
            judged[index][usize::from(verdict)] += 1;
        }
    }
    println!("dropped and passed: {judged:?}");
    assert!(is_enough(&judged), "{judged:?}");
    let shown = daemon.cli().ok(&["show", &sources[0].to_string()]);
    assert_eq!(shown["limit"]["algorithm"], "fixed-window", "{shown}");
    daemon.assert_accounted(&lab);
}

#[test]
fn two_cpus_keep_the_bound_in_any_window() {
    let lab = Lab::new(2);
    let daemon = Daemon::start(&lab);
    for (host, algorithm) in (1..).zip(ALGORITHMS) {
        limit(&daemon, v4(host), algorithm);
        let IpAddr::V4(source) = v4(host) else { unreachable!("an IPv4 source") };
        let passed = Timeline::new(&lab, source);
        let start = |cpu| {
            let stream = Stream::new(frame::udp(v4(host), 100), 5_000.0, 20_000);
            Sender::new(&lab).on_cpu(cpu).start(vec![stream])
        };
        let senders = [start(0), start(1)];
        let sent = senders.map(tests::sender::Sending::join);
        thread::sleep(Duration::from_millis(200));
        let times = [passed.stop()];
        // A packet is stamped after its verdict, on a busy machine some milliseconds.
        let most = timeline::busiest(&times, Duration::from_millis(900));
        let (bound, windows) = (window(algorithm).bound(), sent[0][0].seconds().floor() as u64);
        let all = times[0].len() as u64;
        println!("{algorithm}: {most} in 0.9 s, {all} in {windows}");
        // Two CPUs may promote a source at the same moment: then one of them counts its packet alone.
        assert!(most <= bound + 1, "{algorithm}: {most} of {bound}");
        let most = (windows + 2) * LIMIT + 1;
        assert!((windows * LIMIT..=most).contains(&all), "{algorithm}: {all}");
    }
    daemon.assert_accounted(&lab);
}

/// What a window has counted holds whatever the daemon does: the word is all that there is of it.
#[test]
fn counts_outlive_the_daemon_and_a_change_of_another_limit() {
    let lab = Lab::new(1);
    let mut daemon = Daemon::start(&lab);
    let set = |daemon: &Daemon, rate: &str| {
        let arguments = ["limit", "set", rate, "--algorithm", "fixed-window"];
        daemon.cli().ok(&arguments)
    };
    set(&daemon, "100/hour");
    let (observer, wire) = (Observer::new(&lab, Then::Discard, &[]), Sender::new(&lab).wire());
    let send = |count: u64| {
        let before = observer.read().from(v4(1));
        (0..count).for_each(|_| wire.send(&frame::udp(v4(1), 100)));
        observer.read().from(v4(1)) - before
    };
    assert_eq!(send(60), 60);
    daemon.terminate();
    daemon.restart(&lab);
    assert_eq!(send(10), 10);
    daemon.cli().limit("1000pps", Some("10"), Some("203.0.113.0/24"));
    assert_eq!(send(10), 10);
    // As much of the limit is used up under another one: 80 of 100 are 160 of 200.
    set(&daemon, "200/hour");
    assert_eq!(send(100), 40);
    let list = daemon.cli().ok(&["limit", "list"]);
    assert!(
        list["limits"]
            .as_array()
            .expect("a list")
            .iter()
            .any(|limit| { limit["algorithm"] == "fixed-window" && limit["rate"] == "200/hour" }),
        "{list}"
    );
    daemon.assert_accounted(&lab);
}

#[test]
fn what_the_kernel_cannot_keep_is_refused_with_a_hint_and_nothing_applied() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    for (arguments, about, hint) in [
        (vec!["100/minute", "--algorithm", "sliding-log"], "one word", "sliding-window"),
        (vec!["100/minute", "--algorithm", "sub-windows"], "one word", "sliding-window"),
        (vec!["100/minute", "--algorithm", "gcra"], "no algorithm", "fixed-window"),
        (
            vec!["100/minute", "--algorithm", "fixed-window", "--scope", "cluster"],
            "spent twice",
            "scope local",
        ),
        (
            vec!["100/minute", "--algorithm", "fixed-window", "--burst", "5"],
            "no burst",
            "leave the burst out",
        ),
        (
            vec!["100pps", "--algorithm", "fixed-window", "--aggregate"],
            "of one source",
            "aggregate",
        ),
        (vec!["40000kpps", "--algorithm", "sliding-window"], "cannot count", "token-bucket"),
    ] {
        let answer = daemon.cli().run(&[&["limit", "set"], arguments.as_slice()].concat());
        assert_eq!(answer.code, 2, "{arguments:?}: {answer:?}");
        let said = &answer.stderr;
        assert!(said.contains(about) && said.contains(hint), "{arguments:?}: {said}");
    }
    let limits = daemon.cli().ok(&["limit", "list"]);
    assert_eq!(limits["limits"].as_array().map(Vec::len), Some(0), "{limits}");
}

#[test]
fn a_shadow_counts_what_a_window_would_drop_beside_a_token_bucket() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    daemon.cli().limit("10kpps", Some("2000"), None);
    let shadow = ["limit", "shadow", "set", "30/hour", "--algorithm", "sliding-window"];
    let set = daemon.cli().ok(&shadow);
    assert_eq!(set["trying"]["algorithm"], "sliding-window", "{set}");
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let stream = Stream::new(frame::udp(v4(1), 100), 500.0, 200);
    let _sent = Sender::new(&lab).send(vec![stream]);
    assert_eq!(observer.read().from(v4(1)), 200, "a shadow drops nothing");
    let shadows = daemon.cli().ok(&["limit", "shadow", "list"]);
    let one = &shadows["trials"][0];
    assert_eq!(
        (one["packets"].as_u64(), one["would_drop"].as_u64()),
        (Some(200), Some(170)),
        "{one}"
    );
}
