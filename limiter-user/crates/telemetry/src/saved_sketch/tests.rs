use limiter_common::hash::HashKey;
use limiter_common::hll::{LANES, add, epoch};
use limiter_common::key::SourceKey;
use model::Explain as _;
use proptest::prelude::*;

use super::*;

const KEY: HashKey = HashKey { words: [0x9e37_79b9_7f4a_7c15; 10] };
const SHAPE: Shape = Shape { mask: 63, depth: 3 };
const SECOND_NS: u64 = 1 << WINDOW_SHIFT;

/// A source and the packets that it sends.
type Sent = (u16, u32);

fn header(from_ms: u64) -> Header {
    let moment = |ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
    let moments = [from_ms, from_ms + 126].map(moment);
    Header::new(7, (32, 64), SHAPE, Window { shift: 27 }, moments)
}

fn cells_of(source: u16) -> Vec<u32> {
    let hash = KEY.hash(SourceKey::from_ipv4(u32::from(source).to_be_bytes()));
    (0..SHAPE.depth).map(|row| SHAPE.index(hash, row)).collect()
}

/// What a host saves that has seen `sent`.
fn saved(sent: &[Sent], at_ms: u64) -> SavedSketch {
    let mut cells = vec![0; SHAPE.cells() as usize];
    let registers: Vec<_> = (0..REGISTERS / LANES).map(|_| 0.into()).collect();
    let registers: Box<limiter_common::hll::Registers> = registers.try_into().unwrap();
    let mut rates = Digest::coarse();
    for (source, packets) in sent {
        let packets = u64::from(*packets);
        cells_of(*source).iter().for_each(|cell| cells[*cell as usize] += packets);
        let hash = KEY.hash(SourceKey::from_ipv4(u32::from(*source).to_be_bytes()));
        add(&registers, hash, SECOND_NS);
        rates.add(packets as f64);
    }
    let ranks = Ranks::full(&registers, epoch(2 * SECOND_NS));
    SavedSketch::new(header(at_ms), cells, ranks, rates)
}

fn merged(sketches: &[&SavedSketch]) -> SavedSketch {
    SavedSketch::merge(sketches.iter().map(|sketch| (*sketch).clone()).collect()).unwrap()
}

fn sent() -> impl Strategy<Value = Vec<Sent>> {
    prop::collection::vec((any::<u16>(), 1u32..1_000_000), 0..400)
}

/// Asserts that percentiles are those of `values`, within the error of digests that were merged in any order.
fn assert_rates(sketch: &SavedSketch, mut values: Vec<f64>) {
    values.sort_unstable_by(f64::total_cmp);
    let (count, percentiles) = sketch.rates();
    assert_eq!(count, values.len() as u64);
    let Some(found) = percentiles else { return };
    assert_eq!(Some(&found.max), values.last());
    for (rank, found) in [(0.5, found.p50), (0.9, found.p90), (0.99, found.p99)] {
        let rank = rank * values.len() as f64;
        // A hundredth of all ranks, and the neighbours that a value lies between.
        let slack = 0.01 * values.len() as f64 + 1.5;
        let at = |rank: f64| values[(rank.max(0.0) as usize).min(values.len() - 1)];
        let (low, high) = (at(rank - slack), at(rank + slack));
        assert!((low..=high).contains(&found), "{found} is not in {low}..={high}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn merging_is_commutative_and_associative(a in sent(), b in sent(), c in sent()) {
        let all: Vec<_> = [&a[..], &b, &c].concat();
        let [a, b, c] = [(a, 5), (b, 900), (c, 70)].map(|(sent, at)| saved(&sent, at));
        let together = merged(&[&a, &b, &c]);
        let bytes = together.bytes();
        for order in [[&a, &c, &b], [&b, &a, &c], [&c, &b, &a]] {
            prop_assert_eq!(&merged(&order).bytes(), &bytes, "not a byte");
        }
        let whole = saved(&all, 5);
        for nested in [merged(&[&merged(&[&a, &b]), &c]), merged(&[&a, &merged(&[&b, &c])]), together] {
            prop_assert_eq!(&nested.header, &Header { saves: 3, to_ms: 1026, ..header(5) });
            prop_assert_eq!(&nested.cells, &whole.cells, "as if one host had seen all");
            prop_assert_eq!(&nested.ranks, &whole.ranks);
            assert_rates(&nested, all.iter().map(|(_, packets)| f64::from(*packets)).collect());
        }
    }

    #[test]
    fn the_same_again_counts_twice_and_its_sources_once(a in sent()) {
        let once = saved(&a, 5);
        let twice = merged(&[&once, &once]);
        prop_assert_eq!(&twice.ranks, &once.ranks);
        prop_assert_eq!(twice.packets(), 2 * once.packets());
        prop_assert_eq!(twice.rates().0, 2 * once.rates().0);
    }

    #[test]
    fn an_estimate_is_never_too_low(a in sent(), b in sent()) {
        let sketch = merged(&[&saved(&a, 5), &saved(&b, 5)]);
        let all: Vec<_> = [&a[..], &b].concat();
        let total: u64 = all.iter().map(|(_, packets)| u64::from(*packets)).sum();
        prop_assert_eq!(sketch.packets(), total);
        for (source, _) in &all {
            let of_it = all.iter().filter(|(other, _)| other == source);
            let sent: u64 = of_it.map(|(_, packets)| u64::from(*packets)).sum();
            let found = sketch.estimate(&cells_of(*source)).unwrap();
            prop_assert!((sent..=total).contains(&found), "{found}, not {sent}");
        }
    }

    #[test]
    fn what_is_written_is_read(a in sent()) {
        let bytes = saved(&a, 5).bytes();
        let read = SavedSketch::read(&bytes).unwrap();
        prop_assert_eq!(read.bytes(), bytes);
    }

    #[test]
    fn what_comes_from_others_can_do_no_harm(
        changed in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        sum in any::<bool>(),
    ) {
        let good = saved(&[(1, 500), (2, 70_000), (3, 1)], 5);
        let mut bytes = good.bytes();
        for (at, byte) in changed {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let cut = cut.index(bytes.len());
        for end in [bytes.len(), cut.max(CHECKSUM)] {
            let mut bytes = bytes[..end].to_vec();
            if sum {
                // What somebody has made, not what a disk has lost.
                let sum = crc32fast::hash(&bytes[..end - CHECKSUM]).to_be_bytes();
                bytes[end - CHECKSUM..].copy_from_slice(&sum);
            }
            match SavedSketch::read(&bytes) {
                Ok(read) => {
                    read.packets();
                    read.rates();
                    read.distinct();
                    read.estimate(&cells_of(1));
                    let _ = SavedSketch::merge(vec![good.clone(), read]);
                }
                Err(error) => prop_assert!(error.hint().is_some()),
            }
        }
    }
}

#[test]
fn a_bit_that_flips_is_noticed() {
    let bytes = saved(&[(1, 500)], 5).bytes();
    let content = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    for at in (content..bytes.len()).step_by(97) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 4;
        assert_eq!(SavedSketch::read(&flipped).unwrap_err(), damaged("checksum"), "{at}");
    }
}

#[test]
fn what_counts_something_else_is_refused() {
    let good = saved(&[(1, 500)], 5);
    let other = |change: &dyn Fn(&mut Header)| {
        let mut other = good.clone();
        change(&mut other.header);
        let error = SavedSketch::merge(vec![good.clone(), other]).unwrap_err();
        assert!(error.hint().is_some_and(|hint| hint.contains("one cluster key")), "{error}");
        error.to_string()
    };
    assert!(
        other(&|it| it.key = key_name(8)).starts_with("sketches differ in the key of their hash: ")
    );
    assert!(
        other(&|it| it.ipv4_prefix = 24).starts_with("sketches differ in their source prefixes: ")
    );
    assert!(
        other(&|it| it.ipv6_prefix = 48).starts_with("sketches differ in their source prefixes: ")
    );
    assert!(other(&|it| it.depth = 6).starts_with("sketches differ in the size of their sketch: "));
    assert!(other(&|it| it.window_ns = 1 << 28).starts_with("sketches differ in their window: "));
}

#[test]
fn what_no_host_can_have_written_is_refused() {
    let good = saved(&[(1, 500)], 5);
    let read = |change: &dyn Fn(&mut SavedSketch)| {
        let mut sketch = good.clone();
        change(&mut sketch);
        SavedSketch::read(&sketch.bytes()).unwrap_err()
    };
    let changes: [&dyn Fn(&mut SavedSketch); 12] = [
        &|it| it.header.key = "\u{1b}[2J0000000000000".into(),
        &|it| it.header.ipv4_prefix = 0,
        &|it| it.header.ipv6_prefix = 129,
        &|it| it.header.width = 65,
        &|it| it.header.width = 1 << 30,
        &|it| it.header.depth = 9,
        &|it| it.header.window_ns = 1,
        &|it| it.header.registers = 2048,
        &|it| it.header.distinct_window_ns = 1,
        &|it| it.header.saves = 0,
        &|it| it.header.from_ms = u64::MAX,
        &|it| it.cells.truncate(100),
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let error = read(change).to_string();
        let is_told = error.starts_with("it is damaged: its ") && !error.contains("checksum");
        assert!(is_told, "{at}: {error}");
    }
    let bytes = good.bytes();
    let text = |text: &str| SavedSketch::read(text.as_bytes()).unwrap_err().to_string();
    assert!(text("limiter-sketch 2\nsomething").contains("it has format 2, "));
    assert_eq!(text("limiter-sketch \n"), "it is no saved sketch");
    assert_eq!(text("# a list of limits\n"), "it is no saved sketch");
    assert!(text("limiter-sketch 1\n").contains("its length is wrong"));
    assert!(text("limiter-sketch 1\n{\"\"}").contains("its checksum is wrong"));
    let cut = SavedSketch::read(&bytes[..bytes.len() - 1]).unwrap_err();
    assert_eq!(cut, damaged("checksum"));
}

#[test]
fn an_estimate_needs_a_cell_in_each_row() {
    let sketch = saved(&[(1, 500)], 5);
    assert_eq!(sketch.estimate(&cells_of(1)), Some(500));
    assert_eq!(sketch.estimate(&cells_of(1)[1..]), None);
    assert_eq!(sketch.estimate(&[0, 1, SHAPE.cells()]), None);
}
