//! What is planned, in the order of time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// How long a slot is, ns. What happens in the present one is kept in order, what comes later is not yet.
// Half a tick of most scenarios: what is kept in order then fits the cache.
const SLOT: u64 = 1_000_000;

/// Something and when it happens; what happens at one moment does so in the order in which it was planned.
#[derive(Debug)]
struct Entry<T> {
    at: u64,
    number: u64,
    what: T,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // The number decides between equals: a heap alone keeps no order, and a seed must mean one run for ever.
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// What is planned. One heap of it all would have to be fetched into the cache for each step.
#[derive(Debug)]
pub(super) struct Queue<T> {
    slot: u64,
    present: BinaryHeap<Reverse<Entry<T>>>,
    later: BTreeMap<u64, Vec<Entry<T>>>,
    planned: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { slot: 0, present: BinaryHeap::new(), later: BTreeMap::new(), planned: 0 }
    }
}

impl<T> Queue<T> {
    /// Plans something for a moment, ns.
    pub(super) fn plan(&mut self, at: u64, what: T) {
        self.planned += 1;
        let entry = Entry { at, number: self.planned, what };
        let slot = at / SLOT;
        if slot <= self.slot {
            self.present.push(Reverse(entry));
        } else {
            self.later.entry(slot).or_default().push(entry);
        }
    }

    /// Takes what happens next if that is not after `end`, and when.
    pub(super) fn next(&mut self, end: u64) -> Option<(u64, T)> {
        while self.present.is_empty() {
            let slot = self.later.first_entry().filter(|slot| *slot.key() <= end / SLOT)?;
            self.slot = *slot.key();
            self.present.extend(slot.remove().into_iter().map(Reverse));
        }
        if self.present.peek().is_none_or(|Reverse(entry)| entry.at > end) {
            return None;
        }
        self.present.pop().map(|Reverse(entry)| (entry.at, entry.what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_comes_in_the_order_of_time_and_then_of_planning() {
        let mut queue = Queue::default();
        let (mut state, mut planned, mut came) = (7_u64, Vec::new(), Vec::new());
        for round in 1..=40_u64 {
            for _ in 0..50 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (round - 1) * SLOT / 2 + (state >> 40) % 20 * SLOT / 7;
                queue.plan(at, planned.len());
                planned.push((at, planned.len()));
            }
            let end = round * SLOT / 2;
            while let Some((at, what)) = queue.next(end) {
                assert!(at <= end);
                came.push((at, what));
            }
        }
        while let Some(found) = queue.next(u64::MAX) {
            came.push(found);
        }
        planned.sort_unstable();
        // Nothing is planned for a time that has passed, so all of it comes in order.
        assert_eq!(came, planned);
    }
}
