//! The one keyed hash per packet.
//!
//! Multilinear hashing (Lemire and Kaser, "Strongly universal string hashing is fast", 2014): each
//! 32-bit word of the address times its own secret 64-bit multiplier, summed modulo 2^64; the upper
//! half is strongly universal. Two such sums make 64 bits, so for any two addresses that were chosen
//! without knowing the key, all 64 bits of both hashes are uniform and independent: collisions in
//! the bucket table or the sketch cannot be computed beforehand. A bijective finaliser (MurmurHash3's
//! 64-bit mixer) then spreads the bits, because the sums alone map consecutive addresses to
//! arithmetic progressions; being a bijection it keeps the proof.
//!
//! SipHash-1-3 would also resist an attacker who observes outputs, but BPF has no rotate
//! instruction; the daemon's key is per boot and outputs are never shown.

use crate::key::SourceKey;

/// The secret: two seeds and two rows of multipliers, one for each 32-bit word of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct HashKey {
    /// Random words from the operating system.
    // Twice as wide as the words of an address: with less, the upper half would not be strongly
    // universal.
    pub words: [u64; 10],
}

/// What feeds sketch rows, bucket set and tag. Never 0, which marks an empty way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash(pub u64);

#[inline(always)]
const fn multilinear(seed_and_multipliers: &[u64; 10], at: usize, key: SourceKey) -> u64 {
    let k = seed_and_multipliers;
    k[at]
        .wrapping_add(k[at + 1].wrapping_mul(key.low & 0xffff_ffff))
        .wrapping_add(k[at + 2].wrapping_mul(key.low >> 32))
        .wrapping_add(k[at + 3].wrapping_mul(key.high & 0xffff_ffff))
        .wrapping_add(k[at + 4].wrapping_mul(key.high >> 32))
}

/// MurmurHash3's 64-bit finaliser (Appleby): a bijection with good avalanche.
#[inline(always)]
const fn mix(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

impl Hash {
    /// The hash of a source's packets of one class; 0 stands for all that are in none. For two
    /// different pairs of source and class it is as likely to be the same as for two sources, because
    /// the difference of two sources' hashes is uniform.
    #[inline(always)]
    pub const fn of_class(self, class: u32) -> Self {
        Self(self.0 ^ (class as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

impl HashKey {
    /// Hashes a source.
    #[inline(always)]
    pub const fn hash(&self, key: SourceKey) -> Hash {
        let upper = multilinear(&self.words, 0, key);
        let lower = multilinear(&self.words, 5, key);
        let mixed = mix((upper & !0xffff_ffff) | (lower >> 32));
        // Folding 0 onto 1 makes two of 2^64 values equal: immaterial.
        Hash(if mixed == 0 { 1 } else { mixed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::vec;

    fn key(seed: u64) -> HashKey {
        let mut words = [0; 10];
        let mut x = seed;
        for word in &mut words {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            *word = mix(x);
        }
        HashKey { words }
    }

    #[test]
    fn neighbours_spread_evenly_over_sets() {
        // 2^17 consecutive addresses over 2^12 sets: 32 each. Chi-squared with 4095 degrees of
        // freedom stays under 4095 + 6·sqrt(2·4095) for anything close to random.
        for seed in 0..8 {
            let k = key(seed);
            let mut sets = vec![0u32; 4096];
            for address in 0..1u32 << 17 {
                let h = k.hash(SourceKey::from_ipv4(address.to_be_bytes())).0;
                sets[(h as usize) & 4095] += 1;
            }
            let chi: f64 = sets.iter().map(|&n| (f64::from(n) - 32.0).powi(2) / 32.0).sum();
            assert!(chi < 4095.0 + 6.0 * (2.0f64 * 4095.0).sqrt(), "chi-squared {chi}");
        }
    }

    #[test]
    fn no_two_of_a_million_sources_share_a_tag() {
        let k = key(7);
        let mut seen = HashSet::new();
        for i in 0..500_000u32 {
            assert!(seen.insert(k.hash(SourceKey::from_ipv4(i.to_be_bytes())).0));
            let v6 = SourceKey { high: 0x2001_0db8_0000_0000 | u64::from(i), low: 0 };
            assert!(seen.insert(k.hash(v6).0));
        }
    }

    #[test]
    fn another_key_gives_another_hash() {
        let source = SourceKey::from_ipv4([198, 51, 100, 7]);
        assert_ne!(key(1).hash(source), key(2).hash(source));
    }
}
