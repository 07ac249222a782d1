//! Reads as much of a frame as a limit can depend on.
//!
//! [`network`] finds the source: Ethernet, up to [`MAX_TAGS`] VLAN tags, the IP header. Frames of interfaces without
//! Ethernet start with the IP header. [`transport`] goes on
//! through IPv4 options and IPv6 extension headers to protocol, ports and flags. [`udp_destination`] and [`connection`]
//! know the plain case alone, for less. All only ever read through [`Packet::read`], which checks bounds, so that
//! none can read past the frame.

mod link;
mod transport;

use core::mem::size_of;

use network_types::eth::{EthHdr, EtherType};
use network_types::ip::{Ipv4Hdr, Ipv6Hdr};

use crate::key::SourceKey;

pub use link::{is_link_control, may_be_link_control, sender, sender_of};
pub use transport::{
    Connection, Transport, connection, destination, inner, transport, udp_destination,
};

/// A header that may be copied out of a frame byte by byte.
///
/// # Safety
/// Every bit pattern of `size_of::<Self>()` bytes is a value, and there is no padding.
pub unsafe trait Header: Copy {}

// SAFETY: two byte arrays and a u16, `repr(C)`, 14 bytes.
unsafe impl Header for EthHdr {}
// SAFETY: bytes and byte arrays only.
unsafe impl Header for Ipv4Hdr {}
// SAFETY: bytes and byte arrays only.
unsafe impl Header for Ipv6Hdr {}
// SAFETY: an array of bytes.
unsafe impl<const N: usize> Header for [u8; N] {}

/// A frame.
pub trait Packet {
    /// Its length in bytes.
    fn length(&self) -> u32;

    /// Whether it has no Ethernet header, as those of tun, WireGuard or PPP: then it starts with the IP header.
    #[inline(always)]
    fn starts_at_ip(&self) -> bool {
        false
    }

    /// Copies the header at `offset`, or `None` if the frame ends before the header does.
    fn read<H: Header>(&self, offset: usize) -> Option<H>;

    /// What follows the VLAN tags that the frame begins with: see [`behind_tags`].
    #[inline(always)]
    fn behind_tags(&self) -> Option<Behind> {
        behind_tags(self)
    }
}

impl Packet for [u8] {
    fn length(&self) -> u32 {
        u32::try_from(self.len()).unwrap_or(u32::MAX)
    }

    fn read<H: Header>(&self, offset: usize) -> Option<H> {
        let bytes = self.get(offset..offset.checked_add(size_of::<H>())?)?;
        // SAFETY: `bytes` has exactly the size of `H`, any bytes are a valid `H` (trait contract),
        // and the read does not assume alignment.
        Some(unsafe { bytes.as_ptr().cast::<H>().read_unaligned() })
    }
}

/// A frame of an interface with Ethernet or without.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a> {
    /// All of it.
    pub bytes: &'a [u8],
    /// Whether it has no Ethernet header.
    pub starts_at_ip: bool,
}

impl Packet for Bytes<'_> {
    fn length(&self) -> u32 {
        self.bytes.length()
    }

    fn starts_at_ip(&self) -> bool {
        self.starts_at_ip
    }

    fn read<H: Header>(&self, offset: usize) -> Option<H> {
        self.bytes.read(offset)
    }
}

/// The version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A readable IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip {
    /// By the header, which agrees with the EtherType.
    pub version: Version,
    /// The sender's whole address.
    pub source: SourceKey,
    /// Where the header starts.
    pub offset: u16,
    /// Whether a header field contradicts another or the frame's length.
    pub malformed: bool,
}

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Something else than IP: ARP, LLDP, an LLC frame.
    NonIp,
    /// IP by its EtherType, but the frame ends before the source address does, or the version
    /// contradicts the EtherType. Or VLAN tags that do not end.
    Unreadable,
    /// IP with a source.
    Ip(Ip),
}

/// The length of an 802.1Q or 802.1ad tag.
const VLAN_TAG: usize = 4;

/// How many of them are looked behind. Providers nest three, and priority tags come on top.
pub const MAX_TAGS: u32 = 5;

/// Whether an EtherType (as on the wire) announces a VLAN tag; 0x9100 is what QinQ used before
/// 802.1ad.
#[inline(always)]
const fn is_vlan(ether_type: u16) -> bool {
    ether_type == EtherType::Ieee8021q as u16
        || ether_type == EtherType::Ieee8021ad as u16
        || ether_type == EtherType::Ieee8021QinQ1 as u16
}

/// Where the VLAN tags of a frame end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    /// What follows, as on the wire.
    pub ether_type: u16,
    /// Where it starts.
    pub offset: u16,
}

/// What follows the VLAN tags that a frame begins with; `None` if they do not end.
#[inline(always)]
#[must_use]
pub fn behind_tags<P: Packet + ?Sized>(packet: &P) -> Option<Behind> {
    let mut offset = EthHdr::LEN;
    // Linux takes any number of tags with VLAN 0 off, so there may be IP behind more of them, too.
    for _ in 0..MAX_TAGS {
        let ether_type = packet.read::<[u8; 2]>(offset + 2).map(u16::from_ne_bytes)?;
        offset += VLAN_TAG;
        if !is_vlan(ether_type) {
            return Some(Behind { ether_type, offset: offset as u16 });
        }
    }
    None
}

/// Finds the source of a frame.
#[inline(always)]
pub fn network<P: Packet + ?Sized>(packet: &P) -> Network {
    let (ether_type, offset) = if packet.starts_at_ip() {
        let Some(ether_type) = bare(packet) else { return Network::NonIp };
        (ether_type, 0)
    } else {
        let Some(EthHdr { ether_type, .. }) = packet.read(0) else { return Network::NonIp };
        if is_vlan(ether_type) {
            let Some(behind) = packet.behind_tags() else { return Network::Unreadable };
            (behind.ether_type, usize::from(behind.offset))
        } else {
            (ether_type, EthHdr::LEN)
        }
    };
    if ether_type == EtherType::Ipv4 as u16 {
        ipv4(packet, offset)
    } else if ether_type == EtherType::Ipv6 as u16 {
        ipv6(packet, offset)
    } else {
        Network::NonIp
    }
}

/// What an EtherType would say of a frame that starts at its IP header, if it does.
#[inline(always)]
fn bare<P: Packet + ?Sized>(packet: &P) -> Option<u16> {
    // Two bytes, though one is wanted: the verifier does not follow the comparison that one is read by.
    match packet.read::<[u8; 2]>(0)?[0] >> 4 {
        4 => Some(EtherType::Ipv4 as u16),
        6 => Some(EtherType::Ipv6 as u16),
        _ => None,
    }
}

#[inline(always)]
fn ipv4<P: Packet + ?Sized>(packet: &P, offset: usize) -> Network {
    let Some(header) = packet.read::<Ipv4Hdr>(offset) else {
        // The destination may be cut off; a source is all that it takes.
        return match packet.read::<[u8; 16]>(offset) {
            Some(bytes) if bytes[0] >> 4 == 4 => {
                let source = [bytes[12], bytes[13], bytes[14], bytes[15]];
                ip(Version::V4, SourceKey::from_ipv4(source), offset, true)
            }
            _ => Network::Unreadable,
        };
    };
    // EtherType and version contradict each other: which bytes are the source is anybody's guess.
    if header.vihl >> 4 != 4 {
        return Network::Unreadable;
    }
    let header_length = u32::from(header.vihl & 15) * 4;
    let total = u32::from(u16::from_be_bytes(header.tot_len));
    let available = packet.length().saturating_sub(offset as u32);
    // A frame may be longer than its packet: Ethernet pads short ones to 60 bytes.
    let malformed = header_length < 20 || total < header_length || total > available;
    ip(Version::V4, SourceKey::from_ipv4(header.src_addr), offset, malformed)
}

#[inline(always)]
fn ipv6<P: Packet + ?Sized>(packet: &P, offset: usize) -> Network {
    let Some(header) = packet.read::<Ipv6Hdr>(offset) else {
        return match packet.read::<[u8; 24]>(offset) {
            // As for IPv4: whoever cuts a packet off must not get past its limit.
            Some(bytes) if bytes[0] >> 4 == 6 => {
                let mut source = [0; 16];
                source.copy_from_slice(&bytes[8..24]);
                ip(Version::V6, SourceKey::from_ipv6(source), offset, true)
            }
            _ => Network::Unreadable,
        };
    };
    if header.vcf[0] >> 4 != 6 {
        return Network::Unreadable;
    }
    let payload = u32::from(u16::from_be_bytes(header.payload_len));
    let available = packet.length().saturating_sub(offset as u32 + Ipv6Hdr::LEN as u32);
    ip(Version::V6, SourceKey::from_ipv6(header.src_addr), offset, payload > available)
}

#[inline(always)]
const fn ip(version: Version, source: SourceKey, offset: usize, malformed: bool) -> Network {
    Network::Ip(Ip { version, source, offset: offset as u16, malformed })
}

#[cfg(test)]
mod tests;
