//! What a network driver says of itself and its device: the `SIOCETHTOOL` requests.

use std::ffi::c_char;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

// Requests of linux/ethtool.h, and sets of strings.
const GDRVINFO: u32 = 0x03;
const GSTRINGS: u32 = 0x1b;
const GSTATS: u32 = 0x1d;
const GSSET_INFO: u32 = 0x37;
const GFEATURES: u32 = 0x3a;
const GCHANNELS: u32 = 0x3c;
const GRXFH: u32 = 0x29;
const STATISTICS: u32 = 1;
const FEATURES: u32 = 4;

/// UDP over IPv4, and what its queue may depend on: source address, destination address, the ports' halves.
const UDP_V4_FLOW: u32 = 2;
const HASHED_SOURCE: u32 = 1 << 4;
const HASHED: u32 = 0b1111 << 4;

/// Length of a name in a set of strings.
const NAME: usize = 32;

/// Room for what a driver may add between the questions how much there is and what it is.
// Kernels copy as many as there are now, whatever was asked for: without room that would be beyond
// the buffer.
const SLACK: usize = 256;

/// Receive queues with an interrupt of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    /// In use.
    pub receive: u32,
    /// That the device could have.
    pub most: u32,
}

/// The driver of one interface.
pub struct Ethtool {
    socket: UnixDatagram,
    name: [c_char; libc::IFNAMSIZ],
}

impl Ethtool {
    /// Prepares to ask about `interface`, in this thread's network namespace.
    pub fn new(interface: &str) -> io::Result<Self> {
        let mut name = [0; libc::IFNAMSIZ];
        // One byte stays zero.
        for (to, from) in name[..libc::IFNAMSIZ - 1].iter_mut().zip(interface.bytes()) {
            *to = from.cast_signed() as c_char;
        }
        // Any socket takes the request. One of this family exists also in a sandbox without IP.
        Ok(Self { socket: UnixDatagram::unbound()?, name })
    }

    /// Asks with `buffer`, whose first word is the request; the answer is in it then.
    fn ask(&self, buffer: &mut [u32]) -> io::Result<()> {
        // SAFETY: all-zero bytes are a valid ifreq.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_name = self.name;
        request.ifr_ifru.ifru_data = buffer.as_mut_ptr().cast();
        // SAFETY: the request and the buffer outlive the call; callers make the buffer as long as
        // the answer can get.
        let result = unsafe {
            libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The driver's name.
    pub fn driver(&self) -> Option<String> {
        // struct ethtool_drvinfo has 196 bytes, the name after the request.
        let mut buffer = [0; 49];
        buffer[0] = GDRVINFO;
        self.ask(&mut buffer).ok()?;
        Some(text(&buffer[1..9])).filter(|name| !name.is_empty())
    }

    /// The receive queues; `None` if the driver does not tell.
    pub fn channels(&self) -> Option<Channels> {
        let mut buffer = [0; 9];
        buffer[0] = GCHANNELS;
        self.ask(&mut buffer).ok()?;
        let [_, most_receive, _, _, most_combined, receive, _, _, combined] = buffer;
        // Drivers have queues of one kind or of both: some count combined ones alone, older ones
        // the others.
        Some(Channels { receive: receive + combined, most: most_receive.max(most_combined) })
            .filter(|channels| channels.receive > 0)
    }

    /// Whether the receive queue of a UDP packet over IPv4 depends on its source address alone; `None` if the driver does not
    /// tell.
    pub fn hashes_by_source(&self) -> Option<bool> {
        // struct ethtool_rxnfc has 192 bytes, of 64-bit words: the request, the kind of flow, what is hashed.
        let mut buffer = [0; 48];
        (buffer[0], buffer[1]) = (GRXFH, UDP_V4_FLOW);
        self.ask(&mut buffer).ok()?;
        let hashed = buffer[if cfg!(target_endian = "little") { 2 } else { 3 }] & HASHED;
        Some(hashed == HASHED_SOURCE)
    }

    /// The offloads that are on, by their names in the kernel (`rx-lro`); `None` if the kernel does
    /// not tell.
    pub fn features(&self) -> Option<Vec<String>> {
        let names = self.names(FEATURES).ok()?;
        let blocks = names.len().div_ceil(32);
        // Of each block of 32: available, requested, active, never changed.
        let mut buffer = vec![0; 2 + 4 * blocks];
        buffer[0] = GFEATURES;
        buffer[1] = u32::try_from(blocks).ok()?;
        self.ask(&mut buffer).ok()?;
        let active = |bit: usize| buffer[2 + 4 * (bit / 32) + 2] >> (bit % 32) & 1 == 1;
        let on =
            names.into_iter().enumerate().filter(|(bit, name)| !name.is_empty() && active(*bit));
        Some(on.map(|(_, name)| name).collect())
    }

    /// The driver's own counters.
    pub fn statistics(&self) -> Vec<(String, u64)> {
        // A driver without any answers with an error.
        self.read_statistics().unwrap_or_default()
    }

    fn read_statistics(&self) -> io::Result<Vec<(String, u64)>> {
        // Names first, values later: queues that are added in between make the values more, which
        // there is room for, and of which only those with a name are taken.
        let names = self.names(STATISTICS)?;
        let mut buffer = vec![0; 2 + 2 * (names.len() + SLACK)];
        buffer[0] = GSTATS;
        buffer[1] = u32::try_from(names.len()).map_err(io::Error::other)?;
        self.ask(&mut buffer)?;
        let values = buffer[2..].chunks_exact(2).map(|halves| {
            // By halves: memory of 32-bit words need not be aligned for 64 bits.
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&halves[0].to_ne_bytes());
            bytes[4..].copy_from_slice(&halves[1].to_ne_bytes());
            u64::from_ne_bytes(bytes)
        });
        Ok(names.into_iter().zip(values).collect())
    }

    fn names(&self, set: u32) -> io::Result<Vec<String>> {
        // Request, reserved, a 64-bit mask of sets, the length of the set if there is one.
        let mut buffer = [GSSET_INFO, 0, 0, 0, 0];
        buffer[if cfg!(target_endian = "little") { 2 } else { 3 }] = 1 << set;
        self.ask(&mut buffer)?;
        let count = if buffer[2] | buffer[3] == 0 { 0 } else { buffer[4] };
        let words = NAME / size_of::<u32>();
        let length = usize::try_from(count).map_err(io::Error::other)?;
        let mut buffer = vec![0; 3 + words * (length + SLACK)];
        buffer[..3].copy_from_slice(&[GSTRINGS, set, count]);
        self.ask(&mut buffer)?;
        Ok(buffer[3..].chunks_exact(words).take(length).map(text).collect())
    }
}

/// The text in some words, up to its first zero byte.
fn text(words: &[u32]) -> String {
    let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_offloads_but_no_channels() {
        let loopback = Ethtool::new("lo").unwrap();
        let features = loopback.features().unwrap();
        assert!(features.iter().any(|name| name == "loopback"), "{features:?}");
        assert!(!features.iter().any(|name| name == "rx-lro"), "{features:?}");
        assert_eq!(loopback.channels(), None);
        assert_eq!(loopback.hashes_by_source(), None);
        assert!(loopback.statistics().is_empty());
    }

    #[test]
    fn a_missing_interface_says_nothing() {
        let nothing = Ethtool::new("nonsense0").unwrap();
        assert_eq!((nothing.driver(), nothing.features()), (None, None));
    }

    #[test]
    fn names_end_at_the_first_zero() {
        let words = [u32::from_ne_bytes(*b"veth"), u32::from_ne_bytes(*b"x\0y\0")];
        assert_eq!(text(&words), "vethx");
    }
}
