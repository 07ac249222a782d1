//! Chance that a seed determines.

/// SplitMix64: the numbers of a seed stay the same for ever, which a library's generator does not promise,
/// so that a run which once went wrong can be repeated after any update.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    /// The sequence of a seed.
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A sequence of its own, by a number, that does not depend on how much of this one is used later.
    #[must_use]
    pub(super) fn fork(&self, number: u64) -> Self {
        // Mixed on the way in and out: states that differ by a multiple of the step are one sequence, shifted.
        Self(mix(self.0 ^ mix(number.wrapping_add(0x5851_f42d_4c95_7f2d))))
    }

    /// 64 random bits.
    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number from 0 to 1, without 1.
    pub(super) fn unit(&mut self) -> f64 {
        // A double has 53 bits of mantissa.
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number from `low` to `high`.
    pub(super) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Whether something of this probability happens. Takes no number if it is impossible.
    pub(super) fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.unit() < probability
    }

    /// A number below `n`, 0 if `n` is 0.
    pub(super) fn below(&mut self, n: usize) -> usize {
        // Lemire's multiplication (2019) without its rejection: the
        // bias is below n/2^64, and each call takes one number.
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// The numbers below `n` in random order.
    pub(super) fn order(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        // Fisher and Yates, so that every order is as likely as any other.
        for i in (1..n).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}

/// SplitMix64's finaliser.
pub(super) const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A digest of bytes that follow what has the digest `before`.
pub(super) fn digest(before: u64, bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(mix(before ^ bytes.len() as u64), |all, part| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        mix(all ^ u64::from_le_bytes(word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_all_numbers() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            (rng.bits(), rng.below(10), rng.order(5), rng.fork(3).bits())
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        // The generator's published first output for seed 0.
        assert_eq!(Rng::new(0).bits(), 0xe220_a839_7b1d_cdaf);
        let mut rng = Rng::new(7);
        let sum: f64 = (0..10_000).map(|_| rng.unit()).sum();
        assert!((sum / 1e4 - 0.5).abs() < 0.02);
        let mut order = rng.order(50);
        order.sort_unstable();
        assert_eq!(order, (0..50).collect::<Vec<_>>());
        assert_eq!(rng.below(0), 0);
    }
}
