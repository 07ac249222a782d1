//! The client's JSON documents, as far as tests look at them.

use serde::Deserialize;

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

    /// Asserts that a source that always offered more than this limit was admitted what it allows
    /// in `seconds`, give or take half a percent and one packet, and what may pass below the gate where
    /// an epoch of the sketch ends just then; prints the figures. For limits by packets.
    ///
    /// # Panics
    /// If it was more or less.
    pub fn assert_admitted(&self, what: &str, admitted: u64, seconds: f64) {
        assert_eq!(self.unit, "packets", "the limit counts packets");
        let allowed = self.allowance(seconds);
        let ratio = 100.0 * admitted as f64 / allowed;
        println!("{what}: admitted {admitted} of {allowed:.1} in {seconds:.4} s, {ratio:.3} %");
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
