//! Who counts: the limiter's sketch and two peers, behind one face.

use std::{cmp::Reverse, sync::atomic::AtomicU64};

use datasketches::{
    countmin::CountMinSketch,
    frequencies::{ErrorType, FrequentItemsSketch},
};
use limiter_common::{
    hash::{Hash, HashKey},
    key::SourceKey,
    sketch::{MAX_DEPTH, Position, Shape, Sketch},
};

use crate::stream::Stream;

/// The accuracy that is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Error relative to all packets.
    pub(crate) epsilon: f64,
    /// Probability of a larger one.
    pub(crate) delta: f64,
}

impl Wanted {
    /// The size of the sketch for it: ⌈e/ε⌉ columns, rounded up to a power of two, and ⌈ln 1/δ⌉ rows.
    pub(crate) fn shape(self) -> Shape {
        let width = (std::f64::consts::E / self.epsilon).ceil() as u32;
        let depth = (1.0 / self.delta).ln().ceil() as u32;
        Shape { mask: width.next_power_of_two() - 1, depth: depth.clamp(1, MAX_DEPTH) }
    }
}

/// Something that counts the packets of sources.
pub(crate) trait Contender {
    /// How it is called.
    const NAME: &'static str;
    /// An empty one.
    fn new(wanted: Wanted) -> Self;
    /// Counts a packet.
    fn add(&mut self, source: u32);
    /// How many packets it believes there were.
    fn estimate(&self, source: u32) -> u64;
    /// Its memory in bytes.
    fn bytes(&self) -> usize;

    /// The `n` heaviest sources by its own account. A sketch that keeps no names is asked for every
    /// source of `stream`. Addresses, which say nothing of ranks, decide between equals.
    fn heaviest(&self, stream: &Stream, n: usize) -> Vec<u32> {
        let named = stream.exact.iter().map(|&(source, _)| (self.estimate(source), source));
        first(named.collect(), n)
    }
}

fn first(mut named: Vec<(u64, u32)>, n: usize) -> Vec<u32> {
    named.sort_unstable_by_key(|&(count, source)| (Reverse(count), source));
    named.into_iter().take(n).map(|(_, source)| source).collect()
}

/// A key that is fixed, for the same figures in every run.
pub(crate) fn hash_key() -> HashKey {
    let mut word = 0x5eed_u64;
    HashKey {
        words: [(); 10].map(|()| {
            word = (word ^ (word >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(77);
            word
        }),
    }
}

/// The limiter's sketch, in one epoch that lasts for the whole stream.
pub(crate) struct Limiter {
    cells: Vec<AtomicU64>,
    shape: Shape,
    key: HashKey,
}

impl Limiter {
    const NOW: Position = Position { epoch: 1, fraction: 0 };

    fn sketch(&self) -> Sketch<'_> {
        Sketch { cells: &self.cells, shape: self.shape }
    }

    fn hash(&self, source: u32) -> Hash {
        self.key.hash(SourceKey::from_ipv4(source.to_be_bytes()))
    }
}

impl Contender for Limiter {
    const NAME: &'static str = "limiter";

    fn new(wanted: Wanted) -> Self {
        let shape = wanted.shape();
        let cells = (0..shape.cells()).map(|_| AtomicU64::new(0)).collect();
        Self { cells, shape, key: hash_key() }
    }

    fn add(&mut self, source: u32) {
        // The estimate is part of the work: the kernel needs it for every packet.
        std::hint::black_box(self.sketch().add(self.hash(source), Self::NOW));
    }

    fn estimate(&self, source: u32) -> u64 {
        u64::from(self.sketch().estimate(self.hash(source), Self::NOW).window)
    }

    fn bytes(&self) -> usize {
        size_of_val(self.cells.as_slice())
    }
}

/// `datasketches`' Count-Min Sketch of the same size.
pub(crate) struct CountMin(CountMinSketch<u64>);

impl Contender for CountMin {
    const NAME: &'static str = "count-min";

    fn new(wanted: Wanted) -> Self {
        let shape = wanted.shape();
        let depth = u8::try_from(shape.depth).expect("a sketch has few rows");
        Self(CountMinSketch::new(depth, shape.width()).expect("a size that count-min takes"))
    }

    fn add(&mut self, source: u32) {
        self.0.update(source);
    }

    fn estimate(&self, source: u32) -> u64 {
        self.0.estimate(source)
    }

    fn bytes(&self) -> usize {
        self.0.estimated_size()
    }
}

/// `datasketches`' frequent items: it keeps the names of the heavy ones. Its ε is 3.5 over the size
/// of its map, and holds for certain.
pub(crate) struct FrequentItems(FrequentItemsSketch<u32>);

impl Contender for FrequentItems {
    const NAME: &'static str = "frequent-items";

    fn new(wanted: Wanted) -> Self {
        let size = (3.5 / wanted.epsilon).ceil() as usize;
        let sketch = FrequentItemsSketch::new(size.next_power_of_two());
        Self(sketch.expect("a size that frequent items take"))
    }

    fn add(&mut self, source: u32) {
        self.0.update(source);
    }

    fn estimate(&self, source: u32) -> u64 {
        self.0.estimate(&source)
    }

    fn bytes(&self) -> usize {
        self.0.estimated_size()
    }

    fn heaviest(&self, _: &Stream, n: usize) -> Vec<u32> {
        // Rather too many than too few: the caller cuts the list, and the recall is what is compared.
        let rows = self.0.frequent_items(ErrorType::NoFalseNegatives);
        first(rows.iter().map(|row| (row.estimate(), *row.item())).collect(), n)
    }
}
