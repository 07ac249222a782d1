//! How many sources a CPU may give a bucket to.
//!
//! A flood that fills the sketch makes any source look heavy, and then each packet asks for a bucket. A promotion writes
//! six cache lines, and evicts. So each CPU has a budget of them: all buckets of the table at once, and all CPUs
//! together twice the table in a second. Beyond it a packet passes without a bucket, as below the gate.
//!
//! Who needs a bucket asks with each packet. Where a flood asks `f` times a second and `b` promotions are allowed, a
//! source is promoted after `f / b` packets more in the mean: 7 at 25 Mpps with a table of 524,288, by the noise that
//! the sketch has then.

use crate::gcra::{TICKS_PER_NS, Ticks, decide};

/// A table with fewer buckets than this has the budget of one that has so many.
// That of the usual size: a million promotions a second take a quarter of a CPU. With less, a small sketch that a
// flood fills delayed sources beyond what P2 allows.
pub const MIN_BUCKETS: u64 = 1 << 19;

/// How often all CPUs together may fill the table in a second.
const FILLS_PER_SECOND: u64 = 2;

const SECOND: Ticks = 1_000_000_000 * TICKS_PER_NS;

/// What one CPU may promote: a token bucket, whose word is the CPU's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    cost: Ticks,
    tolerance: Ticks,
}

impl Budget {
    /// The budget of each of `cpus` in a table of `buckets`.
    #[inline(always)]
    #[must_use]
    pub const fn new(buckets: u64, cpus: u64) -> Self {
        let buckets = if buckets < MIN_BUCKETS { MIN_BUCKETS } else { buckets };
        let filling = SECOND / FILLS_PER_SECOND * cpus;
        Self { cost: filling / buckets, tolerance: filling }
    }

    /// Whether a CPU whose word is `tat` may promote a source at `now`: what the word becomes.
    #[inline(always)]
    #[must_use]
    pub const fn draw(self, tat: Ticks, now: Ticks) -> Option<Ticks> {
        decide(tat, now, self.cost, self.tolerance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gcra::ticks;

    /// Promotions by one CPU that tries at each of `times`.
    fn promoted(budget: Budget, times: impl Iterator<Item = Ticks>) -> u64 {
        let mut tat = 0;
        let tried = times.map(|now| budget.draw(tat, now).map(|next| tat = next));
        tried.flatten().count() as u64
    }

    /// By the clock, not by the constant that the budget is made with.
    fn second() -> Ticks {
        ticks(1_000_000_000)
    }

    #[test]
    fn the_whole_table_at_once_and_twice_in_a_second_by_all_cpus() {
        for (buckets, cpus) in [(1 << 19, 1), (1 << 20, 16), (1 << 19, 3), (8, 2)] {
            let budget = Budget::new(buckets, cpus);
            let fill = buckets.max(MIN_BUCKETS);
            let at_once = promoted(budget, (0..2 * fill).map(|_| 5 * second()));
            // A promotion's cost is rounded down.
            assert!(at_once.abs_diff(fill) <= fill / 1000, "{at_once} of {fill}");
            let tries = 4 * fill;
            let steady =
                promoted(budget, (0..tries).map(|at| 5 * second() + second() * at / tries));
            let more = (steady - at_once) * cpus;
            assert!(more.abs_diff(2 * fill) <= cpus * 2 + fill / 100, "{more} of {}", 2 * fill);
        }
    }
}
