//! Streams of packets, and what is really in them.

use std::cmp::Reverse;

/// Different sources that may send.
pub(crate) const SOURCES: u32 = 1_000_000;

/// Packets in a stream.
pub(crate) const PACKETS: usize = 10_000_000;

/// How many of the heaviest sources are asked for.
pub(crate) const TOP: usize = 100;

/// SplitMix64 (Steele, Lea and Flood, 2014): streams are the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, bound: u32) -> u32 {
        (((self.next() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// From 0 up to 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Draws ranks with given weights in constant time: the alias method (Walker, 1977; Vose, 1991).
struct Alias {
    /// The probability of each rank to keep its own place, and who has the rest of it.
    places: Vec<(f64, u32)>,
}

impl Alias {
    fn new(weights: &[f64]) -> Self {
        let mean = weights.iter().sum::<f64>() / weights.len() as f64;
        let mut places: Vec<(f64, u32)> =
            (0..).zip(weights).map(|(rank, weight)| (weight / mean, rank)).collect();
        let of = |light: bool| {
            let ranks = 0..places.len();
            ranks.filter(|&rank| (places[rank].0 < 1.0) == light).collect::<Vec<_>>()
        };
        let (mut light, mut heavy) = (of(true), of(false));
        while let (Some(small), Some(&large)) = (light.pop(), heavy.last()) {
            places[small].1 = large as u32;
            places[large].0 -= 1.0 - places[small].0;
            if places[large].0 < 1.0 {
                heavy.pop();
                light.push(large);
            }
        }
        // What is left is 1 but for rounding, and keeps its whole place.
        for rank in light.into_iter().chain(heavy) {
            places[rank].0 = 1.0;
        }
        Self { places }
    }

    fn draw(&self, random: &mut Random) -> u32 {
        let rank = random.below(self.places.len() as u32);
        let (own, alias) = self.places[rank as usize];
        if random.unit() < own { rank } else { alias }
    }
}

/// Packets, each as the IPv4 address of its source, and the exact counts.
pub(crate) struct Stream {
    /// How it is called.
    pub(crate) name: &'static str,
    /// The sources in the order of their packets.
    pub(crate) packets: Vec<u32>,
    /// Every source that sent, and how many packets; the most first.
    pub(crate) exact: Vec<(u32, u64)>,
}

impl Stream {
    /// Rank k of [`SOURCES`] sends in proportion to k^−1.1.
    pub(crate) fn zipf() -> Self {
        let weights: Vec<f64> = (1..=SOURCES).map(|rank| f64::from(rank).powf(-1.1)).collect();
        let alias = Alias::new(&weights);
        Self::new("zipf", |random| alias.draw(random))
    }

    /// All of [`SOURCES`] alike.
    pub(crate) fn uniform() -> Self {
        Self::new("uniform", |random| random.below(SOURCES))
    }

    fn new(name: &'static str, draw: impl Fn(&mut Random) -> u32) -> Self {
        let mut random = Random(0x5eed);
        let mut counts = vec![0; SOURCES as usize];
        let packets = (0..PACKETS)
            .map(|_| {
                let rank = draw(&mut random);
                counts[rank as usize] += 1;
                address(rank)
            })
            .collect();
        let mut exact: Vec<(u32, u64)> =
            (0..SOURCES).map(address).zip(counts).filter(|&(_, count)| count > 0).collect();
        exact.sort_unstable_by_key(|&(source, count)| (Reverse(count), source));
        Self { name, packets, exact }
    }

    /// The least count among the [`TOP`] heaviest: whoever has it belongs to them.
    pub(crate) fn threshold(&self) -> u64 {
        self.exact.get(TOP - 1).map_or(0, |&(_, count)| count)
    }
}

/// Spreads ranks over all addresses, one to one: neither order nor distance tells who is heavy.
fn address(rank: u32) -> u32 {
    rank.wrapping_mul(0x9e37_79b1) ^ 0x0a00_0000
}
