//! Packets of a file as requests of their sources.

use std::collections::HashMap;
use std::io::BufRead;

use limiter_common::gcra::{TICKS_PER_NS, Ticks};
use limiter_common::packet::sender_of;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, PcapError};

/// What a pcapng file begins with, in either byte order.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// The longest time that a file may span, ns: a year.
// No capture lasts as long, and times that are far beyond it would not fit into a clock of ticks.
const MAX_SPAN_NS: u128 = 365 * 86_400 * 1_000_000_000;

/// Why the packets of a file cannot be judged.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// It is no file of packets, or ends within one.
    #[error("it is no whole pcap or pcapng file")]
    Malformed(#[from] PcapError),
    /// It cannot be read.
    #[error("it cannot be read")]
    Unreadable(#[from] std::io::Error),
    /// Frames that are not Ethernet's.
    #[error("its frames are {0:?}, not ETHERNET")]
    Link(DataLink),
    /// No packet that has a source.
    #[error("it has no IP packet with a time")]
    Empty,
    /// Times that cannot be true.
    #[error("its packets are more than a year apart")]
    Span,
}

/// Reads pcap or pcapng: the times of each source's packets, the first packet of all at 0; who sent most comes first.
///
/// # Errors
/// A file that has no Ethernet frames with IP, or is damaged.
pub fn read(mut input: impl BufRead) -> Result<Vec<Vec<Ticks>>, CaptureError> {
    let mut sources: HashMap<_, Vec<u128>> = HashMap::new();
    let mut add = |ns, source| {
        if let Some(source) = source {
            sources.entry(source).or_default().push(ns);
        }
    };
    let ethernet = |link| match link {
        DataLink::ETHERNET => Ok(()),
        link => Err(CaptureError::Link(link)),
    };
    if input.fill_buf()?.starts_with(&PCAPNG) {
        let mut reader = PcapNgReader::new(input)?;
        while let Some(block) = reader.next_block() {
            let Block::EnhancedPacket(packet) = block? else { continue };
            let (id, units) = (packet.interface_id, packet.timestamp.as_nanos());
            let source = sender_of(&*packet.data);
            let interface = reader.interfaces().get(id as usize);
            let interface = interface.ok_or(PcapError::InvalidInterfaceId(id))?;
            ethernet(interface.linktype)?;
            let resolution = interface.options.iter().find_map(|option| match option {
                InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
                _ => None,
            });
            // The library takes all times for nanoseconds; the format has microseconds unless it says otherwise.
            add(nanoseconds(units, resolution.unwrap_or(6)), source);
        }
    } else {
        let mut reader = PcapReader::new(input)?;
        ethernet(reader.header().datalink)?;
        while let Some(packet) = reader.next_packet() {
            let packet = packet?;
            add(packet.timestamp.as_nanos(), sender_of(&*packet.data));
        }
    }
    let all = || sources.values().flatten();
    let (Some(first), Some(last)) = (all().min().copied(), all().max().copied()) else {
        return Err(CaptureError::Empty);
    };
    if last - first > MAX_SPAN_NS {
        return Err(CaptureError::Span);
    }
    let mut traces: Vec<_> = sources.into_iter().collect();
    // By address where they sent alike: a map has no order, and the same file is to give the same figures.
    traces.sort_by_key(|(source, times)| (std::cmp::Reverse(times.len()), *source));
    let ticks = |mut times: Vec<u128>| {
        // Interfaces, and the CPUs of one, write their packets in no common order.
        times.sort_unstable();
        times.iter().map(|ns| (ns - first) as Ticks * TICKS_PER_NS).collect()
    };
    Ok(traces.into_iter().map(|(_, times)| ticks(times)).collect())
}

/// A time in units of 10^-`resolution` s, or of 2^ where the highest bit is set.
fn nanoseconds(units: u128, resolution: u8) -> u128 {
    let exponent = u32::from(resolution & 0x7f);
    let base: u128 = if resolution & 0x80 == 0 { 10 } else { 2 };
    // Units of 64 bits times 10^9 fit; a unit that is too small to count makes all times 0.
    base.checked_pow(exponent).map_or(0, |per_second| units * 1_000_000_000 / per_second)
}
