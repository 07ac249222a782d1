//! Packets of the link itself, and sources whose address is no more than the link's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tests::{
    Daemon, DaemonOptions, Lab, Observer, Sender, Stream,
    frame::{self, ETHERNET, IPV4, IPV6},
    observer::Then,
    v6,
};

const SENT: u64 = 1000;
const BURST: u64 = 100;

const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const ANY_V6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

fn link_local(host: u16) -> IpAddr {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, host).into()
}

/// From another interface.
fn from(neighbour: u8, mut frame: Vec<u8>) -> Vec<u8> {
    frame[11] = neighbour;
    frame
}

/// An ICMPv6 message of this type, with this hop limit.
fn icmpv6(source: IpAddr, kind: u8, hops: u8) -> Vec<u8> {
    let mut frame = frame::echo(source);
    frame[ETHERNET + 7] = hops;
    frame[ETHERNET + IPV6] = kind;
    frame
}

/// A report of MLD, behind the hop-by-hop option that has routers look at it.
fn mld(source: Ipv6Addr) -> Vec<u8> {
    let mut frame = frame::ipv6_with_extensions(source);
    frame[ETHERNET + 7] = 1;
    frame[ETHERNET + IPV6] = 58;
    frame[ETHERNET + IPV6 + 8] = 143;
    frame
}

/// What DHCP sends between these ports.
fn dhcp(source: IpAddr, from: u16, to: u16) -> Vec<u8> {
    let mut frame = frame::udp_from(source, 300, from);
    let ports = ETHERNET + if source.is_ipv4() { IPV4 } else { IPV6 };
    frame[ports + 2..ports + 4].copy_from_slice(&to.to_be_bytes());
    frame
}

fn control() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("router solicitation", icmpv6(ANY_V6, 133, 255)),
        ("router advertisement", icmpv6(link_local(1), 134, 255)),
        ("neighbour solicitation", icmpv6(link_local(1), 135, 255)),
        ("neighbour advertisement of a global address", icmpv6(v6(1, 1), 136, 255)),
        ("MLD report", mld(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1))),
        ("DHCP", dhcp(ANY, 68, 67)),
        ("DHCPv6", dhcp(link_local(1), 546, 547)),
    ]
}

/// How many of each frame pass, one after the other.
fn passed(lab: &Lab, frames: &[(&str, Vec<u8>)]) -> Vec<u64> {
    let observer = Observer::new(lab, Then::Discard, &[]);
    let send = |(what, frame): &(&str, Vec<u8>)| {
        let before = observer.read().all;
        let _sent = Sender::new(lab).send(vec![Stream::new(frame.clone(), 10_000.0, SENT)]);
        let passed = observer.read().all - before;
        println!("{what}: {passed} of {SENT}");
        passed
    };
    frames.iter().map(send).collect()
}

fn is_limited(passed: u64) -> bool {
    (BURST..=BURST + 2).contains(&passed)
}

#[test]
fn what_the_link_needs_passes_and_is_counted() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    daemon.cli().limit("1/hour", Some(&BURST.to_string()), None);
    let control = control();
    assert!(passed(&lab, &control).iter().all(|passed| *passed == SENT));
    let counted = daemon.assert_accounted(&lab).packets("pass", "link_control");
    assert_eq!(counted, SENT * control.len() as u64);
    // What has been forwarded, or only looks like it, has the limit of its source.
    let others = [
        ("neighbour solicitation from afar", icmpv6(v6(1, 1), 135, 254)),
        ("echo from the link", icmpv6(v6(2, 1), 128, 255)),
        ("MLD from afar", mld(Ipv6Addr::new(0x2001, 0xdb8, 7, 3, 0, 0, 0, 1))),
        ("to the port of DHCP", dhcp(v6(4, 1), 546, 547)),
        ("DHCP of who has an address", dhcp(Ipv4Addr::new(198, 51, 100, 5).into(), 68, 67)),
        ("UDP of who has none", from(6, frame::udp(ANY, 64))),
    ];
    assert!(passed(&lab, &others).into_iter().all(is_limited));
    daemon.assert_accounted(&lab);
}

#[test]
fn what_the_link_needs_can_be_limited_for_each_neighbour() {
    let lab = Lab::new(1);
    let daemon = Daemon::start_with(&lab, DaemonOptions::with(&["--link-control", "limit"]));
    daemon.cli().limit("1/hour", Some(&BURST.to_string()), None);
    let solicit = |neighbour| from(neighbour, icmpv6(link_local(1), 135, 255));
    let frames = [("one neighbour", solicit(1)), ("another one", solicit(2))];
    assert!(passed(&lab, &frames).into_iter().all(is_limited));
    assert_eq!(daemon.assert_accounted(&lab).packets("pass", "link_control"), 0);
}

/// One source by address, all of them.
#[test]
fn neighbours_have_a_bucket_each() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    cli.limit("1/hour", Some(&BURST.to_string()), None);
    let frames = [
        ("a neighbour", from(1, frame::udp(link_local(1), 80))),
        ("another one with the same address", from(2, frame::udp(link_local(1), 80))),
        ("one without an address", from(3, frame::udp(ANY, 80))),
        ("another one", from(4, frame::udp(ANY_V6, 80))),
    ];
    assert!(passed(&lab, &frames).into_iter().all(is_limited));
    // The first one by its other addresses, too.
    let again = [
        ("the first one by another address", from(1, frame::udp(link_local(2), 80))),
        ("the first one without an address", from(1, frame::udp(ANY, 80))),
    ];
    assert!(passed(&lab, &again).into_iter().all(|passed| passed <= 2));
    let mac = &again[0].1[6..12];
    let pair = |at: usize| u16::from_be_bytes([mac[at], mac[at + 1]]);
    let source = Ipv6Addr::new(0xfe80, pair(0), pair(2), pair(4), 0, 0, 0, 0).to_string();
    let shown = cli.ok(&["show", &source]);
    assert!(shown.to_string().contains("dropped"), "{shown:#}");
    cli.ok(&["deny", "add", &format!("{source}/64")]);
    assert_eq!(passed(&lab, &again[..1]), [0]);
    daemon.assert_accounted(&lab);
}

#[test]
fn who_comes_through_a_nat64_is_told_by_the_address_before_it() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    daemon.cli().limit("1/hour", Some(&BURST.to_string()), None);
    let translated =
        |last: u16| Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0xc633, 0x6400 | last).into();
    let frames =
        [("a client", frame::udp(translated(1), 80)), ("another", frame::udp(translated(2), 80))];
    assert!(passed(&lab, &frames).into_iter().all(is_limited));
    let native = frame::udp(Ipv4Addr::new(198, 51, 100, 1).into(), 80);
    assert!(passed(&lab, &[("the first one by IPv4", native)])[0] <= 2);
    daemon.assert_accounted(&lab);
}
