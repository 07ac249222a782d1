//! Bans, with real packets: who goes on to be far over its limit is denied for a time, and nobody
//! else is.

use std::{
    fs,
    net::IpAddr,
    time::{Duration, Instant},
};

use serde_json::Value;
use tests::{
    Cli, Daemon, DaemonOptions, Lab, Observer, Sender, Sent, Stream, frame, observer::Then,
    process::wait_for, v4,
};

const FLOOD: f64 = 3000.0;

/// Frames of a stream that goes on until it is stopped.
const ENDLESS: u64 = 1_000_000;

fn endless(source: IpAddr, rate: f64) -> Stream {
    Stream::new(frame::udp(source, 100), rate, ENDLESS)
}

fn listed(cli: &Cli, source: IpAddr) -> Value {
    cli.ok(&["show", &source.to_string()])["listed"].clone()
}

/// Waits until `source` is banned and returns its entry.
fn wait_for_ban(cli: &Cli, source: IpAddr) -> Value {
    wait_for(format!("a ban of {source}"), Duration::from_secs(20), || {
        Some(listed(cli, source)).filter(|entry| !entry.is_null())
    })
}

fn entries(cli: &Cli) -> Vec<Value> {
    cli.ok(&["deny", "list"])["entries"].as_array().expect("a list").clone()
}

/// Sends 50 packets of `source` within its burst and returns how many arrive.
fn arrived(lab: &Lab, observer: &Observer<'_>, source: IpAddr) -> u64 {
    let before = observer.read().from(source);
    let sent = Sender::new(lab).send(vec![Stream::new(frame::udp(source, 100), 500.0, 50)]);
    assert_eq!(sent[0].packets(), 50);
    observer.read().from(source) - before
}

#[test]
fn a_flood_is_banned_in_time_and_the_ban_ends_without_a_daemon() {
    let lab = &Lab::new(1);
    let mut daemon = Daemon::start(lab);
    let cli = daemon.cli();
    let net = "198.51.100.0/24";
    let set = ["limit", "set", "100pps", "--burst", "100", "--for", net];
    let ban = ["--ban-after", "2s", "--ban-factor", "5", "--ban-for", "15s"];
    let limit = cli.ok(&[&set[..], &ban].concat())["limit"].clone();
    assert_eq!(limit["ban"]["after_seconds"], 2, "{limit}");
    let observer = Observer::new(lab, Then::Discard, &[]);
    let (flood, conforming, over, elsewhere) =
        (v4(66), v4(1), v4(2), "192.0.2.66".parse::<IpAddr>().expect("an address"));
    let start = Instant::now();
    let sending = Sender::new(lab).start(vec![
        endless(flood, FLOOD),
        endless(conforming, 50.0),
        // Over its limit, but not by the factor.
        endless(over, 250.0),
        // A flood for which there is no limit.
        endless(elsewhere, FLOOD),
    ]);
    let entry = wait_for_ban(&cli, flood);
    let banned = Instant::now();
    let took = start.elapsed().as_secs_f64();
    println!("banned after {took:.2} s: {entry}");
    // The daemon looks once a second, and a part of the first one may be flood enough.
    assert!((1.1..=8.0).contains(&took), "{took}");
    let reason = entry["reason"].as_str().unwrap_or_default();
    assert!(reason.starts_with("over 100pps by "), "{entry}");
    assert!(reason.ends_with("(limit for 198.51.100.0/24)"), "{entry}");
    assert!(entry["ban"] == true && entry["expires"].is_string(), "{entry}");
    std::thread::sleep(Duration::from_secs(3));
    let sent = sending.stop();
    let seconds = sent[0].seconds();
    let counts = observer.read();
    // Until it was banned it got its limit, and nothing since.
    let admitted = counts.from(flood) as f64;
    println!("admitted {admitted} in {seconds:.2} s, banned at {took:.2} s");
    assert!(admitted <= 100.0 + 100.0 * (took + 0.2) + 13.0, "{admitted} in {took}");
    assert!(admitted >= 200.0, "{admitted}: not banned before it was due");
    assert_eq!(counts.from(conforming), sent[1].packets(), "a neighbour within its limit");
    let allowed = 100.0 + 100.0 * sent[2].seconds();
    let got = counts.from(over) as f64;
    assert!((0.9 * allowed..=allowed + 13.0).contains(&got), "{got} of {allowed}");
    assert_eq!(counts.from(elsewhere), sent[3].packets(), "one without a limit");
    let denied = daemon.assert_accounted(lab).packets("drop", "denied") as f64;
    assert!(denied >= 0.5 * FLOOD * (seconds - took), "{denied} denied");
    let list = entries(&cli);
    assert_eq!((list.len(), &list[0]), (1, &entry), "nobody else, and only once");
    assert!(daemon.log().contains("banned 198.51.100.66: over 100pps by"), "{}", daemon.log());

    daemon.kill();
    assert_eq!(arrived(lab, &observer, flood), 0, "a dead daemon protects");
    std::thread::sleep(Duration::from_millis(16_500).saturating_sub(banned.elapsed()));
    assert_eq!(arrived(lab, &observer, flood), 50, "lifted on time");
    daemon.restart(lab);
    assert_eq!(entries(&daemon.cli()).len(), 0);
    // What bans survives a restart, like the rest of a limit.
    assert_eq!(daemon.cli().ok(&["limit", "list"])["limits"][0]["ban"], limit["ban"]);
}

#[test]
fn bans_of_the_file_come_and_go_with_it_and_spare_who_must_not_be_shut_out() {
    let lab = &Lab::new(1);
    let home = tempfile::tempdir().expect("a temporary folder");
    let path = home.path().join("limiter.toml");
    let write = |ban: &str| {
        let text = format!(
            "[management]\naddresses = [\"198.51.100.16/28\"]\n[limits]\n\
             default = {{ rate = \"50kbyte/s\", burst = \"20kbyte\"{ban} }}\n"
        );
        fs::write(&path, text).expect("the file can be written");
    };
    // 50 kbyte/s are 500 frames of 100 bytes; a flood is 6 times that.
    write(", ban = { after = \"1s\", factor = 3, for = \"1h\" }");
    let name = path.display().to_string();
    let daemon = Daemon::start_with(lab, DaemonOptions::with(&["--config", &name]));
    let cli = daemon.cli();
    cli.ok(&["allow", "add", &v4(3).to_string()]);
    let floods = [v4(17), v4(3), v4(66)];
    let observer = Observer::new(lab, Then::Discard, &[]);
    let streams = || floods.map(|source| endless(source, FLOOD)).to_vec();
    let sending = Sender::new(lab).start(streams());
    let entry = wait_for_ban(&cli, v4(66));
    let reason = entry["reason"].as_str().unwrap_or_default();
    assert!(reason.starts_with("over 50kbyte/s by "), "{entry}");
    std::thread::sleep(Duration::from_secs(3));
    let sent = sending.stop();
    let counts = observer.read();
    for (source, sent) in floods.iter().zip(&sent).take(2) {
        assert_eq!(counts.from(*source), Sent::packets(sent), "{source} is not limited");
    }
    assert_eq!(entries(&cli).len(), 1);
    assert_eq!(listed(&cli, v4(3))["action"], "allow");
    // A ban is an entry like others: it can be taken back.
    cli.ok(&["deny", "del", &v4(66).to_string()]);
    write("");
    let reloaded = cli.ok(&["reload"]);
    let changed = &reloaded["changed"][0];
    assert_eq!(changed["old"]["ban"]["for_seconds"], 3600, "{reloaded}");
    assert!(changed["new"]["ban"].is_null(), "{reloaded}");
    let sending = Sender::new(lab).start(streams());
    std::thread::sleep(Duration::from_secs(4));
    let sent = sending.stop();
    assert!(sent[2].rate() > 1500.0, "a flood of {}", sent[2].rate());
    assert_eq!(entries(&cli).len(), 0, "nothing bans any more");
    daemon.assert_accounted(lab);
}
