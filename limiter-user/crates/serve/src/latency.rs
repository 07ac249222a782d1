//! How long answers took, by the face.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A way to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Face {
    /// Commands of Redis.
    Resp,
    /// HTTP, with `/json`.
    Http,
    /// gRPC.
    Grpc,
}

impl Face {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Resp, Self::Http, Self::Grpc];

    /// Its name.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Resp => "resp",
            Self::Http => "http",
            Self::Grpc => "grpc",
        }
    }
}

/// How long answers took, by the face.
#[derive(Debug, Default)]
pub(crate) struct Latencies([Histogram; 3]);

impl Latencies {
    /// Counts some answers that took so long.
    pub(crate) fn count(&self, face: Face, answers: u64, took: Duration) {
        self.0[face as usize].count(answers, took);
    }

    /// The sum of all of a face, s, how many there are, and how many of each class, by its upper bound in s.
    pub(crate) fn read(&self, face: Face) -> (f64, u64, Vec<(f64, u64)>) {
        self.0[face as usize].read()
    }
}

/// Classes of time spans: each twice the one before, from 1 µs on.
const CLASSES: usize = 20;

/// How many took how long.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    classes: [AtomicU64; CLASSES + 1],
    /// ns.
    sum: AtomicU64,
}

impl Histogram {
    /// Counts some that took so long.
    pub(crate) fn count(&self, answers: u64, took: Duration) {
        let us = took.as_nanos().div_ceil(1_000) as u64;
        let class = us.max(1).next_power_of_two().trailing_zeros() as usize;
        self.classes[class.min(CLASSES)].fetch_add(answers, Ordering::Relaxed);
        self.sum.fetch_add(took.as_nanos() as u64 * answers, Ordering::Relaxed);
    }

    /// The sum of all, s, how many there are, and how many of each class, by its upper bound in s.
    pub(crate) fn read(&self) -> (f64, u64, Vec<(f64, u64)>) {
        let counts = self.classes.iter().map(|class| class.load(Ordering::Relaxed));
        let bounds = (0..CLASSES).map(|class| f64::from(1 << class) / 1e6).chain([f64::MAX]);
        let classes: Vec<_> = bounds.zip(counts).collect();
        let all = classes.iter().map(|(_, count)| count).sum();
        (self.sum.load(Ordering::Relaxed) as f64 / 1e9, all, classes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_span_is_in_the_class_that_ends_at_it_or_after_it() {
        let histogram = Histogram::default();
        for (ns, at_most) in [(0, 1e-6), (1_000, 1e-6), (1_001, 2e-6), (1_500_000, 2.048e-3)] {
            let before = histogram.read().2;
            histogram.count(1, Duration::from_nanos(ns));
            let after = histogram.read().2;
            let class = before.iter().zip(&after).find(|(before, after)| before.1 != after.1);
            assert_eq!(class.map(|(class, _)| class.0), Some(at_most), "{ns}");
        }
        histogram.count(3, Duration::from_secs(10));
        let (sum, count, classes) = histogram.read();
        assert_eq!((count, classes[CLASSES]), (7, (f64::MAX, 3)));
        assert!((sum - 30.001_502).abs() < 1e-6, "{sum}");
    }
}
