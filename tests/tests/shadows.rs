//! A shadow limit: what it would have dropped, and that it drops nothing.

use std::net::IpAddr;

use serde_json::Value;
use tests::{Cli, Daemon, Lab, Observer, Sender, Stream, frame, observer::Then, oracle, v4};

const SECONDS: f64 = 4.0;

fn stream(source: IpAddr, rate: f64) -> Stream {
    Stream::new(frame::udp(source, 100), rate, (rate * SECONDS) as u64)
}

fn shadow(cli: &Cli, target: &str) -> Value {
    let shadows = cli.ok(&["limit", "shadow", "list"])["trials"].clone();
    let found = shadows.as_array().expect("a list").iter().find(|one| one["target"] == target);
    found.unwrap_or_else(|| panic!("no shadow for {target} in {shadows}")).clone()
}

/// What the shadow says of a source: packets, and how many would have been dropped.
fn told(shadow: &Value, source: IpAddr) -> (u64, u64) {
    let name = format!("{source}/32");
    let all = shadow["most"].as_array().expect("a list");
    let of = |row: &Value, field: &str| row[field].as_u64().unwrap_or_default();
    let found = all.iter().find(|row| row["source"] == name.as_str());
    found.map_or((0, 0), |row| (of(row, "packets"), of(row, "would_drop")))
}

#[test]
fn a_shadow_tells_what_a_limit_would_drop_and_drops_nothing() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    // Nobody is limited yet: how would 500 pps do?
    let started = cli.ok(&["limit", "shadow", "set", "500pps", "--burst", "200"]);
    assert_eq!(started["trying"]["rate"], "500pps", "{started}");
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let sources = [(v4(1), 3000.0), (v4(2), 700.0), (v4(3), 450.0), (v4(4), 4.0)];
    let sent = Sender::new(&lab).send(sources.map(|(source, rate)| stream(source, rate)).into());
    let observed = observer.read();
    for ((source, _), sent) in sources.iter().zip(&sent) {
        assert_eq!(observed.from(*source), sent.packets(), "{source} loses nothing");
    }
    let report = shadow(&cli, "default");
    println!("{report:#}");
    for host in [1, 2] {
        let sent = &sent[host as usize - 1];
        let (packets, would_drop) = told(&report, v4(host));
        // Counted from the moment on that it got its bucket: up to a gate of packets later.
        assert!(packets <= sent.packets() && packets + 17 >= sent.packets(), "{packets}");
        let ideal = packets - oracle::admitted(&sent.times[17..], 500.0, 200.0);
        let off = would_drop.abs_diff(ideal);
        assert!(
            off as f64 <= 20.0 + 0.005 * ideal as f64,
            "{would_drop}, a textbook bucket {ideal}"
        );
    }
    assert_eq!((report["limited"].as_u64(), report["sources"].as_u64()), (Some(2), Some(3)));
    let shown = &cli.ok(&["show", &v4(1).to_string()])["trial"];
    assert_eq!((shown["packets"].as_u64(), shown["would_drop"].as_u64()), {
        let (packets, would_drop) = told(&report, v4(1));
        (Some(packets), Some(would_drop))
    });
    assert!(report["in_force"].is_null() && told(&report, v4(3)) == (0, 0), "{report}");
    let stats = daemon.assert_accounted(&lab);
    assert_eq!((stats.verdict("drop"), stats.packets("pass", "would_drop")), (0, 0));

    // Beside a limit in force, for a prefix without one of its own; the limit goes on to be exact.
    let limit = cli.limit("1000pps", Some("500"), None);
    cli.ok(&["limit", "shadow", "unset"]);
    cli.ok(&["limit", "shadow", "set", "200pps", "--burst", "100", "--for", "198.51.100.64/26"]);
    let before = observer.read();
    let inside = v4(70);
    let sent = Sender::new(&lab).send(vec![stream(inside, 3000.0), stream(v4(20), 3000.0)]);
    let observed = observer.read();
    for (source, sent) in [inside, v4(20)].into_iter().zip(&sent) {
        let admitted = observed.from(source) - before.from(source);
        limit.assert_admitted("beside a shadow", admitted, [sent]);
    }
    let report = shadow(&cli, "198.51.100.64/26");
    let (packets, would_drop) = told(&report, inside);
    let allowed = 100.0 + 200.0 * sent[0].seconds();
    let passed = (packets - would_drop) as f64;
    println!("a shadow would have passed {passed} of {packets}, allowed {allowed}");
    assert!((passed - allowed).abs() <= 0.005 * allowed + 20.0, "{passed} of {allowed}");
    assert_eq!(told(&report, v4(20)), (0, 0), "outside the prefix");
    assert_eq!(cli.show(inside).limit.map(|limit| limit.target), Some("default".into()));
    // The limit changes beneath it: the shadow goes on.
    cli.limit("2000pps", Some("500"), None);
    assert_eq!(cli.show(inside).limit.map(|limit| limit.rate), Some("2000pps".into()));
    assert!(told(&shadow(&cli, "198.51.100.64/26"), inside).0 >= packets);
    let list = cli.ok(&["limit", "list"]);
    assert_eq!(list["limits"].as_array().map(Vec::len), Some(1), "a shadow is no limit: {list}");
    cli.ok(&["limit", "shadow", "unset", "--for", "198.51.100.64/26"]);
    assert_eq!(cli.ok(&["limit", "shadow", "list"])["trials"], Value::Array(Vec::new()));
    daemon.assert_accounted(&lab);
}

#[test]
fn what_cannot_be_tried_is_refused() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    for (arguments, code, text) in [
        (&["limit", "shadow", "set", "500"][..], 2, "500"),
        (&["limit", "shadow", "set", "500pps", "--burst", "0"], 2, "burst"),
        (&["limit", "shadow", "set", "500pps", "--aggregate"], 2, "share"),
        // No limit of that class: its packets would need a bucket of their own, which changes what applies.
        (&["limit", "shadow", "set", "500pps", "--proto", "udp"], 2, "class"),
        (&["limit", "shadow", "unset"], 1, "no shadow limit"),
    ] {
        let answer = cli.run(arguments);
        assert!(answer.code == code && answer.stderr.contains(text), "{arguments:?}: {answer:#?}");
    }
    assert_eq!(cli.ok(&["limit", "shadow", "list"])["trials"], Value::Array(Vec::new()));
    // With a limit of the class, it can be.
    cli.ok(&["limit", "set", "500pps", "--proto", "udp"]);
    cli.ok(&["limit", "shadow", "set", "50pps", "--proto", "udp", "--for", "192.0.2.0/24"]);
    // And when that goes, so does the shadow.
    cli.ok(&["limit", "unset", "--proto", "udp"]);
    assert_eq!(cli.ok(&["limit", "shadow", "list"])["trials"], Value::Array(Vec::new()));
    daemon.assert_accounted(&lab);
}
