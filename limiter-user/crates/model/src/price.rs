//! What it costs to disarm a limit: the forged packets a second that hold every bucket it may have.
//!
//! A bucket is held as long as it owes something, if its source has more than [`CHEAP`] packets admitted or one denied
//! ([`limiter_common::table`]). So a forged source must send k = max(gate, min(CHEAP + 1, burst + 1)) packets, of which
//! min(k, burst) are admitted, and its bucket is held for as long as the limit takes to earn those. Holding one
//! bucket then costs rate · k / min(k, burst) packets a second. A limit of gate 1 may have six of eight buckets.

use limiter_common::table::{CHEAP, SPARED, WAYS};

use crate::limit::FULL_FRAME;
use crate::{Limit, Unit};

/// A limit, and how many buckets its sources hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Holder {
    /// The limit.
    pub limit: Limit,
    /// Buckets that no other source gets.
    pub buckets: u64,
}

/// Forged packets a second that hold every bucket which sources under `limit`, of this `gate`, may have in a table of
/// `capacity` buckets.
#[must_use]
pub fn price(limit: &Limit, gate: u32, capacity: u32) -> f64 {
    let tier = limit.tier();
    // Of a byte limit, the frame that holds a bucket the longest.
    let size = if tier.rate.unit() == Unit::Bytes { FULL_FRAME as f64 } else { 1.0 };
    let rate = tier.rate.amount() as f64 / size / (tier.rate.period_ns() as f64 / 1e9);
    let burst = (tier.burst as f64 / size).max(1.0);
    let packets = f64::from(gate).max((CHEAP as f64 + 1.0).min(burst + 1.0));
    let ways = if gate > 1 { WAYS } else { WAYS - SPARED };
    f64::from(capacity) * f64::from(ways) / f64::from(WAYS) * rate * packets / packets.min(burst)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Target;

    fn limit(rate: &str, burst: u64) -> Limit {
        let limit = Limit::new(Target::DEFAULT, rate.parse().unwrap(), None).unwrap();
        crate::Amount { burst, ..limit.amount }.of(limit.target)
    }

    #[test]
    fn a_slow_limit_is_cheap_to_disarm() {
        let cost = |rate, burst, gate| price(&limit(rate, burst), gate, 1 << 19).round() as u64;
        // Six of eight buckets, each for 12 s a packet, or for 60.
        assert_eq!(cost("5/minute", 5, 1), 32_768);
        assert_eq!(cost("1/minute", 3, 1), 6_554);
        // One admitted and one denied packet each.
        assert_eq!(cost("1/minute", 1, 1), 13_107);
        assert_eq!(cost("1/hour", 1, 1), 218);
        assert_eq!(cost("1000pps", 2000, 16), 524_288_000);
        assert_eq!(cost("1514byte/s", 15140, 1), 393_216);
    }
}
