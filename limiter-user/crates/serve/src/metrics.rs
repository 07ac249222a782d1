//! What `/metrics` tells: decisions, how long they took, keys.

use std::fmt::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use decide::rules::{Rule, Tally};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::service::Service;

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
    const ALL: [Self; 3] = [Self::Resp, Self::Http, Self::Grpc];

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
}

/// Classes of time spans: each twice the one before, from 1 µs on.
const CLASSES: usize = 20;

#[derive(Debug, Default)]
struct Histogram {
    classes: [AtomicU64; CLASSES + 1],
    /// ns.
    sum: AtomicU64,
}

impl Histogram {
    fn count(&self, answers: u64, took: Duration) {
        let us = took.as_nanos().div_ceil(1_000) as u64;
        let class = us.max(1).next_power_of_two().trailing_zeros() as usize;
        self.classes[class.min(CLASSES)].fetch_add(answers, Ordering::Relaxed);
        self.sum.fetch_add(took.as_nanos() as u64 * answers, Ordering::Relaxed);
    }

    /// The sum of all, s, how many there are, and how many of each class, by its upper bound in s.
    fn read(&self) -> (f64, u64, Vec<(f64, u64)>) {
        let counts = self.classes.iter().map(|class| class.load(Ordering::Relaxed));
        let bounds = (0..CLASSES).map(|class| f64::from(1 << class) / 1e6).chain([f64::MAX]);
        let classes: Vec<_> = bounds.zip(counts).collect();
        let all = classes.iter().map(|(_, count)| count).sum();
        (self.sum.load(Ordering::Relaxed) as f64 / 1e9, all, classes)
    }
}

/// The page of metrics.
pub(crate) fn page(service: &Arc<Service>) -> Result<String, Error> {
    let mut registry = Registry::with_prefix("limiter_serve");
    registry.register_collector(Box::new(Page(Arc::clone(service))));
    let mut page = String::new();
    text::encode(&mut page, &registry)?;
    Ok(page)
}

#[derive(Debug)]
struct Page(Arc<Service>);

impl Collector for Page {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> Result<(), Error> {
        let service = &self.0;
        let rules = service.rules();
        let help =
            "Keys that were decided on, by rule and code; rule - is that of limits in requests";
        let mut decisions = to.encode_descriptor("decisions", help, None, MetricType::Counter)?;
        let of_rule = |rule: &'_ Arc<Rule>| (rule.path.clone(), Arc::clone(&rule.tally));
        let mut write = |path: &str, tally: &Tally| {
            let Tally { ok, over, shadow, untracked } = tally;
            let codes = [("ok", ok), ("over", over), ("shadow", shadow), ("untracked", untracked)];
            codes.iter().try_for_each(|(code, count)| {
                let labels = [("rule", path), ("code", code)];
                let count = count.load(Ordering::Relaxed);
                decisions.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)
            })
        };
        write("-", &service.named)?;
        rules.all().iter().map(of_rule).try_for_each(|(path, tally)| write(&path, &tally))?;
        let help = "How long answers took, by face";
        let mut latencies =
            to.encode_descriptor("answer", help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for face in Face::ALL {
            let (sum, count, classes) = service.latencies.0[face as usize].read();
            let labels = [("face", face.name())];
            let mut family = latencies.encode_family(&labels)?;
            family.encode_histogram::<NoLabelSet>(sum, count, &classes, None)?;
        }
        let table = &service.store().table;
        let (keys, counts) = (table.keys(), table.counts());
        let help = "Keys with a bucket, also those that are as good as new";
        to.encode_descriptor("keys", help, None, MetricType::Gauge)?.encode_gauge(&keys)?;
        let help = "Keys that there is room for";
        let mut capacity = to.encode_descriptor("capacity", help, None, MetricType::Gauge)?;
        capacity.encode_gauge(&table.capacity())?;
        let help = "Buckets that went for other keys: as good as new, still busy, or a sub-window or log that was busy";
        let mut evictions = to.encode_descriptor("evictions", help, None, MetricType::Counter)?;
        let side = service.store().side.as_ref().map_or(0, decide::side::Side::evicted_busy);
        for (bucket, count) in
            [("full", counts.evicted), ("busy", counts.evicted_busy), ("side", side)]
        {
            let labels = [("bucket", bucket)];
            let mut family = evictions.encode_family(&labels)?;
            family.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        Ok(())
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
