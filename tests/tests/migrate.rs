//! An upgrade to another layout of the maps, with packets under way: what an older daemon has pinned is
//! forged from what this one has.

use std::{
    fs,
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

use aya::maps::{Array, Map, MapData};
use limiter_common::{abi::ABI_VERSION, table::WAYS};
use serde_json::Value;
use tests::{
    Daemon, DaemonOptions, Lab, Observer, Sender, Stream,
    cli::{Answer, answer},
    frame,
    lab::RX,
    observer::Then,
    process::{self, Background},
    program,
    reports::Limit,
    v4, v6,
};

/// The oldest layout that can be migrated.
const OLDEST: u32 = 3;

/// `BPF_F_MMAPABLE` of linux/bpf.h.
const MMAPABLE: u32 = 1 << 10;

/// Maps that came after [`OLDEST`].
const LATER: [&str; 4] = ["classes", "shared4", "shared6", "shared"];

/// The oldest layout of which all maps are used as they are.
const ADOPTED: u32 = 4;

/// Maps that came after [`ADOPTED`].
const ADDED: [&str; 6] = ["distinct", "sampling", "samples", "sampler", "rights", "peers"];

/// Few enough to be copied one by one.
fn options() -> DaemonOptions {
    DaemonOptions::with(&["--max-sources", "4096"])
}

fn open<T: aya::Pod>(path: PathBuf) -> Array<MapData, T> {
    let map = MapData::from_pin(&path).and_then(Map::from_map_data).and_then(Array::try_from);
    map.unwrap_or_else(|error| panic!("cannot open {}: {error}", path.display()))
}

/// Pins a map in the place of whatever is there.
fn pin<T: aya::Pod>(map: Array<MapData, T>, path: PathBuf) {
    let _absent = fs::remove_file(&path);
    map.pin(&path).unwrap_or_else(|error| panic!("cannot pin {}: {error}", path.display()));
}

/// Gives what `daemon` has pinned another layout version.
fn forge(daemon: &Daemon, abi: u32) {
    let mut map: Array<MapData, u32> = open(daemon.pins().join("abi"));
    map.set(0, abi, 0).expect("the version can be written");
    let mut map: Array<MapData, [u8; 136]> = open(daemon.pins().join("layout"));
    let mut layout = map.get(&0, 0).expect("the layout can be read");
    layout[..4].copy_from_slice(&abi.to_ne_bytes());
    map.set(0, layout, 0).expect("the layout can be written");
}

/// Gives the pins the shape of [`OLDEST`]: identities of two words, and no maps that came later.
fn forge_shape(daemon: &Daemon) {
    let path = daemon.pins().join("identities");
    let present: Array<MapData, [u64; 8]> = open(path.clone());
    let count = (program::layout(daemon).set_mask + 1) * WAYS;
    let mut short = Array::<MapData, [u64; 2]>::create(count, MMAPABLE).expect("a map");
    for index in 0..count {
        let [high, low, ..] = present.get(&index, 0).expect("an identity");
        short.set(index, [high, low], 0).expect("room for it");
    }
    pin(short, path);
    for name in LATER {
        fs::remove_file(daemon.pins().join(name)).expect("a map of this version");
    }
}

/// The id of the program on an interface of the receiver.
fn program_on(lab: &Lab, interface: &str) -> Option<u64> {
    let text = process::run(lab.receiver.ip(&["-json", "link", "show", interface]));
    let links: Value = serde_json::from_str(&text).expect("ip prints JSON");
    links[0]["xdp"]["prog"]["id"].as_u64()
}

fn staging(daemon: &Daemon) -> PathBuf {
    let mut name = daemon.pins().as_os_str().to_owned();
    name.push("+new");
    name.into()
}

/// Starts the daemon with more arguments, which must fail. Its error on stderr, with the hint.
fn refused(lab: &Lab, daemon: &Daemon, arguments: &[&str]) -> Answer {
    let refused = answer(daemon.command(lab).args(arguments));
    assert!(refused.code > 0, "{refused:#?}");
    assert!(!staging(daemon).exists(), "nothing half made stays");
    refused
}

/// Sends floods, a stream within its limit and one of a denied source, and upgrades meanwhile.
fn assert_migrates(old_shape: bool) {
    let lab = Lab::new(1);
    let mut daemon = Daemon::start_with(&lab, options());
    let cli = daemon.cli();
    let limit = cli.limit("1000pps", Some("2000"), None);
    let slow = cli.limit("200pps", Some("1000"), Some("198.51.100.2"));
    cli.ok(&["deny", "add", &v4(66).to_string(), "--reason", "scanner"]);
    let limits = cli.limits();
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let (first, second, six, denied, conforming) = (v4(1), v4(2), v6(1, 1), v4(66), v4(10));
    let stream = |source, rate: f64| Stream::new(frame::udp(source, 100), rate, 1 << 20);
    let sending = Sender::new(&lab).start(vec![
        stream(first, 10_000.0),
        stream(second, 3000.0),
        stream(six, 5000.0),
        stream(denied, 1000.0),
        stream(conforming, 900.0),
    ]);
    // Until every bucket is empty.
    std::thread::sleep(Duration::from_secs(3));
    let before = (cli.stats(), cli.show(first), program_on(&lab, RX));
    let link = cli.ok(&["status"])["interfaces"][0]["link_id"].clone();
    daemon.kill();
    if old_shape {
        forge_shape(&daemon);
    }
    forge(&daemon, OLDEST);
    daemon.restart(&lab);
    let status = daemon.cli().run(&["status"]).json;
    println!("{}", status["migrated"]);
    assert_eq!(status["migrated"]["from_abi"], OLDEST, "{status:#}");
    assert!(status["migrated"]["buckets"].as_u64() >= Some(4), "{status:#}");
    assert_eq!(status["interfaces"][0]["link_id"], link, "the same link");
    assert!(program_on(&lab, RX).is_some_and(|id| Some(id) != before.2), "another program");
    assert!(daemon.log().contains("from layout version 3"), "{}", daemon.log());
    // Longer than a bucket would take to fill.
    std::thread::sleep(Duration::from_secs(3));
    let shown = daemon.cli().show(first);
    assert!(shown.tracked && shown.state == "limited", "{shown:?}");
    let sent = sending.stop();
    let observed = observer.read();
    for (what, source, limit, at) in [
        ("a flood", first, &limit, 0),
        ("one with a limit of its own", second, &slow, 1),
        ("an IPv6 source", six, &limit, 2),
    ] {
        limit.assert_admitted(what, observed.from(source), sent[at].seconds());
        // One bucket from the first packet to the last, and it knows whose it is.
        let shown = daemon.cli().show(source);
        let counted = observed.from(source) - limit.gate..=observed.from(source);
        assert!(counted.contains(&shown.passed), "{what}: {counted:?}, {shown:?}");
    }
    assert_eq!(observed.from(denied), 0, "the lists hold");
    assert_eq!(observed.from(conforming), sent[4].packets(), "a conforming source");
    assert_eq!(daemon.cli().limits(), limits);
    let top = daemon.cli().ok(&["top", "--once"]).to_string();
    for source in [first, second, conforming] {
        assert!(top.contains(&source.to_string()), "{source}: {top}");
    }
    let stats = daemon.assert_accounted(&lab);
    assert_eq!(stats.verdict("pass"), observed.all, "no frame passed uncounted");
    for counter in &before.0.counters {
        let now = stats.packets(&counter.verdict, &counter.reason);
        assert!(now >= counter.packets, "{counter:?} was {now} after the upgrade");
    }
    assert!(!staging(&daemon).exists());
    // From now on it is a data plane like any other.
    daemon.kill();
    daemon.restart(&lab);
    let status = daemon.cli().run(&["status"]).json;
    assert!(status["migrated"].is_null() && status["abi_version"] == ABI_VERSION, "{status:#}");
    assert_eq!(daemon.cli().limits(), limits);
    daemon.assert_accounted(&lab);
}

#[test]
fn an_older_layout_is_migrated_under_a_flood() {
    assert_migrates(true);
}

#[test]
fn an_older_layout_with_the_same_identities_is_migrated_under_a_flood() {
    assert_migrates(false);
}

#[test]
fn maps_that_only_lack_some_are_taken_over_under_a_flood() {
    let lab = Lab::new(1);
    let mut daemon = Daemon::start_with(&lab, options());
    let cli = daemon.cli();
    let each = cli.limit("1000pps", Some("2000"), None);
    let set = |arguments: &[&str]| -> Limit {
        let json = cli.ok(&[&["limit", "set"], arguments].concat());
        serde_json::from_value(json["limit"].clone()).expect("a limit")
    };
    // What an upgrade from an older layout would not carry over: a class, and what sources share.
    let class = set(&["500pps", "--burst", "1000", "--proto", "udp", "--dport", "53"]);
    let shared = set(&["700pps", "--burst", "1500", "--for", "198.51.100.128/25", "--as-one"]);
    let limits = cli.limits();
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let stream = |frame, rate: f64| Stream::new(frame, rate, 1 << 20);
    let sending = Sender::new(&lab).start(vec![
        stream(frame::udp(v4(1), 100), 5000.0),
        stream(frame::udp_to(v4(2), 100, 53), 5000.0),
        stream(frame::udp(v4(130), 100), 900.0),
        stream(frame::udp(v4(10), 100), 900.0),
    ]);
    std::thread::sleep(Duration::from_secs(8));
    daemon.kill();
    for name in ADDED {
        fs::remove_file(daemon.pins().join(name)).expect("a map of this version");
    }
    forge(&daemon, ADOPTED);
    daemon.restart(&lab);
    std::thread::sleep(Duration::from_secs(3));
    let sent = sending.stop();
    let observed = observer.read();
    for (what, source, limit, at) in [
        ("a flood", v4(1), &each, 0),
        ("one of a class", v4(2), &class, 1),
        ("one that shares a limit", v4(130), &shared, 2),
    ] {
        limit.assert_admitted(what, observed.from(source), sent[at].seconds());
    }
    assert_eq!(observed.from(v4(10)), sent[3].packets(), "a conforming source");
    assert!(daemon.log().contains("layout version 4"), "{}", daemon.log());
    assert!(!staging(&daemon).exists() && ADDED.iter().all(|it| daemon.pins().join(it).exists()));
    let status = daemon.cli().run(&["status"]).json;
    assert!(status["distinct"]["sources"].as_f64() > Some(3.5), "{status:#}");
    assert_eq!(status["abi_version"], ABI_VERSION);
    assert_eq!(daemon.cli().limits(), limits);
    // From now on it is of this version.
    daemon.kill();
    daemon.restart(&lab);
    assert!(daemon.log().matches("layout version 4").count() <= 1, "{}", daemon.log());
    daemon.assert_accounted(&lab);
}

#[test]
fn what_cannot_be_migrated_stays_at_work() {
    let lab = Lab::new(1);
    let mut daemon = Daemon::start_with(&lab, options());
    let limit = daemon.cli().limit("1000pps", Some("1000"), None);
    daemon.cli().limit("5pps", None, Some("203.0.113.1"));
    daemon.cli().limit("5pps", None, Some("203.0.113.2"));
    let program = program_on(&lab, RX);
    assert!(program.is_some());
    daemon.kill();
    for abi in [OLDEST - 1, ABI_VERSION + 95] {
        forge(&daemon, abi);
        let refused = refused(&lab, &daemon, &[]);
        assert_eq!(refused.code, 2, "{refused:#?}");
        assert!(refused.stderr.contains(&format!("layout version {abi}")), "{refused:#?}");
        assert!(refused.stderr.contains("--reset-state"), "{refused:#?}");
    }
    forge(&daemon, OLDEST);
    let other = refused(&lab, &daemon, &["--sketch-epsilon", "0.01"]);
    assert!(other.code == 2 && other.stderr.contains("--sketch-epsilon"), "{other:#?}");
    // It ends when everything is loaded, with the limits.
    let full = refused(&lab, &daemon, &["--max-limits", "1"]);
    assert!(full.code == 2 && full.stderr.contains("stay at work"), "{full:#?}");
    assert!(full.stderr.contains("single sources"), "{full:#?}");
    // Fresh maps do not get in its place either, if the limits do not fit.
    let reset = refused(&lab, &daemon, &["--max-limits", "1", "--reset-state"]);
    assert!(reset.code == 2 && reset.stderr.contains("single sources"), "{reset:#?}");
    assert_eq!(program_on(&lab, RX), program, "the one that was there");
    // And before, with a map that is not what it was.
    let slots = daemon.pins().join("slots");
    let kept: Array<MapData, [u64; 8]> = open(slots.clone());
    pin(Array::<MapData, [u64; 8]>::create(1, MMAPABLE).expect("a map"), slots.clone());
    let broken = refused(&lab, &daemon, &[]);
    assert!(broken.code == 4 && broken.stderr.contains("SLOTS"), "{broken:#?}");
    assert!(broken.stderr.contains("stay at work"), "{broken:#?}");
    assert_eq!(program_on(&lab, RX), program, "the one that was there");
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let flood = Stream::new(frame::udp(v4(1), 100), 10_000.0, 20_000);
    let sent = Sender::new(&lab).send(vec![flood]);
    limit.assert_admitted("meanwhile", observer.read().from(v4(1)), sent[0].seconds());
    pin(kept, slots);
    daemon.restart(&lab);
    assert_eq!(daemon.cli().run(&["status"]).json["migrated"]["from_abi"], OLDEST);
    assert_eq!(daemon.cli().limits().len(), 3);
    daemon.assert_accounted(&lab);
}

#[test]
fn a_switch_that_was_cut_short_is_completed() {
    let lab = Lab::new(1);
    let extra = ["link", "add", "ex0", "type", "veth", "peer", "name", "ex1"];
    process::run(lab.receiver.ip(&extra));
    for end in ["ex0", "ex1"] {
        process::run(lab.receiver.ip(&["link", "set", end, "up"]));
    }
    let mut options = options();
    options.interfaces.push("ex0".into());
    let mut daemon = Daemon::start_with(&lab, options);
    let limit = daemon.cli().limit("1000pps", Some("1000"), None);
    let programs = [RX, "ex0"].map(|interface| program_on(&lab, interface));
    assert!(programs.iter().all(Option::is_some), "{programs:?}");
    daemon.kill();
    // One link is moved, the other is still with what is left of the former maps.
    fs::rename(daemon.pins(), staging(&daemon)).expect("one file system");
    fs::create_dir(daemon.pins()).expect("a BPF file system");
    let mut abi = Array::<MapData, u32>::create(1, 0).expect("a map");
    abi.set(0, OLDEST, 0).expect("room for it");
    pin(abi, daemon.pins().join("abi"));
    let names = fs::read_dir(staging(&daemon)).expect("it is there").map(|it| it.expect("a pin"));
    let mut links: Vec<_> = names
        .map(|entry| entry.file_name())
        .filter(|name| name.to_string_lossy().starts_with("link_"))
        .collect();
    assert_eq!(links.len(), 2, "{links:?}");
    let last = links.remove(1);
    fs::rename(staging(&daemon).join(&last), daemon.pins().join(&last)).expect("one file system");
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let stream = Stream::new(frame::udp(v4(1), 100), 10_000.0, 1 << 20);
    let sending = Sender::new(&lab).start(vec![stream]);
    std::thread::sleep(Duration::from_secs(1));
    daemon.restart(&lab);
    std::thread::sleep(Duration::from_secs(1));
    let sent = sending.stop();
    limit.assert_admitted("throughout", observer.read().from(v4(1)), sent[0].seconds());
    let status = daemon.cli().run(&["status"]).json;
    assert_eq!(status["interfaces"].as_array().map(Vec::len), Some(2), "{status:#}");
    assert!(status["migrated"].is_null(), "{status:#}");
    assert!(!staging(&daemon).exists() && daemon.pins().join(&last).exists());
    assert_eq!(daemon.cli().limits(), [limit]);
}

#[test]
fn a_daemon_that_dies_at_any_moment_leaves_the_old_one_or_the_new_one() {
    const DEATHS: u32 = 20;
    let lab = Lab::new(1);
    let mut daemon = Daemon::start_with(&lab, options());
    let limit = daemon.cli().limit("1000pps", Some("1000"), None);
    daemon.kill();
    forge(&daemon, OLDEST);
    let start = Instant::now();
    daemon.restart(&lab);
    let takes = start.elapsed();
    daemon.kill();
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let stream = |host, rate| Stream::new(frame::udp(v4(host), 100), rate, 1 << 20);
    let sending = Sender::new(&lab).start(vec![stream(1, 10_000.0), stream(10, 900.0)]);
    // Its bucket is empty when the first one dies.
    std::thread::sleep(Duration::from_millis(500));
    let mut half_way = 0;
    for death in 1..=DEATHS {
        if daemon.pins().join("abi").exists() {
            forge(&daemon, OLDEST);
        }
        let mut command = daemon.command(&lab);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let starting = Background::start(&mut command);
        std::thread::sleep(takes * death / DEATHS);
        drop(starting);
        half_way += u32::from(staging(&daemon).exists());
        assert!(program_on(&lab, RX).is_some(), "an unprotected interface after death {death}");
    }
    println!("{half_way} of {DEATHS} deaths came half-way through what takes {takes:?}");
    assert!(half_way > 0, "none of them tells anything");
    daemon.restart(&lab);
    let sent = sending.stop();
    let observed = observer.read();
    limit.assert_admitted("throughout", observed.from(v4(1)), sent[0].seconds());
    assert_eq!(observed.from(v4(10)), sent[1].packets(), "a conforming source");
    assert!(!staging(&daemon).exists());
    assert_eq!(daemon.cli().limits(), [limit]);
    daemon.assert_accounted(&lab);
}
