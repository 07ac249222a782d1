//! Samples of packets.

use std::net::IpAddr;
use std::time::SystemTime;

use ipnet::IpNet;
use limiter_common::abi::Reason;
use limiter_common::packet::Bytes;

use crate::Limit;

/// Which samples are wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleFilter {
    /// Of packets that met these reasons.
    pub reasons: Vec<Reason>,
    /// Of packets from here only.
    pub source: Option<IpNet>,
    /// Samples in a second at the most, 1 to 1,000,000.
    pub rate: u32,
    /// Bytes of each, 1 to [`limiter_common::sampling::MAX_BYTES`].
    pub snaplen: u32,
    /// Of those packets the share that is taken, by chance, above 0 and at most 1.
    // The kernel's rate limit takes the first packets of each tick, which is no fair sample of a
    // flood.
    pub share: f64,
}

/// A packet, or its beginning.
#[derive(Clone, Debug)]
pub struct PacketSample {
    /// When it came.
    pub time: SystemTime,
    /// What it met.
    pub reason: Reason,
    /// How long it was, bytes.
    pub length: u32,
    /// The index of the interface that it came by.
    pub ifindex: u32,
    /// The source address that it has.
    pub source: Option<IpAddr>,
    /// The limit of its source at present; `None` where its class would have to be known.
    // Looked up when the sample is read: the kernel copies bytes of the packet and no more.
    pub limit: Option<Limit>,
    /// Whether its interface has no Ethernet.
    pub starts_at_ip: bool,
    /// Its first bytes, from the Ethernet header on if there is one, else from the IP header.
    pub data: Vec<u8>,
}

impl PacketSample {
    /// What was captured, to be read.
    #[must_use]
    pub fn frame(&self) -> Bytes<'_> {
        Bytes { bytes: &self.data, starts_at_ip: self.starts_at_ip }
    }
}
