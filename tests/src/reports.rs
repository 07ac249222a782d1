//! The client's JSON documents, as far as tests look at them.

use serde::Deserialize;

use crate::{Sent, oracle};

/// `limiter stats --json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Stats {
    /// Every verdict and reason.
    pub counters: Vec<Counter>,
    /// Their sum as the daemon tells it.
    pub total: Total,
    /// What happens inside.
    pub internal: Internal,
}

/// Packets with one verdict for one reason.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
pub struct Counter {
    /// `pass` or `drop`.
    pub verdict: String,
    /// Why.
    pub reason: String,
    /// Number of packets.
    pub packets: u64,
    /// Their bytes, Ethernet header included.
    pub bytes: u64,
}

/// Sum of all counters.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Total {
    /// Number of packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Counters of the bucket table and the event channel.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Internal {
    /// Sources that were given a bucket.
    pub promotions: u64,
    /// Buckets that were replaced.
    pub evictions: u64,
    /// Sources that found no place.
    pub set_full: u64,
}

impl Stats {
    /// Packets with this verdict for this reason.
    ///
    /// # Panics
    /// If there is no such counter: every one is reported, also at zero.
    #[must_use]
    pub fn packets(&self, verdict: &str, reason: &str) -> u64 {
        self.counters
            .iter()
            .find(|counter| counter.verdict == verdict && counter.reason == reason)
            .unwrap_or_else(|| panic!("no counter {verdict}/{reason} in {:#?}", self.counters))
            .packets
    }

    /// Packets with this verdict.
    #[must_use]
    pub fn verdict(&self, verdict: &str) -> u64 {
        self.counters.iter().filter(|c| c.verdict == verdict).map(|c| c.packets).sum()
    }

    /// Sum of all counters, added up here.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.counters.iter().map(|counter| counter.packets).sum()
    }
}

/// A limit as `limit list` and `show` give it.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Limit {
    /// `default` or a prefix.
    pub target: String,
    /// As an operator writes it.
    pub rate: String,
    /// As an operator writes it.
    pub burst: String,
    /// Packets or bytes per second.
    pub rate_per_second: f64,
    /// Packets or bytes.
    pub burst_amount: u64,
    /// `packets` or `bytes`.
    pub unit: String,
    /// Packets in a window up to which a source needs no bucket.
    pub gate: u64,
    /// Of a limit that sources share, what CPUs may hold of it, packets or bytes.
    #[serde(default)]
    pub held_amount: u64,
}

impl Limit {
    /// Most that a source of this limit may get in `seconds`, in the limit's unit.
    #[must_use]
    pub fn allowance(&self, seconds: f64) -> f64 {
        self.burst_amount as f64 + self.rate_per_second * seconds
    }

    /// What an exact bucket of this limit, full at the start, admits of what was sent. For limits by packets.
    ///
    /// It goes by the time of every frame: while the machine stands still nobody sends, and a bucket that is
    /// full earns nothing.
    ///
    /// # Panics
    /// If the limit counts bytes.
    #[must_use]
    pub fn exact(&self, sent: &Sent) -> u64 {
        assert_eq!(self.unit, "packets", "the limit counts packets");
        oracle::admitted(&sent.times, self.rate_per_second, self.burst_amount as f64)
    }

    /// Asserts that more was sent than this limit allows, and as much admitted as an exact bucket does, give or
    /// take half a percent and one packet, and what may pass below the gate where an epoch of the sketch
    /// ends just then; prints the figures. For limits by packets that were not in use before.
    ///
    /// # Panics
    /// If it was more or less, or no more was sent than the limit allows.
    pub fn assert_admitted<'sent>(
        &self,
        what: &str,
        admitted: u64,
        sent: impl IntoIterator<Item = &'sent Sent>,
    ) {
        let sent = Sent::together(sent);
        let allowed = self.exact(&sent) as f64;
        // Else a sender that is too slow would pass for a limit that holds.
        assert!(sent.packets() as f64 > allowed, "{what}: {allowed} of {} sent", sent.packets());
        let ratio = 100.0 * admitted as f64 / allowed;
        println!(
            "{what}: admitted {admitted} of {allowed} in {:.4} s, {ratio:.3} %",
            sent.seconds()
        );
        let slack = allowed * 0.005 + 1.0;
        let most = allowed + slack + self.gate as f64;
        let fits = (allowed - slack..=most).contains(&(admitted as f64));
        assert!(fits, "{what}: {admitted}, not {allowed:.1}");
    }
}

/// `limiter show SOURCE --json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Show {
    /// The tracked prefix.
    pub source: String,
    /// Whether it has a bucket.
    pub tracked: bool,
    /// `limited`, `conforming` or `light`.
    pub state: String,
    /// The limit that applies.
    pub limit: Option<Limit>,
    /// Packets admitted since it has a bucket.
    pub passed: u64,
    /// Packets dropped since it has a bucket.
    pub dropped: u64,
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn limit() -> Limit {
        serde_json::from_str(
            r#"{"target": "default", "rate": "1000pps", "burst": "100 packets", "rate_per_second": 1000,
                "burst_amount": 100, "unit": "packets", "gate": 12}"#,
        )
        .expect("a limit")
    }

    /// Ten frames each millisecond of a second, all of them later by `still` from `at` on.
    fn flood(at: u32, still: Duration) -> Sent {
        let time = |ms: u32| MS * ms + if ms < at { Duration::ZERO } else { still };
        let times = (0..1000).flat_map(|ms| [time(ms); 10]).collect();
        Sent { start: Instant::now(), times }
    }

    #[test]
    fn an_exact_bucket_earns_nothing_while_it_is_full() {
        assert_eq!(limit().exact(&flood(0, Duration::ZERO)), 100 + 999);
        // Nobody sends for 90 ms. An empty bucket has earned what passes then.
        assert_eq!(limit().exact(&flood(500, 90 * MS)), 100 + 999 + 90);
        // One that had 90 of its 100 left has not: burst and rate by themselves would allow 80 more.
        assert_eq!(limit().exact(&flood(1, 90 * MS)), 100 + 999 + 10 - 1);
    }

    #[test]
    fn streams_of_one_limit_are_one() {
        let (first, mut second) = (flood(0, Duration::ZERO), flood(0, Duration::ZERO));
        second.start = first.start + 500 * MS;
        let both = Sent::together([&second, &first]);
        assert_eq!((both.packets(), both.start), (20_000, first.start));
        assert_eq!(limit().exact(&both), 100 + 500 + 999);
        limit().assert_admitted("both", 1599, [&first, &second]);
    }
}
