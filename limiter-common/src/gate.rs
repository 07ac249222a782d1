//! The gate between the sketch and the bucket table: who deserves a bucket, and what it owes.
//!
//! A source whose estimate stays under its gate passes without a bucket. The gate is so small that
//! such a source cannot exceed its limit (P2 allows `max(2, burst / 8)` once per promotion):
//!
//! * `gate ≤ burst / 8`: what passed uncounted is a small part of the burst;
//! * `2·(gate − 1) ≤ rate · window`: over longer times the bucket earns at least what passes.
//!
//! A source whose estimate is not under its gate may have sent next to nothing, where a flood fills the
//! sketch. The first packet that it sends in an epoch passes then too, without a bucket, if the gate is 2 at least:
//! that keeps to the same bounds, as no epoch lets more than `gate − 1` packets pass, and no moment between two of
//! them more than `gate`.
//!
//! A promoted source's bucket is charged only what it provably owes (P1): the packets of the present
//! epoch that cannot be other sources' noise, as if all had come at the earliest moment they can
//! have come. What is not charged is at most the gate.

use crate::sketch::{Estimate, MAX_PREVIOUS, Shape};

/// No gate is larger. Sources faster than this many packets in a window always get a bucket.
pub const MAX_GATE: u32 = 16;

// An estimate below the gate is exact only if a cell remembers as much of the epoch before.
const _: () = assert!(MAX_PREVIOUS == MAX_GATE - 1);

/// The smallest frame a source can have sent, for charging bytes: an Ethernet and an IPv4 header.
pub const MIN_FRAME: u32 = 34;

/// log2 of how unlikely it must be, whatever others send, that noise is charged to a source: with
/// probability 2⁻¹⁶ per promotion.
const NOISE_DOUBT: u32 = 16;

/// The gate for a limit with a bucket of `burst` and earning `per_window` packets in a window, both
/// in packets of the largest size. 1 means: a bucket at once.
pub fn gate(burst: u64, per_window: u64) -> u32 {
    (burst / 8).min(1 + per_window / 2).clamp(1, u64::from(MAX_GATE)) as u32
}

/// Whether a packet passes without a bucket: by the estimate with it, or as the `first` of its source in this
/// epoch.
#[inline(always)]
pub const fn passes(estimate: Estimate, first: bool, gate: u32) -> bool {
    estimate.window < gate || (first && gate >= 2)
}

/// How much of an estimate may be other sources': `total` packets of the epoch over the sketch's
/// columns, times a margin, rounded down: an overcharge takes one packet more than that, in every row.
/// `lag` bounds what `total` has not heard of yet.
///
/// By Markov's inequality a cell exceeds k times its mean noise with probability ≤ 1/k, all d rows with
/// ≤ k⁻ᵈ. So the fewer the rows, the larger the margin: 256 for two, 16 for four.
#[inline(always)]
pub const fn noise(total: u32, lag: u32, shape: Shape) -> u32 {
    let margin_log2 = NOISE_DOUBT.div_ceil(if shape.depth == 0 { 1 } else { shape.depth });
    let shift = shape.mask.count_ones().saturating_sub(margin_log2) & 31;
    ((total as u64 + lag as u64) >> shift) as u32
}

/// How many packets a source owes that gets a bucket.
///
/// `estimate` includes the packet at hand, which is judged (and charged) afterwards; `others` is noise plus what other CPUs
/// may charge by themselves.
#[inline(always)]
pub fn owed(estimate: Estimate, others: u32) -> u64 {
    let owed = estimate.current.saturating_sub(1).saturating_sub(others);
    // A promotion happens when a count reaches the gate; far more is noise, or a table that was
    // full. The bound keeps products small.
    u64::from(owed.min(MAX_GATE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_follow_burst_and_rate() {
        // 1000 pps, burst 2000, 134 ms: the cap.
        assert_eq!(gate(2000, 134), 16);
        // The burst decides.
        assert_eq!(gate(64, 1000), 8);
        // The rate decides: 30 pps earn 4 in a window.
        assert_eq!(gate(2000, 4), 3);
        // Too slow or too small: a bucket at once.
        assert_eq!(gate(2000, 1), 1);
        assert_eq!(gate(3, 1000), 1);
        assert_eq!(gate(0, 0), 1);
    }

    #[test]
    fn noise_is_silent_below_what_the_margin_makes_a_packet() {
        let four = Shape { mask: (1 << 16) - 1, depth: 4 };
        assert_eq!(noise(4_000, 95, four), 0);
        assert_eq!(noise(4_000, 96, four), 1);
        assert_eq!(noise(65_536, 0, four), 16);
        assert_eq!(noise(3, 0, Shape { mask: 7, depth: 4 }), 3);
        let two = Shape { mask: (1 << 17) - 1, depth: 2 };
        assert_eq!((noise(511, 0, two), noise(512, 0, two)), (0, 1));
    }

    #[test]
    fn what_is_owed_is_no_noise_and_not_the_packet_at_hand() {
        let sixteen = Estimate { window: 16, current: 16, first: 0 };
        assert_eq!([0, 10, 15, 16].map(|others| owed(sixteen, others)), [15, 5, 0, 0]);
        // More than the gate is not the source's.
        assert_eq!(owed(Estimate { window: 100, current: 100, first: 0 }, 0), 16);
        assert_eq!(owed(Estimate { window: 1, current: 1, first: 0 }, 0), 0);
    }
}
