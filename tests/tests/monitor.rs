//! `limiter monitor`, with real packets: what happens is told as it happens.

use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

use serde_json::Value;
use tests::{
    Daemon, Lab, Monitor, Sender, Stream, cli::limiter_binary, frame, monitor::is,
    process::wait_for, v4,
};

/// Connections for events that a daemon serves at once.
const MAX: usize = 64;

/// Connects by hand and asks for events. The head of the answer has come when this returns.
fn listen(socket: &Path) -> (UnixStream, String) {
    let mut stream = UnixStream::connect(socket).expect("the daemon's socket");
    stream.write_all(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("a request");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    let mut head = vec![0; 4096];
    let length = stream.read(&mut head).expect("an answer");
    (stream, String::from_utf8_lossy(&head[..length]).into_owned())
}

#[test]
fn limits_bans_and_changes_are_told_as_they_happen() {
    let lab = &Lab::new(1);
    let mut daemon = Daemon::start(lab);
    let cli = daemon.cli();
    let all = Monitor::start(&daemon.socket(), &[]);
    let policies = Monitor::start(&daemon.socket(), &["--kind", "policy,stopping"]);
    let text = Monitor::start(&daemon.socket(), &["--text"]);
    // They listen from the first line of their answer on, which no line of output shows.
    wait_for("the first event that is heard", Duration::from_secs(10), || {
        cli.ok(&["limit", "set", "90pps", "--for", "203.0.113.1"]);
        cli.ok(&["limit", "unset", "--for", "203.0.113.1"]);
        let heard = [&all, &policies, &text].map(|m| m.line(Duration::from_millis(300)));
        heard.iter().all(Option::is_some).then_some(())
    });
    let net = "198.51.100.0/24";
    cli.ok(&[
        "limit",
        "set",
        "100pps",
        "--burst",
        "100",
        "--for",
        net,
        "--ban-after",
        "2s",
        "--ban-factor",
        "5",
        "--ban-for",
        "3s",
        "--ban-unverified",
    ]);
    let set = |event: &Value| event["what"].as_str().is_some_and(|what| what.contains(net));
    for monitor in [&all, &policies] {
        let event = monitor.event(Duration::from_secs(2), set);
        assert_eq!(
            (&event["event"], &event["by"]["uid"]),
            (&"policy".into(), &0.into()),
            "{event}"
        );
        assert_eq!(event["by"]["user"], "root", "{event}");
    }
    let start = Instant::now();
    let stream = Stream::new(frame::udp(v4(66), 100), 3000.0, 1_000_000);
    let sending = Sender::new(lab).start(vec![stream]);
    let limited = all.event(Duration::from_secs(10), is("limited"));
    let took = start.elapsed().as_secs_f64();
    println!("limited after {took:.2} s: {limited}");
    assert!(took <= 2.0, "{took}");
    assert_eq!(
        (&limited["source"], &limited["limit"]),
        (&"198.51.100.66/32".into(), &"100pps".into())
    );
    let ban = all.event(Duration::from_secs(15), is("ban"));
    assert_eq!(ban["source"], "198.51.100.66/32", "{ban}");
    assert!(ban["reason"].as_str().is_some_and(|reason| reason.starts_with("over 100pps")));
    let sent = sending.stop();
    assert!(sent[0].packets() > 3000, "{sent:?}");
    let unban = all.event(Duration::from_secs(10), is("unban"));
    assert_eq!((&unban["source"], &unban["why"]), (&ban["source"], &"expired".into()), "{unban}");
    let line = std::iter::from_fn(|| text.line(Duration::from_secs(2)))
        .find(|line| line.contains("banned 198.51.100.66: over 100pps"));
    assert!(line.is_some_and(|line| line.contains(" ban: ")), "as text");
    assert!(daemon.log().contains("198.51.100.66 exceeded its limit 100pps"), "{}", daemon.log());

    let changes = tools::own(limiter_binary())
        .arg("--socket")
        .arg(daemon.socket())
        .args(["report", "--format", "json"])
        .output()
        .expect("a report");
    let changes: Value = serde_json::from_slice(&changes.stdout).expect("JSON");
    let changes = &changes["happened"]["changes"];
    let attached = &changes[0];
    assert_eq!((&attached["event"], &attached["mode"]), (&"attached".into(), &"native".into()));
    assert!(changes.as_array().is_some_and(|changes| changes.iter().any(set)), "{changes}");

    // The end is told too, and does not wait for those who listen.
    let start = Instant::now();
    daemon.terminate();
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    policies.event(Duration::from_secs(2), is("stopping"));
    assert_eq!(policies.ended(Duration::from_secs(5)), Some(3));
}

#[test]
fn those_who_listen_are_bounded_and_whoever_vanishes_makes_room() {
    let lab = &Lab::new(1);
    let daemon = Daemon::start(lab);
    let socket = daemon.socket();
    let mut listeners: Vec<_> = (0..MAX).map(|_| listen(&socket)).collect();
    for (_, head) in &listeners {
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    }
    for _ in 0..1000 {
        let (_, head) = listen(&socket);
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    }
    let refused = daemon.cli().run(&["monitor"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("64 others listen"), "{refused:?}");
    // The daemon does its work meanwhile.
    daemon.cli().limit("100pps", None, None);
    listeners.pop();
    let monitor = wait_for("a place", Duration::from_secs(5), || {
        let (stream, head) = listen(&socket);
        head.starts_with("HTTP/1.1 200 ").then_some(stream)
    });
    drop(monitor);
    let unknown = daemon.cli().run(&["monitor", "--kind", "limitd"]);
    assert_eq!(unknown.code, 2, "{unknown:?}");
}
