//! From the IP header to protocol, ports and flags.

use network_types::ip::{Ipv4Hdr, Ipv6Hdr};

use super::{Ip, Network, Packet, Version, ipv4, ipv6};
use crate::key::SourceKey;

/// Headers looked at in the most, that above the extension headers included. Linux itself accepts any
/// number; seven extension headers are more than any sane sender uses, and a longer chain is limited by its
/// source all the same.
const MAX_EXTENSIONS: usize = 8;

pub(super) const HOP_BY_HOP: u8 = 0;
const IPV4: u8 = 4;
const TCP: u8 = 6;
const IPV6: u8 = 41;
pub(super) const UDP: u8 = 17;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
pub(super) const ICMPV6: u8 = 58;
const ICMP: u8 = 1;
const DESTINATION_OPTIONS: u8 = 60;
const MOBILITY: u8 = 135;
const HOST_IDENTITY: u8 = 139;
const SHIM6: u8 = 140;

/// TCP flags.
const SYN: u8 = 1 << 1;
const RST: u8 = 1 << 2;
const ACK: u8 = 1 << 4;

/// What lies above IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// The protocol's number (the last next-header for IPv6).
    pub protocol: u8,
    /// Whether this is a fragment but the first one: it has no ports.
    pub later_fragment: bool,
    /// Whether the ports of TCP or UDP are known, and TCP's flags; for ICMP, type and code.
    pub has_ports: bool,
    /// Source port, 0 if unknown or if the protocol has none.
    pub source_port: u16,
    /// Destination port, likewise; for ICMP the type (upper byte) and code.
    pub destination_port: u16,
    /// The TCP flags (FIN is bit 0), 0 for others.
    pub tcp_flags: u8,
}

/// Reads what lies above `ip`; ports and flags count as unknown if the frame ends before them. `None` if
/// the chain of headers is broken off, too long or invalid.
#[inline(always)]
pub fn transport<P: Packet + ?Sized>(packet: &P, ip: &Ip) -> Option<Transport> {
    let offset = ip.offset as usize;
    match ip.version {
        Version::V4 => {
            let header = packet.read::<Ipv4Hdr>(offset)?;
            let length = (header.vihl & 15) as usize * 4;
            if length < Ipv4Hdr::LEN {
                return None;
            }
            // By the offset alone: the first fragment has ports, and more of them to come.
            let later = u16::from_be_bytes(header.frags) & 0x1fff != 0;
            upper(packet, header.proto, offset + length, later)
        }
        Version::V6 => extensions(packet, offset),
    }
}

/// The address that a packet goes to, that of IPv4 behind a NAT64; `None` if the frame ends before.
#[inline(always)]
pub fn destination<P: Packet + ?Sized>(packet: &P, ip: &Ip) -> Option<SourceKey> {
    let offset = ip.offset as usize;
    match ip.version {
        Version::V4 => Some(SourceKey::from_ipv4(packet.read::<Ipv4Hdr>(offset)?.dst_addr)),
        Version::V6 => {
            let header = packet.read::<Ipv6Hdr>(offset)?;
            Some(SourceKey::from_ipv6(header.dst_addr).before_nat64())
        }
    }
}

/// Where a UDP packet goes: address and port. `None` for anything else, and for fragments, IPv4 options
/// and IPv6 extension headers, which no host sends unasked.
#[inline(always)]
pub fn udp_destination<P: Packet + ?Sized>(packet: &P, ip: &Ip) -> Option<(SourceKey, u16)> {
    let (address, upper) = plain(packet, ip, UDP)?;
    let ports = packet.read::<[u8; 4]>(upper)?;
    Some((address, u16::from_be_bytes([ports[2], ports[3]])))
}

/// Both ends of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Which addresses they have.
    pub version: Version,
    /// The address that a packet comes from.
    pub source: SourceKey,
    /// The address that it goes to.
    pub destination: SourceKey,
    /// Both ports, that of the source first, in network byte order.
    pub ports: [u8; 4],
}

/// The connection that a packet belongs to if it is established. `None` for anything but a TCP segment with ACK that
/// neither opens nor aborts a connection, and where [`udp_destination`] has none.
#[inline(always)]
pub fn connection<P: Packet + ?Sized>(packet: &P, ip: &Ip) -> Option<Connection> {
    if ip.malformed {
        return None;
    }
    let (destination, upper) = plain(packet, ip, TCP)?;
    let tcp = packet.read::<[u8; 14]>(upper)?;
    if tcp[13] & (SYN | RST | ACK) != ACK {
        return None;
    }
    let ports = [tcp[0], tcp[1], tcp[2], tcp[3]];
    Some(Connection { version: ip.version, source: ip.source, destination, ports })
}

/// Where a packet of `protocol` goes, and where what lies above IP begins. `None` for other protocols, and for
/// fragments, IPv4 options and IPv6 extension headers.
#[inline(always)]
pub(super) fn plain<P: Packet + ?Sized>(
    packet: &P,
    ip: &Ip,
    protocol: u8,
) -> Option<(SourceKey, usize)> {
    let offset = ip.offset as usize;
    match ip.version {
        Version::V4 => {
            let header = packet.read::<Ipv4Hdr>(offset)?;
            let plain = (header.vihl & 15) as usize * 4 == Ipv4Hdr::LEN;
            // All but the bit that forbids fragments.
            let whole = u16::from_be_bytes(header.frags) & 0x3fff == 0;
            if !plain || !whole || header.proto != protocol {
                return None;
            }
            Some((SourceKey::from_ipv4(header.dst_addr), offset + Ipv4Hdr::LEN))
        }
        Version::V6 => {
            let header = packet.read::<Ipv6Hdr>(offset)?;
            if header.next_hdr != protocol {
                return None;
            }
            Some((SourceKey::from_ipv6(header.dst_addr), offset + Ipv6Hdr::LEN))
        }
    }
}

/// The IP header inside a tunnel of IP in IP (RFC 2003, RFC 2473, RFC 4213), if that is whole and plain.
#[inline(always)]
#[must_use]
pub fn inner<P: Packet + ?Sized>(packet: &P, outer: &Ip) -> Option<Ip> {
    let found = match plain(packet, outer, IPV4) {
        Some((_, at)) => ipv4(packet, at),
        None => ipv6(packet, plain(packet, outer, IPV6)?.1),
    };
    match found {
        Network::Ip(ip) => Some(ip),
        Network::NonIp | Network::Unreadable => None,
    }
}

#[inline(always)]
fn extensions<P: Packet + ?Sized>(packet: &P, start: usize) -> Option<Transport> {
    let mut next = packet.read::<Ipv6Hdr>(start)?.next_hdr;
    let mut offset = start + Ipv6Hdr::LEN;
    for _ in 0..MAX_EXTENSIONS {
        let length = match next {
            // Lengths in units of 8 bytes beyond the first 8 (RFC 8200 §4). ESP is not among
            // these: what follows is encrypted.
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS | MOBILITY | HOST_IDENTITY | SHIM6 => {
                let head = packet.read::<[u8; 2]>(offset)?;
                next = head[0];
                (head[1] as usize + 1) * 8
            }
            // The one that counts in units of 4 bytes, less two (RFC 4302 §2.2).
            AUTHENTICATION => {
                let head = packet.read::<[u8; 2]>(offset)?;
                next = head[0];
                (head[1] as usize + 2) * 4
            }
            FRAGMENT => {
                let head = packet.read::<[u8; 4]>(offset)?;
                next = head[0];
                let word = u16::from_be_bytes([head[2], head[3]]);
                // Not the first fragment: what follows is the middle of a payload, not a header.
                if word >> 3 != 0 {
                    // The first one has more headers, and what is above them: this one does not tell.
                    return if is_extension(next) {
                        None
                    } else {
                        upper(packet, next, offset, true)
                    };
                }
                8
            }
            protocol => return upper(packet, protocol, offset, false),
        };
        offset += length;
    }
    None
}

/// Whether a next header announces one that more follow.
#[inline(always)]
const fn is_extension(next: u8) -> bool {
    matches!(
        next,
        HOP_BY_HOP
            | ROUTING
            | FRAGMENT
            | AUTHENTICATION
            | DESTINATION_OPTIONS
            | MOBILITY
            | HOST_IDENTITY
            | SHIM6
    )
}

/// Ports and flags at `offset`, unless this fragment does not carry them.
#[inline(always)]
fn upper<P: Packet + ?Sized>(
    packet: &P,
    protocol: u8,
    offset: usize,
    later_fragment: bool,
) -> Option<Transport> {
    let bare = Transport {
        protocol,
        later_fragment,
        has_ports: false,
        source_port: 0,
        destination_port: 0,
        tcp_flags: 0,
    };
    // Whatever bytes are there were chosen by the sender: read as ports, they would choose the
    // limit.
    if later_fragment {
        return Some(bare);
    }
    // One read for the verifier's sake: TCP's flags are its fourteenth byte.
    let known = match protocol {
        TCP => {
            packet.read::<[u8; 14]>(offset).map(|tcp| ([tcp[0], tcp[1], tcp[2], tcp[3]], tcp[13]))
        }
        UDP => packet.read::<[u8; 4]>(offset).map(|ports| (ports, 0)),
        ICMP | ICMPV6 => packet.read::<[u8; 2]>(offset).map(|kind| ([0, 0, kind[0], kind[1]], 0)),
        _ => None,
    };
    let Some((ports, tcp_flags)) = known else { return Some(bare) };
    Some(Transport {
        has_ports: true,
        source_port: u16::from_be_bytes([ports[0], ports[1]]),
        destination_port: u16::from_be_bytes([ports[2], ports[3]]),
        tcp_flags,
        ..bare
    })
}
