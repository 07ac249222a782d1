use super::*;
use core::num::NonZeroU32;
use core::time::Duration;
use governor::clock::{Clock, FakeRelativeClock, Reference};
use governor::{Quota, RateLimiter};
use proptest::prelude::*;
use std::vec::Vec;

/// The plain token bucket in exact integer arithmetic: tokens × ns as i128, no TAT in sight.
struct Tokens {
    /// Tokens times `period`, so that a nanosecond adds exactly 1.
    scaled: i128,
    period: i128,
    burst: i128,
    last: i128,
}

impl Tokens {
    fn new(period: u64, burst: u64) -> Self {
        let (period, burst) = (i128::from(period), i128::from(burst));
        Self { scaled: burst * period, period, burst, last: 0 }
    }

    fn admit(&mut self, now: u64) -> bool {
        let now = i128::from(now);
        self.scaled = (self.scaled + now - self.last).min(self.burst * self.period);
        self.last = now;
        let admitted = self.scaled >= self.period;
        if admitted {
            self.scaled -= self.period;
        }
        admitted
    }
}

struct Gcra {
    tat: Ticks,
    cost: Ticks,
    tolerance: Ticks,
}

impl Gcra {
    fn new(period_ns: u64, burst: u64) -> Self {
        Self { tat: 0, cost: ticks(period_ns), tolerance: ticks(period_ns * burst) }
    }

    fn admit(&mut self, now_ns: u64) -> bool {
        let next = decide(self.tat, ticks(now_ns), self.cost, self.tolerance);
        self.tat = next.unwrap_or(self.tat);
        next.is_some()
    }
}

fn arrivals() -> impl Strategy<Value = Vec<u64>> {
    // Bursts (gap 0), gaps about one period, and long silences.
    prop::collection::vec(
        prop_oneof![Just(0u64), 1u64..2_000, 900_000u64..1_100_000, 1u64..5_000_000_000],
        1..400,
    )
}

proptest! {
    #[test]
    fn agrees_with_an_exact_token_bucket(
        period in 1u64..10_000_000, burst in 1u64..500, gaps in arrivals(),
    ) {
        let mut gcra = Gcra::new(period, burst);
        let mut tokens = Tokens::new(period, burst);
        let mut now = 1_000_000_000;
        for gap in gaps {
            now += gap;
            prop_assert_eq!(gcra.admit(now), tokens.admit(now), "at {}", now);
        }
    }

    #[test]
    fn agrees_with_governor(
        period_us in 1u64..100_000, burst in 1u32..300, gaps in arrivals(),
    ) {
        let quota = Quota::with_period(Duration::from_micros(period_us))
            .unwrap()
            .allow_burst(NonZeroU32::new(burst).unwrap());
        let clock = FakeRelativeClock::default();
        let governor = RateLimiter::direct_with_clock(quota, clock.clone());
        let mut gcra = Gcra::new(period_us * 1000, u64::from(burst));
        let start = clock.now();
        let base = 1_000_000_000;
        for gap in gaps {
            clock.advance(Duration::from_nanos(gap));
            let now = base + clock.now().duration_since(start).as_u64();
            prop_assert_eq!(gcra.admit(now), governor.check().is_ok());
        }
    }

    #[test]
    fn no_interval_exceeds_burst_plus_rate(
        period in 1u64..1_000_000, burst in 1u64..100, gaps in arrivals(),
    ) {
        let mut gcra = Gcra::new(period, burst);
        let mut now = 1_000_000_000;
        let mut admitted = Vec::new();
        for gap in gaps {
            now += gap;
            if gcra.admit(now) {
                admitted.push(now);
            }
        }
        for (i, &from) in admitted.iter().enumerate() {
            for (j, &to) in admitted.iter().enumerate().skip(i) {
                let count = (j - i + 1) as u64;
                prop_assert!(count <= burst + (to - from) / period);
            }
        }
    }

    #[test]
    fn a_sender_over_its_limit_gets_all_of_it(excess_percent in 1u64..50, period in 1000u64..1_000_000) {
        let mut gcra = Gcra::new(period, 2);
        let gap = period * 100 / (100 + excess_percent);
        let sent = 20_000u64;
        let admitted = (0..sent).filter(|i| gcra.admit(1_000_000 + i * gap)).count() as u64;
        let limit = sent * gap / period;
        prop_assert!(admitted + 2 >= limit, "{} of {}", admitted, limit);
    }
}

#[test]
fn a_changed_policy_clamps_instead_of_waiting() {
    let now = ticks(1_000_000_000);
    let far = now + ticks(600_000_000_000);
    let tolerance = ticks(2_000_000_000);
    assert_eq!(decide(far, now, ticks(1_000_000), tolerance), None);
    let tat = clamped(far, now, tolerance);
    assert_eq!(tat, now + tolerance);
    let later = now + ticks(1_000_000);
    assert_eq!(decide(tat, later, ticks(1_000_000), tolerance), Some(later + tolerance));
    assert_eq!(clamped(now + tolerance - 1, now, tolerance), now + tolerance - 1, "owes less");
}

#[test]
fn no_cost_always_conforms() {
    let now = ticks(123_456_789);
    assert_eq!(decide(0, now, 0, MAX_TOLERANCE), Some(now));
    assert_eq!(credit(now + 3, now, 10), 7);
    assert_eq!(credit(now + 30, now, 10), 0);
}

#[test]
fn bounds_are_within_what_conforms() {
    let now = ticks(1);
    // Whatever a word holds, nothing overflows.
    assert_eq!(decide(Ticks::MAX, 0, 1, MAX_TOLERANCE), None);
    // A bucket that is just empty admits what costs nothing.
    assert_eq!(decide(now + 10, now, 0, 10), Some(now + 10));
    assert_eq!(decide(now + 11, now, 0, 10), None);
    assert_eq!(decide_shared(now + 10, now, MAX_COST, 10), Some(now + 10 + MAX_COST));
    assert_eq!(decide_shared(now + 11, now, 0, 10), None);
    assert_eq!(decide_shared(now, now, MAX_COST + 2, 10), None);
}
