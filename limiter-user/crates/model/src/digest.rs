//! Distributions in little memory that can be merged.

use datasketches::tdigest::TDigestMut;
use serde::{Deserialize, Serialize};

/// Centroids of a fine digest are at most twice this many: percentiles of real traffic are right within
/// far less than 1 %.
const FINE: u16 = 1000;

/// The same of a coarse one, which lives as long as the daemon does.
const COARSE: u16 = 200;

/// The same of one that is sent to other hosts: at most 1.7 kB.
const SMALL: u16 = 50;

/// A t-digest: the distribution of any number of values in at most 160 kB. Digests of parts merge to
/// that of the whole.
#[derive(Clone, Debug)]
pub struct Digest(TDigestMut);

impl Digest {
    /// For percentiles that something is decided by.
    pub fn fine() -> Self {
        Self::new(FINE)
    }

    /// A fifth of that.
    pub fn coarse() -> Self {
        Self::new(COARSE)
    }

    /// For what hosts tell each other.
    pub fn small() -> Self {
        Self::new(SMALL)
    }

    /// As it is sent.
    pub fn bytes(mut self) -> Vec<u8> {
        self.0.serialize()
    }

    /// Reads one that may come from anybody; `None` if it is none, or not a small one.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        Self::read_up_to(SMALL, bytes)
    }

    /// The same of a coarse one.
    pub fn read_coarse(bytes: &[u8]) -> Option<Self> {
        Self::read_up_to(COARSE, bytes)
    }

    fn read_up_to(k: u16, bytes: &[u8]) -> Option<Self> {
        let digest = TDigestMut::deserialize(bytes).ok()?;
        let is_number = |value: Option<f64>| value.is_none_or(f64::is_finite);
        // It comes from a host of whatever version, or from a file: neither its size nor its weight may be more than
        // hosts write.
        let is_small = digest.k() <= k && digest.total_weight() < 1 << 48;
        (is_small && is_number(digest.min_value()) && is_number(digest.max_value()))
            .then_some(Self(digest))
    }

    fn new(k: u16) -> Self {
        // An error is only possible below 10.
        Self(TDigestMut::new(k).unwrap_or_default())
    }

    /// Adds a value; what is not finite is left out.
    pub fn add(&mut self, value: f64) {
        self.0.update(value);
    }

    /// Adds all values of another digest.
    pub fn merge(&mut self, other: &Self) {
        self.0.merge(&other.0);
    }

    /// How many values it has.
    pub fn count(&self) -> u64 {
        self.0.total_weight()
    }

    /// The value that a share `rank` of all (cut to 0..=1) is at or below; `None` without values.
    pub fn quantile(&mut self, rank: f64) -> Option<f64> {
        // No value is at a rank outside; the nearest one is meant.
        let rank = if rank.is_nan() { 1.0 } else { rank.clamp(0.0, 1.0) };
        self.0.quantile(rank).ok().flatten()
    }

    /// The usual percentiles; `None` without values.
    pub fn percentiles(&mut self) -> Option<Percentiles> {
        Some(Percentiles {
            p50: self.quantile(0.5)?,
            p90: self.quantile(0.9)?,
            p99: self.quantile(0.99)?,
            p999: self.quantile(0.999)?,
            max: self.0.max_value()?,
        })
    }
}

/// Percentiles of a distribution, in the unit of its values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// Nine of ten are at or below it.
    pub p90: f64,
    /// 99 of 100 are.
    pub p99: f64,
    /// 999 of 1000 are.
    pub p999: f64,
    /// The largest, exactly.
    pub max: f64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Heavy-tailed values, like rates of sources: a Pareto distribution by its quantiles, shuffled.
    /// `count` should be prime.
    fn rates(count: u64) -> Vec<f64> {
        let step = 0x9e37_79b9_7f4a_7c15_u64 % count;
        let value = |i: u64| 100.0 * (1.0 - (i as f64 + 0.5) / count as f64).powf(-1.0 / 1.3);
        (0..count).map(|i| value(i.wrapping_mul(step) % count)).collect()
    }

    fn exact(values: &[f64], rank: f64) -> f64 {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted[((rank * sorted.len() as f64) as usize).min(sorted.len() - 1)]
    }

    fn assert_close(what: &str, found: f64, wanted: f64) {
        assert!((found / wanted - 1.0).abs() < 0.01, "{what}: {found}, not {wanted}");
    }

    #[test]
    fn percentiles_are_within_a_percent() {
        let values = rates(199_999);
        let mut digest = Digest::fine();
        values.iter().for_each(|value| digest.add(*value));
        let found = digest.percentiles().unwrap();
        for (rank, found) in
            [(0.5, found.p50), (0.9, found.p90), (0.99, found.p99), (0.999, found.p999)]
        {
            assert_close("the whole", found, exact(&values, rank));
        }
        assert_eq!(found.max, exact(&values, 1.0));
    }

    #[test]
    fn merged_parts_are_like_the_whole() {
        let values = rates(200_003);
        let mut whole = Digest::fine();
        values.iter().for_each(|value| whole.add(*value));
        let mut parts: Vec<Digest> = values
            .chunks(7919)
            .map(|part| {
                let mut digest = Digest::fine();
                part.iter().for_each(|value| digest.add(*value));
                digest
            })
            .collect();
        for _ in 0..2 {
            let mut merged = Digest::fine();
            parts.iter().for_each(|part| merged.merge(part));
            assert_eq!(merged.count(), whole.count());
            for rank in [0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999] {
                let (found, wanted) = (merged.quantile(rank), whole.quantile(rank));
                assert_close("merged", found.unwrap(), wanted.unwrap());
                assert_close("merged", found.unwrap(), exact(&values, rank));
            }
            // In another order too.
            parts.reverse();
        }
    }

    proptest! {
        #[test]
        fn what_comes_from_others_can_do_no_harm(
            count in 0usize..300,
            changed in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut digest = Digest::small();
            rates(307)[..count].iter().for_each(|value| digest.add(*value));
            let mut bytes = digest.clone().bytes();
            prop_assert!(bytes.len() < 1700, "{}", bytes.len());
            prop_assert_eq!(Digest::read(&bytes).unwrap().percentiles(), digest.percentiles());
            for (at, byte) in changed {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            for bytes in [&bytes[..], &bytes[..cut.index(bytes.len())]] {
                if let Some(read) = Digest::read(bytes) {
                    digest.merge(&read);
                    digest.percentiles();
                }
            }
        }
    }

    #[test]
    fn nothing_has_no_percentiles() {
        let mut digest = Digest::coarse();
        digest.add(f64::NAN);
        assert_eq!((digest.count(), digest.percentiles()), (0, None));
        digest.add(7.0);
        assert_eq!(digest.quantile(-1.0), Some(7.0));
        assert_eq!(digest.percentiles().unwrap().p999, 7.0);
    }
}
