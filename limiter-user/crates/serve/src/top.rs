//! Who is denied most: a sketch of frequent items (Anderson et al., arXiv 1705.07001) for each thread, in two spans.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::{DeniedKey, TopKeysReport};
use datasketches::frequencies::{ErrorType, FrequentItemsSketch};
use decide::decider::Key;

/// How long a span is: what is told is between one and two of them.
const SPAN: Duration = Duration::from_secs(30);

/// Places of a sketch: a count is wrong by 3.5/1024 of all that was counted at most.
const PLACES: usize = 1_024;

/// The longest text of a key that is counted, bytes; of a longer one its beginning is.
const MAX_TEXT: usize = 256;

/// The most units that a request counts here. Sums of more could overflow, which the sketch does not survive.
const MAX_UNITS: u64 = u32::MAX as u64;

/// Parts that threads have in turn, so that they do not wait for each other.
const PARTS: usize = 8;

/// Who is denied most.
#[derive(Debug)]
pub(crate) struct Top {
    parts: [Mutex<Part>; PARTS],
}

/// What some threads have counted.
#[derive(Debug)]
struct Part {
    begun: Instant,
    /// The present span, and the one before.
    spans: [Sketch; 2],
}

type Sketch = FrequentItemsSketch<String>;

fn sketch() -> Sketch {
    // The number of places is a power of two, as it has to be.
    FrequentItemsSketch::new(PLACES).unwrap_or_else(|_| unreachable!())
}

impl Default for Top {
    fn default() -> Self {
        let part = |begun| Mutex::new(Part { begun, spans: [sketch(), sketch()] });
        let now = Instant::now();
        Self { parts: [(); PARTS].map(|()| part(now)) }
    }
}

thread_local! {
    /// Which part is this thread's.
    static PART: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % PARTS
    };
}

impl Part {
    /// Begins the span that `now` is in.
    fn pass(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.begun);
        if passed < SPAN {
            return;
        }
        self.spans.swap(0, 1);
        self.spans[0].reset();
        if passed >= 2 * SPAN {
            self.spans[1].reset();
        }
        self.begun = now;
    }
}

/// A key as people read it: `api user=7`.
fn text(key: Key<'_>) -> String {
    let mut text = match key {
        Key::Named(key) => String::from_utf8_lossy(key).into_owned(),
        Key::Descriptor { domain, entries } => entries
            .iter()
            .fold(domain.to_owned(), |text, (key, value)| format!("{text} {key}={value}")),
    };
    text.truncate(text.floor_char_boundary(MAX_TEXT));
    text
}

impl Top {
    /// Counts what was denied of a key.
    pub(crate) fn denied(&self, key: Key<'_>, units: u64) {
        let part = &self.parts[PART.with(|part| *part)];
        // A panic can only have left counts of a moment.
        let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
        part.pass(Instant::now());
        part.spans[0].update_with_count_ref(text(key).as_str(), units.clamp(1, MAX_UNITS));
    }

    /// Those who were denied most, `most` of them.
    pub(crate) fn report(&self, most: usize) -> TopKeysReport {
        let (now, mut all, mut seconds) = (Instant::now(), sketch(), 0.0f64);
        for part in &self.parts {
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            part.pass(now);
            part.spans.iter().for_each(|span| all.merge(span));
            let span = now.saturating_duration_since(part.begun) + SPAN;
            seconds = seconds.max(span.as_secs_f64());
        }
        let mut rows = all.frequent_items(ErrorType::NoFalseNegatives);
        rows.sort_by(|one, other| {
            let by_count = other.estimate().cmp(&one.estimate());
            by_count.then_with(|| one.item().cmp(other.item()))
        });
        let key = |row: &datasketches::frequencies::Row<String>| DeniedKey {
            key: row.item().clone(),
            denied: row.estimate(),
            at_least: row.lower_bound(),
            at_most: row.upper_bound(),
        };
        let keys = rows.iter().take(most).map(key).collect();
        TopKeysReport { seconds, denied: all.total_weight(), keys }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_are_denied_most_are_found_among_very_many() {
        let top = Top::default();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let top = &top;
                scope.spawn(move || {
                    for number in 0..20_000 {
                        let value = (thread * 100_000 + number).to_string();
                        let entries = [("user", value.as_str())];
                        top.denied(Key::Descriptor { domain: "api", entries: &entries }, 1);
                        if number % 10 == 0 {
                            top.denied(Key::Named(b"heavy"), 3);
                        }
                    }
                });
            }
        });
        let report = top.report(1);
        assert_eq!((report.keys.len(), report.denied), (1, 4 * 26_000));
        let heavy = &report.keys[0];
        assert_eq!(heavy.key, "heavy");
        assert!((heavy.at_least..=heavy.at_most).contains(&24_000), "{heavy:?}");
        assert!(heavy.at_most - heavy.at_least <= report.denied * 4 / 1_024, "{heavy:?}");
    }

    #[test]
    fn no_cost_is_too_large() {
        let top = Top::default();
        for _ in 0..9 {
            top.denied(Key::Named(b"k"), u64::MAX);
        }
        assert_eq!(top.report(1).keys[0].denied, 9 * MAX_UNITS);
    }

    #[test]
    fn what_is_long_ago_is_forgotten() {
        let top = Top::default();
        top.denied(Key::Named(b"once"), 1);
        let age = |by: Duration| {
            for part in &top.parts {
                let mut part = part.lock().unwrap();
                part.begun = part.begun.checked_sub(by).unwrap();
            }
        };
        age(SPAN);
        assert_eq!(top.report(9).keys.len(), 1);
        age(SPAN);
        assert_eq!(top.report(9).keys.len(), 0);
        top.denied(Key::Named("ä".repeat(MAX_TEXT).as_bytes()), 1);
        assert_eq!(top.report(9).keys[0].key.len(), MAX_TEXT);
        age(2 * SPAN);
        assert_eq!(top.report(9).denied, 0);
    }
}
