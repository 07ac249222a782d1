//! Where a frame comes from.

/// What can be told of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reading {
    /// It is not IP.
    NotIp,
    /// It is IP, but its source cannot be read.
    NoSource,
    /// It is from this address; IPv4 addresses are mapped into IPv6 (RFC 4291).
    From {
        /// The whole address.
        address: u128,
        /// Whether its header contradicts itself or the frame.
        malformed: bool,
    },
}

/// The prefix of IPv4 addresses in IPv6.
pub(super) const MAPPED: u128 = 0xffff << 32;

fn number(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
}

/// Reads a frame that starts with its Ethernet header.
#[must_use]
pub fn read(frame: &[u8]) -> Reading {
    let Some(mut kind) = frame.get(12..14) else { return Reading::NotIp };
    let mut packet = &frame[14..];
    for _ in 0..2 {
        if matches!(kind, [0x81 | 0x91, 0x00] | [0x88, 0xa8]) {
            let Some(tag) = packet.get(..4) else { return Reading::NotIp };
            (kind, packet) = (&tag[2..], &packet[4..]);
        }
    }
    // The version, where the source is, and how long the header is without options.
    let (version, source, header) = match kind {
        [0x08, 0x00] => (4, 12..16, 20),
        [0x86, 0xdd] => (6, 8..24, 40),
        _ => return Reading::NotIp,
    };
    let Some(source) = packet.get(source) else { return Reading::NoSource };
    if packet[0] >> 4 != version {
        return Reading::NoSource;
    }
    let address = number(source) | if version == 4 { MAPPED } else { 0 };
    let malformed = if packet.len() < header {
        true
    } else if version == 4 {
        let (own, total) = (usize::from(packet[0] & 15) * 4, number(&packet[2..4]) as usize);
        own < 20 || total < own || packet.len() < total
    } else {
        packet.len() - header < number(&packet[4..6]) as usize
    };
    Reading::From { address, malformed }
}
