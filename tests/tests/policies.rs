//! Limits for some packets only, in two units, and for many sources together: what each admits, with real
//! packets.

use std::net::IpAddr;
use std::time::Duration;

use limiter_common::abi::keys;
use tests::{
    Cli, Daemon, Flood, Lab, Observer, Program, Sender, Sent, Sources, Stream, frame,
    observer::Then, reports::Limit, v4, v6,
};

const SECONDS: f64 = 4.0;

/// Frames like `frame`, so many a second.
fn stream(frame: Vec<u8>, rate: f64) -> Stream {
    Stream::new(frame, rate, (rate * SECONDS) as u64)
}

fn dns(source: IpAddr) -> Vec<u8> {
    frame::udp_to(source, 100, 53)
}

fn other(source: IpAddr) -> Vec<u8> {
    frame::udp_to(source, 100, 4000)
}

/// Sets a limit.
fn set(cli: &Cli, arguments: &[&str]) -> Limit {
    let json = cli.ok(&[&["limit", "set"], arguments].concat());
    serde_json::from_value(json["limit"].clone()).expect("a limit")
}

/// The targets of the limits of a source's buckets, and how many packets each has seen.
fn shown(cli: &Cli, source: IpAddr) -> Vec<(String, u64)> {
    let json = cli.ok(&["show", &source.to_string()]);
    let classes = json["classes"].as_array().cloned().unwrap_or_default();
    let about = |bucket: &serde_json::Value| {
        let target = bucket["limit"]["target"].as_str().unwrap_or_default().to_owned();
        let count = |name: &str| bucket[name].as_u64().unwrap_or_default();
        (target, count("passed") + count("dropped"))
    };
    [about(&json)].into_iter().chain(classes.iter().map(about)).collect()
}

#[test]
fn each_class_has_buckets_of_its_own() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    let all = set(&cli, &["1000pps", "--burst", "500"]);
    let to_dns = set(&cli, &["200pps", "--burst", "100", "--proto", "udp", "--dport", "53"]);
    let syn = set(&cli, &["50pps", "--burst", "40", "--syn"]);
    let web = set(&cli, &["400pps", "--burst", "80", "--proto", "tcp", "--dport", "80-443"]);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let sent = Sender::new(&lab).send(vec![
        stream(dns(v4(1)), 2000.0),
        stream(other(v4(2)), 3000.0),
        stream(frame::tcp(v4(3), 80, frame::SYN), 500.0),
        stream(frame::tcp(v4(4), 443, frame::ACK), 2000.0),
        // The first packet of a connection that is answered is in neither of the flags' classes.
        stream(frame::tcp(v4(5), 8080, frame::SYN | frame::ACK), 3000.0),
        stream(dns(v6(1, 1)), 2000.0),
        stream(frame::echo(v4(6)), 3000.0),
        // Within each of their limits, and over that of all packets together.
        stream(dns(v4(7)), 150.0),
        stream(other(v4(7)), 800.0),
        stream(frame::tcp(v4(7), 80, frame::ACK), 300.0),
        stream(frame::tcp(v4(7), 22, frame::SYN), 30.0),
    ]);
    let observed = observer.read();
    for (name, limit, source, sent) in [
        ("DNS", &to_dns, v4(1), &sent[0]),
        ("other UDP", &all, v4(2), &sent[1]),
        ("SYN", &syn, v4(3), &sent[2]),
        ("web", &web, v4(4), &sent[3]),
        ("SYN and ACK", &all, v4(5), &sent[4]),
        ("DNS over IPv6", &to_dns, v6(1, 1), &sent[5]),
        ("ICMP", &all, v4(6), &sent[6]),
    ] {
        limit.assert_admitted(name, observed.from(source), [sent]);
    }
    let conforming: u64 = sent[7..].iter().map(Sent::packets).sum();
    assert_eq!(observed.from(v4(7)), conforming, "conforms in every class");
    daemon.assert_accounted(&lab);
    let buckets = shown(&cli, v4(1));
    assert_eq!((buckets.len(), &buckets[0]), (2, &("default".into(), 0)), "{buckets:?}");
    assert!(buckets[1].0 == "default udp:53" && buckets[1].1 > 7000, "{buckets:?}");
    assert_eq!(shown(&cli, v4(7)).len(), 4, "a bucket for each class");
}

#[test]
fn whoever_no_limit_of_a_class_covers_is_charged_to_the_next_wider_one() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    let all = set(&cli, &["1000pps", "--burst", "200"]);
    let inside = ["--for", "198.51.100.0/28", "--proto", "udp"];
    let to_dns = set(&cli, &[&["100pps", "--burst", "100", "--dport", "53"], &inside[..]].concat());
    let single =
        ["300pps", "--burst", "100", "--for", "198.51.100.3", "--proto", "udp", "--dport", "53"];
    let single = set(&cli, &single);
    let wider = ["500pps", "--burst", "100", "--for", "198.51.100.0/26", "--proto", "udp"];
    let udp = set(&cli, &wider);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let both = |source| Stream::cycle(vec![dns(source), other(source)], 3000.0, 12_000);
    let sent = Sender::new(&lab).send(vec![
        stream(dns(v4(1)), 2000.0),
        stream(dns(v4(3)), 2000.0),
        // In the wider prefix: DNS and the rest have one bucket. Outside: so do all packets.
        both(v4(40)),
        both(v4(200)),
        both(v6(1, 1)),
    ]);
    let observed = observer.read();
    for (name, limit, source, sent) in [
        ("DNS inside", &to_dns, v4(1), &sent[0]),
        ("DNS of one source", &single, v4(3), &sent[1]),
        ("UDP in the wider prefix", &udp, v4(40), &sent[2]),
        ("outside", &all, v4(200), &sent[3]),
        ("outside, IPv6", &all, v6(1, 1), &sent[4]),
    ] {
        limit.assert_admitted(name, observed.from(source), [sent]);
    }
    daemon.assert_accounted(&lab);
    // Without the limits of UDP, all packets are in one bucket again, which has kept its state.
    for target in [&inside[..], &["--for", "198.51.100.0/26", "--proto", "udp"]] {
        let dport: &[&str] = if target == inside { &["--dport", "53"] } else { &[] };
        cli.ok(&[&["limit", "unset"], target, dport].concat());
    }
    let before = observer.read().from(v4(40));
    let again = &Sender::new(&lab).send(vec![both(v4(40))])[0];
    all.assert_admitted("without the class", observer.read().from(v4(40)) - before, [again]);
    daemon.assert_accounted(&lab);
}

#[test]
fn headers_before_the_port_and_fragments_behind_it() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    let all = set(&cli, &["1000pps", "--burst", "100"]);
    let to_port = set(&cli, &["100pps", "--burst", "50", "--proto", "udp", "--dport", "9"]);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let IpAddr::V6(extended) = v6(1, 1) else { unreachable!() };
    let IpAddr::V4(optional) = v4(1) else { unreachable!() };
    let tagged = frame::tagged(&frame::udp(v4(2), 100), frame::TAG, 5);
    let sent = Sender::new(&lab).send(vec![
        stream(frame::ipv6_with_extensions(extended), 2000.0),
        stream(frame::ipv4_with_options(optional), 2000.0),
        stream(tagged, 2000.0),
        stream(frame::fragment(v4(3), 0, true), 2000.0),
        // Nobody knows the port of a later one.
        stream(frame::fragment(v4(4), 64, false), 3000.0),
        stream(frame::fragment(v6(2, 1), 64, false), 3000.0),
    ]);
    let observed = observer.read();
    for (name, limit, source, sent) in [
        ("extension headers", &to_port, v6(1, 1), &sent[0]),
        ("options", &to_port, v4(1), &sent[1]),
        ("VLAN", &to_port, v4(2), &sent[2]),
        ("first fragment", &to_port, v4(3), &sent[3]),
        ("later fragment", &all, v4(4), &sent[4]),
        ("later fragment, IPv6", &all, v6(2, 1), &sent[5]),
    ] {
        limit.assert_admitted(name, observed.from(source), [sent]);
    }
    daemon.assert_accounted(&lab);
}

#[test]
fn two_units_hold_at_the_same_time() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    let both = ["1000pps", "4mbit", "--burst", "500", "--burst", "100kbyte"];
    let packets = set(&cli, &both);
    assert_eq!((packets.unit.as_str(), packets.rate_per_second), ("packets", 1000.0));
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let sent = Sender::new(&lab).send(vec![
        stream(frame::udp(v4(1), 100), 4000.0),
        stream(frame::udp(v4(2), 1000), 2000.0),
        // 900 packets and 450 kB a second: within both.
        stream(frame::udp(v4(3), 500), 900.0),
    ]);
    let observed = observer.read();
    packets.assert_admitted("small frames", observed.from(v4(1)), [&sent[0]]);
    let bytes = observed.from(v4(2)) * 1000;
    let allowed = 100_000.0 + 500_000.0 * sent[1].seconds();
    println!("large frames: {bytes} bytes of {allowed:.0}");
    assert!((bytes as f64 - allowed).abs() <= 0.005 * allowed + 16_000.0, "{bytes} of {allowed}");
    assert_eq!(observed.from(v4(3)), sent[2].packets(), "keeps to both limits");
    daemon.assert_accounted(&lab);
    let shown = cli.ok(&["show", &v4(2).to_string()]);
    assert_eq!(shown["last_drop"], "over_limit", "{shown}");
    assert!(shown["also_tokens"].is_f64() && shown["dropped"].as_u64() > Some(4000), "{shown}");
}

#[test]
fn many_sources_share_a_limit() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    set(&cli, &["1000pps", "--burst", "1000"]);
    let prefix =
        set(&cli, &["600pps", "--burst", "300", "--for", "198.51.100.0/28", "--aggregate"]);
    let udp = ["200pps", "--burst", "100", "--proto", "udp", "--dport", "53", "--aggregate"];
    let udp = set(&cli, &udp);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let frame_of = |host| frame::tcp(v4(host), 22, frame::ACK);
    let mut streams: Vec<_> = (1..=8).map(|host| stream(frame_of(host), 300.0)).collect();
    streams.extend((101..=104).map(|host| stream(dns(v4(host)), 250.0)));
    streams.push(stream(frame_of(100), 900.0));
    let sent = Sender::new(&lab).send(streams);
    let observed = observer.read();
    let sum = |hosts: std::ops::RangeInclusive<u8>| hosts.map(|host| observed.from(v4(host))).sum();
    prefix.assert_admitted("a prefix as one", sum(1..=8), &sent[..8]);
    udp.assert_admitted("a class as one", sum(101..=104), &sent[8..12]);
    assert_eq!(observed.from(v4(100)), sent[12].packets(), "shares neither");
    let stats = daemon.assert_accounted(&lab);
    let offered: u64 = sent.iter().map(Sent::packets).sum();
    assert_eq!(stats.packets("drop", "over_shared_limit"), offered - observed.all);
    let shared = &cli.ok(&["show", &v4(1).to_string()])["shared"];
    let about = shared.as_array().expect("a list").iter();
    let about: Vec<_> = about.map(|one| one["limit"]["target"].as_str().unwrap_or("")).collect();
    assert_eq!(about, ["default udp:53 aggregate", "198.51.100.0/28 aggregate"]);
    assert_eq!(shared[1]["passed"], sum(1..=8), "{shared}");

    // The total of all sources, whatever they send; those on the allow list and of the management are not
    // part of it.
    let total = set(&cli, &["500pps", "--burst", "200", "--aggregate"]);
    cli.ok(&["allow", "add", &v4(77).to_string()]);
    let before = observer.read();
    let sent = Sender::new(&lab).send(vec![
        stream(frame_of(100), 900.0),
        stream(other(v4(120)), 900.0),
        stream(other(v6(1, 1)), 900.0),
        stream(other(v4(77)), 2000.0),
    ]);
    let after = observer.read();
    let admitted = |source| after.from(source) - before.from(source);
    let three = [v4(100), v4(120), v6(1, 1)].map(admitted).iter().sum();
    total.assert_admitted("all sources together", three, &sent[..3]);
    assert_eq!(admitted(v4(77)), sent[3].packets(), "is on the allow list");
    let stats = daemon.assert_accounted(&lab);
    assert_eq!(
        stats.packets("drop", "over_total_limit"),
        sent[..3].iter().map(Sent::packets).sum::<u64>() - three
    );
    // Without enforcement nothing is dropped, and as much is counted.
    set(&cli, &["500pps", "--burst", "200", "--aggregate", "--no-enforce"]);
    let before = observer.read();
    let sent = &Sender::new(&lab).send(vec![stream(other(v4(121)), 900.0)])[0];
    assert_eq!(observer.read().from(v4(121)) - before.from(v4(121)), sent.packets());
    assert!(daemon.assert_accounted(&lab).packets("pass", "would_drop") > 1000);
}

#[test]
fn limits_of_classes_survive_the_daemon() {
    let lab = Lab::new(1);
    let mut daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    set(&cli, &["1000pps", "--burst", "500"]);
    let to_dns = set(&cli, &["200pps", "--burst", "200", "--proto", "udp", "--dport", "53"]);
    let total =
        set(&cli, &["300pps", "--burst", "300", "--for", "198.51.100.64/26", "--aggregate"]);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let sending = Sender::new(&lab).start(vec![
        Stream::new(dns(v4(1)), 1000.0, 1_000_000),
        Stream::new(other(v4(70)), 900.0, 1_000_000),
    ]);
    std::thread::sleep(Duration::from_secs(2));
    daemon.kill();
    std::thread::sleep(Duration::from_secs(1));
    daemon.restart(&lab);
    std::thread::sleep(Duration::from_secs(2));
    let sent = sending.stop();
    let observed = observer.read();
    to_dns.assert_admitted("a class", observed.from(v4(1)), [&sent[0]]);
    total.assert_admitted("a prefix as one", observed.from(v4(70)), [&sent[1]]);
    let list = cli.ok(&["limit", "list"]);
    assert_eq!(list["limits"].as_array().map(Vec::len), Some(3), "{list}");
    daemon.assert_accounted(&lab);
}

#[test]
fn packets_look_for_no_keys_that_no_limit_has() {
    let lab = Lab::new(1);
    let mut daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    let (single, prefix, site) = ("198.51.100.7", "203.0.113.0/24", "2001:db8:7::/48");
    let dns_class = ["--proto", "udp", "--dport", "53"];
    let program = Program::new(&daemon);
    // Whatever is not looked for, each limit holds from its first packet on.
    let limited = |frame: &[u8]| program.passing(frame, 9) == 3;
    let set = |target: &[&str]| set(&cli, &[&["1/hour", "--burst", "3"], target].concat());
    let unset = |target: &[&str]| drop(cli.ok(&[&["limit", "unset"], target].concat()));
    let everywhere = keys::SINGLES | keys::IPV4 | keys::IPV6;
    assert_eq!(program.absent(), everywhere);
    set(&["--for", single]);
    assert_eq!(program.absent(), keys::IPV4 | keys::IPV6);
    assert!(limited(&other("198.51.100.7".parse().expect("an address"))));
    set(&["--for", site]);
    assert_eq!(program.absent(), keys::IPV4);
    assert!(limited(&other(v6(3, 1))));
    unset(&["--for", single]);
    assert_eq!(program.absent(), keys::SINGLES | keys::IPV4);
    set(&["--for", prefix]);
    assert_eq!(program.absent(), keys::SINGLES);
    assert!(limited(&other("203.0.113.9".parse().expect("an address"))));
    unset(&["--for", prefix]);
    unset(&["--for", site]);
    // The key of everyone is one of both families.
    set(&dns_class);
    assert_eq!(program.absent(), keys::SINGLES);
    assert!(limited(&dns("203.0.113.9".parse().expect("an address"))) && limited(&dns(v6(4, 1))));
    unset(&dns_class);
    assert_eq!(program.absent(), everywhere);

    // A shadow limit has a key, too.
    set(&[]);
    cli.ok(&["limit", "shadow", "set", "1/hour", "--burst", "1", "--for", prefix]);
    assert_eq!(program.absent(), keys::SINGLES | keys::IPV6);
    cli.ok(&["limit", "shadow", "unset", "--for", prefix]);
    assert_eq!(program.absent(), everywhere);

    // A daemon that comes back finds them, also in maps that it makes anew.
    set(&["--for", prefix]);
    drop(program);
    for restart in [Daemon::restart, Daemon::restart_fresh] {
        daemon.terminate();
        restart(&mut daemon, &lab);
        assert_eq!(Program::new(&daemon).absent(), keys::SINGLES | keys::IPV6);
    }
}

/// Whether `source`, which sends 1000 packets a second since before, loses none while newcomers flood the total of
/// 20,000 a second; sent and admitted packets of it.
fn beside_newcomers(reserve: &str) -> (u64, u64) {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    // An eighth of the burst is more than what the sender makes up for after a pause.
    set(&cli, &["5kpps", "--burst", "20000"]);
    set(&cli, &["20kpps", "--burst", "10000", "--aggregate", "--reserve", reserve]);
    let observer = Observer::new(&lab, Then::Discard, &["10.0.0.0/8"]);
    let known = Sender::new(&lab).start(vec![stream(other(v4(1)), 1000.0)]);
    std::thread::sleep(Duration::from_millis(500));
    let newcomers = Sources::Random(IpAddr::from([10, 0, 0, 0]), 24);
    let flooded = Flood::new(newcomers, 250_000).at_rate(100_000).send(&lab);
    assert_eq!(flooded.packets, 250_000);
    let sent = known.stop()[0].packets();
    let admitted = observer.read().from(v4(1));
    daemon.assert_accounted(&lab);
    (sent, admitted)
}

#[test]
fn known_sources_have_a_reserve() {
    let (sent, admitted) = beside_newcomers("20");
    assert_eq!(admitted, sent, "known sources go first");
    // Without one it loses packets. Not most: where the flood keeps its CPU busy, it sends them later.
    let (sent, admitted) = beside_newcomers("0");
    assert!(admitted + 50 < sent, "{admitted} of {sent}");
}

#[test]
fn what_cpus_hold_and_the_reserve_are_listed() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    let limit = set(&cli, &["1mpps", "100gbit", "--aggregate", "--reserve", "30"]);
    // A millisecond, but for what the division by CPUs leaves.
    assert!((990..=1000).contains(&limit.held_amount), "{}", limit.held_amount);
    let slow = set(&cli, &["100pps", "--for", "198.51.100.0/24", "--aggregate"]);
    assert_eq!(slow.held_amount, 0);
    let listed = cli.ok(&["limit", "list"]);
    let total = &listed["limits"][0];
    assert_eq!((&total["reserve"], &total["also"]["unit"]), (&30.into(), &"bytes".into()));
    assert!(total["also"]["held_amount"].as_u64() > Some(12_000_000), "{total}");
    for (arguments, says) in [
        (&["1mpps", "--aggregate", "--reserve", "95"][..], "at most 90"),
        (&["1mpps", "--reserve", "5"], "only a limit that sources share"),
    ] {
        let refused = cli.run(&[&["limit", "set"], arguments].concat());
        assert!(refused.code != 0 && refused.stderr.contains(says), "{refused:#?}");
    }
}
