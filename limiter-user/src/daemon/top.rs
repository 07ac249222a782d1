//! The heaviest sources and how fast they are at present.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use ipnet::IpNet;

use super::core::Core;
use crate::dataplane::Source;
use crate::report::{Sort, TopEntry, TopReport};

/// Counts need to be this far apart for a rate.
const APART: Duration = Duration::from_millis(500);

/// Counts older than this are not compared with.
const STALE: Duration = Duration::from_secs(10);

/// Counts at an earlier look: they are taken only while somebody looks.
#[derive(Default)]
pub(super) struct Top {
    earlier: Option<(Instant, HashMap<IpNet, u64>)>,
}

impl Top {
    /// Frees counts that nobody will compare with.
    pub(super) fn forget_old(&mut self) {
        if self.earlier.as_ref().is_some_and(|(at, _)| at.elapsed() > STALE) {
            self.earlier = None;
        }
    }
}

fn packets(source: &Source) -> u64 {
    source.passed + source.dropped
}

impl Core {
    /// How long to wait before [`Core::top`] can tell rates, if not yet; takes the counts to compare
    /// with when there are none.
    pub fn prepare_top(&mut self) -> Option<Duration> {
        self.top.forget_old();
        match &self.top.earlier {
            Some((at, _)) => APART.checked_sub(at.elapsed()).filter(|wait| !wait.is_zero()),
            None => {
                let mut counts = HashMap::new();
                let at = Instant::now();
                self.plane.sources(&mut |source| {
                    counts.insert(source.source, packets(&source));
                });
                self.top.earlier = Some((at, counts));
                Some(APART)
            }
        }
    }

    /// The `n` heaviest sources.
    pub fn top(&mut self, n: usize, sort: Sort) -> TopReport {
        let earlier = self.top.earlier.take();
        let now = Instant::now();
        let mut counts = HashMap::new();
        let mut heaviest: Vec<(u64, Source, Option<f64>)> = Vec::new();
        let order = |(key, source, _): &(u64, Source, Option<f64>)| (Reverse(*key), source.source);
        self.plane.sources(&mut |source| {
            let count = packets(&source);
            counts.insert(source.source, count);
            let pps = earlier.as_ref().map(|(at, earlier)| {
                // A count below the earlier one belongs to a newer bucket.
                let new = match earlier.get(&source.source) {
                    Some(before) if *before <= count => count - before,
                    _ => count,
                };
                new as f64 / now.duration_since(*at).as_secs_f64().max(APART.as_secs_f64())
            });
            let key = match sort {
                Sort::Dropped => source.dropped,
                Sort::Packets => count,
                Sort::Bytes => source.bytes,
                // To a thousandth, so that the order is total.
                Sort::Pps => (pps.unwrap_or_default() * 1000.0) as u64,
            };
            heaviest.push((key, source, pps));
            if heaviest.len() >= 2 * n.max(512) {
                heaviest.select_nth_unstable_by_key(n, order);
                heaviest.truncate(n);
            }
        });
        heaviest.sort_unstable_by_key(order);
        heaviest.truncate(n);
        let tracked = counts.len() as u64;
        self.top.earlier = Some((now, counts));
        let sources = heaviest
            .iter()
            .map(|(_, source, pps)| {
                let gate = source.limit.as_ref().map_or(0, |limit| self.plane.gate_of(limit));
                TopEntry::new(source, gate, *pps)
            })
            .collect();
        TopReport { sources, tracked }
    }
}
