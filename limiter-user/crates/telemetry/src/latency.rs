//! How long the control plane takes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::histogram::Histogram;

use model::digest::{Digest, Percentiles};

/// Upper bounds of the histograms' buckets, seconds: from a look at a counter to a long list.
const BOUNDS: [f64; 12] =
    [0.000_05, 0.000_1, 0.000_25, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 10.0];

/// One kind of work: a histogram for metrics, a digest for percentiles. In fixed memory, about 30 kB.
#[derive(Debug)]
pub struct Recorder {
    histogram: Histogram,
    // Both: Prometheus sums histograms over hosts, and percentiles of a few buckets would be
    // guesses.
    digest: Mutex<Digest>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { histogram: Histogram::new(BOUNDS), digest: Mutex::new(Digest::coarse()) }
    }
}

impl Recorder {
    /// Adds what something took.
    pub fn record(&self, took: Duration) {
        self.histogram.observe(took.as_secs_f64());
        // A panic elsewhere leaves a digest as it was before or after an addition: both will do.
        self.digest.lock().unwrap_or_else(PoisonError::into_inner).add(took.as_secs_f64());
    }

    /// How often, and percentiles in seconds; `None` if never.
    pub fn percentiles(&self) -> Option<(u64, Percentiles)> {
        let mut digest = self.digest.lock().unwrap_or_else(PoisonError::into_inner);
        Some((digest.count(), digest.percentiles()?))
    }

    /// The histogram; clones are the same one.
    pub fn histogram(&self) -> Histogram {
        self.histogram.clone()
    }
}

/// What the control plane's work takes, since the daemon started. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Latency(Arc<Kinds>);

#[derive(Debug, Default)]
struct Kinds {
    waiting: Recorder,
    working: Recorder,
    requests: Recorder,
}

impl Latency {
    /// From the wish to work on the core until it is free.
    pub fn waiting(&self) -> &Recorder {
        &self.0.waiting
    }

    /// While the core is in use, and others wait.
    pub fn working(&self) -> &Recorder {
        &self.0.working
    }

    /// Requests of the API, from their head to that of the answer.
    pub fn requests(&self) -> &Recorder {
        &self.0.requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_told() {
        let latency = Latency::default();
        assert_eq!(latency.working().percentiles(), None);
        let other = latency.clone();
        (1..=100).for_each(|ms| other.working().record(Duration::from_millis(ms)));
        let (count, percentiles) = latency.working().percentiles().unwrap();
        assert_eq!((count, percentiles.max), (100, 0.1));
        assert!((percentiles.p50 - 0.05).abs() < 0.001, "{percentiles:?}");
        assert!(BOUNDS.is_sorted());
    }
}
