//! The heaviest sources and how fast they are at present.
//!
//! A look at all sources reads nothing but their counts. It finds the heaviest, whose views are taken
//! then, and keeps the counts for the rates of a later look.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant, SystemTime};

use super::core::Core;
use crate::dataplane::Counts;
use crate::report::{Average, Sort, TopEntry, TopReport};

/// Looks need to be this far apart for a rate.
const APART: Duration = Duration::from_millis(200);

/// Looks before this are not compared with.
const STALE: Duration = Duration::from_secs(10);

/// A bucket's count at a look, packed: the lower halves of when its source got it, in microseconds,
/// and of the source's packets. Within [`STALE`], neither comes round.
fn pack(counts: &Counts) -> u64 {
    (counts.since_ns / 1000) << 32 | counts.packets() & u64::from(u32::MAX)
}

/// Packets since an earlier look, or of a newer source since it got the bucket.
fn packets_since(earlier: u64, now: u64) -> u64 {
    let same_source = earlier >> 32 == now >> 32;
    let before = if same_source { earlier as u32 } else { 0 };
    u64::from((now as u32).wrapping_sub(before))
}

/// All counts at one moment, by the number of the bucket.
struct Look {
    at: Instant,
    counts: Vec<u64>,
}

impl Look {
    fn packets_since(&self, bucket: usize, counts: &Counts) -> u64 {
        packets_since(self.counts.get(bucket).copied().unwrap_or_default(), pack(counts))
    }
}

/// Earlier looks, the latest last. They are kept only while somebody looks: the two latest, [`APART`]
/// from each other, so that of several who look at different times each finds one to compare with.
#[derive(Default)]
pub(super) struct Top {
    looks: VecDeque<Look>,
}

impl Top {
    /// Frees counts that nobody will compare with.
    pub(super) fn forget_old(&mut self) {
        self.looks.retain(|look| look.at.elapsed() <= STALE);
    }

    /// The latest look that is far enough from `now`.
    fn earlier(&self, now: Instant) -> Option<&Look> {
        self.looks.iter().rev().find(|look| now.duration_since(look.at) >= APART)
    }

    /// Room for the counts of a look at `now`, if they are to be kept.
    fn room(&mut self, now: Instant, buckets: usize) -> Option<Look> {
        if self.looks.back().is_some_and(|latest| now.duration_since(latest.at) < APART) {
            return None;
        }
        let oldest = if self.looks.len() > 1 { self.looks.pop_front() } else { None };
        // A count that is left in it is of a source that has its bucket no longer.
        let counts = oldest.map(|look| look.counts).filter(|counts| counts.len() == buckets);
        Some(Look { at: now, counts: counts.unwrap_or_else(|| vec![0; buckets]) })
    }
}

/// What a bucket is sorted by, and its number. The heaviest is the greatest; of equals, that of the
/// lowest number.
type Weight = (u64, Reverse<usize>);

/// The `n` greatest of what it is given.
struct Heaviest {
    n: usize,
    heap: BinaryHeap<Reverse<Weight>>,
}

impl Heaviest {
    fn push(&mut self, weight: Weight) {
        if self.heap.len() < self.n {
            self.heap.push(Reverse(weight));
        } else if let Some(mut least) = self.heap.peek_mut()
            && weight > least.0
        {
            *least = Reverse(weight);
        }
    }
}

/// What `sort` compares.
fn weight(sort: Sort, bucket: usize, counts: &Counts, earlier: Option<&Look>) -> u64 {
    match sort {
        Sort::Dropped => counts.dropped,
        Sort::Packets => counts.packets(),
        Sort::Bytes => counts.bytes,
        Sort::Pps => {
            earlier.map_or(counts.packets(), |earlier| earlier.packets_since(bucket, counts))
        }
    }
}

impl Core {
    /// How long to wait before [`Core::top`] can sort by rates, if that is what it is to do and it
    /// cannot yet; takes the counts to compare with when there are none.
    pub fn prepare_top(&mut self, sort: Sort) -> Option<Duration> {
        self.top.forget_old();
        if sort != Sort::Pps || self.top.earlier(Instant::now()).is_some() {
            return None;
        }
        if self.top.looks.is_empty() {
            self.look(0, sort);
        }
        let latest = self.top.looks.back()?;
        APART.checked_sub(latest.at.elapsed()).filter(|wait| !wait.is_zero())
    }

    /// Looks at all sources. Returns how many there are, and the buckets of the `n` heaviest.
    fn look(&mut self, n: usize, sort: Sort) -> (u64, Vec<usize>) {
        let now = Instant::now();
        let mut kept = self.top.room(now, self.plane.buckets());
        let earlier = self.top.earlier(now);
        let mut heaviest = Heaviest { n, heap: BinaryHeap::new() };
        let mut tracked = 0;
        self.plane.counts(&mut |bucket, counts| {
            tracked += 1;
            heaviest.push((weight(sort, bucket, &counts, earlier), Reverse(bucket)));
            if let Some(place) = kept.as_mut().and_then(|look| look.counts.get_mut(bucket)) {
                *place = pack(&counts);
            }
        });
        self.top.looks.extend(kept);
        let buckets = heaviest.heap.into_iter().map(|Reverse((_, Reverse(bucket)))| bucket);
        (tracked, buckets.collect())
    }

    /// The `n` heaviest sources. Their rates are those since an earlier look of the last ten seconds,
    /// or else averages since each source got its bucket.
    pub fn top(&mut self, n: usize, sort: Sort) -> TopReport {
        self.top.forget_old();
        let before = Instant::now();
        let (tracked, buckets) = self.look(n, sort);
        // The same one that they were found by: the look itself is not far enough from `before`.
        let earlier = self.top.earlier(before);
        let mut heaviest = Vec::with_capacity(buckets.len());
        self.plane.sources_at(&buckets, &mut |bucket, counts, source| {
            let (packets, time) = match earlier {
                Some(look) => (look.packets_since(bucket, &counts), look.at.elapsed()),
                None => {
                    let since = source.first_seen.map(|at| SystemTime::now().duration_since(at));
                    (counts.packets(), since.and_then(Result::ok).unwrap_or_default())
                }
            };
            let average = Average::new(packets, time.max(APART));
            heaviest.push((Reverse(weight(sort, bucket, &counts, earlier)), source, average));
        });
        heaviest.sort_unstable_by_key(|(weight, source, _)| (*weight, source.source));
        let entries = heaviest.iter().map(|(_, source, average)| {
            let gate = source.limit.as_ref().map_or(0, |limit| self.plane.gate_of(limit));
            let mut entry = TopEntry::new(source, gate, *average);
            if let Some(limit) = &mut entry.limit {
                self.complete(limit);
            }
            entry
        });
        let distinct = self.plane.distinct().map(Into::into);
        TopReport { sources: entries.collect(), tracked, distinct }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counts(since_ns: u64, passed: u64) -> Counts {
        Counts { passed, dropped: 1, bytes: 0, since_ns }
    }

    #[test]
    fn packets_are_counted_from_the_earlier_look_on() {
        let start = 77_000_000_000_000;
        let earlier = pack(&counts(start, 100));
        assert_eq!(packets_since(earlier, pack(&counts(start, 142))), 42);
        // The lower half of a count comes round.
        let earlier = pack(&counts(start, u64::from(u32::MAX) - 10));
        assert_eq!(packets_since(earlier, pack(&counts(start, u64::from(u32::MAX) + 90))), 100);
        // Another source has the bucket now, or one where none was.
        assert_eq!(packets_since(earlier, pack(&counts(start + 5_000_000, 6))), 7);
        assert_eq!(packets_since(0, pack(&counts(start, 6))), 7);
    }

    proptest! {
        #[test]
        fn the_heaviest_are_found(weights in prop::collection::vec(0u64..50, 0..200), n in 0usize..30) {
            let mut heaviest = Heaviest { n, heap: BinaryHeap::new() };
            let mut all: Vec<Weight> =
                weights.iter().enumerate().map(|(at, weight)| (*weight, Reverse(at))).collect();
            all.iter().for_each(|weight| heaviest.push(*weight));
            let mut found: Vec<_> = heaviest.heap.into_iter().map(|Reverse(w)| w).collect();
            found.sort_unstable();
            all.sort_unstable();
            let from = all.len() - n.min(all.len());
            prop_assert_eq!(&found[..], &all[from..]);
        }
    }

    #[test]
    fn two_looks_are_kept_apart() {
        let mut top = Top::default();
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
            let kept = top.room(at(ms), 4);
            assert_eq!(top.earlier(at(ms)).map(|look| look.at), earlier.map(at), "{ms}");
            top.looks.extend(kept);
            assert!(top.looks.len() <= 2);
        }
    }
}
