//! Samples of packets, for whoever wants to see some: which ones, and how they are handed over.
//!
//! The program looks at one word that is at hand anyway ([`asked_for`]). Only while somebody captures, and
//! for the reasons that were asked for, does it go on to a second program, which copies the packet into a
//! ring buffer if it is of the wanted sources and its turn has come.

use crate::abi::Reason;
use crate::atomic::{self, AtomicU64};
use crate::key::SourceKey;
use core::mem::{offset_of, size_of};

/// The most bytes that are copied of a packet.
pub const MAX_BYTES: usize = 256;

/// Samples that may follow one another at once.
const BURST: u64 = 64;

/// The size of the ring buffer in bytes: about 1800 samples.
pub const RING_BYTES: u32 = 512 * 1024;

/// [`crate::abi::Config::sampled`] for some reasons.
pub fn asking(reasons: impl IntoIterator<Item = Reason>) -> u64 {
    reasons.into_iter().fold(0, |bits, reason| bits | 1 << reason as u32)
}

/// Whether samples are wanted of packets that met `reason`, by [`crate::abi::Config::sampled`].
#[inline(always)]
pub const fn asked_for(sampled: u64, reason: Reason) -> bool {
    sampled >> reason as u32 & 1 != 0
}

/// Which samples are wanted. One element; the daemon writes all but `next_ns` before it asks for any.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Sampling {
    /// Upper half of the bits that an address must have in common with `high` and `low`; 0 for any.
    pub mask_high: AtomicU64,
    /// Lower half of the bits that count.
    pub mask_low: AtomicU64,
    /// Upper half of the address.
    pub high: AtomicU64,
    /// Lower half.
    pub low: AtomicU64,
    /// Time between two samples, ns.
    pub interval_ns: AtomicU64,
    /// Bytes wanted of each, 1 to [`MAX_BYTES`].
    pub bytes: AtomicU64,
    /// When the next sample is due, ns since boot.
    pub next_ns: AtomicU64,
    /// Of 2^32 packets that are wanted, how many are taken, by chance; 0 for all of them.
    pub keep: AtomicU64,
}

impl Sampling {
    /// Whether samples are wanted from a source, `None` if it is unknown.
    #[inline(always)]
    pub fn wants(&self, source: Option<SourceKey>) -> bool {
        let (mask_high, mask_low) = (atomic::load(&self.mask_high), atomic::load(&self.mask_low));
        if mask_high | mask_low == 0 {
            return true;
        }
        // Without a readable source a packet can only be asked for by its reason.
        let Some(source) = source else { return false };
        (source.high ^ atomic::load(&self.high)) & mask_high == 0
            && (source.low ^ atomic::load(&self.low)) & mask_low == 0
    }

    /// Whether a packet is among those that are taken, by a random number.
    #[inline(always)]
    // Chance, for statistics: turns by the clock go to the first packets of each tick, which are
    // no fair sample.
    pub fn keeps(&self, random: u32) -> bool {
        let keep = atomic::load(&self.keep);
        keep == 0 || u64::from(random) < keep
    }

    /// Whether a sample's turn has come, and takes it. By the coarse clock, since it is asked for every
    /// packet that is wanted: of a flood, the first ones of each tick are taken.
    #[inline(always)]
    pub fn takes(&self, coarse_ns: u64) -> bool {
        let interval = atomic::load(&self.interval_ns);
        let due = atomic::load(&self.next_ns);
        if due > coarse_ns {
            return false;
        }
        // Turns that nobody took are kept, but not for long: a capture that begins to see packets
        // must not take them all.
        let saved = coarse_ns.saturating_sub(interval.wrapping_mul(BURST));
        let next = if due < saved { saved } else { due } + interval;
        atomic::replace(&self.next_ns, due, next)
    }
}

/// A record of the ring buffer.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Sample {
    /// When, ns since boot.
    pub time_ns: u64,
    /// A [`Reason`].
    pub reason: u32,
    /// Bytes of the packet.
    pub length: u32,
    /// Bytes of it that follow.
    pub captured: u32,
    /// The interface that it came by.
    pub ifindex: u32,
    /// A [`crate::abi::LinkKind`].
    pub link_kind: u32,
    /// To eight bytes.
    pub padding: u32,
    /// Those bytes; what is behind them means nothing.
    pub data: [u8; MAX_BYTES],
}

const _: () = assert!(
    size_of::<Sampling>() == 64 && size_of::<Sample>() == 288 && offset_of!(Sample, data) == 32
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_reasons_that_were_asked_for() {
        let sampled = asking([Reason::OverLimit, Reason::NonIp, Reason::OverLimit]);
        for reason in Reason::ALL {
            let wanted = matches!(reason, Reason::OverLimit | Reason::NonIp);
            assert_eq!(asked_for(sampled, reason), wanted, "{reason:?}");
            assert!(!asked_for(asking([]), reason));
        }
    }

    #[test]
    fn only_the_sources_that_were_asked_for() {
        let sampling = Sampling::default();
        let [inside, outside] = [[192, 0, 2, 7], [192, 0, 3, 7]].map(SourceKey::from_ipv4);
        assert!(sampling.wants(None) && sampling.wants(Some(inside)));
        let sampling = Sampling {
            mask_high: u64::MAX.into(),
            mask_low: (!0xff).into(),
            high: inside.high.into(),
            low: (inside.low & !0xff).into(),
            ..Sampling::default()
        };
        assert!(sampling.wants(Some(inside)) && !sampling.wants(Some(outside)));
        assert!(!sampling.wants(None));
    }

    #[test]
    fn chance_takes_the_share_that_was_asked_for() {
        let sampling = Sampling::default();
        assert!(sampling.keeps(0) && sampling.keeps(u32::MAX));
        let half = Sampling { keep: (1 << 31).into(), ..Sampling::default() };
        assert!(half.keeps(0) && half.keeps((1 << 31) - 1) && !half.keeps(1 << 31));
    }

    #[test]
    fn samples_keep_to_their_rate() {
        let sampling = Sampling { interval_ns: 1_000_000.into(), ..Sampling::default() };
        let mut taken = 0;
        for packet in 0..1_000_000u64 {
            // A million packets in a second, by a clock that ticks each 4 ms.
            let now = 10_000_000_000 + packet * 1000;
            taken += u64::from(sampling.takes(now - now % 4_000_000));
        }
        assert!((1000..=1000 + BURST + 4).contains(&taken), "{taken}");
    }
}
