//! What a source is admitted, measured behind XDP: its limit to half a percent, and everything where
//! it keeps to the limit.

use tests::{
    Cli, Daemon, Lab, Observer, Sender, Sent, Stream, frame, observer::Then, reports::Limit, v4, v6,
};

/// A stream of small UDP frames from `source` that lasts `seconds`.
fn stream(source: std::net::IpAddr, rate: f64, seconds: f64) -> Stream {
    Stream::new(frame::udp(source, 100), rate, (rate * seconds) as u64)
}

#[test]
fn a_flood_gets_its_limit_and_conforming_sources_lose_nothing() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let limit = daemon.cli().limit("1000pps", Some("2000"), None);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let conforming = [v4(10), v4(11), v4(12), v6(1, 1), v6(2, 1)];
    let sent = Sender::new(&lab).send(vec![
        stream(v4(66), 25_000.0, 5.0),
        stream(v4(10), 990.0, 5.0).with_burst(1900),
        stream(v4(11), 500.0, 5.0),
        stream(v4(12), 3.0, 5.0),
        stream(v6(1, 1), 990.0, 5.0),
        stream(v6(2, 1), 10.0, 5.0).with_burst(20),
        stream(v6(66, 1), 5000.0, 5.0),
    ]);
    let observed = observer.read();
    assert!(sent[0].rate() >= 20_000.0, "offered {} pps", sent[0].rate());
    limit.assert_admitted("flood", observed.from(v4(66)), [&sent[0]]);
    limit.assert_admitted("flood over IPv6", observed.from(v6(66, 1)), [&sent[6]]);
    for (source, sent) in conforming.iter().zip(&sent[1..6]) {
        assert_eq!(observed.from(*source), sent.packets(), "{source} keeps to its limit");
    }
    let stats = daemon.assert_accounted(&lab);
    assert_eq!(stats.verdict("pass"), observed.all);
    let offered: u64 = sent.iter().map(Sent::packets).sum();
    assert_eq!(stats.packets("drop", "over_limit"), offered - observed.all);
    assert_eq!(daemon.cli().show(v4(66)).state, "limited");
    for source in conforming {
        assert_ne!(daemon.cli().show(source).state, "limited", "{source}");
    }
}

#[test]
fn a_sender_one_percent_over_gets_all_of_its_limit() {
    /// A sender that a busy machine holds up for longer than the burst lasts offers less than the
    /// limit for that time. Such a try says nothing, and another source has another try.
    const TRIES: u8 = 4;
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let limit = daemon.cli().limit("1000pps", Some("50"), None);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    for host in 1..=TRIES {
        let sent = &Sender::new(&lab).send(vec![stream(v4(host), 1010.0, 10.0)])[0];
        let admitted = observer.read().from(v4(host));
        let allowed = limit.allowance(sent.seconds()).min(sent.packets() as f64);
        let ideal = limit.exact(sent);
        println!("offered {}, admitted {admitted} of {allowed:.1}, ideal {ideal}", sent.packets());
        assert!(sent.packets() as f64 > limit.allowance(sent.seconds()), "over the limit");
        assert!(admitted as f64 <= allowed + 50.0 / 8.0, "{admitted} of {allowed}");
        // Every try: what an exact bucket admits of these very packets.
        assert!(admitted.abs_diff(ideal) <= 7, "{admitted}, a textbook bucket admits {ideal}");
        daemon.assert_accounted(&lab);
        if ideal as f64 >= 0.9995 * allowed {
            // But for tokens that are left at the end, because it had to wait for the coarse clock.
            assert!(admitted as f64 >= 0.998 * allowed, "{admitted} of {allowed}");
            return;
        }
    }
    panic!("the sender could not keep to 1010 pps in {TRIES} tries");
}

#[test]
fn a_bucket_that_is_full_earns_nothing() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let limit = daemon.cli().limit("1000pps", Some("1000"), None);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    // The bucket has most of its tokens, and what it would earn in the pause has no room.
    let begun = Sender::new(&lab).send(vec![stream(v4(1), 4000.0, 0.1)]).remove(0);
    std::thread::sleep(std::time::Duration::from_millis(800));
    let sent = Sender::new(&lab).send(vec![stream(v4(1), 4000.0, 2.0)]).remove(0);
    let together = Sent::together([&begun, &sent]);
    let unused = limit.allowance(together.seconds()) - limit.exact(&together) as f64;
    assert!(unused > 400.0, "{unused}");
    limit.assert_admitted("with a pause", observer.read().from(v4(1)), [&together]);
    daemon.assert_accounted(&lab);
}

#[test]
fn a_limit_by_bytes_counts_bytes() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let limit = daemon.cli().limit("10mbit", Some("250kbyte"), None);
    assert_eq!((limit.unit.as_str(), limit.rate_per_second), ("bytes", 1_250_000.0));
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let lengths = [1400, 1400, 200, 200];
    let streams = (1..).zip(lengths).map(|(host, length)| {
        // Large frames over the limit, large ones within, small ones within, small ones over.
        let rate = [3000.0, 800.0, 5500.0, 15_000.0][host - 1];
        let source = v4(u8::try_from(host).unwrap());
        Stream::new(frame::udp(source, length), rate, (rate * 4.0) as u64)
    });
    let sent = Sender::new(&lab).send(streams.collect());
    let observed = observer.read();
    for host in [1, 4] {
        let (sent, length) = (&sent[host - 1], lengths[host - 1] as u64);
        let bytes = observed.from(v4(u8::try_from(host).unwrap())) * length;
        let allowed = limit.allowance(sent.seconds());
        println!("frames of {length} bytes: admitted {bytes} bytes of {allowed:.0}");
        let difference = (bytes as f64 - allowed).abs();
        assert!(difference <= 0.005 * allowed, "{bytes} of {allowed} bytes");
    }
    assert_eq!(observed.from(v4(2)), sent[1].packets());
    assert_eq!(observed.from(v4(3)), sent[2].packets());
    daemon.assert_accounted(&lab);
}

#[test]
fn addresses_of_one_ipv6_prefix_share_a_bucket() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let limit = daemon.cli().limit("1000pps", Some("1000"), None);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let mut streams: Vec<_> = (1..=8).map(|host| stream(v6(1, host), 500.0, 4.0)).collect();
    streams.push(stream(v6(2, 1), 900.0, 4.0));
    let sent = Sender::new(&lab).send(streams);
    let observed = observer.read();
    let shared = (1..=8).map(|host| observed.from(v6(1, host))).sum();
    limit.assert_admitted("eight addresses of a /64", shared, &sent[..8]);
    assert_eq!(observed.from(v6(2, 1)), sent[8].packets(), "another /64 is another source");
    assert_eq!(daemon.cli().show(v6(1, 3)).source, "2001:db8:7:1::/64");
    daemon.assert_accounted(&lab);
}

/// Sends 4000 pps for 2 s from each source, after a pause in which every bucket fills up, and
/// checks that each is admitted what its limit allows.
fn assert_limits(lab: &Lab, observer: &Observer<'_>, expected: &[(std::net::IpAddr, &Limit)]) {
    std::thread::sleep(std::time::Duration::from_millis(1200));
    let before = observer.read();
    let streams = expected.iter().map(|(source, _)| stream(*source, 4000.0, 2.0)).collect();
    let sent = Sender::new(lab).send(streams);
    let after = observer.read();
    for ((source, limit), sent) in expected.iter().zip(&sent) {
        let admitted = after.from(*source) - before.from(*source);
        limit.assert_admitted(&format!("{source} under {}", limit.target), admitted, [sent]);
    }
}

fn targets(cli: &Cli) -> Vec<String> {
    let mut targets: Vec<_> = cli.limits().into_iter().map(|limit| limit.target).collect();
    targets.sort();
    targets
}

#[test]
fn the_longest_match_wins_until_it_is_unset() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    let default = cli.limit("300pps", Some("300"), None);
    let network = cli.limit("600pps", Some("600"), Some("198.51.100.0/28"));
    let address = cli.limit("1200pps", Some("1200"), Some("198.51.100.7"));
    let site = cli.limit("900pps", Some("900"), Some("2001:db8:7::/48"));
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let all = ["198.51.100.0/28", "198.51.100.7/32", "2001:db8:7::/48", "default"];
    assert_eq!(targets(&cli), all);
    assert_limits(
        &lab,
        &observer,
        &[
            (v4(7), &address),
            (v4(8), &network),
            (v4(9), &network),
            (v4(200), &default),
            (v6(1, 1), &site),
            (v6(2, 1), &site),
        ],
    );
    let removed = cli.ok(&["limit", "unset", "--for", "198.51.100.7"]);
    assert_eq!(removed["removed"]["target"], "198.51.100.7/32");
    cli.ok(&["limit", "unset", "--for", "2001:db8:7::/48"]);
    assert_eq!(targets(&cli), ["198.51.100.0/28", "default"]);
    let rest = [(v4(7), &network), (v4(8), &network), (v6(1, 1), &default)];
    assert_limits(&lab, &observer, &rest);
    let again = cli.run(&["limit", "unset", "--for", "198.51.100.7"]);
    assert_eq!(again.code, 1, "there is nothing to unset: {again:?}");
    daemon.assert_accounted(&lab);
}

#[test]
fn a_changed_limit_applies_to_known_sources() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    for (rate, burst) in [("500pps", "500"), ("1500pps", "1000"), ("200pps", "100")] {
        let limit = daemon.cli().limit(rate, Some(burst), None);
        assert_limits(&lab, &observer, &[(v4(1), &limit), (v6(1, 1), &limit)]);
    }
    daemon.assert_accounted(&lab);
}

#[test]
fn without_a_limit_everything_passes() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let sent =
        Sender::new(&lab).send(vec![stream(v4(1), 20_000.0, 1.0), stream(v6(1, 1), 20_000.0, 1.0)]);
    let observed = observer.read();
    assert_eq!(observed.from(v4(1)), sent[0].packets());
    assert_eq!(observed.from(v6(1, 1)), sent[1].packets());
    // Taken away again, a default limit leaves nobody limited.
    daemon.cli().limit("10pps", Some("10"), None);
    daemon.cli().ok(&["limit", "unset"]);
    let sent = Sender::new(&lab).send(vec![stream(v4(1), 20_000.0, 1.0)]);
    assert_eq!(observer.read().from(v4(1)) - observed.from(v4(1)), sent[0].packets());
    assert_eq!(daemon.assert_accounted(&lab).verdict("drop"), 0);
}

#[test]
fn a_list_of_limits_is_imported_whole_or_not_at_all() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    let home = tempfile::tempdir().expect("a temporary folder");
    let list = home.path().join("list");
    let path = list.display().to_string();
    let mut text: String =
        (0..20_000).map(|i| format!("10.1.{}.{} {}pps\n", i >> 8, i & 255, 100 + i)).collect();
    std::fs::write(&list, format!("{text}10.2.0.0/33 5pps\n")).expect("a list");
    let refused = cli.run(&["limit", "import", &path]);
    assert_eq!(refused.code, 2, "{refused:#?}");
    assert!(refused.stderr.contains("line 20001"), "{refused:#?}");
    assert!(cli.limits().is_empty(), "nothing is applied");
    text.push_str("198.51.100.1 500pps 500 # and one to test with\n");
    std::fs::write(&list, &text).expect("a list");
    let imported = cli.ok(&["limit", "import", &path]);
    assert_eq!(
        (imported["read"].as_u64(), imported["changed"].as_u64()),
        (Some(20_001), Some(20_001))
    );
    assert_eq!(cli.ok(&["limit", "import", &path])["changed"], 0, "they are in force already");
    let limit = cli.limits().into_iter().find(|l| l.target == "198.51.100.1/32").expect("imported");
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let sent =
        Sender::new(&lab).send(vec![stream(v4(1), 10_000.0, 2.0), stream(v4(2), 10_000.0, 2.0)]);
    limit.assert_admitted("imported", observer.read().from(v4(1)), [&sent[0]]);
    assert_eq!(observer.read().from(v4(2)), sent[1].packets(), "no limit is for this one");
    daemon.assert_accounted(&lab);
}
