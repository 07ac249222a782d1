//! Random frames: every family, tags, options, fragments, lies and garbage.

/// A generator of random numbers (SplitMix64) that a seed determines.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `items`.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }
}

/// Networks that sources are in, by the first byte of an IPv4 address or the last of the first group
/// of an IPv6 one.
pub const NETWORKS: [u8; 4] = [10, 20, 30, 40];

/// Source `index` (below 2^24) of a network, in one family or the other, as an IPv6 address.
#[must_use]
pub fn source(network: u8, index: u64, v6: bool) -> u128 {
    let index = u128::from(index & 0xff_ffff);
    if v6 {
        (0xfd00 | u128::from(network)) << 112 | index << 64
    } else {
        super::packet::MAPPED | u128::from(network) << 24 | index
    }
}

/// A frame from `source`, written over `frame`. A few are cut off, changed at random, or not IP.
pub fn write(frame: &mut Vec<u8>, source: u128, random: &mut Random) {
    frame.clear();
    frame.extend([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    let tags = random.pick(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 5, 6]);
    for _ in 0..tags {
        frame.extend(random.pick(&[[0x81, 0x00], [0x88, 0xa8], [0x91, 0x00]]));
        frame.extend((random.number() as u16).to_be_bytes());
    }
    if random.chance(1) {
        frame.extend(random.pick(&[[0x08, 0x06], [0x88, 0xcc], [0x00, 0x26], [0x88, 0x47]]));
        frame.extend([0; 46]);
        return;
    }
    let payload = random.pick(&[0, 8, 18, 40, 100, 500, 1300]) + random.below(40) as usize;
    let v4 = source >> 32 == super::packet::MAPPED >> 32;
    let mapped_in_v6 = v4 && random.chance(2);
    if v4 && !mapped_in_v6 {
        ipv4(frame, source as u32, payload, random);
    } else {
        // The host in its /64 is any.
        let host = if v4 { 0 } else { u128::from(random.number()) };
        ipv6(frame, source | host, payload, random);
    }
    if random.chance(3) {
        frame.truncate(14 + random.below(60) as usize);
    }
    if random.chance(2) {
        let at = random.below(60.min(frame.len() as u64)) as usize;
        frame[at] = random.number() as u8;
    }
}

/// Ports that a class may begin or end at; most packets go to one of them, or to the next one.
pub const PORTS: [u16; 12] = [1, 50, 53, 60, 80, 443, 1000, 1500, 1600, 2000, 8080, 65_535];

/// What lies above IP, `length` bytes of it.
fn upper(frame: &mut Vec<u8>, protocol: u8, length: usize, random: &mut Random) {
    let start = frame.len();
    if matches!(protocol, 4 | 41) {
        // Of IP in IP, sometimes not what the tunnel's header says, and cut off if there are options.
        let from = source(random.pick(&NETWORKS), random.number(), false);
        let mut inner = Vec::new();
        if (protocol == 4) == random.chance(97) {
            ipv4(&mut inner, from as u32, length.saturating_sub(20), random);
        } else {
            ipv6(&mut inner, 0xfd << 120 | from, length.saturating_sub(40), random);
        }
        frame.extend(inner.iter().skip(2).take(length));
        return;
    }
    frame.resize(start + length, random.number() as u8);
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(place) = frame.get_mut(start + at..start + at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    };
    if matches!(protocol, 6 | 17) && !random.chance(3) {
        let near = random.pick(&[0, 0, 0, 1, u16::MAX]);
        let port = random.pick(&PORTS).wrapping_add(near);
        let from = random.pick(&[40_000, 40_000, 40_000, 39, 40, 53, 61]);
        put(0, &u16::to_be_bytes(from));
        put(2, &port.to_be_bytes());
    }
    if matches!(protocol, 1 | 58) {
        put(0, &random.pick(&[[8, 0], [8, 1], [3, 4], [3, 3], [128, 0], [128, 7], [0, 0]]));
    }
    if protocol == 6 {
        let flags = random.pick(&[0x02, 0x02, 0x12, 0x10, 0x10, 0x18, 0x11, 0x04, 0xc2, 0]);
        put(13, &[if random.chance(5) { random.number() as u8 } else { flags }]);
    }
}

fn ipv4(frame: &mut Vec<u8>, source: u32, payload: usize, random: &mut Random) {
    let options = if random.chance(10) { random.below(11) as usize * 4 } else { 0 };
    let total = (20 + options + payload) as u16;
    // A lie about the length, now and then.
    let total = if random.chance(2) { random.number() as u16 } else { total };
    frame.extend([0x08, 0x00, 0x45 + (options / 4) as u8, 0]);
    frame.extend(total.to_be_bytes());
    frame.extend([0, 1]);
    frame.extend(fragment(random).to_be_bytes());
    let protocol =
        random.pick(&[6, 6, 6, 6, 6, 6, 17, 17, 17, 17, 1, 1, 2, 4, 41, 47, 50, 132, 255]);
    frame.extend([64, protocol, 0, 0]);
    frame.extend(source.to_be_bytes());
    frame.extend(random.pick(&[[192, 0, 2, 1], [203, 0, 113, 7], [203, 0, 113, 8]]));
    frame.resize(frame.len() + options, 1);
    upper(frame, protocol, payload, random);
}

fn ipv6(frame: &mut Vec<u8>, source: u128, payload: usize, random: &mut Random) {
    let protocol = random
        .pick(&[6, 6, 6, 6, 6, 17, 17, 17, 58, 58, 4, 41, 47, 50, 59, 0, 43, 44, 51, 60, 135]);
    let mut extensions = Vec::new();
    let mut first = protocol;
    // Up to the nine that are too many, seldom.
    let longest = if random.chance(10) { 10 } else { 3 };
    for _ in 0..if random.chance(25) { random.below(longest) } else { 0 } {
        let kind = random.pick(&[0, 43, 44, 51, 60, 135, 139, 140]);
        let mut header = vec![random.number() as u8; 8];
        header[0] = first;
        header[1] = 0;
        match kind {
            // First fragments, whole packets and later fragments.
            44 => header[2..4].copy_from_slice(&random.pick(&[1u16, 0, 0, 1 << 3]).to_be_bytes()),
            51 => {
                header[1] = random.below(4) as u8;
                header.resize(8 + 4 * usize::from(header[1]), 7);
            }
            _ if random.chance(20) => {
                header[1] = 1;
                header.resize(16, 7);
            }
            _ => {}
        }
        extensions = [header, extensions].concat();
        first = kind;
    }
    let length = (extensions.len() + payload) as u16;
    let length = if random.chance(2) { random.number() as u16 } else { length };
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend(length.to_be_bytes());
    frame.extend([first, 64]);
    frame.extend(source.to_be_bytes());
    let to: u128 = random.pick(&[
        0x2001_0db8_0000_0001 << 64 | 1,
        0x2001_0db8_0000_0002 << 64 | 1,
        0x64_ff9b << 96 | 0xcb00_7107,
    ]);
    frame.extend(to.to_be_bytes());
    frame.extend(extensions);
    upper(frame, protocol, payload, random);
}

/// An IPv4 header's word of flags and offset.
fn fragment(random: &mut Random) -> u16 {
    match random.below(20) {
        0 => 0x2000,
        1 => 0x2000 | random.below(180) as u16,
        2 => random.below(180) as u16,
        _ => 0x4000,
    }
}
