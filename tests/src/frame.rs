//! Builds frames as they are on the wire, from any source address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::lab::{RX_MAC, RX_V4, RX_V6, TX_MAC};

/// Length of an Ethernet header.
pub const ETHERNET: usize = 14;
/// Length of an IPv4 header without options.
pub const IPV4: usize = 20;
/// Length of an IPv6 header.
pub const IPV6: usize = 40;
/// Ethernet type of an 802.1Q tag.
pub const TAG: u16 = 0x8100;
/// Ethernet type of an 802.1ad service tag.
pub const SERVICE_TAG: u16 = 0x88a8;

/// The TCP flag of a connection's first segment.
pub const SYN: u8 = 2;
/// The TCP flag of all later ones.
pub const ACK: u8 = 16;

const UDP: u8 = 17;
const TCP: u8 = 6;
const DISCARD_PORT: u16 = 9;
const SOURCE_PORT: u16 = 40_000;

/// A UDP frame of `length` bytes in all, Ethernet header included, to the discard port.
///
/// # Panics
/// If the headers do not fit in `length`.
#[must_use]
pub fn udp(source: IpAddr, length: usize) -> Vec<u8> {
    udp_to(source, length, DISCARD_PORT)
}

/// The same to another port.
///
/// # Panics
/// If the headers do not fit in `length`.
#[must_use]
pub fn udp_to(source: IpAddr, length: usize, port: u16) -> Vec<u8> {
    udp_between(source, length, SOURCE_PORT, port)
}

/// As [`udp`], from another port.
///
/// # Panics
/// As [`udp`].
#[must_use]
pub fn udp_from(source: IpAddr, length: usize, port: u16) -> Vec<u8> {
    udp_between(source, length, port, DISCARD_PORT)
}

fn udp_between(source: IpAddr, length: usize, from: u16, to: u16) -> Vec<u8> {
    let headers = ETHERNET + if source.is_ipv4() { IPV4 } else { IPV6 } + 8;
    let payload = length.checked_sub(headers).expect("room for the headers");
    let mut segment = udp_segment(payload);
    segment[0..2].copy_from_slice(&from.to_be_bytes());
    segment[2..4].copy_from_slice(&to.to_be_bytes());
    ip(source, UDP, segment, &[])
}

/// A TCP SYN to port 80.
#[must_use]
pub fn tcp_syn(source: IpAddr) -> Vec<u8> {
    tcp(source, 80, SYN)
}

/// A TCP segment without payload, with these flags.
#[must_use]
pub fn tcp(source: IpAddr, port: u16, flags: u8) -> Vec<u8> {
    tcp_between(source, SOURCE_PORT, port, flags)
}

/// The same from another port.
#[must_use]
pub fn tcp_between(source: IpAddr, from: u16, to: u16, flags: u8) -> Vec<u8> {
    let mut segment = vec![0; 20];
    segment[0..2].copy_from_slice(&from.to_be_bytes());
    segment[2..4].copy_from_slice(&to.to_be_bytes());
    segment[12] = 5 << 4;
    segment[13] = flags;
    ip(source, TCP, segment, &[])
}

/// An ICMP or ICMPv6 echo request.
#[must_use]
pub fn echo(source: IpAddr) -> Vec<u8> {
    let (protocol, kind) = if source.is_ipv4() { (1, 8) } else { (58, 128) };
    let mut message = vec![0; 16];
    message[0] = kind;
    ip(source, protocol, message, &[])
}

/// A UDP frame whose IPv4 header carries 40 bytes of options, the most there can be.
#[must_use]
pub fn ipv4_with_options(source: Ipv4Addr) -> Vec<u8> {
    // No-operation options up to the end-of-list option.
    let mut options = [1; 40];
    options[39] = 0;
    ip(source.into(), UDP, udp_segment(10), &options)
}

/// A UDP frame with hop-by-hop options, routing and destination options before UDP.
#[must_use]
pub fn ipv6_with_extensions(source: Ipv6Addr) -> Vec<u8> {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const DESTINATION: u8 = 60;
    // Each is 8 bytes: next header, length 0, then a PadN option or an empty routing header.
    let mut body = vec![ROUTING, 0, 1, 4, 0, 0, 0, 0];
    body.extend([DESTINATION, 0, 4, 0, 0, 0, 0, 0]);
    body.extend([UDP, 0, 1, 4, 0, 0, 0, 0]);
    body.extend(udp_segment(10));
    ip(source.into(), HOP_BY_HOP, body, &[])
}

/// A UDP frame with so many headers of destination options before UDP.
#[must_use]
pub fn ipv6_with_many_extensions(source: Ipv6Addr, count: usize) -> Vec<u8> {
    const DESTINATION: u8 = 60;
    let mut body = Vec::new();
    for left in (0..count).rev() {
        body.extend([if left > 0 { DESTINATION } else { UDP }, 0, 1, 4, 0, 0, 0, 0]);
    }
    body.extend(udp_segment(10));
    ip(source.into(), DESTINATION, body, &[])
}

/// The first fragment of a TCP SYN to port 80, which ends after eight bytes: before the flags.
#[must_use]
pub fn first_bytes_of_syn(source: IpAddr) -> Vec<u8> {
    const BYTES: usize = 8;
    let whole = tcp_syn(source);
    match source {
        IpAddr::V4(_) => {
            let mut frame = whole[..ETHERNET + IPV4 + BYTES].to_vec();
            frame[ETHERNET + 3] = (IPV4 + BYTES) as u8;
            frame[ETHERNET + 6] = 0x20;
            fix_ipv4_checksum(&mut frame, IPV4);
            frame
        }
        IpAddr::V6(_) => {
            const FRAGMENT: u8 = 44;
            let segment = &whole[ETHERNET + IPV6..][..BYTES];
            ip(source, FRAGMENT, [&[TCP, 0, 0, 1, 0, 0, 0, 7], segment].concat(), &[])
        }
    }
}

/// A fragment with 32 bytes of payload at `offset`, a multiple of 8 bytes; `more` follow or not.
#[must_use]
pub fn fragment(source: IpAddr, offset: u16, more: bool) -> Vec<u8> {
    match source {
        IpAddr::V4(_) => {
            let mut frame = ip(source, UDP, udp_segment(24), &[]);
            let flags = (offset / 8) | if more { 0x2000 } else { 0 };
            frame[ETHERNET + 6..ETHERNET + 8].copy_from_slice(&flags.to_be_bytes());
            fix_ipv4_checksum(&mut frame, IPV4);
            frame
        }
        IpAddr::V6(_) => {
            const FRAGMENT: u8 = 44;
            let mut body = vec![UDP, 0, 0, 0, 0, 0, 0, 7];
            body[2..4].copy_from_slice(&(offset | u16::from(more)).to_be_bytes());
            body.extend(udp_segment(24));
            ip(source, FRAGMENT, body, &[])
        }
    }
}

/// A frame that is not IP: an ARP request for the receiver.
#[must_use]
pub fn arp() -> Vec<u8> {
    let mut body = vec![0, 1, 8, 0, 6, 4, 0, 1];
    body.extend(TX_MAC);
    body.extend([192, 0, 2, 2, 0, 0, 0, 0, 0, 0]);
    body.extend(RX_V4.octets());
    ethernet(0x0806, &body)
}

/// `frame` with a VLAN tag of type `tag`, outside the tags that it has.
#[must_use]
pub fn tagged(frame: &[u8], tag: u16, vlan: u16) -> Vec<u8> {
    let mut tagged = frame[..12].to_vec();
    tagged.extend(tag.to_be_bytes());
    tagged.extend(vlan.to_be_bytes());
    tagged.extend(&frame[12..]);
    tagged
}

/// An IPv4 frame of UDP without options or tags, sent to another address.
///
/// # Panics
/// If the frame is shorter than its headers.
#[must_use]
pub fn sent_to(mut frame: Vec<u8>, destination: Ipv4Addr) -> Vec<u8> {
    frame[ETHERNET + 16..ETHERNET + 20].copy_from_slice(&destination.octets());
    fix_ipv4_checksum(&mut frame, IPV4);
    // None: the old one was of the old address.
    frame[ETHERNET + IPV4 + 6..ETHERNET + IPV4 + 8].fill(0);
    frame
}

/// An IPv6 frame, but to another destination; its checksum is that of the former one.
///
/// # Panics
/// If the frame is shorter than its headers.
#[must_use]
pub fn sent_to_v6(mut frame: Vec<u8>, destination: Ipv6Addr) -> Vec<u8> {
    frame[ETHERNET + 24..ETHERNET + 40].copy_from_slice(&destination.octets());
    frame
}

fn ethernet(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = [RX_MAC, TX_MAC].concat();
    frame.extend(kind.to_be_bytes());
    frame.extend(body);
    frame
}

fn udp_segment(payload: usize) -> Vec<u8> {
    let length = u16::try_from(8 + payload).expect("a datagram below 64 KiB");
    let mut segment = vec![0; 8 + payload];
    segment[0..2].copy_from_slice(&SOURCE_PORT.to_be_bytes());
    segment[2..4].copy_from_slice(&DISCARD_PORT.to_be_bytes());
    segment[4..6].copy_from_slice(&length.to_be_bytes());
    segment
}

/// A packet of IP in IP from `outer`, with all of a frame but its Ethernet header in it.
#[must_use]
pub fn tunnelled(outer: IpAddr, inside: &[u8]) -> Vec<u8> {
    let packet = inside[ETHERNET..].to_vec();
    let protocol = if packet[0] >> 4 == 4 { 4 } else { 41 };
    ip(outer, protocol, packet, &[])
}

/// Puts `segment` behind an IP header from `source` to the receiver, its checksum set where the
/// protocol is UDP, TCP or ICMP and comes at once.
fn ip(source: IpAddr, protocol: u8, mut segment: Vec<u8>, options: &[u8]) -> Vec<u8> {
    if let Some(at) = checksum_offset(protocol) {
        let pseudo = pseudo_sum(source, protocol, segment.len());
        // UDP sends an all-ones sum as 0xffff, because 0 means that there is none.
        let sum = match (protocol, fold(pseudo + sum(&segment))) {
            (UDP, 0) => 0xffff,
            (_, sum) => sum,
        };
        segment[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    let length = segment.len();
    match source {
        IpAddr::V4(source) => {
            let header = IPV4 + options.len();
            let words = u8::try_from(header / 4).expect("at most 60 bytes");
            let total = u16::try_from(header + length).expect("a packet below 64 KiB");
            let mut packet = vec![0x40 | words, 0];
            packet.extend(total.to_be_bytes());
            packet.extend([0, 7, 0, 0, 64, protocol, 0, 0]);
            packet.extend(source.octets());
            packet.extend(RX_V4.octets());
            packet.extend(options);
            packet.extend(segment);
            let mut frame = ethernet(0x0800, &packet);
            fix_ipv4_checksum(&mut frame, header);
            frame
        }
        IpAddr::V6(source) => {
            let total = u16::try_from(length).expect("a packet below 64 KiB");
            let mut packet = vec![0x60, 0, 0, 0];
            packet.extend(total.to_be_bytes());
            packet.extend([protocol, 64]);
            packet.extend(source.octets());
            packet.extend(RX_V6.octets());
            packet.extend(segment);
            ethernet(0x86dd, &packet)
        }
    }
}

fn checksum_offset(protocol: u8) -> Option<usize> {
    match protocol {
        UDP => Some(6),
        TCP => Some(16),
        1 | 58 => Some(2),
        _ => None,
    }
}

/// Sum of the pseudo-header; ICMP over IPv4 has none.
fn pseudo_sum(source: IpAddr, protocol: u8, length: usize) -> u32 {
    let length = u32::try_from(length).expect("a packet below 64 KiB");
    match source {
        IpAddr::V4(_) if protocol == 1 => 0,
        IpAddr::V4(source) => {
            sum(&source.octets()) + sum(&RX_V4.octets()) + u32::from(protocol) + length
        }
        IpAddr::V6(source) => {
            sum(&source.octets()) + sum(&RX_V6.octets()) + u32::from(protocol) + length
        }
    }
}

fn fix_ipv4_checksum(frame: &mut [u8], header: usize) {
    let at = ETHERNET + 10;
    frame[at..at + 2].fill(0);
    let sum = fold(sum(&frame[ETHERNET..ETHERNET + header]));
    frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Sum of the 16-bit words of `bytes` in network byte order, not folded.
#[must_use]
pub fn sum(bytes: &[u8]) -> u32 {
    bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])))
        .sum()
}

/// The Internet checksum of a sum.
fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded to 16 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4() -> IpAddr {
        Ipv4Addr::new(198, 51, 100, 7).into()
    }

    fn v6() -> IpAddr {
        "2001:db8:7::7".parse().unwrap()
    }

    #[test]
    fn ipv4_headers_sum_to_nothing() {
        let options = ipv4_with_options(Ipv4Addr::new(198, 51, 100, 7));
        for (frame, header) in [(udp(v4(), 60), 20), (fragment(v4(), 64, true), 20), (options, 60)]
        {
            assert_eq!(fold(sum(&frame[ETHERNET..ETHERNET + header])), 0);
        }
    }

    #[test]
    fn lengths_are_as_asked() {
        for source in [v4(), v6()] {
            for length in [64, 1000, 1514] {
                assert_eq!(udp(source, length).len(), length);
            }
        }
    }

    #[test]
    fn segments_sum_to_nothing_with_their_pseudo_header() {
        for source in [v4(), v6()] {
            let start = ETHERNET + if source.is_ipv4() { IPV4 } else { IPV6 };
            for (frame, protocol) in [(udp(source, 101), UDP), (tcp_syn(source), TCP)] {
                let segment = &frame[start..];
                assert_eq!(fold(pseudo_sum(source, protocol, segment.len()) + sum(segment)), 0);
            }
        }
    }
}
