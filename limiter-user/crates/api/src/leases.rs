//! What `limiter-serve` and the daemon tell each other of leases, and what the daemon tells of them.

use serde::{Deserialize, Serialize};

/// `POST /v1/leases`: what a `limiter-serve` brings from the central store. The daemon answers as soon as it wants
/// something, and after a while in any case.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeasesBrought {
    /// Why the store does not answer, if it does not.
    pub problem: Option<String>,
    /// The number of each lease that was wanted, and its tokens; none where there was no answer.
    pub leases: Vec<(u64, Option<u64>)>,
}

/// What the daemon wants of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeasesWanted {
    /// Leases, and those that are given back.
    pub leases: Vec<LeaseWanted>,
}

/// A lease that is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseWanted {
    /// Its number; none where tokens are given back.
    pub number: Option<u64>,
    /// As many as there are of these.
    pub tokens: u64,
    /// The source, the same on all hosts.
    pub source: String,
    /// The class of its packets.
    pub class: String,
    /// Packets that its limit admits in a window.
    pub requests: u64,
    /// The window, ns.
    pub window_ns: u64,
    /// What the store keeps at the most, packets.
    pub burst: u64,
}

/// How strict limits fare.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeasesReport {
    /// Why the store leases nothing, so that `on_error` of the limits says what is admitted.
    pub problem: Option<String>,
    /// For how long that has been so, or has not.
    pub seconds: u64,
    /// Sources that want a lease.
    pub sources: usize,
    /// Those of them that have one.
    pub leased: usize,
    /// Sources beside them that have a packet and no more, because there are too many to look at in time.
    pub left_out: usize,
    /// Tokens that the store has leased, since the daemon's start, and those that were given back.
    pub tokens: u64,
    /// See `tokens`.
    pub given_back: u64,
    /// How often a lease was asked for, and how often there was no answer.
    pub asked: u64,
    /// See `asked`.
    pub unanswered: u64,
}

impl LeasesReport {
    /// In a few words.
    #[must_use]
    pub fn summary(&self) -> String {
        let Self { seconds, sources, leased, tokens, .. } = self;
        let state = match &self.problem {
            None => "the store leases".to_owned(),
            Some(problem) => format!("on_error holds, {problem}"),
        };
        format!(
            "{state}, for {seconds} s; {leased} of {sources} sources have a lease, {tokens} tokens since the start"
        )
    }
}
