use super::*;
use crate::hash::HashKey;
use crate::key::SourceKey;
use proptest::prelude::*;
use std::collections::HashMap;
use std::vec::Vec;

const WINDOW: Window = Window { shift: 27 };

fn cells(shape: Shape) -> Vec<AtomicU64> {
    (0..shape.cells()).map(|_| AtomicU64::new(0)).collect()
}

fn hasher(seed: u64) -> HashKey {
    let mut x = seed;
    HashKey {
        words: [(); 10].map(|()| {
            x = (x ^ (x >> 29))
                .wrapping_mul(0xbf58_476d_1ce4_e5b9)
                .wrapping_add(0x1234_5678_9abc_def1);
            x
        }),
    }
}

fn source(i: u32) -> SourceKey {
    SourceKey::from_ipv4(i.to_be_bytes())
}

/// A xorshift generator: the streams must be the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Inverse-transform sampling of Zipf(s) over `n` ranks.
fn zipf(n: u32, s: f64) -> impl FnMut(&mut Random) -> u32 {
    let mut cumulative: Vec<f64> = Vec::with_capacity(n as usize);
    let mut sum = 0.0;
    for rank in 1..=n {
        sum += f64::from(rank).powf(-s);
        cumulative.push(sum);
    }
    move |random| {
        let u = random.unit() * sum;
        cumulative.partition_point(|&c| c < u) as u32
    }
}

/// Feeds a stream into a sketch of (ε, δ) and returns the share of sources whose estimate exceeds
/// the truth by more than ε·N. Panics if one is underestimated.
fn share_over_bound(
    width: u32,
    depth: u32,
    seed: u64,
    mut next: impl FnMut(&mut Random) -> u32,
) -> f64 {
    let shape = Shape { mask: width - 1, depth };
    let memory = cells(shape);
    let sketch = Sketch { cells: &memory, shape };
    let key = hasher(seed);
    let mut random = Random(seed | 1);
    let now = Position { epoch: 9, fraction: 0 };
    let mut exact: HashMap<u32, u32> = HashMap::new();
    let n = 200_000u32;
    for _ in 0..n {
        let i = next(&mut random);
        *exact.entry(i).or_default() += 1;
        sketch.add(key.hash(source(i)), now);
    }
    let bound = core::f64::consts::E / f64::from(width) * f64::from(n);
    let mut over = 0usize;
    for (&i, &truth) in &exact {
        let estimate = sketch.estimate(key.hash(source(i)), now).current;
        assert!(estimate >= truth, "source {i}: {estimate} < {truth}");
        if f64::from(estimate - truth) > bound {
            over += 1;
        }
    }
    over as f64 / exact.len() as f64
}

#[test]
fn meets_its_error_bound_on_uniform_and_zipf_streams() {
    for (width, depth) in [(1024, 2), (1024, 4), (4096, 4), (16_384, 7)] {
        let delta = (-f64::from(depth)).exp();
        for seed in [3, 77] {
            let uniform = share_over_bound(width, depth, seed, |r| (r.next() % 50_000) as u32);
            assert!(uniform <= delta, "uniform {width}×{depth}: {uniform} > {delta}");
            let zipf = share_over_bound(width, depth, seed, zipf(50_000, 1.1));
            assert!(zipf <= delta, "zipf {width}×{depth}: {zipf} > {delta}");
        }
    }
}

proptest! {
    /// Over many epochs with gaps: the estimate is never below the source's count in the present
    /// epoch plus the remaining share of the one before, as far as that is remembered. No packet but the first of
    /// its source in an epoch is said to be so.
    #[test]
    fn never_underestimates_within_its_window(
        stream in prop::collection::vec((0u32..40, 0u64..40_000_000), 1..600), start in 0u64..1 << 50,
    ) {
        let shape = Shape { mask: 15, depth: 3 };
        let memory = cells(shape);
        let sketch = Sketch { cells: &memory, shape };
        let key = hasher(5);
        let mut exact: HashMap<(u32, u64), u32> = HashMap::new();
        let mut now = start;
        for (i, gap) in stream {
            now += gap;
            let epoch = now >> WINDOW.shift;
            let position = WINDOW.position(now);
            *exact.entry((i, epoch)).or_default() += 1;
            let hash = key.hash(source(i));
            let fresh = (0..shape.depth).fold(0, |fresh, row| {
                let word = AtomicU64::new(atomic::load(&memory[shape.index(hash, row) as usize]));
                fresh | count(&word, position, Shape::bit(hash, row)).fresh
            });
            let estimate = sketch.add(hash, position);
            let current = exact[&(i, epoch)];
            prop_assert!(fresh == 0 || (fresh == -1 && current == 1));
            let previous = exact.get(&(i, epoch.wrapping_sub(1))).copied().unwrap_or(0);
            let previous = previous.min(MAX_PREVIOUS);
            let window = f64::from(current)
                + f64::from(previous) * (1.0 - f64::from(position.fraction) / 256.0);
            prop_assert!(estimate.current >= current);
            prop_assert!(f64::from(estimate.window) >= window);
        }
    }

    /// A cell rolls the same whether it is touched in between or not.
    #[test]
    fn rolling_forgets_exactly_what_is_old(count in 1u32..1000, skipped in 0u16..5) {
        // The numbers wrap within the test.
        let start = Position { epoch: u16::MAX, fraction: 200 };
        let word = AtomicU64::new(Cell::new(u16::MAX - 9, 0, 5).0 + 5);
        for _ in 0..count {
            super::count(&word, start, 3);
        }
        let later = Position { epoch: start.epoch.wrapping_add(skipped), fraction: 64 };
        let cell = Cell(atomic::load(&word)).rolled(later);
        let expected = match skipped {
            0 => count,
            1 => (count.min(MAX_PREVIOUS) * 192).div_ceil(256),
            _ => 0,
        };
        prop_assert_eq!(cell.estimate(later), expected);
    }
}

#[test]
fn a_cpu_that_is_late_does_not_roll_a_cell_back() {
    let word = AtomicU64::new(0);
    let late = Position { epoch: 0, fraction: 255 };
    let ahead = Position { epoch: 1, fraction: 0 };
    for _ in 0..5 {
        count(&word, late, 0);
        count(&word, ahead, 0);
    }
    // One was counted before the first roll, all others in the new epoch.
    let cell = Cell(atomic::load(&word));
    assert_eq!((cell.epoch(), cell.previous(), cell.current()), (1, 1, 9));
    assert!(count(&word, late, 0).cell.estimate(late) >= 10);
}

#[test]
fn first_is_when_the_epoch_was_first_touched() {
    let word = AtomicU64::new(0);
    count(&word, Position { epoch: 1, fraction: 250 }, 9);
    let Counted { cell, .. } = count(&word, Position { epoch: 2, fraction: 17 }, 9);
    assert_eq!((cell.first(), cell.current(), cell.previous()), (17, 1, 1));
    let Counted { cell, .. } = count(&word, Position { epoch: 2, fraction: 99 }, 9);
    assert_eq!((cell.first(), cell.current()), (17, 2));
    let wall = (5 << WINDOW.shift) + (WINDOW.ns() / 2);
    assert_eq!(WINDOW.since(64, wall), WINDOW.ns() / 4);
    assert_eq!(WINDOW.since(255, wall), 0);
}

#[test]
fn a_cell_saturates_instead_of_overflowing() {
    let now = Position { epoch: 1, fraction: 0 };
    let word = AtomicU64::new(Cell::new(1, 0, 3).0 + u64::from(MAX_COUNT) - 2);
    for bit in 0..1000 {
        count(&word, now, bit % 3);
    }
    let cell = Cell(atomic::load(&word));
    assert_eq!((cell.current(), cell.previous(), cell.epoch()), (MAX_COUNT, 3, 1));
    assert_eq!(count(&word, now, 2).fresh, 0);
    assert_eq!(count(&word, now, 3).fresh, -1);
    let next = Position { epoch: 2, fraction: 0 };
    assert_eq!(cell.rolled(next).estimate(next), MAX_PREVIOUS);
}

#[test]
fn no_packet_is_lost_between_cpus_and_one_is_the_first() {
    let word = AtomicU64::new(0);
    let now = Position { epoch: 3, fraction: 0 };
    let firsts: i64 = std::thread::scope(|scope| {
        let cpus: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| (0..50_000).map(|n| count(&word, now, n / 3125).fresh).sum::<i64>())
            })
            .collect();
        cpus.into_iter().map(|cpu| cpu.join().unwrap()).sum::<i64>()
    });
    let cell = Cell(atomic::load(&word));
    assert_eq!((cell.current(), cell.previous(), cell.first(), firsts), (200_000, 0, 0, -16));
}

#[test]
fn of_one_source_in_sixteen_it_is_known_that_others_were_not_it() {
    let shape = Shape { mask: 255, depth: 2 };
    let (memory, key) = (cells(shape), hasher(7));
    let now = Position { epoch: 3, fraction: 0 };
    let first = |i| {
        let hash = key.hash(source(i));
        (0..shape.depth).fold(0, |fresh, row| {
            let word = &memory[shape.index(hash, row) as usize];
            fresh | count(word, now, Shape::bit(hash, row)).fresh
        }) < 0
    };
    // 16 in each cell: a bit is set with probability 1 - 1/e, at the end, and both with 0.4.
    let firsts = (0..4096).filter(|i| first(*i)).count();
    assert!((3400..3500).contains(&firsts), "{firsts}");
    assert_eq!((0..4096).filter(|i| first(*i)).count(), 0);
}

#[test]
fn all_packets_roll_as_a_cell_does() {
    let word = AtomicU64::new(0);
    let at = |epoch, fraction| Position { epoch, fraction };
    for _ in 0..50_000 {
        Total::add(&word, at(7, 0), 64);
    }
    assert_eq!(Total::at(&word, at(7, 9)).current(), 3_200_000);
    Total::add(&word, at(8, 64), 64);
    assert_eq!(Total::at(&word, at(8, 64)).estimate(at(8, 64)), 2_400_064);
    assert_eq!(Total::at(&word, at(9, 0)).estimate(at(9, 0)), 64);
    assert_eq!(Total::at(&word, at(10, 0)).estimate(at(10, 0)), 0);
    for _ in 0..1_000_000 {
        Total::add(&word, at(11, 0), 64);
    }
    let full = Total::at(&word, at(11, 0)).current();
    assert!(full > 15_000_000 && full < 1 << 24, "{full}");
}
