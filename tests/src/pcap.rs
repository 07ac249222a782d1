//! Captures: written for tcpreplay, and read.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
};

use crate::frame;

/// Writes `frames` as a pcap file, `gap` microseconds apart.
///
/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, frames: &[Vec<u8>], gap: u32) -> io::Result<()> {
    const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
    const VERSION: u32 = 2 | (4 << 16);
    const SNAP_LENGTH: u32 = 65_535;
    const ETHERNET: u32 = 1;
    let mut file = Vec::new();
    for word in [MAGIC_MICROSECONDS, VERSION, 0, 0, SNAP_LENGTH, ETHERNET] {
        file.extend(word.to_le_bytes());
    }
    for (index, frame) in (0_u32..).zip(frames) {
        let time = index * gap;
        let length = u32::try_from(frame.len()).map_err(io::Error::other)?;
        for word in [time / 1_000_000, time % 1_000_000, length, length] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    fs::write(path, file)
}

/// The frames of a pcap file of Ethernet frames, of either byte order; `None` if it is something else.
///
/// # Errors
/// If the file cannot be read.
pub fn read(path: &Path) -> io::Result<Option<Vec<Vec<u8>>>> {
    const HEADER: usize = 24;
    const RECORD: usize = 16;
    let file = fs::read(path)?;
    let word = |at: usize, swapped: bool| {
        let bytes: [u8; 4] = file.get(at..at + 4)?.try_into().ok()?;
        Some(if swapped { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    };
    let swapped = match word(0, false) {
        Some(0xa1b2_c3d4 | 0xa1b2_3c4d) => false,
        Some(0xd4c3_b2a1 | 0x4d3c_b2a1) => true,
        _ => return Ok(None),
    };
    if word(20, swapped) != Some(1) {
        return Ok(None);
    }
    let (mut frames, mut at) = (Vec::new(), HEADER);
    while let Some(length) = word(at + 8, swapped) {
        let start = at + RECORD;
        at = start + length as usize;
        // The last one may be cut off.
        frames.extend(file.get(start..at).map(<[u8]>::to_vec));
    }
    Ok(Some(frames))
}

/// The folder of real captures; `None` where there is none, which is printed: the project does not
/// contain them.
#[must_use]
pub fn captures() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/captures");
    if folder.is_dir() {
        return Some(folder);
    }
    println!("skipped: there is no folder of captures at {}", folder.display());
    None
}

/// Where the header of an IP frame begins, after its tags, and whether it is IPv4; `None` if it is
/// something else.
fn header(frame: &[u8]) -> Option<(usize, bool)> {
    let mut at = 12;
    let kind = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
    while matches!(kind(at)?, frame::TAG | frame::SERVICE_TAG) {
        at += 4;
    }
    match kind(at)? {
        0x0800 => Some((at + 2, true)),
        0x86dd => Some((at + 2, false)),
        _ => None,
    }
}

/// The address that an IP frame claims.
#[must_use]
pub fn address(frame: &[u8]) -> Option<IpAddr> {
    let (header, v4) = header(frame)?;
    if v4 {
        let octets: [u8; 4] = frame.get(header + 12..header + 16)?.try_into().ok()?;
        return Some(Ipv4Addr::from(octets).into());
    }
    let octets: [u8; 16] = frame.get(header + 8..header + 24)?.try_into().ok()?;
    Some(Ipv6Addr::from(octets).into())
}

/// Whether an address tells hosts of one link apart at the most.
fn is_of_link(address: IpAddr) -> bool {
    address.is_unspecified()
        || matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Whether a NAT64 has made this of an address of IPv4 (RFC 6052).
fn is_behind_nat64(address: Ipv6Addr) -> bool {
    address.to_bits() >> 32 == 0x0064_ff9b << 64
}

/// The source of an IP frame, as the limiter sees it: an address, also behind a NAT64, the first of a /64, or
/// the interface of a neighbour.
#[must_use]
pub fn source(frame: &[u8]) -> Option<IpAddr> {
    let address = address(frame)?;
    let prefix = match address {
        _ if is_of_link(address) => {
            let interface = frame[6..12].iter().fold(0, |bits, &byte| bits << 8 | u128::from(byte));
            0xfe80 << 112 | interface << 64
        }
        IpAddr::V4(_) => return Some(address),
        IpAddr::V6(address) if is_behind_nat64(address) => {
            return Some(Ipv4Addr::from_bits(address.to_bits() as u32).into());
        }
        IpAddr::V6(address) => address.to_bits() & !u128::from(u64::MAX),
    };
    Some(Ipv6Addr::from_bits(prefix).into())
}

/// The frame with another source: of its address, its /64 or its interface, the last 32 bits are changed
/// where `change` has ones. Different sources stay different. The checksums are no longer right, which only
/// who receives it would notice.
#[must_use]
pub fn with_other_source(frame: &[u8], change: u32) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if let Some((header, _)) = header(&frame) {
        // The interface, the address of IPv4, also behind a NAT64, or the second half of the /64 of IPv6.
        let at = match address(&frame) {
            Some(address) if is_of_link(address) => 8,
            Some(IpAddr::V6(address)) if is_behind_nat64(address) => header + 20,
            _ => header + 12,
        };
        let bytes = frame.get_mut(at..at + 4).into_iter().flatten();
        bytes.zip(change.to_be_bytes()).for_each(|(byte, change)| *byte ^= change);
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_found_and_changed() {
        let v4 = frame::udp(Ipv4Addr::new(198, 51, 100, 7).into(), 64);
        let v6 = frame::udp("2001:db8:1:2::3".parse().unwrap(), 80);
        let neighbour = frame::udp("fe80::7".parse().unwrap(), 80);
        let behind_nat64 = frame::udp("64:ff9b::198.51.100.7".parse().unwrap(), 80);
        let tagged = frame::tagged(&frame::tagged(&v4, frame::TAG, 5), frame::SERVICE_TAG, 6);
        for (frame, first, second) in [
            (&v4, "198.51.100.7", "198.51.101.5"),
            (&tagged, "198.51.100.7", "198.51.101.5"),
            (&v6, "2001:db8:1:2::", "2001:db8:1:100::"),
            (&behind_nat64, "198.51.100.7", "198.51.101.5"),
            (&neighbour, "fe80:200:0:1::", "fe80:200:0:103::"),
        ] {
            assert_eq!(source(frame), first.parse().ok());
            assert_eq!(source(&with_other_source(frame, 0x102)), second.parse().ok());
        }
        assert_eq!(source(&frame::arp()), None);
        assert_eq!(with_other_source(&frame::arp(), 1), frame::arp());
        assert_eq!(source(&v4[..20]), None);
    }
}
