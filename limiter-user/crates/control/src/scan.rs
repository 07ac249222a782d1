//! One pass over the counts of all buckets: the heaviest by each of what they can be sorted by.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use limiter_common::abi::Counters;

use model::source::Counts;
use model::traffic::Sort;

/// Two looks at what sources have sent are at least this far apart for a rate.
pub const RATE_INTERVAL: Duration = Duration::from_millis(200);

/// Looks before this are not compared with.
pub(super) const STALE: Duration = Duration::from_secs(5);

/// Bytes are compared in units of these: then neither half of a packed count comes round within
/// [`STALE`] at 100 Gbit/s from one source.
const BYTES: u64 = 16;

/// A bucket's count at a look, packed: the lower halves of its packets, and of its bytes in sixteens.
fn pack(counts: &Counts) -> u64 {
    (counts.bytes / BYTES) << 32 | counts.packets() & u64::from(u32::MAX)
}

/// Packets, and bytes to within [`BYTES`].
pub(super) type Offered = (u64, u64);

/// What was offered between two packed counts of the same source.
fn between(earlier: u64, now: u64) -> Offered {
    let packets = (now as u32).wrapping_sub(earlier as u32);
    let bytes = ((now >> 32) as u32).wrapping_sub((earlier >> 32) as u32);
    (u64::from(packets), u64::from(bytes) * BYTES)
}

/// All counts at one moment, by the number of the bucket.
pub(super) struct Snapshot {
    /// When it began.
    pub(super) at: Instant,
    /// The same, ns since boot.
    pub(super) at_ns: u64,
    /// The data plane's counters then.
    pub(super) counters: Option<Counters>,
    counts: Vec<u64>,
}

impl Snapshot {
    /// The counts of so many buckets that `visit` tells, from `at_ns` since boot on.
    pub(super) fn take(
        at_ns: u64,
        buckets: usize,
        visit: impl FnOnce(&mut dyn FnMut(usize, Counts)),
    ) -> Self {
        let at = Instant::now();
        let mut packed = vec![0; buckets];
        visit(&mut |bucket, counts| {
            if let Some(count) = packed.get_mut(bucket) {
                *count = pack(&counts);
            }
        });
        Self { at, at_ns, counters: None, counts: packed }
    }

    /// What a source has offered since the look began. One that got its bucket later had not offered
    /// anything, whatever the look says of the bucket.
    #[inline]
    pub(super) fn since(&self, bucket: usize, counts: &Counts) -> Offered {
        if counts.since_ns > self.at_ns {
            return (counts.packets(), counts.bytes);
        }
        let earlier = self.counts.get(bucket).copied().unwrap_or_default();
        between(earlier, pack(counts))
    }
}

/// Earlier looks, the latest last. They are kept only while somebody looks: the two latest, [`RATE_INTERVAL`]
/// from each other, so that of several who look at different times each finds one to compare with.
#[derive(Default)]
pub(super) struct Snapshots(VecDeque<Snapshot>);

impl Snapshots {
    /// Frees counts that nobody will compare with.
    pub(super) fn forget_old(&mut self) {
        self.0.retain(|look| look.at.elapsed() <= STALE);
    }

    pub(super) fn latest(&self) -> Option<&Snapshot> {
        self.0.back()
    }

    /// The latest look that is far enough from `now`.
    pub(super) fn earlier(&self, now: Instant) -> Option<&Snapshot> {
        self.0.iter().rev().find(|look| now.duration_since(look.at) >= RATE_INTERVAL)
    }

    /// Room for the counts of a look at `now`, if they are to be kept.
    pub(super) fn room(&mut self, now: Instant, now_ns: u64, buckets: usize) -> Option<Snapshot> {
        if self.0.back().is_some_and(|latest| now.duration_since(latest.at) < RATE_INTERVAL) {
            return None;
        }
        let oldest = if self.0.len() > 1 { self.0.pop_front() } else { None };
        // A count that is left in it is of a source that has its bucket no longer.
        let counts = oldest.map(|look| look.counts).filter(|counts| counts.len() == buckets);
        let counts = counts.unwrap_or_else(|| vec![0; buckets]);
        Some(Snapshot { at: now, at_ns: now_ns, counters: None, counts })
    }

    pub(super) fn keep(&mut self, look: Option<Snapshot>) {
        self.0.extend(look);
    }
}

/// What is sorted by, then what the source offers at present and what it has offered, in packets: where
/// nothing is dropped, the heaviest are still those that send most.
pub(super) type Weight = [u64; 3];

/// A bucket. The heaviest is the greatest; of equals, that of the lowest number.
type Candidate = (Weight, Reverse<usize>);

/// The `n` greatest of what it is given, in ascending order of the buckets' numbers.
struct Heaviest {
    n: usize,
    /// What is less heavy than this is none of them.
    bar: Weight,
    heap: BinaryHeap<Reverse<Candidate>>,
}

impl Heaviest {
    fn new(n: usize) -> Self {
        Self { n, bar: [0; 3], heap: BinaryHeap::with_capacity(n) }
    }

    #[inline(always)]
    fn push(&mut self, weight: Weight, bucket: usize) {
        // All but the heaviest end here, nearly all with the first or the second comparison: to compare whole
        // weights at once took four times as long.
        let [first, second, _] = weight;
        if first > self.bar[0]
            || first == self.bar[0] && second >= self.bar[1] && weight >= self.bar
        {
            self.insert(weight, bucket);
        }
    }

    #[cold]
    fn insert(&mut self, weight: Weight, bucket: usize) {
        let candidate = (weight, Reverse(bucket));
        if self.heap.len() < self.n {
            self.heap.push(Reverse(candidate));
        } else if let Some(mut least) = self.heap.peek_mut()
            && candidate > least.0
        {
            *least = Reverse(candidate);
        }
        if self.heap.len() == self.n {
            // Of equals the first ones stay.
            let above = |[first, second, third]: Weight| [first, second, third.saturating_add(1)];
            self.bar = self.heap.peek().map_or([u64::MAX; 3], |least| above(least.0.0));
        }
    }

    /// The heaviest first.
    fn buckets(self) -> Vec<usize> {
        let sorted = self.heap.into_sorted_vec().into_iter();
        sorted.map(|Reverse((_, Reverse(bucket)))| bucket).collect()
    }
}

/// What `sort` compares. `offered` is since an earlier look.
#[inline(always)]
pub(super) fn weight(sort: Sort, counts: &Counts, (packets, bytes): Offered) -> Weight {
    let first = match sort {
        Sort::Dropped => counts.dropped,
        Sort::Packets => counts.packets(),
        Sort::Bytes => counts.bytes,
        Sort::Pps => packets,
        Sort::Bits => bytes,
    };
    [first, packets, counts.packets()]
}

/// A pass over all buckets.
pub struct Scan<'a> {
    earlier: Option<&'a Snapshot>,
    kept: Option<Snapshot>,
    heaviest: [Heaviest; Sort::ALL.len()],
    tracked: u64,
}

/// What a pass has found.
pub(super) struct Found {
    /// The look, if it is to be kept.
    pub(super) kept: Option<Snapshot>,
    /// The buckets of the heaviest, by each of [`Sort::ALL`], the heaviest first.
    pub(super) buckets: [Vec<usize>; Sort::ALL.len()],
    /// Sources with a bucket.
    pub(super) tracked: u64,
}

impl<'a> Scan<'a> {
    /// A pass that finds the `n` heaviest, rates being those since `earlier`.
    pub(super) fn new(n: usize, earlier: Option<&'a Snapshot>, kept: Option<Snapshot>) -> Self {
        let heaviest = std::array::from_fn(|_| Heaviest::new(n));
        Self { earlier, kept, heaviest, tracked: 0 }
    }

    /// Takes the counts of a bucket; they have to come in the order of the buckets' numbers.
    #[inline(always)]
    pub fn visit(&mut self, bucket: usize, counts: &Counts) {
        self.tracked += 1;
        let offered =
            self.earlier.map_or_else(Offered::default, |earlier| earlier.since(bucket, counts));
        for (heaviest, sort) in self.heaviest.iter_mut().zip(Sort::ALL) {
            heaviest.push(weight(sort, counts, offered), bucket);
        }
        if let Some(place) = self.kept.as_mut().and_then(|look| look.counts.get_mut(bucket)) {
            *place = pack(counts);
        }
    }

    pub(super) fn found(self) -> Found {
        let buckets = self.heaviest.map(Heaviest::buckets);
        Found { kept: self.kept, buckets, tracked: self.tracked }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counts(since_ns: u64, passed: u64, bytes: u64) -> Counts {
        Counts { passed, dropped: 1, bytes, since_ns }
    }

    fn look(at_ns: u64, counts: &[Counts]) -> Snapshot {
        let counts = counts.iter().map(pack).collect();
        Snapshot { at: Instant::now(), at_ns, counters: None, counts }
    }

    #[test]
    fn what_is_offered_is_counted_from_the_earlier_look_on() {
        let start = 77_000_000_000_000;
        let earlier = look(start + 5, &[counts(start, 100, 6400)]);
        assert_eq!(earlier.since(0, &counts(start, 142, 9600)), (42, 3200));
        // Another source has the bucket now, or one where none was.
        assert_eq!(earlier.since(0, &counts(start + 6, 6, 420)), (7, 420));
        assert_eq!(earlier.since(9, &counts(start, 6, 420)), (7, 416));
        // The lower half of a count comes round.
        let many = u64::from(u32::MAX);
        let earlier = look(start + 5, &[counts(start, many - 10, 16 * many - 160)]);
        assert_eq!(earlier.since(0, &counts(start, many + 90, 16 * many + 1440)), (100, 1600));
    }

    #[test]
    fn where_nothing_is_dropped_rates_decide_then_packets() {
        let counts = |packets| Counts { passed: packets, dropped: 0, bytes: 0, since_ns: 1 };
        let earlier = look(2, &[100, 900, 100, 0].map(counts));
        let mut scan = Scan::new(3, Some(&earlier), None);
        let now = [100, 950, 300, 50].map(counts);
        now.iter().enumerate().for_each(|(bucket, counts)| scan.visit(bucket, counts));
        let found = scan.found().buckets;
        assert_eq!(found[Sort::Dropped as usize], [2, 1, 3]);
        assert_eq!(found[Sort::Bits as usize], [2, 1, 3]);
    }

    proptest! {
        #[test]
        fn the_heaviest_are_found(
            sources in prop::collection::vec((0u64..50, 0u64..50, 0u64..5000), 0..200),
            before in prop::collection::vec((0u64..50, 0u64..5000), 200),
            n in 0usize..30,
        ) {
            let counts: Vec<_> = sources
                .iter()
                .map(|(passed, dropped, bytes)| Counts { passed: passed + 50, dropped: *dropped, bytes: bytes + 5000, since_ns: 1 })
                .collect();
            let earlier: Vec<_> = before
                .iter()
                .map(|(passed, bytes)| Counts { passed: *passed, dropped: 0, bytes: *bytes, since_ns: 1 })
                .collect();
            let earlier = look(2, &earlier);
            let mut scan = Scan::new(n, Some(&earlier), None);
            counts.iter().enumerate().for_each(|(bucket, counts)| scan.visit(bucket, counts));
            let found = scan.found();
            prop_assert_eq!(found.tracked, sources.len() as u64);
            for (sort, buckets) in Sort::ALL.into_iter().zip(found.buckets) {
                let mut all: Vec<Candidate> = counts
                    .iter()
                    .enumerate()
                    .map(|(at, counts)| (weight(sort, counts, earlier.since(at, counts)), Reverse(at)))
                    .collect();
                all.sort_unstable();
                let wanted: Vec<_> =
                    all[all.len() - n.min(all.len())..].iter().rev().map(|(_, Reverse(at))| *at).collect();
                prop_assert_eq!(buckets, wanted);
            }
        }
    }

    #[test]
    fn two_looks_are_kept_apart() {
        let mut looks = Snapshots::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        for (ms, earlier) in [
            (0, None),
            (100, None),
            (300, Some(0)),
            (400, Some(0)),
            (600, Some(300)),
            (700, Some(300)),
        ] {
            let kept = looks.room(at(ms), ms, 4);
            assert_eq!(looks.earlier(at(ms)).map(|look| look.at), earlier.map(at), "{ms}");
            looks.keep(kept);
            assert!(looks.0.len() <= 2);
        }
    }
}
