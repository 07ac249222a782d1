//! What sources have offered, and whether that is enough for a ban.

use super::ban::Ban;
use super::limit::{Amount, Limit, Tier};
use super::target::Target;
use super::units::{Rate, Unit};
use limiter_common::evidence::Evidence;

impl Ban {
    /// Whether `offered` is as many times `limit` as it takes, in one of its units.
    pub fn is_reached(&self, limit: &Limit, offered: &Offered) -> bool {
        offered.excess(limit).1 >= self.factor.into()
    }

    /// Whether what a source has offered is known to be its own, by the samples of it that were looked up meanwhile:
    /// nobody can make a conforming source look like that by forging its address.
    pub fn is_proven(&self, limit: &Limit, offered: &Offered, evidence: &Evidence) -> bool {
        let (sampled, connected) = (u64::from(evidence.sampled), u64::from(evidence.connected));
        let Tier { rate, burst, .. } = limit.tier();
        let wide =
            |(a, b): (u64, u64), by: u64| u128::from(a) * u128::from(b) / u128::from(by.max(1));
        let own = wide((offered.of(rate.unit()), connected), sampled);
        let conforming = wide((MIN_OWN * rate.amount(), offered.ns), rate.period_ns());
        // Half, whatever is offered: of a flood with random ports some packets meet a connection of the
        // source by chance. And more than its burst and twice its rate, which its connections never send if it conforms,
        // and chance does not make of it with so many samples.
        sampled >= MIN_SAMPLED && 2 * connected >= sampled && own >= conforming + u128::from(burst)
    }

    /// Whether it has been so for long enough, to a tenth of a second: looks are a second apart, but
    /// not exactly.
    pub const fn is_due(&self, offered: &Offered) -> bool {
        offered.ns.saturating_add(SECOND_NS / 10) >= self.after as u64 * SECOND_NS
    }
}

/// Samples that a ban takes at the least.
const MIN_SAMPLED: u64 = 32;

/// How many times its rate a source's connections must send, beside its burst.
const MIN_OWN: u64 = 2;

/// Nanoseconds in a second.
const SECOND_NS: u64 = 1_000_000_000;

/// What samples of a source show, in words.
pub fn evidence_text(Evidence { sampled, connected }: Evidence) -> String {
    format!("{connected} of {sampled} samples belong to established TCP connections")
}

/// What a source has offered in some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    /// Packets.
    pub packets: u64,
    /// Bytes, from the Ethernet header on.
    pub bytes: u64,
    /// The time, ns.
    pub ns: u64,
}

impl Offered {
    /// This and what came after it.
    pub const fn and(&self, next: &Self) -> Self {
        Self {
            packets: self.packets.saturating_add(next.packets),
            bytes: self.bytes.saturating_add(next.bytes),
            ns: self.ns.saturating_add(next.ns),
        }
    }

    /// The time in seconds, rounded.
    pub const fn seconds(&self) -> u64 {
        self.ns.saturating_add(SECOND_NS / 2) / SECOND_NS
    }

    /// The rate of `limit` that was exceeded most, and how many whole times of it were offered.
    pub fn excess(&self, limit: &Limit) -> (Rate, u64) {
        let times = |tier: Tier| {
            // In whole numbers, without a division before the last step: a ban must not depend on
            // rounding.
            let earned = u128::from(tier.rate.amount()) * u128::from(self.ns);
            let offered = u128::from(self.of(tier.rate.unit()));
            let times = offered * u128::from(tier.rate.period_ns()) / earned.max(1);
            (tier.rate, u64::try_from(times).unwrap_or(u64::MAX))
        };
        let also = limit.also.map(times);
        let first = times(limit.tier());
        // One exceeded unit is enough: small packets exceed one limit, large ones the other.
        also.filter(|also| also.1 > first.1).unwrap_or(first)
    }

    const fn of(&self, unit: Unit) -> u64 {
        match unit {
            Unit::Packets => self.packets,
            Unit::Bytes => self.bytes,
        }
    }
}

/// How much must be offered in some time for the mildest of many bans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Least {
    packets: u64,
    bytes: u64,
}

impl Least {
    /// The least of those that `amounts` have, in a time of `ns`.
    pub fn new(amounts: impl Iterator<Item = Amount>, ns: u64) -> Self {
        let mut least = Self { packets: u64::MAX, bytes: u64::MAX };
        for amount in amounts {
            let Some(ban) = amount.ban else { continue };
            let limit = amount.of(Target::DEFAULT);
            for Tier { rate, .. } in limit.tiers() {
                let place = match rate.unit() {
                    Unit::Packets => &mut least.packets,
                    Unit::Bytes => &mut least.bytes,
                };
                // No rate is above 10^12 in a second, and no factor above 10^6.
                let earned = u128::from(rate.amount()) * u128::from(ban.factor);
                let needed = (earned * u128::from(ns)).div_ceil(u128::from(rate.period_ns()));
                *place = (*place).min(u64::try_from(needed).unwrap_or(u64::MAX));
            }
        }
        least
    }

    /// Whether so much is enough.
    pub const fn reached(&self, packets: u64, bytes: u64) -> bool {
        // Two comparisons for each of a million buckets; only who passes them has a limit looked
        // up.
        packets >= self.packets || bytes >= self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_a_flood_of_its_own_is_proven() {
        let limit = Limit::new(Target::DEFAULT, "100pps".parse().unwrap(), None).unwrap();
        let ban = Ban { after: 1, factor: 10, lasts: 1, unverified: false };
        for (times, sampled, connected, proven) in [
            (10, 40, 40, true),
            (10, 40, 20, true),
            // A conforming source, and nine times its limit in its name.
            (10, 400, 40, false),
            (10, 40, 19, false),
            // A sweep of ports, however large, which meets its connections now and then.
            (10_000, 40_000, 400, false),
            (10, 31, 31, false),
            (10, 0, 0, false),
            // Its connections must exceed the limit by themselves.
            // 120 packets at once, and twice 100.
            (4, 100, 79, false),
            (4, 100, 80, true),
            (3, 90, 90, false),
        ] {
            let offered = Offered { packets: 100 * times, bytes: 0, ns: SECOND_NS };
            let found = ban.is_proven(&limit, &offered, &Evidence { sampled, connected });
            assert_eq!(found, proven, "{times} {sampled} {connected}");
        }
        // Samples measure packets where packets are limited, so they prove nothing of bytes.
        let both = limit.and("8kbit".parse().unwrap(), None).unwrap();
        let evidence = Evidence { sampled: 40, connected: 40 };
        let offered = |packets| Offered { packets, bytes: 100_000, ns: SECOND_NS };
        assert!(!ban.is_proven(&both, &offered(50), &evidence));
        assert!(ban.is_proven(&both, &offered(320), &evidence));
    }

    proptest! {
        /// Whoever is to be banned is found by the cheap comparison.
        #[test]
        fn the_least_is_what_a_ban_takes(
            packets in 0u64..100_000, bytes in 0u64..10_000_000,
            rate in 1u64..5000, minutes: bool, kbits in prop::option::of(1u64..5000),
            factor in 1u32..50, ns in 500_000_000u64..5_000_000_000,
        ) {
            let text = format!("{rate}{}", if minutes { "/minute" } else { "pps" });
            let mut limit = Limit::new(Target::DEFAULT, text.parse().unwrap(), None).unwrap();
            if let Some(kbits) = kbits {
                limit = limit.and(format!("{kbits}kbit").parse().unwrap(), None).unwrap();
            }
            let ban = Ban { after: 1, factor, lasts: 1, unverified: false };
            limit = limit.banning(Some(ban)).unwrap();
            let reached = ban.is_reached(&limit, &Offered { packets, bytes, ns });
            let least = Least::new([limit.amount].into_iter(), ns);
            prop_assert_eq!(least.reached(packets, bytes), reached);
        }
    }
}
