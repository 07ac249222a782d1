//! Packets that a link needs to work, and neighbours without an address of their own.

use network_types::ip::Ipv6Hdr;

use super::transport::{HOP_BY_HOP, ICMPV6, UDP, plain};
use super::{Ip, Network, Packet, Version, network};
use crate::key::SourceKey;

/// Where an Ethernet frame has the address of the interface that sent it.
const SENDER: usize = 6;

/// The source that a packet counts for: its address, or its sender's interface if that address says nothing beyond the link.
// All neighbours would be one source else: in fe80::/64, or in `::` as long as they have no address.
#[inline(always)]
#[must_use]
pub fn sender<P: Packet + ?Sized>(packet: &P, ip: &Ip) -> SourceKey {
    // Without Ethernet there is one neighbour as a rule.
    if packet.starts_at_ip() || !ip.source.is_of_link() {
        return ip.source;
    }
    packet.read::<[u8; 6]>(SENDER).map_or(ip.source, SourceKey::from_link)
}

/// The same of a frame, if it carries IP.
#[inline(always)]
#[must_use]
pub fn sender_of<P: Packet + ?Sized>(frame: &P) -> Option<SourceKey> {
    match network(frame) {
        Network::Ip(ip) => Some(sender(frame, &ip)),
        Network::NonIp | Network::Unreadable => None,
    }
}

/// Whether [`is_link_control`] is worth a look: true for few packets.
#[inline(always)]
#[must_use]
pub fn may_be_link_control<P: Packet + ?Sized>(packet: &P, ip: &Ip) -> bool {
    // Whole words of the header: neighbour discovery alone has addresses like any other packet.
    let discovers = |bytes: [u8; 2]| bytes == [ICMPV6, ON_LINK];
    ip.source.is_of_link()
        || ip.version == Version::V6
            && packet.read::<[u8; 2]>(usize::from(ip.offset) + NEXT_HEADER).is_some_and(discovers)
}

/// Where the IPv6 header has its next header, and the hop limit after it.
const NEXT_HEADER: usize = 6;

/// The hop limit of what no router has forwarded.
const ON_LINK: u8 = 255;

/// Whether the link needs a packet: neighbour discovery (RFC 4861), MLD (RFC 3810), or DHCP of a host without an
/// address (RFC 2131, RFC 9915). Nothing that a router has forwarded.
#[inline(always)]
#[must_use]
pub fn is_link_control<P: Packet + ?Sized>(packet: &P, ip: &Ip) -> bool {
    !ip.malformed && control(packet, ip).unwrap_or(false)
}

#[inline(always)]
fn control<P: Packet + ?Sized>(packet: &P, ip: &Ip) -> Option<bool> {
    const DHCP: [u8; 4] = [0, 68, 0, 67];
    const DHCPV6: [[u8; 4]; 2] = [[0x02, 0x22, 0x02, 0x23], [0x02, 0x23, 0x02, 0x22]];
    if ip.version == Version::V4 {
        let (_, upper) = plain(packet, ip, UDP)?;
        return Some(ip.source.is_of_link() && packet.read::<[u8; 4]>(upper)? == DHCP);
    }
    let Ipv6Hdr { next_hdr, hop_limit, .. } = packet.read(usize::from(ip.offset))?;
    let upper = usize::from(ip.offset) + Ipv6Hdr::LEN;
    if next_hdr == ICMPV6 && hop_limit == ON_LINK {
        // With the code: the verifier does not follow the comparison that one byte is read by.
        return Some(matches!(packet.read::<[u8; 2]>(upper)?, [133..=137, _]));
    }
    if !ip.source.is_of_link() {
        return Some(false);
    }
    match next_hdr {
        // Behind the option that has routers look at it (RFC 2710 §3).
        HOP_BY_HOP if hop_limit == 1 => {
            let [next, length, .., kind] = packet.read::<[u8; 9]>(upper)?;
            Some(next == ICMPV6 && length == 0 && matches!(kind, 130..=132 | 143))
        }
        UDP => Some(DHCPV6.contains(&packet.read::<[u8; 4]>(upper)?)),
        _ => Some(false),
    }
}
