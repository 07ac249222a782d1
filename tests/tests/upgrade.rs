//! An upgrade to another layout of the maps, with packets under way: what another version has pinned is
//! forged from what this one has.

use std::{
    fs,
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

use aya::maps::{Array, Map, MapData};
use limiter_common::abi::ABI_VERSION;
use serde_json::Value;
use tests::{
    Daemon, DaemonOptions, Lab, Observer, Sender, Stream,
    cli::{Answer, answer},
    frame,
    lab::RX,
    observer::Then,
    process::{self, Background},
    reports::Limit,
    v4,
};

/// A layout that this program does not know.
const OTHER: u32 = ABI_VERSION - 1;

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

/// The documented procedure: what another version has pinned stays at work until fresh maps, with all limits
/// and lists, take its place. Each source may have its burst once more.
#[test]
fn fresh_maps_take_the_place_of_another_layout_under_a_flood() {
    let lab = Lab::new(1);
    let mut daemon = Daemon::start_with(&lab, options());
    let cli = daemon.cli();
    let limit = cli.limit("1000pps", Some("2000"), None);
    cli.ok(&["deny", "add", &v4(66).to_string(), "--reason", "scanner"]);
    let limits = cli.limits();
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let stream = |source, rate: f64| Stream::new(frame::udp(source, 100), rate, 1 << 20);
    let sending = Sender::new(&lab).start(vec![
        stream(v4(1), 10_000.0),
        stream(v4(66), 1000.0),
        stream(v4(10), 900.0),
    ]);
    std::thread::sleep(Duration::from_secs(3));
    let before = program_on(&lab, RX);
    let link = cli.ok(&["status"])["interfaces"][0]["link_id"].clone();
    daemon.kill();
    forge(&daemon, OTHER);
    daemon.restart_fresh(&lab);
    let status = daemon.cli().run(&["status"]).json;
    assert_eq!(status["abi_version"], ABI_VERSION, "{status:#}");
    assert_eq!(status["interfaces"][0]["link_id"], link, "the same link");
    assert!(program_on(&lab, RX).is_some_and(|id| Some(id) != before), "another program");
    std::thread::sleep(Duration::from_secs(3));
    let sent = sending.stop();
    let observed = observer.read();
    let twice = Limit { burst_amount: 2 * limit.burst_amount, ..limit };
    twice.assert_admitted("a flood", observed.from(v4(1)), [&sent[0]]);
    assert_eq!(observed.from(v4(66)), 0, "the lists hold");
    assert_eq!(observed.from(v4(10)), sent[2].packets(), "a conforming source");
    assert_eq!(daemon.cli().limits(), limits);
    assert!(!staging(&daemon).exists());
}

#[test]
fn another_layout_is_refused_and_stays_at_work() {
    let lab = Lab::new(1);
    let mut daemon = Daemon::start_with(&lab, options());
    let limit = daemon.cli().limit("1000pps", Some("1000"), None);
    daemon.cli().limit("5pps", None, Some("203.0.113.1"));
    daemon.cli().limit("5pps", None, Some("203.0.113.2"));
    let program = program_on(&lab, RX);
    assert!(program.is_some());
    daemon.kill();
    for abi in [OTHER, ABI_VERSION + 95] {
        forge(&daemon, abi);
        let refused = refused(&lab, &daemon, &[]);
        assert_eq!(refused.code, 2, "{refused:#?}");
        assert!(refused.stderr.contains(&format!("layout version {abi}")), "{refused:#?}");
        assert!(refused.stderr.contains("stay at work"), "{refused:#?}");
        assert!(refused.stderr.contains("--reset-state"), "{refused:#?}");
    }
    // Fresh maps do not get in its place if the limits do not fit.
    let reset = refused(&lab, &daemon, &["--max-limits", "1", "--reset-state"]);
    assert!(reset.code == 2 && reset.stderr.contains("single sources"), "{reset:#?}");
    assert_eq!(program_on(&lab, RX), program, "the one that was there");
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let flood = Stream::new(frame::udp(v4(1), 100), 10_000.0, 20_000);
    let sent = Sender::new(&lab).send(vec![flood]);
    limit.assert_admitted("meanwhile", observer.read().from(v4(1)), [&sent[0]]);
    forge(&daemon, ABI_VERSION);
    daemon.restart(&lab);
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
    abi.set(0, OTHER, 0).expect("room for it");
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
    limit.assert_admitted("throughout", observer.read().from(v4(1)), [&sent[0]]);
    let status = daemon.cli().run(&["status"]).json;
    assert_eq!(status["interfaces"].as_array().map(Vec::len), Some(2), "{status:#}");
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
    forge(&daemon, OTHER);
    let start = Instant::now();
    daemon.restart_fresh(&lab);
    let takes = start.elapsed();
    daemon.kill();
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let stream = |host, rate| Stream::new(frame::udp(v4(host), 100), rate, 1 << 20);
    let sending = Sender::new(&lab).start(vec![stream(1, 30_000.0), stream(10, 900.0)]);
    // Its bucket is empty when the first one dies.
    std::thread::sleep(Duration::from_millis(500));
    let mut half_way = 0;
    for death in 1..=DEATHS {
        if daemon.pins().join("abi").exists() {
            forge(&daemon, OTHER);
        }
        let mut command = daemon.command(&lab);
        command.arg("--reset-state").stdout(Stdio::null()).stderr(Stdio::null());
        let starting = Background::start(&mut command);
        std::thread::sleep(takes * death / DEATHS);
        drop(starting);
        half_way += u32::from(staging(&daemon).exists());
        assert!(program_on(&lab, RX).is_some(), "an unprotected interface after death {death}");
    }
    println!("{half_way} of {DEATHS} deaths came half-way through what takes {takes:?}");
    assert!(half_way > 0, "none of them tells anything");
    daemon.restart_fresh(&lab);
    let sent = sending.stop();
    let observed = observer.read();
    // Each that came so far may have given it another burst.
    let bursts = u64::from(DEATHS + 2) * limit.burst_amount;
    let most = bursts as f64 + 1.02 * limit.rate_per_second * sent[0].seconds();
    let passed = observed.from(v4(1));
    assert!((passed as f64) < most && most < 0.5 * sent[0].packets() as f64, "{passed} of {most}");
    assert_eq!(observed.from(v4(10)), sent[1].packets(), "a conforming source");
    assert!(!staging(&daemon).exists());
    assert_eq!(daemon.cli().limits(), [limit]);
}
