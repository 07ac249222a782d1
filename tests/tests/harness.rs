//! The harness measures what it claims to. Shown without the limiter, with a program that passes
//! everything or drops everything in its place.

use std::{net::Ipv4Addr, path::Path, sync::mpsc, time::Duration};

use serde_json::Value;
use tests::{
    Bystander, Flood, Flooded, Lab, Observer, Sender, Sources, Stream, frame, lab::RX,
    observer::Then, process, v4, v6,
};

#[test]
fn an_idle_wire_is_silent() {
    let lab = Lab::new(1);
    let _pass = Bystander::passing(&lab);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(lab.received(), 0);
}

#[test]
fn every_admitted_frame_is_observed_by_source() {
    let lab = Lab::new(1);
    let _pass = Bystander::passing(&lab);
    let observer = Observer::new(&lab, Then::Discard, &["10.0.0.0/8", "fd00::/8"]);
    let crowd: Vec<_> =
        (1..=50).map(|i| frame::udp(Ipv4Addr::new(10, 0, 0, i).into(), 64)).collect();
    let sent = Sender::new(&lab).send(vec![
        Stream::new(frame::udp(v4(1), 64), 20_000.0, 20_000),
        Stream::new(frame::udp(v4(2), 1514), 100.0, 100).with_burst(50),
        Stream::new(frame::tcp_syn(v6(1, 1)), 500.0, 500),
        Stream::new(frame::tagged(&frame::echo(v4(3)), frame::TAG, 7), 100.0, 100),
        Stream::cycle(crowd, 1000.0, 1000),
        Stream::new(frame::arp(), 10.0, 10),
    ]);
    lab.assert_received(21_710);
    let observed = observer.read();
    let counts = [v4(1), v4(2), v6(1, 1), v4(3), v6(2, 1)].map(|source| observed.from(source));
    assert_eq!(counts, [20_000, 100, 500, 100, 0]);
    assert_eq!((observed.crowd, observed.all), (1000, 21_710));
    // Slower where the machine is; never faster.
    assert!(sent[0].rate() < 20_200.0, "{} pps", sent[0].rate());
    assert_eq!(lab.lost_on_wire(), 0);
}

#[test]
fn frames_that_xdp_drops_are_received_but_not_observed() {
    let lab = Lab::new(1);
    let _drop = Bystander::dropping(&lab);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let streams = vec![Stream::new(frame::udp(v4(1), 64), 10_000.0, 5000)];
    assert_eq!(Sender::new(&lab).send(streams)[0].packets(), 5000);
    lab.assert_received(5000);
    assert_eq!(observer.read().all, 0);
}

#[test]
fn floods_reach_the_receiver_with_valid_checksums() {
    let lab = Lab::new(2);
    let _pass = Bystander::passing(&lab);
    let observer = Observer::new(&lab, Then::Deliver, &[]);
    for (sources, packets) in [
        (Sources::One(v4(1)), 1000),
        (Sources::RoundRobin(v4(16), 100), 1000),
        (Sources::One(v6(1, 1)), 1000),
        (Sources::RoundRobin(v6(16, 1), 100), 1000),
    ] {
        assert_eq!(Flood::new(sources, packets).send(&lab).packets, packets);
    }
    lab.assert_received(4000);
    let observed = observer.read();
    assert_eq!((observed.from(v4(1)), observed.from(v6(1, 1))), (1000, 1000));
    for i in 16..116 {
        assert_eq!((observed.from(v4(i)), observed.from(v6(i.into(), 1))), (10, 10), "source {i}");
    }
    // The protocols look at the checksums of every frame that has a listener or not.
    let snmp = process::run(lab.receiver.command(&tools::NSTAT).args(["-a", "-z", "-s"]));
    let value = |name: &str| -> u64 {
        let line = snmp.lines().find(|line| line.starts_with(&format!("{name} ")));
        let value = line.and_then(|line| line.split_whitespace().nth(1));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name}: {snmp}"))
    };
    assert_eq!(value("UdpNoPorts") + value("Udp6NoPorts"), 4000);
    assert_eq!(value("UdpInCsumErrors") + value("Udp6InCsumErrors"), 0);
    assert_eq!(value("IpInHdrErrors"), 0);
}

#[test]
fn a_flood_of_random_sources_is_fast_and_counted() {
    let lab = Lab::new(1);
    let _drop = Bystander::dropping(&lab);
    let flooded = Flood::new(Sources::Random(Ipv4Addr::new(10, 0, 0, 0).into(), 24), 2_000_000)
        .on_cpu(1)
        .send(&lab);
    let rate = flooded.packets as f64 / Flooded::span(&[flooded]);
    println!("{} sent at {rate:.0} pps, {} received", flooded.packets, lab.received());
    assert_eq!(flooded.packets, 2_000_000);
    lab.assert_received(2_000_000 - lab.lost_on_wire());
}

#[test]
fn a_paced_flood_keeps_its_rate() {
    let lab = Lab::new(1);
    let _drop = Bystander::dropping(&lab);
    let first = "2001:db8:8000::".parse().unwrap();
    let flooded = Flood::new(Sources::Random(first, 24), 500_000).at_rate(500_000).send(&lab);
    assert_eq!(flooded.packets, 500_000);
    lab.assert_received(500_000 - lab.lost_on_wire());
    let seconds = Flooded::span(&[flooded]);
    assert!((0.99..1.1).contains(&seconds), "{seconds} s");
}

#[test]
fn a_program_attached_without_a_link_stays() {
    let lab = Lab::new(1);
    let id = Bystander::without_link(&lab).id();
    let text = process::run(lab.receiver.ip(&["-json", "link", "show", RX]));
    let links: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(links[0]["xdp"]["prog"]["id"], id, "{text}");
}

#[test]
fn a_panic_leaves_no_namespace_behind() {
    let (names, receiver) = mpsc::channel();
    let panicked = std::thread::spawn(move || {
        let lab = Lab::new(1);
        let _pass = Bystander::passing(&lab);
        let own = [&lab.sender, &lab.receiver].map(|host| format!("/run/netns/{}", host.name()));
        assert!(own.iter().all(|path| Path::new(path).exists()), "{own:?}");
        names.send(own).unwrap();
        panic!("on purpose");
    })
    .join();
    assert!(panicked.is_err());
    for path in receiver.recv().unwrap() {
        assert!(!Path::new(&path).exists(), "{path} is still there");
    }
}

/// What the benchmark writes with these options: the lines that it compares.
fn bench(options: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let json = folder.path().join("json");
    let mut bench = tools::own(env!("CARGO_BIN_EXE_bench"));
    bench.env("LIMITER_BIN", tests::cli::limiter_binary());
    bench.args(options.split(' ')).args(["--quick", "--rounds", "1", "--json"]).arg(&json);
    let output = bench.output().expect("the benchmark");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    println!("{text}");
    let json = std::fs::read(json).expect("the benchmark's figures");
    let mut json: Value = serde_json::from_slice(&json).expect("JSON");
    serde_json::from_value(json["results"].take()).expect("lines")
}

/// Only that it runs, with each contender: its figures are for people.
#[test]
fn the_benchmark_runs() {
    let lines = bench("--pattern 16m --denied 1000");
    let of = |who: &str| lines.iter().filter(|line| line["contender"] == who).count();
    assert_eq!([of("limiter"), of("limiter-cluster"), of("nft"), of("floor")], [2, 1, 1, 2]);
}

/// The share of a round of the pattern `class` that is over the limits of its 65,536 sources: each may send its burst of
/// two, and two a second. On a busy machine a short round is little more than that.
fn dropped_at_least(round: &Value) -> f64 {
    let of = |name: &str| round[name].as_f64().unwrap_or(f64::NAN);
    let arrived = of("frames") * (1.0 - of("lost"));
    let seconds = arrived / (of("mpps") * 1e6);
    (arrived - 65_536.0 * (2.0 + 2.0 * seconds)) / of("frames")
}

/// By the daemon's own counters.
#[test]
fn the_cells_of_the_benchmark_are_what_they_are_called() {
    let patterns = "conforming,aggregate,aggregate-2cpu,class,listed";
    let lines = bench(&format!("--contender floor,limiter --listed 16384 --pattern {patterns}"));
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    for (pattern, reason, shares) in [
        // A few may find no room on the wire.
        ("conforming", "pass/conforming", 0.99..=1.0),
        ("aggregate", "drop/over_total_limit", 0.9..=1.0),
        ("aggregate-2cpu", "drop/over_total_limit", 0.9..=1.0),
        ("class", "drop/over_limit", 0.0..=1.0),
        // 16,384 prefixes of four addresses are 0.39 % of 2^24.
        ("listed", "drop/denied", 0.003..=0.005),
    ] {
        let needed = if pattern.ends_with("2cpu") { 2 } else { 1 };
        if cpus < needed {
            println!("skipped: {pattern} needs {needed} CPUs, and there are {cpus}");
            continue;
        }
        let lines: Vec<_> = lines.iter().filter(|line| line["pattern"] == pattern).collect();
        assert!(lines.len() >= 2, "{pattern}: {lines:?}");
        for line in lines {
            assert_eq!(line["cpus"], needed, "{line}");
            assert!(line["net_ns"].is_f64(), "{line}");
            if line["contender"] == "limiter" {
                let reasons = line["rounds"][0]["reasons"].as_object().expect("reasons");
                let share = reasons.get(reason).and_then(Value::as_f64).unwrap_or(0.0);
                assert!(shares.contains(&share), "{reason}: {line}");
                let drops = reasons.keys().filter(|reason| reason.starts_with("drop/")).count();
                assert_eq!(drops == 0, pattern == "conforming", "{line}");
                if pattern == "class" {
                    assert!(share >= dropped_at_least(&line["rounds"][0]), "{line}");
                }
            } else {
                assert_eq!(line["admitted"], 0.0, "{line}");
            }
        }
    }
}
