//! Real programs through the limiter: they work while they keep to their limit, and get no more
//! than it.

use std::{net::IpAddr, path::Path, process::Stdio, time::Duration, time::Instant};

use serde_json::Value;
use tests::{
    Daemon, DaemonOptions, Lab, Observer, frame,
    lab::{RX_V4, RX_V6, TX, TX_V4},
    nginx,
    observer::Then,
    pcap,
    process::{Background, output, run, wait_for},
    v4, v6,
};

/// The number in front of `label` in a program's report.
fn number_before(text: &str, label: &str) -> u64 {
    let words: Vec<_> = text.split_whitespace().collect();
    let label: Vec<_> = label.split_whitespace().collect();
    let at = words.windows(label.len()).position(|window| window == label);
    let number = at.and_then(|at| words.get(at.checked_sub(1)?)?.parse().ok());
    number.unwrap_or_else(|| panic!("no number before {label:?} in: {text}"))
}

#[test]
fn ping_is_answered_up_to_its_limit() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let limit = daemon.cli().limit("200pps", Some("200"), None);
    for target in [IpAddr::from(RX_V4), RX_V6.into()] {
        let ping = |count: &str, interval: &str| {
            let target = target.to_string();
            let mut command = lab.sender.command(&tools::PING);
            let start = Instant::now();
            // Ends with 1 when some of the answers are missing, which is what the second run is for.
            let printed =
                output(command.args(["-q", "-n", "-c", count, "-i", interval, "-W", "1", &target]));
            let seconds = start.elapsed().as_secs_f64();
            let text = String::from_utf8_lossy(&printed.stdout).into_owned();
            (number_before(&text, "received,"), seconds)
        };
        assert_eq!(ping("100", "0.01").0, 100, "{target}: 100 pps is within the limit");
        std::thread::sleep(Duration::from_millis(1100));
        let (received, seconds) = ping("2000", "0.002");
        let allowed = limit.allowance(seconds);
        println!("{target}: {received} of 2000 answered, {allowed:.0} allowed in {seconds:.2} s");
        // The time includes ping's start and its wait for the last answer.
        assert!((received as f64) <= allowed + 25.0, "{received} of {allowed}");
        assert!(received as f64 >= limit.allowance(seconds - 1.5), "{received} of {allowed}");
        assert!(received < 2000, "ping sent more than its limit");
    }
    daemon.assert_accounted(&lab);
}

#[test]
fn hping3_is_limited_by_the_source_it_claims() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let limit = daemon.cli().limit("500pps", Some("500"), None);
    let observer = Observer::new(&lab, Then::Discard, &["0.0.0.0/2", "64.0.0.0/2", "224.0.0.0/3"]);
    let target = RX_V4.to_string();
    let hping = |arguments: &[&str]| {
        let start = Instant::now();
        // Ends with 1 when nothing answers, and nothing does.
        let printed = output(
            lab.sender.command(&tools::HPING3).args(["-q", "-n"]).args(arguments).arg(&target),
        );
        let text = String::from_utf8_lossy(&printed.stderr).into_owned();
        (number_before(&text, "packets transmitted,"), start.elapsed().as_secs_f64())
    };
    for (source, mode) in [(v4(66), "--udp"), (v4(67), "--syn"), (v4(68), "--icmp")] {
        let claimed = source.to_string();
        let arguments = ["-a", &claimed, mode, "-p", "80", "-i", "u200", "-c", "6000"];
        let (sent, seconds) = hping(&arguments);
        let (admitted, allowed) = (observer.read().from(source), limit.allowance(seconds));
        println!("{source} {mode}: {admitted} of {sent}, {allowed:.0} allowed in {seconds:.2} s");
        assert_eq!(sent, 6000);
        assert!(admitted as f64 <= allowed + 63.0, "{admitted} of {allowed}");
        // It waits a second for answers before it ends.
        assert!(
            admitted as f64 >= 0.98 * limit.allowance(seconds - 1.2),
            "{admitted} of {allowed}"
        );
        assert!(admitted < sent, "hping3 sent more than its limit");
    }
    let all = observer.read().all;
    let (sent, _) = hping(&["--rand-source", "--udp", "-p", "80", "-i", "u200", "-c", "3000"]);
    assert_eq!(observer.read().all - all, sent, "random sources are light");
    daemon.assert_accounted(&lab);
}

#[test]
fn iperf3_gets_its_datagrams_through_up_to_the_limit() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let target = RX_V4.to_string();
    // Datagrams of 1000 bytes for three seconds at `rate` bits per second.
    let iperf = |rate: &str| {
        let _server = Background::start(
            lab.receiver
                .command(&tools::IPERF3)
                .args(["-s", "-1", "-B", &target])
                .stdout(Stdio::null()),
        );
        wait_for("iperf3 to listen", Duration::from_secs(5), || {
            let listening = run(lab.receiver.command(&tools::SS).args(["-Hltn", "sport = :5201"]));
            (!listening.is_empty()).then_some(())
        });
        let text = run(lab
            .sender
            .command(&tools::IPERF3)
            .args(["-c", &target, "-u", "-b", rate, "-l", "1000", "-t", "3", "--json"]));
        let report: Value = serde_json::from_str(&text).expect("iperf3 prints JSON");
        let sum = &report["end"]["sum"];
        let number = |name: &str| sum[name].as_u64().unwrap_or_else(|| panic!("{name} in {sum}"));
        let seconds = sum["seconds"].as_f64().unwrap_or_else(|| panic!("seconds in {sum}"));
        (number("packets"), number("lost_packets"), seconds)
    };
    daemon.cli().limit("2000pps", Some("2000"), None);
    let (sent, lost, _) = iperf("8M");
    assert!(sent >= 2900, "{sent} datagrams sent");
    assert_eq!(lost, 0, "1000 pps is within the limit");
    assert_eq!(daemon.cli().stats().verdict("drop"), 0);
    // Its control connection has to share the limit, so it is not exceeded by much.
    let limit = daemon.cli().limit("1000pps", Some("300"), None);
    let (sent, lost, seconds) = iperf("10.4M");
    // 1300 datagrams a second. On a busy machine the time that iperf3 tells is longer than it sent.
    let seconds = seconds.min(sent as f64 / 1300.0);
    let (received, allowed) = (sent - lost, limit.allowance(seconds));
    println!("iperf3: {received} of {sent} arrived, {allowed:.0} allowed in {seconds:.3} s");
    assert!(sent as f64 > 1.1 * allowed, "iperf3 sent more than its limit");
    // A few of the admitted packets are of the control connection.
    assert!((received as f64 - allowed).abs() <= 0.03 * allowed, "{received} of {allowed}");
    daemon.assert_accounted(&lab);
}

/// nginx on the receiver with one file of 1 MiB, on port 8080.
fn web_server(lab: &Lab, home: &Path) -> Background {
    std::fs::create_dir(home.join("www")).expect("a folder");
    std::fs::write(home.join("www/file"), vec![b'x'; 1 << 20]).expect("a file");
    let http = format!("server {{ listen {RX_V4}:8080; listen [{RX_V6}]:8080; root www; }}");
    let server = Background::start(&mut nginx::command(&lab.receiver, home, &http));
    wait_for("nginx to listen", Duration::from_secs(5), || {
        let listening = run(lab.receiver.command(&tools::SS).args(["-Hltn", "sport = :8080"]));
        (listening.lines().count() == 2).then_some(())
    });
    server
}

/// Downloads the file `times` times one after the other and returns the bytes received, within
/// `seconds`.
fn download(lab: &Lab, target: &str, from: Option<&str>, times: u32, seconds: &str) -> u64 {
    let mut command = lab.sender.command(&tools::CURL);
    command.args(["-s", "-m", seconds, "-w", "%{size_download}\n"]);
    command.args(from.iter().flat_map(|from| ["--interface", from]));
    for _ in 0..times {
        command.args(["-o", "/dev/null", &format!("http://{target}:8080/file")]);
    }
    let text = String::from_utf8_lossy(&output(&mut command).stdout).into_owned();
    text.lines().map(|line| line.parse::<u64>().expect("a size")).sum()
}

#[test]
fn curl_and_nginx_work_within_the_limit_and_crawl_beyond() {
    let lab = Lab::new(1);
    let greedy = v4_on_wire(77);
    lab.add_sender_address(greedy);
    let daemon = Daemon::start(&lab);
    let home = tempfile::tempdir().expect("a temporary folder");
    let _server = web_server(&lab, home.path());
    daemon.cli().limit("20kpps", None, None);
    let v6_target = format!("[{RX_V6}]");
    for target in [&RX_V4.to_string(), &v6_target] {
        assert_eq!(download(&lab, target, None, 10, "10"), 10 << 20, "from {target}");
    }
    assert_eq!(daemon.assert_accounted(&lab).verdict("drop"), 0);
    let limit = daemon.cli().limit("1pps", Some("5"), Some(&greedy.to_string()));
    let observer = Observer::new(&lab, Then::Deliver, &[]);
    let start = Instant::now();
    let got = download(&lab, &RX_V4.to_string(), Some(&greedy.to_string()), 3, "3");
    let seconds = start.elapsed().as_secs_f64();
    assert!(got < 3 << 20, "a download at 1 pps does not end in 3 s");
    let admitted = observer.read().from(greedy);
    println!("limited to 1 pps: {got} bytes, {admitted} packets admitted in {seconds:.1} s");
    assert!(admitted as f64 <= limit.allowance(seconds) + 2.0, "{admitted}");
    assert!(daemon.cli().stats().packets("drop", "over_limit") > 0);
    assert_eq!(download(&lab, &RX_V4.to_string(), None, 10, "10"), 10 << 20, "others as before");
    assert_ne!(daemon.cli().show(TX_V4).state, "limited");
    daemon.assert_accounted(&lab);
}

/// An address on the network between the two hosts.
fn v4_on_wire(host: u8) -> IpAddr {
    std::net::Ipv4Addr::new(192, 0, 2, host).into()
}

/// Replays a capture at `rate` frames per second and returns how many frames were sent.
fn replay(lab: &Lab, capture: &Path, rate: u32) -> u64 {
    let mut command = lab.sender.command(&tools::TCPREPLAY);
    command.args(["-q", "-i", TX, &format!("--pps={rate}")]).arg(capture);
    // Frames that do not fit the MTU are not sent, and said so.
    let printed = output(&mut command);
    let text = String::from_utf8_lossy(&printed.stdout).into_owned();
    let line = text.lines().find(|line| line.contains("Successful packets:"));
    let count = line.and_then(|line| line.split_whitespace().last()?.parse().ok());
    count.unwrap_or_else(|| panic!("tcpreplay: {printed:?}"))
}

#[test]
fn tcpreplay_of_a_capture_made_here() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    daemon.cli().limit("1/hour", Some("100"), None);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let mut frames = vec![frame::udp(v4(1), 1000); 1000];
    for host in 10..60 {
        frames.extend([frame::udp(v4(host), 90), frame::tcp_syn(v6(host.into(), 1))]);
    }
    frames.extend(vec![frame::tagged(&frame::echo(v6(1, 1)), frame::TAG, 3); 500]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let capture = folder.path().join("made.pcap");
    pcap::write(&capture, &frames, 200).expect("a capture can be written");
    assert_eq!(replay(&lab, &capture, 5000), 1600);
    let observed = observer.read();
    for source in [v4(1), v6(1, 1)] {
        let admitted = observed.from(source);
        assert!((100..=102).contains(&admitted), "{source}: {admitted}");
    }
    for host in 10..60 {
        assert_eq!((observed.from(v4(host)), observed.from(v6(host.into(), 1))), (1, 1));
    }
    daemon.assert_accounted(&lab);
}

#[test]
fn tcpreplay_of_captures_from_elsewhere() {
    const RATE: u32 = 2000;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/captures");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        println!("skipped: there is no folder of captures at {}", folder.display());
        return;
    };
    let captures = entries.map(|entry| entry.expect("an entry").path());
    let captures = captures.filter(|path| {
        path.extension().is_some_and(|extension| extension == "pcap" || extension == "pcapng")
    });
    for capture in captures {
        let lab = Lab::new(1);
        // What the link needs is limited, too: the observer counts it as any packet of its source.
        let daemon = Daemon::start_with(&lab, DaemonOptions::with(&["--link-control", "limit"]));
        let limit = daemon.cli().limit("10pps", Some("40"), None);
        let observer = Observer::new(&lab, Then::Discard, &[]);
        let start = Instant::now();
        let sent = replay(&lab, &capture, RATE);
        let seconds = start.elapsed().as_secs_f64();
        println!("{}: {sent} frames", capture.display());
        let stats = daemon.assert_accounted(&lab);
        assert!(sent > 0, "nothing was sent");
        assert_eq!(daemon.received(&lab), sent);
        let observed = observer.read();
        assert_eq!(stats.verdict("pass"), observed.all);
        for (source, admitted) in observed.sources() {
            let allowed = limit.allowance(seconds) + 5.0;
            assert!(admitted as f64 <= allowed, "{source}: {admitted} of {allowed}");
        }
    }
}
