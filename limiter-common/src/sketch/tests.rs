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
    /// epoch plus the remaining share of the one before.
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
            let estimate = sketch.add(key.hash(source(i)), position);
            let current = exact[&(i, epoch)];
            let previous = exact.get(&(i, epoch.wrapping_sub(1))).copied().unwrap_or(0);
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
        let word = AtomicU64::new(Cell::new(u16::MAX - 9, 0, 5, 5).0);
        for _ in 0..count {
            touch(&word, start, 1);
        }
        let later = Position { epoch: start.epoch.wrapping_add(skipped), fraction: 64 };
        let cell = Cell(atomic::load(&word)).rolled(later);
        let expected = match skipped {
            0 => count,
            1 => (count * 192).div_ceil(256),
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
        touch(&word, late, 1);
        touch(&word, ahead, 1);
    }
    // One was counted before the first roll, all others in the new epoch.
    let cell = Cell(atomic::load(&word));
    assert_eq!((cell.epoch(), cell.previous(), cell.current()), (1, 1, 9));
    assert!(touch(&word, late, 1).estimate(late) >= 10);
}

#[test]
fn first_is_when_the_epoch_was_first_touched() {
    let word = AtomicU64::new(0);
    touch(&word, Position { epoch: 1, fraction: 250 }, 1);
    let cell = touch(&word, Position { epoch: 2, fraction: 17 }, 1);
    assert_eq!((cell.first(), cell.current(), cell.previous()), (17, 1, 1));
    let cell = touch(&word, Position { epoch: 2, fraction: 99 }, 1);
    assert_eq!((cell.first(), cell.current()), (17, 2));
    let wall = (5 << WINDOW.shift) + (WINDOW.ns() / 2);
    assert_eq!(WINDOW.since(64, wall), WINDOW.ns() / 4);
    assert_eq!(WINDOW.since(255, wall), 0);
}

#[test]
fn a_cell_saturates_instead_of_overflowing() {
    let word = AtomicU64::new(0);
    let now = Position { epoch: 1, fraction: 0 };
    for _ in 0..MAX_COUNT / 1000 + 2 {
        touch(&word, now, 1000);
    }
    let cell = Cell(atomic::load(&word));
    assert!(cell.current() >= MAX_COUNT && cell.previous() == 0 && cell.epoch() == 1);
    let next = Position { epoch: 2, fraction: 0 };
    assert_eq!(cell.rolled(next).estimate(next), cell.current());
}

#[test]
fn no_update_is_lost_between_cpus() {
    let word = AtomicU64::new(0);
    let now = Position { epoch: 3, fraction: 0 };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50_000 {
                    touch(&word, now, 1);
                }
            });
        }
    });
    assert_eq!(Cell(atomic::load(&word)).current(), 200_000);
}
