//! The first use of a feature puts another program in the place of the one at work, which no packet notices.

use std::{net::IpAddr, time::Duration};

use tests::{
    Daemon, Lab, Observer, Program, Sender, Stream, frame, observer::Then, program, v4, v6,
};

/// Verified instructions of the program at work, and its number.
fn at_work(daemon: &Daemon) -> (u32, u32) {
    let info = program::info(daemon);
    (info.verified_instruction_count().unwrap_or_default(), info.id())
}

#[test]
fn a_feature_is_loaded_at_its_first_use() {
    let lab = Lab::new(2);
    let mut daemon = Daemon::start(&lab);
    let limit = daemon.cli().limit("1000pps", Some("2000"), None);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let stream =
        |source: IpAddr, rate| Stream::new(frame::udp(source, 100), rate, (rate * 6.0) as u64);
    let sending = Sender::new(&lab).start(vec![
        stream(v4(1), 5000.0),
        stream(v4(10), 900.0),
        stream(v6(1, 1), 900.0),
    ]);
    std::thread::sleep(Duration::from_secs(1));
    let least = at_work(&daemon);
    let set = |arguments: &[&str]| drop(daemon.cli().ok(arguments));
    let changes: [&[&str]; 6] = [
        &["limit", "set", "10pps", "--burst", "10", "--dport", "22", "--proto", "tcp", "--syn"],
        &["limit", "set", "5pps", "--burst", "5", "--dport", "5353", "--proto", "udp"],
        &["deny", "add", "203.0.113.0/24"],
        &["limit", "set", "9000pps", "--aggregate"],
        &["limit", "set", "100pps", "10mbit", "--for", "192.0.2.200"],
        &["limit", "shadow", "set", "500pps"],
    ];
    let programs: Vec<_> = changes
        .iter()
        .map(|change| {
            set(change);
            at_work(&daemon)
        })
        .collect();
    println!("verified instructions and program: {least:?}, then {programs:?}");
    assert!(programs[0].0 > least.0 && programs[0].1 != least.1, "the first class");
    assert!(programs.iter().all(|program| *program == programs[0]), "no other one is needed");
    // Who takes over has a program for what was used, and no more.
    daemon.kill();
    daemon.restart(&lab);
    let after = at_work(&daemon);
    println!("{after:?} after another start");
    assert!(after.0 > least.0 && after.0 < programs[0].0, "{after:?}");
    let sent = sending.join();
    let observed = observer.read();
    limit.assert_admitted("while programs change", observed.from(v4(1)), [&sent[0]]);
    assert_eq!(observed.from(v4(10)), sent[1].packets(), "a conforming source");
    assert_eq!(observed.from(v6(1, 1)), sent[2].packets(), "a conforming source over IPv6");
    daemon.assert_accounted(&lab);
    let program = Program::new(&daemon);
    assert_eq!(
        program.passing(&frame::udp(std::net::Ipv4Addr::new(203, 0, 113, 7).into(), 100), 3),
        0
    );
    assert_eq!(program.passing(&frame::tcp(v4(50), 22, 2), 30), 10);
}
