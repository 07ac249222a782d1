//! What `limiter-serve` tells of the central store.

use serde::{Deserialize, Serialize};

use model::Stance;

/// `GET /v1/store` of `limiter-serve`, for `limiter doctor --store`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CentralReport {
    /// Where it is.
    pub address: String,
    /// Whether it answers.
    pub up: bool,
    /// For how long it has, or has not, s.
    pub since_s: f64,
    /// Why it does not.
    pub problem: Option<String>,
    /// What it is, such as `Redis 7.0.15`; empty if it does not tell, or was never reached.
    pub version: String,
    /// How long a sign of life took, as it was reached, µs.
    pub round_trip_us: u64,
    /// How long calls took since the start, µs on average.
    pub call_us: Option<f64>,
    /// How long an answer may take, ms.
    pub timeout_ms: u64,
    /// What it forgets where its memory is full, such as `noeviction`.
    pub eviction: Option<String>,
    /// Whether it writes each change to a disk.
    pub journal: Option<bool>,
    /// Whether it writes all to a disk at times.
    pub snapshots: Option<bool>,
    /// How far its clock is ahead of this host's, ms.
    pub ahead_ms: i64,
    /// Calls that were answered since the start.
    pub calls: u64,
    /// Keys in these calls.
    pub keys: u64,
    /// Calls that were not answered.
    pub failures: u64,
    /// Who answers about rules with `on_error: cluster`, if there are some.
    #[serde(default)]
    pub stance: Option<Stance>,
    /// Why that is not the store, in words.
    #[serde(default)]
    pub stance_why: String,
}
