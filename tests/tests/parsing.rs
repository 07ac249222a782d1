//! Packets of every shape are limited by their source, and what cannot be read is counted as such.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tests::{
    Daemon, DaemonOptions, Lab, Observer, Sender, Stream,
    frame::{self, ETHERNET, SERVICE_TAG, TAG},
    observer::Then,
    v4, v6,
};

const SENT: u64 = 3000;
const BURST: u64 = 200;

/// Sends more of each frame than its source may and asserts that each is limited as one source.
/// The rate is so low that the burst is all that counts.
fn assert_limited(shapes: Vec<(&str, Vec<u8>)>) {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    daemon.cli().limit("1/hour", Some(&BURST.to_string()), None);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    for (shape, frame) in shapes {
        let before = observer.read().all;
        let _sent = Sender::new(&lab).send(vec![Stream::new(frame, 10_000.0, SENT)]);
        let admitted = observer.read().all - before;
        println!("{shape}: admitted {admitted} of {SENT}");
        assert!((BURST..=BURST + 2).contains(&admitted), "{shape}: {admitted}");
    }
    let stats = daemon.assert_accounted(&lab);
    assert_eq!(stats.packets("pass", "malformed"), 0);
}

#[test]
fn transports_and_tags() {
    assert_limited(vec![
        ("UDP", frame::udp(v4(1), 64)),
        ("TCP SYN", frame::tcp_syn(v4(2))),
        ("ICMP echo", frame::echo(v4(3))),
        ("UDP over IPv6", frame::udp(v6(1, 1), 100)),
        ("TCP SYN over IPv6", frame::tcp_syn(v6(2, 1))),
        ("ICMPv6 echo", frame::echo(v6(3, 1))),
        ("VLAN", frame::tagged(&frame::udp(v4(4), 64), TAG, 5)),
        ("VLAN, IPv6", frame::tagged(&frame::tcp_syn(v6(4, 1)), TAG, 5)),
        ("QinQ", frame::tagged(&frame::tagged(&frame::udp(v4(5), 64), TAG, 5), SERVICE_TAG, 6)),
        (
            "QinQ, IPv6",
            frame::tagged(&frame::tagged(&frame::echo(v6(5, 1)), TAG, 5), SERVICE_TAG, 6),
        ),
        ("three priority tags", priority_tags(frame::udp(v4(6), 64), 3)),
        ("five priority tags, IPv6", priority_tags(frame::tcp_syn(v6(6, 1)), 5)),
    ]);
}

#[test]
fn options_extension_headers_and_fragments() {
    assert_limited(vec![
        ("IPv4 options", frame::ipv4_with_options(Ipv4Addr::new(198, 51, 100, 1))),
        (
            "IPv6 extension headers",
            frame::ipv6_with_extensions(Ipv6Addr::new(0x2001, 0xdb8, 7, 1, 0, 0, 0, 1)),
        ),
        ("first fragment", frame::fragment(v4(2), 0, true)),
        ("middle fragment", frame::fragment(v4(3), 64, true)),
        ("last fragment", frame::fragment(v4(4), 128, false)),
        ("first fragment over IPv6", frame::fragment(v6(2, 1), 0, true)),
        ("middle fragment over IPv6", frame::fragment(v6(3, 1), 64, true)),
    ]);
}

#[test]
fn all_shapes_of_a_source_share_its_bucket() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    daemon.cli().limit("1/hour", Some(&BURST.to_string()), None);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let source = Ipv4Addr::new(198, 51, 100, 9);
    let address = IpAddr::from(source);
    let frames = vec![
        frame::udp(address, 200),
        frame::tcp_syn(address),
        frame::echo(address),
        frame::ipv4_with_options(source),
        frame::fragment(address, 64, true),
        frame::tagged(&frame::udp(address, 64), TAG, 5),
        frame::tagged(&frame::tagged(&frame::udp(address, 64), TAG, 5), SERVICE_TAG, 6),
    ];
    let _sent = Sender::new(&lab).send(vec![Stream::cycle(frames, 10_000.0, SENT)]);
    let admitted = observer.read().all;
    assert!((BURST..=BURST + 2).contains(&admitted), "{admitted}");
    daemon.assert_accounted(&lab);
}

#[test]
fn nobody_leaves_a_class_by_hiding_what_a_packet_is() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    let cli = daemon.cli();
    for class in
        [&["--syn"][..], &["--fragments"], &["--proto", "udp", "--sport", "53"], &["--icmp", "8"]]
    {
        cli.ok(&[&["limit", "set", "1/hour", "--burst", "200"], class].concat());
    }
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let unreachable = |source| {
        let mut frame = frame::echo(source);
        frame[ETHERNET + frame::IPV4] = 3;
        frame
    };
    let v6_host = |number| Ipv6Addr::new(0x2001, 0xdb8, 7, number, 0, 0, 0, 1);
    let shapes = [
        (true, "TCP SYN", frame::tcp_syn(v4(1))),
        (true, "TCP SYN in two fragments", frame::first_bytes_of_syn(v4(2))),
        (true, "the same over IPv6", frame::first_bytes_of_syn(v6(2, 1))),
        (true, "nine extension headers", frame::ipv6_with_many_extensions(v6_host(3), 9)),
        (false, "seven", frame::ipv6_with_many_extensions(v6_host(4), 7)),
        (false, "UDP", frame::udp(v4(5), 64)),
        (false, "first fragment", frame::fragment(v4(6), 0, true)),
        (true, "later fragment", frame::fragment(v4(7), 64, true)),
        (true, "later fragment over IPv6", frame::fragment(v6(7, 1), 64, false)),
        (true, "UDP from port 53", frame::udp_from(v4(8), 64, 53)),
        (false, "UDP from port 54", frame::udp_from(v4(9), 64, 54)),
        (true, "ICMP echo", frame::echo(v4(10))),
        (false, "ICMP unreachable", unreachable(v4(11))),
        (false, "ICMPv6 echo", frame::echo(v6(12, 1))),
    ];
    for (limited, shape, frame) in shapes {
        let before = observer.read().all;
        let _sent = Sender::new(&lab).send(vec![Stream::new(frame, 10_000.0, SENT)]);
        let admitted = observer.read().all - before;
        println!("{shape}: admitted {admitted} of {SENT}");
        let expected = if limited { BURST..=BURST + 2 } else { SENT..=SENT };
        assert!(expected.contains(&admitted), "{shape}: {admitted}");
    }
    daemon.assert_accounted(&lab);
}

/// The frame with so many 802.1p tags, which Linux takes off by itself.
fn priority_tags(frame: Vec<u8>, count: usize) -> Vec<u8> {
    (0..count).fold(frame, |frame, _| frame::tagged(&frame, TAG, 0))
}

/// Frames whose IP header is cut off before the source address, or says nonsense before it.
fn unreadable() -> Vec<(&'static str, Vec<u8>)> {
    let cut = |frame: Vec<u8>, ip_bytes: usize| frame[..ETHERNET + ip_bytes].to_vec();
    let udp = frame::udp(v4(1), 64);
    let version = |number: u8| {
        let mut frame = frame::udp(v4(1), 64);
        frame[ETHERNET] = (number << 4) | 5;
        frame
    };
    vec![
        ("nothing but Ethernet", cut(udp.clone(), 0)),
        ("one byte of IPv4", cut(udp.clone(), 1)),
        ("IPv4 cut before the source", cut(udp.clone(), 12)),
        ("IPv4 cut in the source", cut(udp.clone(), 15)),
        ("IPv6 cut before the source", cut(frame::udp(v6(1, 1), 80), 8)),
        ("IPv6 cut in the source", cut(frame::udp(v6(1, 1), 80), 23)),
        ("IPv6 in an IPv4 frame", version(6)),
        ("six tags", priority_tags(udp.clone(), 6)),
        ("a tag and nothing more", frame::tagged(&udp, TAG, 5)[..ETHERNET + 4].to_vec()),
    ]
}

#[test]
fn what_cannot_be_read_gets_the_configured_verdict() {
    for (verdict, options) in [
        ("pass", DaemonOptions::default()),
        ("drop", DaemonOptions::with(&["--malformed", "drop"])),
    ] {
        let lab = Lab::new(1);
        let daemon = Daemon::start_with(&lab, options);
        daemon.cli().limit("1/hour", Some("10"), None);
        let observer = Observer::new(&lab, Then::Discard, &[]);
        let shapes = unreadable();
        for (index, (shape, frame)) in (1..).zip(&shapes) {
            let _sent = Sender::new(&lab).send(vec![Stream::new(frame.clone(), 10_000.0, 100)]);
            let counted = daemon.accounted(&lab).1.packets(verdict, "malformed");
            assert_eq!(counted, 100 * index, "{shape}");
        }
        // The kernel itself discards the bare tag when it takes tags off, before the observer's hook.
        let seen = 100 * (shapes.len() as u64 - 1);
        assert_eq!(observer.read().all, if verdict == "pass" { seen } else { 0 });
        daemon.assert_accounted(&lab);
    }
}

#[test]
fn a_readable_source_is_limited_even_if_the_rest_is_broken() {
    let cut = |frame: Vec<u8>, ip_bytes: usize| frame[..ETHERNET + ip_bytes].to_vec();
    let mut short_header = frame::udp(v4(4), 64);
    short_header[ETHERNET] = 0x44;
    let mut long_header = frame::udp(v4(5), 64);
    long_header[ETHERNET] = 0x4f;
    let extensions = frame::ipv6_with_extensions(Ipv6Addr::new(0x2001, 0xdb8, 7, 3, 0, 0, 0, 1));
    assert_limited(vec![
        ("IPv4 cut after the source", cut(frame::udp(v4(1), 64), 16)),
        ("UDP cut", cut(frame::udp(v4(2), 64), 23)),
        ("TCP cut", cut(frame::tcp_syn(v4(3)), 30)),
        ("IPv4 header length 16", short_header),
        ("IPv4 header longer than the frame", long_header),
        ("IPv6 cut after the source", cut(frame::udp(v6(1, 1), 80), 24)),
        ("UDP over IPv6 cut", cut(frame::udp(v6(2, 1), 80), 43)),
        ("extension header cut", cut(extensions, 49)),
    ]);
}

#[test]
fn what_is_not_ip_passes() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab);
    daemon.cli().limit("1/hour", Some("10"), None);
    let observer = Observer::new(&lab, Then::Discard, &[]);
    let tagged = frame::tagged(&frame::arp(), TAG, 5);
    let _sent = Sender::new(&lab)
        .send(vec![Stream::new(frame::arp(), 5000.0, 500), Stream::new(tagged, 5000.0, 500)]);
    assert_eq!(daemon.assert_accounted(&lab).packets("pass", "non_ip"), 1000);
    assert_eq!(observer.read().all, 1000);
}
