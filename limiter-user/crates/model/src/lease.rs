//! What a central store leases of a strict limit, and the promise that this keeps: see `docs/design/leases.md`.

use std::time::Duration;

use crate::limit::Tier;
use crate::meter::{self, Choice};
use crate::share::Share;

/// How long a lease lasts at the most.
pub const MAX_LEASE: Duration = Duration::from_secs(1);

/// For how many times the longest lease of a moment a source gets its rate beyond a window: what is leased, and what the
/// store keeps to lease.
const LEASES: u32 = 2;

/// How long that is at the most.
pub const BEYOND: Duration = MAX_LEASE.saturating_mul(LEASES);

/// What a host admits without a lease: a packet, and the next one after so many times its cost.
// The rate that the store leases is lower by what 64 hosts admit so.
pub const FLOOR: Share = Share::from_units(1 << 16);

/// A bucket under a share of the limit holds a packet, and so much of that share of the burst: 1/7.
// Not the half that the store leaves. While hosts take more than the rate out of the store their buckets hold more than
// those of one host could. With a seventh that stays within the burst: see the test below.
pub const LOCAL_PART: u64 = 7;

/// What the store keeps of its limit, for a host whose leases last so long.
#[must_use]
pub fn in_store(tier: &Tier, lease: Duration) -> meter::Limit {
    let (amount, period) = (tier.rate.amount(), tier.rate.period_ns());
    // Hosts that come for tokens twice in a lease are to find those that were earned since.
    let ahead = tier.rate.earned_in(lease.as_nanos() as u64 * 9 / 10) as u64;
    meter::Limit {
        algorithm: Choice::TokenBucket,
        requests: amount,
        window: Duration::from_nanos(period + period / 1_024),
        burst: Some(tier.burst / 2 + ahead),
        granularity: None,
    }
}

/// The most packets that all hosts together admit of a source in a time, beside one packet each.
#[must_use]
pub fn most(tier: &Tier, within: Duration) -> f64 {
    tier.burst as f64 + tier.rate.per_second() * (within + BEYOND).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The root of e^x - 1 - x = k.
    fn root(k: f64) -> f64 {
        let (mut low, mut high) = (0.0_f64, 40.0);
        for _ in 0..100 {
            let middle = (low + high) / 2.0;
            if middle.exp() - 1.0 - middle < k { low = middle } else { high = middle }
        }
        high
    }

    #[test]
    fn store_leases_and_buckets_together_hold_what_is_promised() {
        for burst in (0..200).map(|step| 0.0001 * 1.1_f64.powi(step)) {
            let (store, local) = (burst / 2.0 + 0.9, burst / LOCAL_PART as f64);
            let lease = MAX_LEASE.as_secs_f64();
            let held = store + lease + local * (1.0 + root((store + lease) / local));
            assert!(held <= burst + BEYOND.as_secs_f64(), "{burst}: {held}");
        }
    }

    #[test]
    fn the_store_leases_a_little_less_than_the_rate() {
        let tier = Tier::new("1000pps".parse().unwrap(), Some(1200)).unwrap();
        let kept = in_store(&tier, Duration::from_millis(200));
        assert_eq!((kept.requests, kept.burst), (1000, Some(780)));
        assert_eq!(in_store(&tier, MAX_LEASE).burst, Some(1500));
        assert_eq!(kept.window, Duration::from_nanos(1_000_976_562));
        assert_eq!(most(&tier, Duration::from_secs(1)), 4200.0);
    }
}
