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
        /// What a class can ask of it.
        kind: Kind,
    },
}

/// What lies above IP, as far as it can be told.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Kind {
    /// The protocol; for IPv6, what the last header says.
    pub protocol: Option<u8>,
    /// The destination port of TCP or UDP; not of a fragment without it.
    pub port: Option<u16>,
    /// The source port, likewise.
    pub from: Option<u16>,
    /// Type and code of ICMP or ICMPv6, likewise.
    pub icmp: Option<(u8, u8)>,
    /// Whether it is a fragment, and not the first one.
    pub later: bool,
    /// The flags of TCP, likewise.
    pub flags: Option<u8>,
    /// The address that it goes to, as that of the sender; that of IPv4 behind a NAT64.
    pub to: Option<u128>,
}

/// Headers that another one follows.
const EXTENSIONS: [u8; 8] = [0, 43, 44, 51, 60, 135, 139, 140];

/// Headers between IPv6 and what it carries, and that, together.
const HEADERS: usize = 8;

impl Kind {
    /// Of `rest` behind the last header, which says `protocol`; a later fragment has no ports.
    fn upper(protocol: u8, rest: Option<&[u8]>, later: bool) -> Self {
        // As far as the flags for TCP, as far as the ports for UDP.
        let needed = match protocol {
            6 => 14,
            17 => 4,
            1 | 58 => 2,
            _ => usize::MAX,
        };
        let head = rest.filter(|_| !later).and_then(|rest| rest.get(..needed));
        let port = |at| head.filter(|_| needed > 2).map(|head| number(&head[at..at + 2]) as u16);
        Self {
            protocol: Some(protocol),
            port: port(2),
            from: port(0),
            icmp: head.filter(|_| needed == 2).map(|head| (head[0], head[1])),
            later,
            flags: head.and_then(|head| head.get(13)).filter(|_| needed == 14).copied(),
            to: None,
        }
    }

    /// Whether it hides what limits ask for.
    pub(super) fn hides(&self) -> bool {
        let shows = self.later || self.port.is_some() || self.icmp.is_some();
        self.protocol.is_none_or(|protocol| [1, 6, 17, 58].contains(&protocol) && !shows)
    }

    fn ipv4(packet: &[u8]) -> Option<Self> {
        let header = packet.get(..20)?;
        let own = usize::from(header[0] & 15) * 4;
        let later = number(&header[6..8]) & 0x1fff != 0;
        (own >= 20).then(|| Self::upper(header[9], packet.get(own..), later))
    }

    fn ipv6(packet: &[u8]) -> Option<Self> {
        let (mut next, mut rest) = (packet.get(..40)?[6], packet.get(40..));
        for _ in 0..HEADERS {
            let field = |at: usize| rest.and_then(|rest| rest.get(at)).copied();
            let length = match next {
                0 | 43 | 60 | 135 | 139 | 140 => 8 + 8 * usize::from(field(1)?),
                51 => 8 + 4 * usize::from(field(1)?),
                44 => {
                    let offset = u16::from_be_bytes([field(2)?, field(3)?]) >> 3;
                    let first = field(0).filter(|next| !EXTENSIONS.contains(next));
                    if offset != 0 {
                        return Some(Self::upper(first?, None, true));
                    }
                    8
                }
                protocol => return Some(Self::upper(protocol, rest, false)),
            };
            next = field(0)?;
            rest = rest.and_then(|rest| rest.get(length..));
        }
        None
    }
}

/// The prefix of IPv4 addresses in IPv6.
pub const MAPPED: u128 = 0xffff << 32;

/// The prefix of IPv4 addresses behind a NAT64 (RFC 6052), above their 32 bits.
const NAT64: u128 = 0x64_ff9b << 64;

fn number(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
}

/// Reads a frame that starts with its Ethernet header.
#[must_use]
pub fn read(frame: &[u8]) -> Reading {
    find(frame).map_or_else(|reading| reading, |(version, packet)| ip(version, packet))
}

/// Reads a frame that starts with its IP header.
#[must_use]
pub fn read_bare(packet: &[u8]) -> Reading {
    find_bare(packet).map_or(Reading::NotIp, |version| ip(version, packet))
}

/// Reads what is in a tunnel of IP in IP, whose header is plain and whole; `None` if that is not IP.
#[must_use]
pub fn read_inside(frame: &[u8]) -> Option<Reading> {
    let (version, packet) = find(frame).ok()?;
    inside(version, packet)
}

/// As [`read_inside`], without Ethernet.
#[must_use]
pub fn read_inside_bare(packet: &[u8]) -> Option<Reading> {
    inside(find_bare(packet)?, packet)
}

fn inside(version: u8, packet: &[u8]) -> Option<Reading> {
    if !matches!(ip(version, packet), Reading::From { malformed: false, .. }) {
        return None;
    }
    let is_plain = version == 6 || packet[0] & 15 == 5 && number(&packet[6..8]) & 0x3fff == 0;
    let (protocol, header) = if version == 4 { (packet[9], 20) } else { (packet[6], 40) };
    let inner = match protocol {
        4 => ip(4, &packet[header..]),
        41 => ip(6, &packet[header..]),
        _ => return None,
    };
    Some(inner).filter(|inner| is_plain && matches!(inner, Reading::From { .. }))
}

/// The version of IP, and where its header is.
fn find(frame: &[u8]) -> Result<(u8, &[u8]), Reading> {
    let Some(mut kind) = frame.get(12..14) else { return Err(Reading::NotIp) };
    let mut packet = &frame[14..];
    let tagged = |kind: &[u8]| matches!(kind, [0x81 | 0x91, 0x00] | [0x88, 0xa8]);
    for _ in 0..5 {
        if tagged(kind) {
            let Some(tag) = packet.get(..4) else { return Err(Reading::NoSource) };
            (kind, packet) = (&tag[2..], &packet[4..]);
        }
    }
    match kind {
        [0x08, 0x00] => Ok((4, packet)),
        [0x86, 0xdd] => Ok((6, packet)),
        kind if tagged(kind) => Err(Reading::NoSource),
        _ => Err(Reading::NotIp),
    }
}

fn find_bare(packet: &[u8]) -> Option<u8> {
    // A single byte is no header of any kind.
    packet.get(..2).map(|bytes| bytes[0] >> 4).filter(|version| matches!(version, 4 | 6))
}

fn ip(version: u8, packet: &[u8]) -> Reading {
    // Where the source is, and how long the header is without options.
    let (source, header) = if version == 4 { (12..16, 20) } else { (8..24, 40) };
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
    let kind = if version == 4 { Kind::ipv4(packet) } else { Kind::ipv6(packet) };
    let to = packet.get(if version == 4 { 16..20 } else { 24..40 }).map(number);
    let to = to.map(|to| match to >> 32 {
        _ if version == 4 => MAPPED | to,
        NAT64 => MAPPED | to & 0xffff_ffff,
        _ => to,
    });
    Reading::From { address, malformed, kind: Kind { to, ..kind.unwrap_or_default() } }
}
