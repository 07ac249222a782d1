//! Bans, with real packets: who goes on to be far over its limit is denied for a time, if it is no
//! forged address, and nobody else is.

use std::{
    fs,
    io::Write as _,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use serde_json::Value;
use tests::{
    Cli, Daemon, DaemonOptions, Lab, Observer, Sender, Sent, Stream, frame,
    lab::{RX_V4, RX_V6, TX_V4, TX_V6},
    observer::Then,
    process::wait_for,
    v4,
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
    let ban = ["--ban-after", "2s", "--ban-factor", "5", "--ban-for", "15s", "--ban-unverified"];
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
    assert!(reason.ends_with("(limit for 198.51.100.0/24), unverified"), "{entry}");
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
    write(", ban = { after = \"1s\", factor = 3, for = \"1h\", unverified = true }");
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

/// Connects the sending host to the protected one.
fn connect(lab: &Lab, address: IpAddr) -> (TcpStream, TcpStream) {
    let listen = move || TcpListener::bind((address, 0)).expect("a port");
    let listener = lab.receiver.run_inside(listen);
    let server = listener.local_addr().expect("an address");
    let connect = move || TcpStream::connect(server).expect("a connection");
    let client = lab.sender.run_inside(connect);
    (client, listener.accept().expect("a connection").0)
}

/// A segment of a connection, as the client sends it.
fn segment(client: &TcpStream) -> Vec<u8> {
    let [from, to]: [SocketAddr; 2] =
        [client.local_addr(), client.peer_addr()].map(|end| end.expect("an address"));
    frame::tcp_between(from.ip(), from.port(), to.port(), frame::ACK)
}

const CAREFUL: [&str; 7] = ["100pps", "--ban-after", "2s", "--ban-factor", "5", "--ban-for", "1h"];

#[test]
fn a_flood_of_a_connection_is_banned_on_evidence() {
    let lab = &Lab::new(1);
    let daemon = Daemon::start(lab);
    let cli = daemon.cli();
    cli.ok(&[&["limit", "set"], &CAREFUL[..]].concat());
    let ends: [(IpAddr, IpAddr, &str, &str); 2] = [
        (TX_V4.into(), RX_V4.into(), "192.0.2.2/32", "100pps"),
        // A limit of bytes takes samples by their length.
        (TX_V6.into(), RX_V6.into(), "2001:db8:0:1::/64", "40kbyte/s"),
    ];
    for (source, server, net, rate) in ends {
        cli.ok(&[&["limit", "set", "--for", net, rate], &CAREFUL[1..]].concat());
        let (client, _server) = connect(lab, server);
        let sending = Sender::new(lab).start(vec![Stream::new(segment(&client), FLOOD, ENDLESS)]);
        let start = Instant::now();
        let entry = wait_for_ban(&cli, source);
        println!("banned after {:.2} s: {entry}", start.elapsed().as_secs_f64());
        let reason = entry["reason"].as_str().unwrap_or_default();
        let known = " samples belong to established TCP connections";
        assert!(reason.starts_with(&format!("over {rate} by ")), "{entry}");
        assert!(reason.ends_with(known), "{entry}");
        let shown = cli.ok(&["show", &source.to_string()]);
        let [sampled, connected] =
            ["sampled", "connected"].map(|name| shown["evidence"][name].as_u64());
        assert_eq!(sampled, connected, "{shown}");
        assert!(connected.is_some_and(|connected| connected >= 32), "{shown}");
        assert!(shown["ban_withheld"].is_null(), "{shown}");
        drop(sending.stop());
    }
    daemon.assert_accounted(lab);
}

#[test]
fn a_forged_flood_locks_nobody_out() {
    let lab = &Lab::new(1);
    let daemon = Daemon::start(lab);
    let cli = daemon.cli();
    cli.ok(&[&["limit", "set"], &CAREFUL[..]].concat());
    let victim = IpAddr::from(TX_V4);
    // It has a connection and uses it. Some of its packets are over the limit as well, because of the others.
    let (mut client, server) = connect(lab, RX_V4.into());
    client.set_nodelay(true).expect("an option");
    client.set_write_timeout(Some(Duration::from_secs(1))).expect("an option");
    let port = server.local_addr().expect("an address").port();
    let ports = (20_000..20_500).map(|from| frame::tcp_between(victim, from, port, frame::ACK));
    let sending = Sender::new(lab).start(vec![
        endless(victim, FLOOD),
        Stream::new(frame::tcp_syn(victim), FLOOD, ENDLESS),
        Stream::cycle(ports.collect(), FLOOD, ENDLESS),
    ]);
    let withheld = wait_for("a ban withheld", Duration::from_secs(20), || {
        let _ = client.write(b"a request");
        let shown = cli.ok(&["show", &victim.to_string()]);
        Some(shown).filter(|shown| shown["ban_withheld"].is_string())
    });
    println!("{withheld}");
    let before = cli.ok(&["show", &victim.to_string()])["passed"].as_u64().expect("a count");
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(6) {
        let _ = client.write(b"a request");
        std::thread::sleep(Duration::from_millis(50));
    }
    let shown = cli.ok(&["show", &victim.to_string()]);
    let seconds = start.elapsed().as_secs_f64();
    println!("{shown}");
    assert!(shown["listed"].is_null() && entries(&cli).is_empty(), "locked out: {shown}");
    assert!(shown["evidence"]["sampled"].as_u64() >= Some(100), "{shown}");
    let passed = shown["passed"].as_u64().expect("a count") - before;
    assert!((passed as f64) <= 100.0 * (seconds + 0.5) + 13.0, "{passed} in {seconds}: limited");
    let why = shown["ban_withheld"].as_str().unwrap_or_default();
    assert!(why.ends_with("; --ban-unverified bans anyway"), "{why}");
    let told = format!("not banned {victim}: over 100pps by ");
    assert_eq!(daemon.log().matches(&told).count(), 1, "once: {}", daemon.log());
    // Who asks for it all the same gets it.
    cli.ok(&[&["limit", "set", "--ban-unverified"], &CAREFUL[..]].concat());
    let entry = wait_for_ban(&cli, victim);
    let reason = entry["reason"].as_str().unwrap_or_default();
    assert!(reason.ends_with("(limit for default), unverified"), "{entry}");
    drop(sending.stop());
    daemon.assert_accounted(lab);
}
