//! What the data plane counts, at one moment.

use std::time::SystemTime;

use limiter_common::abi::{Counters, Internal, Reason, Tally};
use model::Distinct;

/// What the data plane counts, at one moment. Rates are differences of two samples over the
/// difference of [`Sample::monotonic_ns`], which no step of the wall clock changes.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// When, by the wall clock, which may step.
    pub time: SystemTime,
    /// When, ns since boot.
    pub monotonic_ns: u64,
    /// Of all CPUs, since the maps were made. They never fall while the maps are the same.
    pub counters: Counters,
    /// Mean packets of others in a cell of the sketch.
    pub noise: f64,
    /// Distinct sources in the last full window, if that is counted.
    pub distinct: Option<Distinct>,
}

impl Sample {
    /// Packets and bytes that met a reason.
    pub const fn tally(&self, reason: Reason) -> Tally {
        self.counters.verdicts[reason as usize]
    }

    /// How often something happened beside verdicts.
    pub const fn internal(&self, what: Internal) -> u64 {
        self.counters.internal[what as usize]
    }

    /// Buckets that sources have: a look at counters, where a look at the table takes milliseconds.
    pub const fn tracked(&self) -> u64 {
        let replaced = self.internal(Internal::Evictions) + self.internal(Internal::BusyEvictions);
        // Counters of CPUs are read one after the other, so an eviction may be seen before its
        // promotion.
        self.internal(Internal::Promotions).saturating_sub(replaced)
    }

    /// Packets and bytes that passed and that were dropped.
    pub fn verdicts(&self) -> [Tally; 2] {
        let mut sums = [Tally::default(); 2];
        for reason in Reason::ALL {
            let (sum, tally) = (&mut sums[usize::from(!reason.passes())], self.tally(reason));
            sum.packets += tally.packets;
            sum.bytes += tally.bytes;
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_told_in_sources() {
        let distinct = Distinct { sources: 20_000.0, standard_error: 0.01625, window_s: 1.0737 };
        assert_eq!(distinct.summary(), "20000 ± 325 distinct sources in 1.07 s");
    }

    #[test]
    fn a_sample_adds_up() {
        let mut counters = Counters::default();
        for reason in Reason::ALL {
            counters.verdicts[reason as usize] = Tally { packets: 1, bytes: 60 };
        }
        counters.internal[Internal::Promotions as usize] = 10;
        counters.internal[Internal::Evictions as usize] = 3;
        counters.internal[Internal::BusyEvictions as usize] = 1;
        let time = SystemTime::UNIX_EPOCH;
        let sample = Sample { time, monotonic_ns: 0, counters, noise: 0.0, distinct: None };
        let passed = Reason::ALL.into_iter().filter(|reason| reason.passes()).count() as u64;
        let all = Reason::ALL.len() as u64;
        let [pass, drop] = sample.verdicts();
        assert_eq!((pass.packets, drop.bytes), (passed, 60 * (all - passed)));
        assert_eq!(sample.tracked(), 6);
    }
}
