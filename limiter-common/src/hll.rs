//! How many sources send: a HyperLogLog (Flajolet, Fusy, Gandouet and Meunier, 2007) of each window.
//!
//! Four registers share a word: `epoch:16 | current:4×6 | previous:4×6`, the highest ranks of the epoch and
//! of the one before. Whoever raises one rolls the word to the present epoch first, as with the sketch's
//! cells, so the last full window can always be read and nobody has to clear anything.
//!
//! Nearly every packet finds that its source raises nothing, which takes one load and no store. Where two
//! CPUs change one word at once, one of them may lose; its source's next packet tries again.
//!
//! A word that is not touched for exactly a multiple of 65,536 epochs (19.5 hours) looks current again.

use crate::atomic::{self, AtomicU64};
use crate::hash::Hash;
use core::mem::size_of;

/// log2 of the registers.
// 8 KiB leave the first-level cache to other data.
pub const PRECISION: u32 = 12;

/// Registers: a standard error of 1.04/√4096 = 1.6 %.
pub const REGISTERS: usize = 1 << PRECISION;

/// Registers in a word.
pub const LANES: usize = 4;

/// log2 of the window in ns, 1.07 s, of wall-clock time, so that hosts agree on its edges.
pub const WINDOW_SHIFT: u32 = 30;

/// The highest rank: one more than the bits that it is taken from.
pub const MAX_RANK: u32 = 33;

const RANK_BITS: u32 = 6;
const RANK_MASK: u64 = (1 << RANK_BITS) - 1;
/// Where the present epoch's ranks begin.
const CURRENT_SHIFT: u32 = RANK_BITS * LANES as u32;
const EPOCH_SHIFT: u32 = 2 * CURRENT_SHIFT;

/// The registers, as they lie in their map: its only element, 8 KiB.
pub type Registers = [AtomicU64; REGISTERS / LANES];

#[cfg(not(loom))]
const _: () = assert!(size_of::<Registers>() == 8 * 1024);

/// The number of the window that `wall_ns` (nanoseconds since 1970) is in, modulo 2^16.
#[inline(always)]
pub const fn epoch(wall_ns: u64) -> u16 {
    (wall_ns >> WINDOW_SHIFT) as u16
}

/// Where in a word the rank of a register is, `lane` below [`LANES`].
#[inline(always)]
const fn shift(lane: u32) -> u32 {
    RANK_BITS * lane
}

/// The content of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(pub u64);

impl Word {
    #[inline(always)]
    const fn epoch(self) -> u16 {
        (self.0 >> EPOCH_SHIFT) as u16
    }

    /// The ranks of the present epoch, in the place of those of the one before.
    #[inline(always)]
    const fn current(self) -> u64 {
        self.0 >> CURRENT_SHIFT & ((1 << CURRENT_SHIFT) - 1)
    }

    /// The highest rank of a register in the full window before `epoch`, 0 if no source was in it.
    pub const fn full(self, lane: u32, epoch: u16) -> u32 {
        let ranks = match epoch.wrapping_sub(self.epoch()) {
            0 => self.0,
            1 => self.current(),
            // What is older says nothing of that window: no source of it was in this register.
            _ => 0,
        };
        (ranks >> shift(lane) & RANK_MASK) as u32
    }

    /// The word in `epoch`, with stale ranks moved or forgotten.
    ///
    /// One that is an epoch ahead stays as it is: another CPU read the clock later and was faster.
    #[inline(always)]
    const fn rolled(self, epoch: u16) -> Self {
        let fresh = (epoch as u64) << EPOCH_SHIFT;
        match epoch.wrapping_sub(self.epoch()) {
            0 | u16::MAX => self,
            1 => Self(fresh | self.current()),
            _ => Self(fresh),
        }
    }

    /// With a source of `rank`.
    #[inline(always)]
    const fn raised(self, lane: u32, rank: u32) -> Self {
        let at = CURRENT_SHIFT + shift(lane);
        let rank = rank as u64;
        if self.0 >> at & RANK_MASK >= rank {
            return self;
        }
        Self(self.0 & !(RANK_MASK << at) | rank << at)
    }
}

/// The register of a source, and the bits that its rank is taken from.
#[inline(always)]
const fn place(hash: Hash) -> (u32, u32) {
    // A multiplication of its own, so that neither sets nor columns tell which register it is.
    let mixed = hash.0.wrapping_mul(0xe703_7ed1_a0b4_28db);
    ((mixed >> (64 - PRECISION)) as u32, (mixed >> 20) as u32)
}

/// One more than the zeros that `bits` end in. BPF has no instruction for that.
#[inline(always)]
const fn rank(bits: u32) -> u32 {
    // Ones below the lowest one, counted in parallel.
    let mut x = !bits & bits.wrapping_sub(1);
    x -= x >> 1 & 0x5555_5555;
    x = (x & 0x3333_3333) + (x >> 2 & 0x3333_3333);
    x = (x + (x >> 4)) & 0x0f0f_0f0f;
    (x.wrapping_mul(0x0101_0101) >> 24) + 1
}

/// Counts a source that sends at `wall_ns`.
#[inline(always)]
pub fn add(registers: &Registers, hash: Hash, wall_ns: u64) {
    let epoch = epoch(wall_ns);
    let (register, bits) = place(hash);
    let lane = register % LANES as u32;
    // In range by its shift; the mask is for the verifier.
    let word = &registers[(register as usize / LANES) & (REGISTERS / LANES - 1)];
    let seen = Word(atomic::load(word));
    // Its rank is higher than the register if its bits end in as many zeros.
    // The rank itself is not needed for that, and takes more instructions.
    let zeros = 1u64 << (seen.current() >> shift(lane) & RANK_MASK);
    if seen.epoch() == epoch && u64::from(bits) & (zeros - 1) != 0 {
        return;
    }
    let raised = seen.rolled(epoch).raised(lane, rank(bits));
    if raised.0 != seen.0 {
        atomic::replace(word, seen.0, raised.0);
    }
}

#[cfg(any(test, feature = "user"))]
pub use estimate::Ranks;

#[cfg(any(test, feature = "user"))]
mod estimate {
    use super::{LANES, MAX_RANK, PRECISION, REGISTERS, Registers, Word};
    use crate::atomic;
    use std::boxed::Box;

    /// The highest ranks of one window, one for each register.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Ranks(Box<[u8; REGISTERS]>);

    impl Default for Ranks {
        fn default() -> Self {
            Self(Box::new([0; REGISTERS]))
        }
    }

    impl Ranks {
        /// The standard error of [`Ranks::estimate`], as a fraction of it.
        pub const STANDARD_ERROR: f64 = 1.04 / (1u32 << (PRECISION / 2)) as f64;

        /// Those of the full window before `epoch`.
        #[must_use]
        pub fn full(registers: &Registers, epoch: u16) -> Self {
            let mut ranks = Self::default();
            for (lanes, word) in ranks.0.chunks_exact_mut(LANES).zip(registers) {
                let word = Word(atomic::load(word));
                for (lane, rank) in (0..).zip(lanes) {
                    *rank = word.full(lane, epoch).min(MAX_RANK) as u8;
                }
            }
            ranks
        }

        /// These ranks, each at most [`MAX_RANK`].
        #[must_use]
        pub fn new(ranks: [u8; REGISTERS]) -> Self {
            Self(Box::new(ranks.map(|rank| rank.min(MAX_RANK as u8))))
        }

        /// The ranks, one for each register.
        #[must_use]
        pub fn ranks(&self) -> &[u8; REGISTERS] {
            &self.0
        }

        /// Adds the sources that another host, or another window, has seen.
        pub fn merge(&mut self, other: &Self) {
            for (rank, theirs) in self.0.iter_mut().zip(other.0.iter()) {
                // A maximum: answers that come twice or in another order change nothing.
                *rank = (*rank).max(*theirs);
            }
        }

        /// How many distinct sources were seen: Ertl's improved raw estimator ("New cardinality estimation
        /// algorithms for HyperLogLog sketches", 2017, algorithm 6), without bias from no source on.
        #[must_use]
        pub fn estimate(&self) -> f64 {
            let mut counts = [0u32; MAX_RANK as usize + 1];
            for rank in self.0.iter() {
                counts[usize::from(*rank)] += 1;
            }
            let m = REGISTERS as f64;
            let last = MAX_RANK as usize;
            let mut z = m * tau(1.0 - f64::from(counts[last]) / m);
            for count in counts[1..last].iter().rev() {
                z = 0.5 * (z + f64::from(*count));
            }
            z += m * sigma(f64::from(counts[0]) / m);
            // 1/(2 ln 2) is the limit of the estimator's constant for many registers (Ertl).
            m * m / (2.0 * core::f64::consts::LN_2 * z)
        }
    }

    /// What registers that no source has met stand for; infinite if that is all of them.
    fn sigma(mut x: f64) -> f64 {
        if x >= 1.0 {
            return f64::INFINITY;
        }
        let (mut y, mut z) = (1.0, x);
        loop {
            x *= x;
            let before = z;
            z += x * y;
            y += y;
            // Ends where another term is below the last bit of a double.
            if z <= before {
                return z;
            }
        }
    }

    /// What registers of the highest rank stand for.
    fn tau(mut x: f64) -> f64 {
        if x <= 0.0 || x >= 1.0 {
            return 0.0;
        }
        let (mut y, mut z) = (1.0, 1.0 - x);
        loop {
            x = x.sqrt();
            let before = z;
            y *= 0.5;
            z -= (1.0 - x) * (1.0 - x) * y;
            if z >= before {
                return z / 3.0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::HashKey;
    use crate::key::SourceKey;
    use proptest::prelude::*;
    use std::boxed::Box;
    use std::println;

    const SECOND: u64 = 1 << WINDOW_SHIFT;

    fn registers() -> Box<Registers> {
        Box::new(atomic::zeros::<{ REGISTERS / LANES }>())
    }

    fn key(seed: u64) -> HashKey {
        let mut x = seed;
        HashKey {
            words: [(); 10].map(|()| {
                x = (x ^ (x >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(77);
                x
            }),
        }
    }

    fn send(registers: &Registers, key: &HashKey, sources: core::ops::Range<u32>, at: u64) {
        for source in sources {
            add(registers, key.hash(SourceKey::from_ipv4(source.to_be_bytes())), at);
        }
    }

    fn estimate(registers: &Registers, wall_ns: u64) -> f64 {
        Ranks::full(registers, epoch(wall_ns)).estimate()
    }

    #[test]
    fn ranks_are_counted_from_the_end() {
        for bits in [1u32, 2, 3, 8, 0x8000_0000, 0xffff_0000, 12345, u32::MAX] {
            assert_eq!(rank(bits), bits.trailing_zeros() + 1, "{bits:#x}");
        }
        assert_eq!(rank(0), MAX_RANK);
    }

    #[test]
    fn the_error_is_as_promised() {
        for count in [1u32, 2, 10, 100, 1000, 5000, 10_000, 20_000, 50_000, 200_000, 1_000_000] {
            let (mut squares, mut mean, mut worst) = (0.0, 0.0, 0.0f64);
            let runs = if count > 100_000 { 8 } else { 40 };
            for seed in 1..=runs {
                let registers = registers();
                send(&registers, &key(seed), 0..count, SECOND);
                let error = estimate(&registers, 2 * SECOND) / f64::from(count) - 1.0;
                squares += error * error;
                mean += error;
                worst = worst.max(error.abs());
            }
            let deviation = (squares / runs as f64).sqrt();
            mean /= runs as f64;
            println!("{count}: mean {mean:+.4}, deviation {deviation:.4}, worst {worst:.4}");
            // Of so few samples, each figure spreads itself.
            assert!(deviation < 1.6 * Ranks::STANDARD_ERROR, "{count}: {deviation}");
            assert!(mean.abs() < 3.0 * Ranks::STANDARD_ERROR / (runs as f64).sqrt(), "{count}");
            assert!(worst < 4.0 * Ranks::STANDARD_ERROR, "{count}: {worst}");
        }
    }

    #[test]
    fn nobody_is_nobody() {
        assert_eq!(estimate(&registers(), 7 * SECOND), 0.0);
    }

    #[test]
    fn a_window_that_is_over_stays_for_one_more() {
        let (registers, key) = (registers(), key(1));
        let near = |found: f64, count: f64| (found / count - 1.0).abs() < 0.07;
        let start = 1_700_000_000 * SECOND;
        send(&registers, &key, 0..10_000, start);
        assert_eq!(estimate(&registers, start), 0.0, "it is not over yet");
        assert!(near(estimate(&registers, start + SECOND), 10_000.0));
        send(&registers, &key, 0..30_000, start + SECOND);
        assert!(near(estimate(&registers, start + SECOND), 10_000.0), "the last one is kept");
        assert!(near(estimate(&registers, start + 2 * SECOND), 30_000.0));
        assert_eq!(estimate(&registers, start + 3 * SECOND), 0.0, "nobody sent");
        // A CPU with an older clock takes nothing away.
        send(&registers, &key, 0..10, start);
        assert!(near(estimate(&registers, start + 2 * SECOND), 30_000.0));
        // After the clock was set back they count again.
        send(&registers, &key, 0..20_000, start - 3600 * SECOND);
        assert!(near(estimate(&registers, start - 3599 * SECOND), 20_000.0));
    }

    #[test]
    fn the_same_sources_count_once() {
        let (registers, key) = (registers(), key(3));
        send(&registers, &key, 0..500, SECOND);
        let once = estimate(&registers, 2 * SECOND);
        for _ in 0..100 {
            send(&registers, &key, 0..500, SECOND);
        }
        assert_eq!(estimate(&registers, 2 * SECOND), once);
    }

    fn ranks() -> impl Strategy<Value = Ranks> {
        (any::<u64>(), 0u32..20_000, 0u32..20_000).prop_map(|(_, first, count)| {
            let registers = registers();
            send(&registers, &key(9), first..first + count, SECOND);
            Ranks::full(&registers, epoch(2 * SECOND))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn merging_is_a_union(a in ranks(), b in ranks(), c in ranks()) {
            let merged = |left: &Ranks, right: &Ranks| {
                let mut both = left.clone();
                both.merge(right);
                both
            };
            prop_assert_eq!(merged(&a, &b), merged(&b, &a));
            prop_assert_eq!(merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
            prop_assert_eq!(merged(&a, &a), a.clone());
            prop_assert_eq!(merged(&a, &Ranks::default()), a);
        }

        #[test]
        fn merged_hosts_are_as_one_that_saw_all(split in 0u32..20_000, count in 1u32..20_000) {
            let [one, other, all] = [registers(), registers(), registers()];
            send(&one, &key(5), 0..split, SECOND);
            send(&other, &key(5), split / 2..split / 2 + count, SECOND);
            send(&all, &key(5), 0..split, SECOND);
            send(&all, &key(5), split / 2..split / 2 + count, SECOND);
            let [mut one, other, all] =
                [one, other, all].map(|registers| Ranks::full(&registers, epoch(2 * SECOND)));
            one.merge(&other);
            prop_assert_eq!(one, all);
        }
    }
}
