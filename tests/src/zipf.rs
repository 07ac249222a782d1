//! Numbers by Zipf's law.

/// How many of the most frequent have a share each: a million.
const RANKS: usize = 1_000_000;
/// The share of rank r is proportional to r^-EXPONENT.
const EXPONENT: f64 = 1.1;
/// Ranks are spread over this many addresses, a power of two.
const ADDRESSES: u32 = 1 << 20;

/// Random numbers below 2^20 whose frequencies follow Zipf's law, drawn in constant time (Vose's
/// alias method).
#[derive(Debug)]
pub struct Zipf {
    /// For each rank the chance to be kept, out of 2^32, and the rank taken otherwise.
    columns: Vec<(u32, u32)>,
    state: u64,
}

impl Zipf {
    /// A sequence that `seed` determines.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let weights: Vec<f64> = (1..=RANKS).map(|rank| (rank as f64).powf(-EXPONENT)).collect();
        let mean = weights.iter().sum::<f64>() / RANKS as f64;
        let mut shares: Vec<f64> = weights.iter().map(|weight| weight / mean).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) =
            (0..RANKS).partition(|&rank| shares[rank] < 1.0);
        let mut columns: Vec<(u32, u32)> = (0..RANKS as u32).map(|rank| (u32::MAX, rank)).collect();
        while let (Some(&poor), Some(&rich)) = (small.last(), large.last()) {
            small.pop();
            columns[poor] = ((shares[poor] * f64::from(u32::MAX)) as u32, rich as u32);
            shares[rich] -= 1.0 - shares[poor];
            if shares[rich] < 1.0 {
                large.pop();
                small.push(rich);
            }
        }
        Self { columns, state: seed | 1 }
    }

    /// A rank, from 0.
    fn rank(&mut self) -> u32 {
        // SplitMix64.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        let column = (((word >> 32) * RANKS as u64) >> 32) as u32;
        let (keep, other) = self.columns[column as usize];
        if word as u32 <= keep { column } else { other }
    }

    /// A source, ranks being spread over the addresses.
    pub fn source(&mut self) -> u32 {
        self.rank().wrapping_mul(0x9e37_79b1) % ADDRESSES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_follow_the_law() {
        let mut zipf = Zipf::new(7);
        let draws = 400_000;
        let mut counts = vec![0_u32; RANKS];
        for _ in 0..draws {
            counts[zipf.rank() as usize] += 1;
        }
        let sum: f64 = (1..=RANKS).map(|rank| (rank as f64).powf(-EXPONENT)).sum();
        for rank in [1, 2, 10, 50] {
            let expected = f64::from(draws) * (rank as f64).powf(-EXPONENT) / sum;
            let found = f64::from(counts[rank - 1]);
            assert!((found - expected).abs() < 5.0 * expected.sqrt(), "{rank}: {found} {expected}");
        }
        let tail: u32 = counts[100_000..].iter().sum();
        let expected: f64 = (100_001..=RANKS).map(|rank| (rank as f64).powf(-EXPONENT)).sum();
        let expected = expected / sum * f64::from(draws);
        assert!((f64::from(tail) - expected).abs() < 5.0 * expected.sqrt(), "{tail} {expected}");
    }
}
