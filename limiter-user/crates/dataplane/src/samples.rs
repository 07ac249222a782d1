//! Samples of packets: asks the kernel program for some, and reads them.

use std::sync::Arc;

use model::sample::{PacketSample, SampleFilter};

use aya::Ebpf;
use aya::maps::{MapData, RingBuf};
use limiter_common::abi::{LinkKind, Reason};
use limiter_common::atomic;
use limiter_common::packet::{Bytes, sender_of};
use limiter_common::sampling::{MAX_BYTES, Sample, Sampling, asking};

use super::error::Error;
use super::memory::Elements;
use super::sources::{key_of, mask_of};
use super::view::{Memory, Now};
use super::{elements, take};

/// The way to samples. It knows no limits: with those each sample is explained later.
pub struct Sampler {
    memory: Arc<Memory>,
    control: Elements<Sampling>,
    ring: RingBuf<MapData>,
}

impl Sampler {
    pub(super) fn new(ebpf: &mut Ebpf, memory: Arc<Memory>) -> Result<Self, Error> {
        let control = elements(ebpf, "SAMPLING")?;
        let ring = take(ebpf, "SAMPLES")?;
        let mut sampler = Self { memory, control, ring };
        // A daemon may have died while somebody captured.
        sampler.stop_sampling();
        Ok(sampler)
    }

    /// Lets the kernel program take samples of packets, and forgets earlier ones.
    pub fn start_sampling(&mut self, filter: &SampleFilter) {
        self.stop_sampling();
        // What is left of an earlier capture.
        while self.ring.next().is_some() {}
        let Some(control) = self.control.all().first() else { return };
        // As the kernel program compares: both halves of a key, of which an IPv4 address is the
        // end.
        let (mask, key) = match filter.source {
            Some(net) => (mask_of(net), key_of(net.addr()).octets()),
            None => (0, [0; 16]),
        };
        let key = u128::from_be_bytes(key);
        for (word, value) in [
            (&control.mask_high, (mask >> 64) as u64),
            (&control.mask_low, mask as u64),
            (&control.high, (key >> 64) as u64),
            (&control.low, key as u64),
            (&control.interval_ns, 1_000_000_000 / u64::from(filter.rate.max(1))),
            (&control.bytes, u64::from(filter.snaplen).min(MAX_BYTES as u64)),
            (&control.next_ns, 0),
            (&control.keep, keep(filter.share)),
        ] {
            atomic::store(word, value);
        }
        // The filter before the word that lets packets ask for it.
        atomic::store(&self.memory.config().sampled, asking(filter.reasons.iter().copied()));
    }

    /// Ends that.
    pub fn stop_sampling(&mut self) {
        atomic::store(&self.memory.config().sampled, asking([]));
    }

    /// Visits up to `most` samples that have come.
    pub(super) fn visit(&mut self, most: usize, visit: &mut dyn FnMut(PacketSample)) {
        let now = Now::take();
        for _ in 0..most {
            let Some(item) = self.ring.next() else { return };
            if let Some(sample) = parse(&item, now) {
                visit(sample);
            }
        }
    }
}

/// [`Sampling::keep`] for a share of all packets.
fn keep(share: f64) -> u64 {
    const ALL: f64 = (1u64 << 32) as f64;
    // A tiny share is not all of them.
    if share < 1.0 { ((share * ALL) as u64).max(1) } else { 0 }
}

/// Reads a record of the ring buffer.
fn parse(bytes: &[u8], now: Now) -> Option<PacketSample> {
    let half = |at: usize| -> Option<u32> {
        Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
    };
    let time_ns = u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?);
    let start = std::mem::offset_of!(Sample, data);
    // The record is as long as the longest sample. What lies behind the captured bytes is left of
    // others.
    let captured = (half(16)? as usize).min(MAX_BYTES);
    let data = bytes.get(start..start + captured)?.to_vec();
    let starts_at_ip = half(24)? == LinkKind::Ip as u32;
    let source = sender_of(&Bytes { bytes: &data, starts_at_ip });
    let source = source.map(|source| source.address());
    Some(PacketSample {
        time: now.wall(time_ns),
        reason: Reason::from_u32(half(8)?),
        length: half(12)?,
        ifindex: half(20)?,
        source,
        limit: None,
        starts_at_ip,
        data,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_read_as_the_kernel_writes_it() {
        let mut bytes = 7u64.to_ne_bytes().to_vec();
        for half in [Reason::OverLimit as u32, 1000, 3, 5, 0, 0] {
            bytes.extend(half.to_ne_bytes());
        }
        bytes.extend([1; MAX_BYTES]);
        let sample = parse(&bytes, Now::take()).unwrap();
        assert_eq!((sample.reason, sample.length, sample.ifindex), (Reason::OverLimit, 1000, 5));
        assert_eq!((sample.data, sample.source), (vec![1; 3], None));
        assert!(parse(&bytes[..26], Now::take()).is_none());
    }

    #[test]
    fn a_share_is_out_of_two_to_the_32() {
        assert_eq!([1.0, 0.5, 1e-12].map(keep), [0, 1 << 31, 1]);
    }
}
