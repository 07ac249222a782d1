//! Sketches that are saved on several hosts and merged, against exact counts of what was sent to each.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tests::{
    Daemon, DaemonOptions, Fleet, Lab, Sender, Sent, Stream,
    cli::{Answer, answer, limiter_binary},
    frame,
};

use super::suggest::window;

/// What the coarse clock of a CPU, a sender's timer and a sleep may be off by.
const SLACK: Duration = Duration::from_millis(10);

/// An epoch of the sketch: 2^27 ns.
const EPOCH: Duration = Duration::from_nanos(1 << 27);

fn source(index: u16) -> IpAddr {
    let [a, b] = index.to_be_bytes();
    Ipv4Addr::new(198, 18, a, b).into()
}

/// The first ones have a bucket, as they send more within an epoch than the gate of their limit.
const HEAVY: [(u16, f64); 3] = [(1, 2000.0), (2, 900.0), (3, 400.0)];

/// Light sources send so many packets/s.
const LIGHT: f64 = 20.0;

/// Sends to a host: the heavy sources, times `factor`, and light ones.
fn streams(factor: f64, light: std::ops::Range<u16>) -> Vec<Stream> {
    let stream =
        |index, rate: f64| Stream::new(frame::udp(source(index), 90), rate, (60.0 * rate) as u64);
    let heavy = HEAVY.map(|(index, rate)| stream(index, factor * rate));
    heavy.into_iter().chain(light.map(|index| stream(index, LIGHT))).collect()
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("no number {key} in {value:#}"))
}

/// How many packets of a stream were sent between two moments.
fn between(sent: &Sent, [from, to]: [Instant; 2]) -> f64 {
    let times = sent.times.iter().map(|time| sent.start + *time);
    times.filter(|time| (from..to).contains(time)).count() as f64
}

/// The fewest and the most packets of a stream that a save can have counted. It begins with an epoch, and looks at
/// buckets in the half of an epoch before.
fn bounds(sent: &Sent, saved: &Value) -> [f64; 2] {
    let [from, to] = window(saved);
    [
        between(sent, [from + SLACK, to - SLACK]),
        between(sent, [from - EPOCH / 2 - SLACK, to + EPOCH / 2 + SLACK]),
    ]
}

/// Runs a command that needs no daemon.
fn offline(arguments: &[&str]) -> Answer {
    answer(tools::own(limiter_binary()).arg("--json").args(arguments))
}

/// A daemon of a cluster with the key in `folder`, so that its hash has the same key as that of the others.
fn member(fleet: &Fleet, host: usize, folder: &std::path::Path) -> Daemon {
    let config = folder.join(format!("{host}.toml"));
    let text = format!(
        "[cluster]\nname = \"edge-{host}\"\nlisten = \"{}:7700\"\nkey_file = \"{}\"\n",
        Fleet::address(host),
        folder.join("cluster.key").display()
    );
    fs::write(&config, text).expect("the file can be written");
    let options = DaemonOptions::with(&["--config", &config.display().to_string()]);
    Daemon::start_with(&fleet.hosts[host], options)
}

#[test]
fn sketches_of_two_hosts_merge_to_what_both_have_seen() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let made = offline(&["cluster", "key", "generate", &path("cluster.key")]);
    assert_eq!(made.code, 0, "{made:?}");
    let fleet = Fleet::new(2);
    let daemons = [0, 1].map(|host| member(&fleet, host, folder.path()));
    let files = ["one", "two"].map(path);
    // A third of the light sources send to both.
    let light = [10..310, 210..510];
    let sending: Vec<_> = (fleet.hosts.iter().zip([1.0, 0.5]).zip(light))
        .map(|((lab, factor), light)| Sender::new(lab).start(streams(factor, light)))
        .collect();
    for daemon in &daemons {
        daemon.cli().limit("10kpps", None, None);
    }
    thread::sleep(Duration::from_millis(2500));
    let saved: Vec<Value> = thread::scope(|scope| {
        let save = |(daemon, file): (&Daemon, &str)| {
            let cli = daemon.cli();
            let file = file.to_owned();
            scope.spawn(move || cli.ok(&["sketch", "save", &file]))
        };
        let saving: Vec<_> =
            daemons.iter().zip(files.iter().map(String::as_str)).map(save).collect();
        saving.into_iter().map(|saving| saving.join().expect("a save")).collect()
    });
    thread::sleep(Duration::from_millis(200));
    let sent: Vec<Vec<Sent>> = sending.into_iter().map(tests::sender::Sending::stop).collect();

    for (saved, sent) in saved.iter().zip(&sent) {
        let all: Vec<[f64; 2]> = sent.iter().map(|sent| bounds(sent, saved)).collect();
        let [least, most] = [0, 1].map(|end| all.iter().map(|bounds| bounds[end]).sum::<f64>());
        let packets = number(saved, "packets");
        println!("{packets} packets, sent {least} to {most}");
        assert!((least..=most).contains(&packets), "{saved:#}");
        assert_eq!(saved["sources"], HEAVY.len(), "those with a bucket: {saved:#}");
    }
    let rate = number(&saved[0]["packets_per_second"], "max");
    // A sender that shares two CPUs with other tests sends in jerks.
    assert!((rate / HEAVY[0].1 - 1.0).abs() < 0.15, "{rate} packets/s");

    let merged = offline(&["sketch", "merge", &files[0], &files[1], "--out", &path("both")]);
    assert_eq!((merged.code, &merged.json["saves"]), (0, &2.into()), "{merged:#?}");
    let sum = number(&saved[0], "packets") + number(&saved[1], "packets");
    assert_eq!(number(&merged.json, "packets"), sum);
    let distinct = |answer: &Value| number(&answer["distinct"], "sources");
    let found = [distinct(&saved[0]), distinct(&saved[1]), distinct(&merged.json)];
    println!("distinct sources: {found:.0?}, really 303, 303 and 503");
    for (found, wanted) in found.into_iter().zip([303.0, 303.0, 503.0]) {
        assert!((found / wanted - 1.0).abs() < 4.0 * 0.01625, "{found}, not {wanted}");
    }
    // A heavy source and a light one of both hosts, and one that only the second host has seen. Any host of the
    // cluster knows the cells.
    let streams = |index: u16| match index {
        1..4 => vec![usize::from(index) - 1; 2],
        210..310 => vec![usize::from(index) - 10 + 3, usize::from(index) - 210 + 3],
        _ => vec![usize::MAX, usize::from(index) - 210 + 3],
    };
    for (host, index) in [(0, 1_u16), (1, 2), (0, 250), (1, 400)] {
        let address = source(index).to_string();
        let show = ["sketch", "show", &path("both"), "--estimate", &address];
        let shown = daemons[host].cli().ok(&show);
        let of_hosts = streams(index).into_iter().zip(&sent).zip(&saved);
        let bounds: Vec<_> =
            of_hosts.filter_map(|((at, sent), saved)| Some(bounds(sent.get(at)?, saved))).collect();
        let [least, most] = [0, 1].map(|end| bounds.iter().map(|bounds| bounds[end]).sum::<f64>());
        let (estimate, error) = (&shown["estimate"], number(&shown, "too_high_by"));
        let packets = number(estimate, "packets");
        println!("{address}: {estimate}, sent {least} to {most}, an estimate errs by {error}");
        assert_eq!(estimate["source"], address);
        assert!(packets >= least && packets <= most + error, "{shown:#}");
    }
    // The same twice: packets double, sources do not.
    let twice = offline(&["sketch", "merge", &files[0], &files[0], "-o", &path("twice")]).json;
    assert_eq!(number(&twice, "packets"), 2.0 * number(&saved[0], "packets"));
    assert_eq!(distinct(&twice), distinct(&saved[0]));
    // Neither the key nor an address can be read.
    let content = fs::read(&files[0]).expect("the file");
    let key = fs::read_to_string(path("cluster.key")).expect("the key");
    assert!(key.trim().len() > 30 && !String::from_utf8_lossy(&content).contains(key.trim()));
    println!("a file of {} bytes", content.len());
    for (daemon, lab) in daemons.iter().zip(&fleet.hosts) {
        daemon.assert_accounted(lab);
    }
}

#[test]
fn a_sketch_of_another_key_or_size_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let labs = [Lab::new(1), Lab::new(1)];
    let options = [&[][..], &["--ipv4-prefix", "24"]];
    let daemons: Vec<_> = labs
        .iter()
        .zip(options)
        .map(|(lab, options)| Daemon::start_with(lab, DaemonOptions::with(options)))
        .collect();
    let files = ["one", "two"].map(path);
    for (daemon, file) in daemons.iter().zip(&files) {
        daemon.cli().limit("10kpps", None, None);
        let saved = daemon.cli().ok(&["sketch", "save", file]);
        assert_eq!((&saved["packets"], &saved["sources"]), (&0.into(), &0.into()), "{saved:#}");
    }
    let out = path("both");
    let merged = offline(&["sketch", "merge", &files[0], &files[1], "-o", &out]);
    assert_eq!(merged.code, 2, "{merged:#?}");
    for part in ["the key of their hash", "hint:", "one cluster key"] {
        assert!(merged.stderr.contains(part), "{part}: {merged:#?}");
    }
    assert!(!fs::exists(&out).expect("the folder"), "nothing is written");
    // Only a daemon with the key knows an address's cells.
    let show = ["sketch", "show", &files[0], "--estimate", "198.18.0.1"];
    assert_eq!(daemons[0].cli().ok(&show)["estimate"]["packets"], 0);
    let refused = daemons[1].cli().run(&show);
    assert_eq!(refused.code, 2, "{refused:#?}");
    assert!(refused.stderr.contains("has the key") && refused.stderr.contains("hint:"));
    // Whoever has no daemon can still look at it.
    assert_eq!(offline(&["sketch", "show", &files[1]]).json["ipv4_prefix"], 24);
    // A file that was cut is noticed.
    let content = fs::read(&files[0]).expect("the file");
    fs::write(&files[1], &content[..content.len() / 2]).expect("the file can be written");
    let damaged = offline(&["sketch", "merge", &files[0], &files[1], "-o", &out]);
    assert!(damaged.code == 2 && damaged.stderr.contains("two: it is damaged"), "{damaged:#?}");
}
