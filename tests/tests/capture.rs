//! Samples of packets, as tshark reads them.

use std::{
    fs,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use tests::{
    Daemon, Lab, Sender, Stream,
    cli::limiter_binary,
    frame,
    process::{self, Background},
    v4, v6,
};

/// What tshark shows of each packet: its source, its comment, its length on the wire and as captured.
fn read(file: &Path) -> Vec<[String; 4]> {
    let mut tshark = tools::TSHARK.command();
    tshark.arg("-r").arg(file).args(["-T", "fields", "-E", "separator=;"]);
    for field in ["ip.src", "frame.comment", "frame.len", "frame.cap_len"] {
        tshark.args(["-e", field]);
    }
    let text = process::run(tshark.stderr(Stdio::null()));
    let line = |line: &str| {
        let mut fields = line.split(';').map(str::to_owned);
        [(); 4].map(|()| fields.next().unwrap_or_else(|| panic!("{line:?}")))
    };
    text.lines().map(line).collect()
}

#[test]
fn samples_are_of_those_packets_that_were_asked_for() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    cli.limit("1000pps", Some("100"), None);
    cli.ok(&["deny", "add", &v4(66).to_string()]);
    let stream = |frame, rate: f64| Stream::new(frame, rate, 1 << 20);
    let sending = Sender::new(&lab).start(vec![
        stream(frame::udp(v4(1), 400), 20_000.0),
        stream(frame::udp(v4(10), 100), 500.0),
        stream(frame::udp(v4(66), 100), 500.0),
        stream(frame::udp(v6(1, 1), 100), 500.0),
    ]);
    std::thread::sleep(Duration::from_millis(500));
    let folder = tempfile::tempdir().expect("a folder");
    let capture = |name: &str, arguments: &[&str]| {
        let file = folder.path().join(name);
        let path = file.to_str().expect("a path");
        let report = cli.ok(&[&["capture", "-w", path, "--for", "20s"], arguments].concat());
        println!("{name}: {report}");
        let found = read(&file);
        assert_eq!(report["samples"].as_u64(), Some(found.len() as u64), "{report}");
        (report, found)
    };
    let (report, dropped) = capture("limited", &["--reason", "over_limit", "-c", "200"]);
    assert_eq!(dropped.len(), 200);
    let comment = "drop over_limit source=198.51.100.1 limit=1000pps burst=100 packets";
    for packet in &dropped {
        assert_eq!(packet, &["198.51.100.1", comment, "400", "256"].map(str::to_owned));
    }
    assert!(report["matched"].as_u64() > Some(1000), "{report}");
    // At a thousand in a second, and 64 at once.
    assert!(report["seconds"].as_f64() > Some(0.1), "{report}");
    let (_, denied) = capture("denied", &["--dropped", "--source", "198.51.100.64/26", "-c", "50"]);
    assert!(denied.len() == 50 && denied.iter().all(|it| it[0] == "198.51.100.66"), "{denied:?}");
    assert!(denied.iter().all(|it| it[1].starts_with("drop denied")), "{denied:?}");
    let (_, passed) = capture("passed", &["--passed", "--source", "198.51.100.10", "-c", "50"]);
    assert!(passed.iter().all(|it| it[0] == "198.51.100.10"), "{passed:?}");
    assert!(passed.iter().all(|it| it[1].starts_with("pass conforming")), "{passed:?}");
    let short = ["--source", "2001:db8:7:1::/64", "-c", "5", "--snaplen", "60"];
    let (_, six) = capture("six", &short);
    assert!(six.len() == 5 && six.iter().all(|it| it[3] == "60" && it[2] == "100"), "{six:?}");
    let nothing = folder.path().join("nothing");
    let nothing = nothing.to_str().expect("a path");
    let none = cli.run(&["capture", "--source", "192.0.2.77", "-w", nothing, "--for", "1s"]);
    assert!(none.code == 1 && none.json["samples"] == 0 && none.json["matched"] == 0, "{none:#?}");
    let sent = sending.stop();
    assert!(sent.iter().all(|sent| sent.packets() > 0));
    // Everything is counted as ever.
    daemon.assert_accounted(&lab);
}

#[test]
fn bad_requests_are_explained_and_a_client_that_disappears_ends_its_capture() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file.pcapng");
    let path = file.to_str().expect("a path");
    for (arguments, says) in [
        (["--reason", "overlimit", "-w", path], "over_limit"),
        (["--source", "192.0.2.300", "-w", path], "192.0.2.0/24"),
        (["--rate", "0", "-w", path], "1 to"),
        (["--dropped", "--reason=conforming", "-w", path], "over_limit"),
    ] {
        let refused = cli.run(&[&["capture"], &arguments[..]].concat());
        assert!(refused.code == 2 && refused.stderr.contains(says), "{refused:#?}");
        assert!(!file.exists());
    }
    let missing = cli.run(&["capture", "-w", "/nonexistent/file", "--for", "1s"]);
    assert!(missing.code == 1 && missing.stderr.contains("/nonexistent/file"), "{missing:#?}");
    let full = cli.run(&["capture", "-w", "/dev/full", "--for", "1h"]);
    assert!(full.code == 1 && full.stderr.contains("/dev/full"), "{full:#?}");
    // Neither waits until the daemon forgets it.
    assert_eq!(daemon.log().matches("the capture is over").count(), 2, "{}", daemon.log());
    let mut command = tools::own(limiter_binary());
    command.arg("--socket").arg(daemon.socket()).args(["capture", "--for", "1h", "-w", path]);
    let first = Background::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
    let start = Instant::now();
    while !file.exists() {
        assert!(start.elapsed() < Duration::from_secs(10), "no capture begins");
        std::thread::sleep(Duration::from_millis(20));
    }
    let other = folder.path().join("other.pcapng");
    let second = ["capture", "-w", other.to_str().expect("a path"), "--for", "100ms"];
    let refused = cli.run(&second);
    assert!(refused.code == 1 && refused.stderr.contains("somebody else"), "{refused:#?}");
    drop(first);
    std::thread::sleep(Duration::from_secs(4));
    assert!(daemon.log().matches("the capture is over").count() >= 3, "{}", daemon.log());
    assert_eq!(cli.run(&second).json["samples"], 0);
    assert!(fs::metadata(&other).is_ok_and(|it| it.len() > 0), "a file without packets");
    daemon.assert_accounted(&lab);
}

#[test]
fn ports_are_told_from_samples_of_a_flood() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    // What is for port 53 is dropped nearly always.
    cli.ok(&["limit", "set", "10pps", "--proto", "udp", "--dport", "53"]);
    let stream = |frame, rate: f64| Stream::new(frame, rate, 1 << 20);
    let sending = Sender::new(&lab).start(vec![
        stream(frame::udp_to(v4(1), 100, 53), 20_000.0),
        stream(frame::udp_to(v4(2), 200, 4242), 10_000.0),
        stream(frame::tcp_syn(v6(1, 1)), 5000.0),
        stream(frame::echo(v4(3)), 1000.0),
    ]);
    std::thread::sleep(Duration::from_millis(500));
    let report = cli.ok(&["top", "--by", "port", "--once"]);
    let sent = sending.stop();
    println!("{report:#}");
    // More than 4000 in a second are wanted of none of many: not all of them were looked at.
    let number = |value: &serde_json::Value| value.as_f64().expect("a number");
    let (samples, packets) = (number(&report["samples"]), number(&report["packets"]));
    assert!(samples > 4000.0 && samples * 2.0 < packets, "{samples} of {packets}");
    let ports = report["ports"].as_array().expect("ports");
    let expected = [("udp:53", 0), ("udp:4242", 1), ("tcp:80", 2), ("icmp", 3)];
    for ((name, stream), found) in expected.into_iter().zip(ports) {
        assert!(found["port"].as_str().is_some_and(|port| port == name), "{found}");
        let (pps, error) = (number(&found["pps"]), number(&found["pps_error"]));
        let really = sent[stream].rate();
        println!("{name}: {pps:.0} ± {error:.0} of {really:.0}");
        // And what the sender's pace may have been in those two seconds.
        assert!((pps - really).abs() < 5.0 * error + 0.05 * really, "{name}: {found}, {really}");
        let dropped = number(&found["dropped"]);
        assert!(if stream == 0 { dropped > 0.98 } else { dropped == 0.0 }, "{found}");
    }
    assert_eq!(report["known"].as_u64(), Some(4), "{report:#}");
    daemon.assert_accounted(&lab);
}
