//! Percentiles of what sources send, against what was sent; and limits that are proposed from them.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr},
    path::Path,
    thread,
    time::{Duration, Instant, SystemTime},
};

use serde_json::Value;
use tests::{
    Cli, Daemon, DaemonOptions, Flood, Lab, Sender, Sent, Sources, Stream, frame, lab::TX, pcap,
    process, screen::Screen,
};

/// Percentiles and what the answer calls them.
const RANKS: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)];

/// Lets every source have a bucket from its first packet on, and drops nothing.
fn track_all(cli: &Cli) {
    cli.ok(&["limit", "set", "1/hour", "--burst", "8", "--no-enforce"]);
}

fn source(index: usize) -> IpAddr {
    let [.., a, b] = (index as u32).to_be_bytes();
    Ipv4Addr::new(198, 18, a, b).into()
}

/// The moments between which `answer` counts, as this program's clock tells them.
pub(crate) fn window(answer: &Value) -> [Instant; 2] {
    let (now, wall) = (Instant::now(), SystemTime::now());
    ["from", "to"].map(|key| {
        let text = answer[key].as_str().expect("a moment");
        let moment = humantime::parse_rfc3339(text).expect("a moment as RFC 3339");
        now - wall.duration_since(moment).expect("a moment before now")
    })
}

/// The values between which a share `rank` of all is at or below: the same one, unless the share ends
/// between two.
fn exact(values: &[f64], rank: f64) -> [f64; 2] {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    // Without what binary fractions lack.
    let at = (rank * sorted.len() as f64 * 1e6).round() / 1e6;
    let value = |index: f64| sorted[(index as usize).min(sorted.len() - 1)];
    [value(at.ceil() - 1.0), value(at.floor())]
}

/// How far `found` is from what lies between two values, as a fraction.
fn error(found: f64, [low, high]: [f64; 2]) -> f64 {
    found / found.clamp(low, high) - 1.0
}

/// Asserts that the percentiles of `answer` are those of `counts`, within 1 %; prints both.
fn assert_percentiles(what: &str, answer: &Value, counts: &[u64], length: usize) {
    let [from, to] = window(answer);
    let seconds = (to - from).as_secs_f64();
    let rates: Vec<f64> = counts.iter().map(|count| *count as f64 / seconds).collect();
    assert_eq!(answer["sources"], counts.len(), "{what}: {answer:#}");
    for (name, rank) in RANKS {
        let wanted = exact(&rates, rank);
        let found = answer["packets_per_second"][name].as_f64().expect("a percentile");
        let off = 100.0 * error(found, wanted);
        println!("{what}: {name} {found:.2} pps, sent {wanted:.2?}, off by {off:.2} %");
        assert!(off.abs() < 1.0, "{what}: {answer:#}");
        let bytes = answer["bytes_per_second"][name].as_f64().expect("a percentile");
        let off = error(bytes, wanted.map(|packets| packets * length as f64));
        assert!(off.abs() < 0.01, "{what}: {bytes} bytes");
    }
}

/// Runs the command that was proposed.
fn run_proposed(cli: &Cli, proposal: &Value, which: &str) -> Value {
    let command = proposal[which].as_str().expect("a command");
    let words: Vec<&str> = command.split(' ').collect();
    assert_eq!(words[0], "limiter");
    cli.ok(&words[1..])
}

#[test]
fn known_rates_are_told_within_a_percent_and_a_limit_follows() {
    const LENGTH: usize = 120;
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    track_all(&cli);
    // 60 to 259 pps, and one that sends far more than all others.
    let rate = |index: usize| if index == 200 { 4000.0 } else { 60.0 + index as f64 };
    let stream = |index| {
        let rate = rate(index);
        Stream::new(frame::udp(source(index), LENGTH), rate, (rate * 60.0) as u64)
    };
    let sending = Sender::new(&lab).start((0..=200).map(stream).collect());
    thread::sleep(Duration::from_secs(1));
    let answer = cli.ok(&["suggest", "--share", "1%", "--over", "6s"]);
    let prefix = ["suggest", "--share", "1%", "--over", "1s", "--for", "198.18.0.0/26"];
    let of_prefix = cli.ok(&prefix);
    let sent = sending.stop();
    let [from, to] = window(&answer);
    let within = |sent: &Sent| {
        let times = sent.times.iter().map(|time| sent.start + *time);
        times.filter(|time| (from..to).contains(time)).count() as u64
    };
    let counts: Vec<u64> = sent.iter().map(within).collect();
    assert_percentiles("steady", &answer, &counts, LENGTH);

    // Two of 201 sources are 1 %: a little above 258 pps, and a fifth more.
    let proposal = &answer["packets"];
    let limit = proposal["rate_per_second"].as_f64().expect("a rate");
    assert!((310.0..=330.0).contains(&limit), "{answer:#}");
    assert!(proposal["burst_amount"].as_f64().expect("a burst") >= 1.2 * limit, "{answer:#}");
    assert_eq!(proposal["sources"], 1, "{answer:#}");
    let touched = proposal["share_of_packets"].as_f64().expect("a share");
    let heavy = counts[200] as f64 / (to - from).as_secs_f64();
    let all = counts.iter().sum::<u64>() as f64 / (to - from).as_secs_f64();
    let wanted = (heavy - limit) / all;
    println!("drops {touched:.4} of packets, by what was sent {wanted:.4}");
    assert!((touched / wanted - 1.0).abs() < 0.02, "{answer:#}");
    let algorithms = answer["algorithms"].as_array().expect("algorithms");
    assert_eq!(algorithms.len(), 3, "{answer:#}");
    for by in algorithms {
        // Second by second it comes to the same, as all send evenly. A bucket is full at first.
        let rate: f64 = by["rate"]
            .as_str()
            .and_then(|rate| rate.strip_suffix("pps"))
            .map_or(0.0, |it| it.parse().expect("a number"));
        let wanted = (heavy - rate) / all;
        let dropped = by["share_of_packets"].as_f64().expect("a share");
        println!(
            "{}: drops {dropped:.4} of packets, by what was sent {wanted:.4}",
            by["algorithm"]
        );
        assert!(by["sources"] == 1 && (dropped / wanted - 1.0).abs() < 0.05, "{by:#}");
    }
    assert_eq!(algorithms.iter().filter(|by| by["recommended"] == true).count(), 1);
    assert_eq!(of_prefix["sources"], 64, "{of_prefix:#}");
    assert!(of_prefix["packets"]["command"].as_str().is_some_and(|c| c.ends_with("/26")));

    // What is proposed can be done as it stands.
    let tried = run_proposed(&cli, proposal, "try_command");
    assert!(tried.is_object(), "{tried:#}");
    let set = run_proposed(&cli, proposal, "command");
    assert_eq!(set["limit"]["rate"], proposal["rate"]);
    assert_eq!(set["limit"]["burst"], proposal["burst"]);
    for by in algorithms {
        let set = run_proposed(&cli, by, "command");
        assert_eq!(set["limit"]["rate"], by["rate"], "{set:#}");
    }
    let set = run_proposed(&cli, &answer["bytes"], "command");
    assert_eq!(set["limit"]["rate"], answer["bytes"]["rate"]);
    daemon.assert_accounted(&lab);
}

/// Which source sends each of `frames` frames: that of rank r as often as r^−1.1 tells, in an order that
/// is always the same.
fn zipf(sources: usize, frames: usize) -> Vec<usize> {
    let weight = |rank: usize| (rank as f64).powf(-1.1);
    let sum: f64 = (1..=sources).map(weight).sum();
    let times = |rank| ((frames as f64 * weight(rank) / sum).round() as usize).max(1);
    let mut order: Vec<usize> =
        (1..=sources).flat_map(|rank| std::iter::repeat_n(rank - 1, times(rank))).collect();
    let mut state = 7_u64;
    for at in (1..order.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        order.swap(at, (state >> 33) as usize % (at + 1));
    }
    order
}

#[test]
fn a_zipf_flood_is_told_within_a_percent() {
    const LENGTH: usize = 90;
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    track_all(&cli);
    let order = zipf(500, 30_000);
    let frames = order.iter().map(|index| frame::udp(source(*index), LENGTH)).collect();
    let sending = Sender::new(&lab).start(vec![Stream::cycle(frames, 30_000.0, 30_000 * 60)]);
    thread::sleep(Duration::from_millis(1500));
    let answer = cli.ok(&["suggest", "--over", "10s"]);
    let sent = sending.stop().remove(0);
    let [from, to] = window(&answer);
    let mut counts = vec![0; 500];
    for (index, time) in sent.times.iter().enumerate() {
        if (from..to).contains(&(sent.start + *time)) {
            counts[order[index % order.len()]] += 1;
        }
    }
    assert_percentiles("Zipf", &answer, &counts, LENGTH);
    daemon.assert_accounted(&lab);
}

#[test]
fn a_replayed_capture_is_told_within_a_percent() {
    const LOOPS: usize = 25;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/captures/srvloc.pcap");
    if !path.exists() {
        println!("skipped: there is no capture at {}", path.display());
        return;
    }
    let frames = pcap::read(&path).expect("a capture can be read").expect("Ethernet frames");
    let mut counts: HashMap<[u8; 4], u64> = HashMap::new();
    for frame in &frames {
        assert_eq!(frame[12..14], [8, 0], "an IPv4 packet");
        *counts.entry(frame[26..30].try_into().expect("an address")).or_default() += 1;
    }
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    track_all(&cli);
    let asking = {
        let cli = cli.clone();
        thread::spawn(move || cli.ok(&["suggest", "--over", "6s"]))
    };
    thread::sleep(Duration::from_secs(1));
    let mut replay = lab.sender.command(&tools::TCPREPLAY);
    replay.args(["-q", "-i", TX, "--pps=4000", &format!("--loop={LOOPS}")]).arg(&path);
    process::run(&mut replay);
    let sent = daemon.received(&lab);
    let answer = asking.join().expect("an answer");
    assert_eq!(sent, (LOOPS * frames.len()) as u64, "the whole capture, within the time");
    let counts: Vec<u64> = counts.values().map(|count| LOOPS as u64 * count).collect();
    let [from, to] = window(&answer);
    let rates: Vec<f64> =
        counts.iter().map(|count| *count as f64 / (to - from).as_secs_f64()).collect();
    assert_eq!(answer["sources"], counts.len(), "{answer:#}");
    for (name, rank) in RANKS {
        let (found, wanted) = (answer["packets_per_second"][name].as_f64(), exact(&rates, rank));
        println!("{name}: {found:?} pps, in the capture {wanted:.3?}");
        assert!(found.is_some_and(|found| error(found, wanted).abs() < 0.01), "{answer:#}");
    }
    daemon.assert_accounted(&lab);
}

#[test]
fn a_million_sources_hold_nobody_up() {
    const SOURCES: u32 = 1 << 20;
    let lab = Lab::new(1);
    let daemon = Daemon::start_with(&lab, DaemonOptions::with(&["--max-sources", "2097152"]));
    let cli = daemon.cli();
    track_all(&cli);
    let crowd = Sources::RoundRobin(Ipv4Addr::new(10, 0, 0, 0).into(), SOURCES);
    let flooding = Flood::new(crowd, u64::MAX).start(&lab);
    process::wait_for("nearly a million sources", Duration::from_secs(60), || {
        let tracked = cli.ok(&["top", "--once", "-n", "1"])["tracked"].as_u64();
        // A limit of gate 1 leaves a quarter of the table to others, so that some sets are full.
        tracked.filter(|tracked| *tracked > 950_000)
    });
    let work = || cli.ok(&["stats"])["latency"]["core_work"].clone();
    let before = work();
    let start = Instant::now();
    let answer = cli.ok(&["suggest", "--over", "3s"]);
    let took = start.elapsed().as_secs_f64();
    let _flooded = flooding.stop();
    let after = work();
    println!(
        "3 s of {} sources took {took:.2} s; the core: {before}, then {after}",
        answer["sources"]
    );
    // As many as the flood gets to in that time.
    assert!(answer["sources"].as_u64().is_some_and(|sources| sources > 50_000), "{answer:#}");
    // Four looks and what comes of them, in a build for tests beside a flood.
    assert!(took < 30.0, "{took} s");
    let most = after["p90"].as_f64().expect("a percentile");
    assert!(most < 0.2, "others wait too long: {after}");
}

#[test]
fn too_little_and_nonsense_are_answered_clearly() {
    let lab = Lab::new(1);
    let daemon = Daemon::start_with(&lab, DaemonOptions::default());
    let cli = daemon.cli();
    track_all(&cli);
    let stream = |index| Stream::new(frame::udp(source(index), 90), 50.0, 500);
    let sending = Sender::new(&lab).start((0..3).map(stream).collect());
    thread::sleep(Duration::from_millis(300));
    let few = cli.run(&["suggest", "--over", "1s"]);
    assert_eq!(few.code, 1, "{few:#?}");
    assert!(few.stderr.contains("only 3 sources") && few.stderr.contains("--over 1m"), "{few:#?}");
    let _sent = sending.stop();
    for arguments in [
        &["--share", "0"][..],
        &["--share", "60%"],
        &["--share", "some"],
        &["--over", "1ms"],
        &["--over", "1h"],
        &["--for", "198.51.100.7"],
        &["--for", "nobody"],
    ] {
        let refused = cli.run(&[&["suggest"], arguments].concat());
        assert_eq!(refused.code, 2, "{arguments:?}: {refused:#?}");
        assert!(
            refused.stderr.contains("hint:") || refused.stderr.contains("--help"),
            "{refused:#?}"
        );
    }
    // Two at a time; a third one is told to come again.
    let asking: Vec<_> = (0..2)
        .map(|_| {
            let cli = cli.clone();
            thread::spawn(move || cli.run(&["suggest", "--over", "3s"]).code)
        })
        .collect();
    thread::sleep(Duration::from_secs(1));
    let third = cli.run(&["suggest", "--over", "1s"]);
    assert!(third.code == 1 && third.stderr.contains("others are being answered"), "{third:#?}");
    assert_eq!(asking.into_iter().map(|it| it.join().expect("a code")).sum::<i32>(), 2);
}

#[test]
fn a_share_of_less_than_one_source_is_told_with_one_that_matters() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    track_all(&daemon.cli());
    let rate = |index: usize| if index == 44 { 1000.0 } else { 20.0 + index as f64 };
    let stream = |index| Stream::new(frame::udp(source(index), 90), rate(index), u64::MAX);
    let sending = Sender::new(&lab).start((0..45).map(stream).collect());
    thread::sleep(Duration::from_millis(500));
    let answer = daemon.cli().ok(&["suggest", "--over", "1s"]);
    let notes = answer["notes"].as_array().expect("notes");
    let notes: Vec<_> = notes.iter().filter_map(Value::as_str).collect();
    println!("{notes:#?}");
    assert!(notes[0].contains("% of 45 sources is less than one"), "{notes:#?}");
    assert!(notes[0].contains("the heaviest, 198.18.0.44, sends "), "{notes:#?}");
    assert!(notes[1].ends_with("which touches 1 source"), "{notes:#?}");
    assert_eq!(answer["packets"]["sources"], 0, "{answer:#}");
    let share = notes[1].split_whitespace().find(|word| word.ends_with('%')).expect("a share");
    // Somebody at a terminal sees that it goes on, and what came of it.
    let asked = ["suggest", "--over", "2s", "--share", share];
    let mut screen = Screen::start(&daemon.socket(), &asked, 40, 100);
    screen.wait("countdown", |text| text.contains("watching what sources send: "));
    let text = screen.wait("answer", |text| text.contains("limiter limit set "));
    assert_eq!(screen.ended(), 0);
    assert!(!text.contains("watching what") && text.contains("touches 1 source "), "{text}");
    let _sent = sending.stop();
}

#[test]
fn a_source_that_sends_most_packets_is_not_usual() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    track_all(&cli);
    let rate = |index: usize| if index == 44 { 4000.0 } else { 20.0 + index as f64 };
    let stream = |index| Stream::new(frame::udp(source(index), 90), rate(index), u64::MAX);
    let sending = Sender::new(&lab).start((0..45).map(stream).collect());
    thread::sleep(Duration::from_millis(500));
    let answer = cli.ok(&["suggest", "--over", "3s"]);
    let _sent = sending.stop();
    let notes: Vec<_> = answer["notes"].as_array().into_iter().flatten().collect();
    let notes: Vec<_> = notes.into_iter().filter_map(Value::as_str).collect();
    println!("{notes:#?}\n{:#}", answer["algorithms"]);
    // 4000 of 4000 + 44 · 41.5 packets/s.
    assert!(
        notes[0].starts_with("one source, 198.18.0.44, sends 68.")
            || notes[0].starts_with("one source, 198.18.0.44, sends 69."),
        "{notes:#?}"
    );
    assert!(
        notes[1].contains("less than one, so these limits touch no other source"),
        "{notes:#?}"
    );
    // 63 packets/s, and a fifth more.
    let limit = answer["packets"]["rate_per_second"].as_f64().expect("a rate");
    assert!((75.0..=85.0).contains(&limit), "{answer:#}");
    assert_eq!(answer["packets"]["sources"], 1, "{answer:#}");
    let max = answer["packets_per_second"]["max"].as_f64().expect("a rate");
    assert!((max / 4000.0 - 1.0).abs() < 0.02, "what was seen is told as it was: {answer:#}");
    for by in answer["algorithms"].as_array().expect("algorithms") {
        assert!(by["sources"] == 1 && by["share_of_packets"].as_f64() > Some(0.6), "{by:#}");
    }
    daemon.assert_accounted(&lab);
}
