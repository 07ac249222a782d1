use super::*;
use core::cell::Cell;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

/// A packet that records how far it was read, as the kernel's verifier would see it.
struct Watched<'a> {
    bytes: &'a [u8],
    end: Cell<usize>,
}

impl Packet for Watched<'_> {
    fn length(&self) -> u32 {
        self.bytes.length()
    }

    fn read<H: Header>(&self, offset: usize) -> Option<H> {
        let header = self.bytes.read::<H>(offset);
        if header.is_some() {
            self.end.set(self.end.get().max(offset + size_of::<H>()));
        }
        header
    }
}

fn ethernet(ether_types: &[u16]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    for (i, ether_type) in ether_types.iter().enumerate() {
        if i > 0 {
            frame.extend([0, 42]);
        }
        frame.extend(ether_type.to_be_bytes());
    }
    frame
}

fn ipv4_frame(
    ether_types: &[u16],
    options: usize,
    proto: u8,
    frags: u16,
    payload: &[u8],
) -> Vec<u8> {
    let mut frame = ethernet(ether_types);
    let total = 20 + options + payload.len();
    frame.push(0x40 | ((20 + options) / 4) as u8);
    frame.push(0);
    frame.extend((total as u16).to_be_bytes());
    frame.extend([0, 1]);
    frame.extend(frags.to_be_bytes());
    frame.extend([64, proto, 0, 0, 198, 51, 100, 7, 192, 0, 2, 1]);
    frame.extend(vec![1; options]);
    frame.extend(payload);
    frame
}

fn ipv6_frame(next: u8, chain: &[u8]) -> Vec<u8> {
    let mut frame = ethernet(&[0x86dd]);
    frame.extend([0x60, 0, 0, 0]);
    frame.extend((chain.len() as u16).to_be_bytes());
    frame.extend([next, 64]);
    frame.extend([0x20, 1, 0x0d, 0xb8, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 9]);
    frame.extend([0xff; 16]);
    frame.extend(chain);
    frame
}

const SYN: [u8; 20] = [0x30, 0x39, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0];

fn parse(frame: &[u8]) -> (Ip, Option<Transport>) {
    match network(frame) {
        Network::Ip(ip) => (ip, transport(frame, &ip)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn ipv4_behind_tags_and_options() {
    for tags in 0..=MAX_TAGS as usize {
        let mut tags = [0x88a8, 0x8100, 0x9100, 0x8100, 0x8100][..tags].to_vec();
        tags.push(0x0800);
        for options in [0, 4, 40] {
            let (ip, upper) = parse(&ipv4_frame(&tags, options, 6, 0x4000, &SYN));
            assert_eq!(ip.source, SourceKey::from_ipv4([198, 51, 100, 7]));
            assert!(!ip.malformed);
            let upper = upper.unwrap();
            assert_eq!((upper.source_port, upper.destination_port), (12345, 80));
            assert_eq!((upper.tcp_flags, upper.later_fragment), (2, false));
        }
    }
    let endless = [[0x8100; MAX_TAGS as usize + 1].as_slice(), &[0x0800]].concat();
    assert_eq!(network(&*ipv4_frame(&endless, 0, 6, 0, &SYN)), Network::Unreadable);
    assert_eq!(network(&*ethernet(&[0x8100, 0x8100])), Network::Unreadable);
    assert_eq!(network(&*ethernet(&[0x8100, 0x0806])), Network::NonIp);
}

#[test]
fn fragments_have_a_source_and_only_the_first_has_ports() {
    let first =
        parse(&ipv4_frame(&[0x0800], 0, 17, 0x2000, &[0, 53, 0, 53, 0, 8, 0, 0])).1.unwrap();
    assert!(!first.later_fragment && first.source_port == 53);
    let later = parse(&ipv4_frame(&[0x0800], 0, 17, 0x2001, &[0, 53, 0, 53])).1.unwrap();
    assert!(later.later_fragment && !later.has_ports && later.source_port == 0);
    // IPv6: fragment header with offset 8, then what looks like ports.
    let later = parse(&ipv6_frame(44, &[17, 0, 0, 8, 0, 0, 0, 1, 0, 53, 0, 53])).1.unwrap();
    assert_eq!((later.protocol, later.later_fragment, later.source_port), (17, true, 0));
    let atomic = parse(&ipv6_frame(44, &[17, 0, 0, 0, 0, 0, 0, 1, 0, 53, 0, 53])).1.unwrap();
    assert_eq!((atomic.later_fragment, atomic.source_port), (false, 53));
    // Of a packet with destination options behind the fragment header: its protocol is in the first fragment.
    assert_eq!(parse(&ipv6_frame(44, &[60, 0, 0, 8, 0, 0, 0, 1, 0, 53, 0, 53])).1, None);
}

#[test]
fn only_a_plain_segment_with_ack_may_be_of_a_connection() {
    let with = |flags: u8| {
        let mut segment = SYN;
        segment[13] = flags;
        segment
    };
    let of = |frame: &[u8]| match network(frame) {
        Network::Ip(ip) => connection(frame, &ip),
        other => panic!("{other:?}"),
    };
    // ACK, with PSH, FIN, URG or ECE; then SYN, SYN+ACK, RST+ACK, FIN alone and none.
    for (flags, is_some) in [
        (0x10, true),
        (0x18, true),
        (0x11, true),
        (0x30, true),
        (0x50, true),
        (0x02, false),
        (0x12, false),
        (0x14, false),
        (0x01, false),
        (0x00, false),
    ] {
        let found = of(&ipv4_frame(&[0x0800], 0, 6, 0x4000, &with(flags)));
        assert_eq!(found.is_some(), is_some, "{flags:#x}");
        let found6 = of(&ipv6_frame(6, &with(flags)));
        assert_eq!(found6.is_some(), is_some, "{flags:#x}");
        if let (Some(found), Some(found6)) = (found, found6) {
            assert_eq!(found.source, SourceKey::from_ipv4([198, 51, 100, 7]));
            assert_eq!(found.destination, SourceKey::from_ipv4([192, 0, 2, 1]));
            assert_eq!((found.version, found.ports), (Version::V4, [0x30, 0x39, 0, 80]));
            assert_eq!((found6.version, found6.destination.high), (Version::V6, u64::MAX));
        }
    }
    let ack = with(0x10);
    assert!(of(&ipv4_frame(&[0x0800], 0, 17, 0, &ack)).is_none(), "UDP");
    assert!(of(&ipv4_frame(&[0x0800], 0, 6, 0x2000, &ack)).is_none(), "a fragment");
    assert!(of(&ipv4_frame(&[0x0800], 0, 6, 0, &ack[..13])).is_none(), "cut off");
}

#[test]
fn ports_that_are_cut_off_are_unknown() {
    // A UDP header of two bytes, and a TCP header that ends before its flags.
    for (protocol, segment) in [(17, &[0, 53][..]), (6, &SYN[..13])] {
        let upper = parse(&ipv4_frame(&[0x0800], 0, protocol, 0, segment)).1.unwrap();
        assert_eq!((upper.protocol, upper.has_ports, upper.destination_port), (protocol, false, 0));
    }
    assert!(parse(&ipv4_frame(&[0x0800], 0, 6, 0, &SYN)).1.unwrap().has_ports);
}

#[test]
fn walks_extension_headers_up_to_its_bound() {
    // Hop-by-hop (8 bytes), routing (24), destination options (8), authentication (16), then UDP.
    let mut chain = vec![43, 0, 0, 0, 0, 0, 0, 0];
    chain.extend([60, 2]);
    chain.extend([0; 22]);
    chain.extend([51, 0, 0, 0, 0, 0, 0, 0]);
    chain.extend([17, 2]);
    chain.extend([0; 14]);
    chain.extend([0, 53, 0, 99, 0, 8, 0, 0]);
    let (ip, upper) = parse(&ipv6_frame(0, &chain));
    assert_eq!(ip.source.high, 0x2001_0db8_0001_0002);
    let upper = upper.unwrap();
    assert_eq!((upper.protocol, upper.source_port, upper.destination_port), (17, 53, 99));
    // Nine destination options: the source is known, the rest is not.
    let endless: Vec<u8> = [60, 0, 0, 0, 0, 0, 0, 0].repeat(9);
    assert_eq!(parse(&ipv6_frame(60, &endless)).1, None);
}

#[test]
fn contradictions_are_malformed_but_have_a_source() {
    let source = SourceKey::from_ipv4([198, 51, 100, 7]);
    let whole = ipv4_frame(&[0x0800], 0, 6, 0, &SYN);
    let mut short_header = whole.clone();
    short_header[14] = 0x44;
    let mut long_total = whole.clone();
    long_total[16] = 0x7f;
    // Cut within the destination address.
    for frame in [&short_header[..], &long_total[..], &whole[..32]] {
        let (ip, _) = parse(frame);
        assert!(ip.malformed && ip.source == source, "{ip:?}");
    }
    assert_eq!(network(&whole[..29]), Network::Unreadable);
    let mut wrong_version = whole.clone();
    wrong_version[14] = 0x65;
    assert_eq!(network(&wrong_version[..]), Network::Unreadable);
    assert_eq!(network(&whole[..13]), Network::NonIp);
    assert_eq!(network(&ethernet(&[0x0806])[..]), Network::NonIp);
    let v6 = ipv6_frame(59, &[]);
    assert!(parse(&v6[..40]).0.malformed);
    assert_eq!(network(&v6[..37]), Network::Unreadable);
}

proptest! {
    #[test]
    fn never_reads_out_of_bounds(mut bytes in prop::collection::vec(any::<u8>(), 0..160), shape in 0usize..5) {
        // Random bytes hardly ever are IP: steer them there.
        let prefix: &[u16] = [&[0x0800][..], &[0x86dd], &[0x8100, 0x0800], &[0x88a8, 0x8100, 0x86dd], &[0x8100]][shape];
        let head = ethernet(prefix);
        let n = head.len().min(bytes.len());
        bytes[..n].copy_from_slice(&head[..n]);
        if let Some(byte) = bytes.get_mut(head.len()) {
            *byte = if prefix.last() == Some(&0x86dd) { 0x60 } else { 0x40 | (*byte & 15) };
        }
        let watched = Watched { bytes: &bytes, end: Cell::new(0) };
        if let Network::Ip(ip) = network(&watched) {
            transport(&watched, &ip);
        }
        prop_assert!(watched.end.get() <= bytes.len());
    }

    /// A packet is the same with Ethernet and without, wherever it is cut.
    #[test]
    fn a_frame_without_ethernet_is_read_as_with_it(
        mut bytes in prop::collection::vec(any::<u8>(), 0..120),
        is_v6: bool,
        likely: bool,
    ) {
        if let Some(first) = bytes.first_mut().filter(|_| likely) {
            *first = if is_v6 { 0x60 } else { 0x40 | (*first & 15) };
        }
        let version = bytes.get(..2).map(|bytes| bytes[0] >> 4);
        let mut frame = ethernet(&[if version == Some(6) { 0x86dd } else { 0x0800 }]);
        frame.extend(&bytes);
        let bare = Bytes { bytes: &bytes, starts_at_ip: true };
        match (network(&bare), network(&*frame)) {
            (Network::Ip(found), Network::Ip(ip)) => {
                let shifted = Ip { offset: ip.offset - EthHdr::LEN as u16, ..ip };
                prop_assert_eq!(found, shifted);
                prop_assert_eq!(transport(&bare, &found), transport(&*frame, &ip));
                prop_assert_eq!(sender(&bare, &found), found.source);
            }
            // Without an EtherType, what has no version of IP is none.
            (Network::NonIp, Network::Unreadable) => prop_assert!(!matches!(version, Some(4 | 6))),
            (found, other) => prop_assert_eq!(found, other),
        }
    }

    /// Whatever is cut off: if a source is reported, it is the right one.
    #[test]
    fn a_truncated_frame_keeps_its_source_or_has_none(cut in 0usize..80, options in 0usize..10) {
        let whole = ipv4_frame(&[0x8100, 0x0800], options * 4, 17, 0, &[0, 53, 0, 99, 0, 8, 0, 0]);
        let cut = cut.min(whole.len());
        match network(&whole[..cut]) {
            Network::Ip(ip) => {
                prop_assert_eq!(ip.source, SourceKey::from_ipv4([198, 51, 100, 7]));
                prop_assert_eq!(ip.malformed, cut < whole.len());
            }
            Network::NonIp => prop_assert!(cut < 14),
            Network::Unreadable => prop_assert!((14..34).contains(&cut)),
        }
    }
}
