//! What Prometheus is told: names and units by its conventions, nothing labelled by source.
//!
//! Counters are read from the maps at the moment of a scrape, so they go on where they were when the
//! daemon starts again. What takes a look at the whole table is at most [`KEPT`] old.

mod cluster;
mod page;
mod text;

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;

use api::{OverageReport, StatusReport};
use model::digest::Percentiles;
use page::Page;
use telemetry::{Latency, Sample};
pub use text::classic;

/// How old what takes a look at the whole table may be.
pub const KEPT: Duration = Duration::from_secs(5);

/// What is found out at most once in [`KEPT`].
#[derive(Clone, Debug)]
pub struct Slow {
    /// What `status` says.
    pub status: StatusReport,
    /// The smallest gate in force, packets.
    pub gate: u32,
    /// Entries of the allow list.
    pub allowed: u64,
    /// Entries of the deny list, bans included.
    pub denied: u64,
    /// Of those, bans.
    pub bans: u64,
    /// Limits that are tried.
    pub trials: u64,
}

/// What a host tells of its cluster.
#[derive(Clone, Debug, Default)]
pub struct Clustered {
    /// Members that are there, this host included.
    pub members: usize,
    /// Those of them that somebody has not heard of for a while.
    pub suspects: usize,
    /// The part of each limit that is this host's own.
    pub home: f64,
    /// Sources that it shares with others.
    pub keys: usize,
    /// Sources beside them that have their floor and no more, because it has no time for so many.
    pub left_out: usize,
    /// Sources that it owns of which it has borrowed from other regions, and of which it has lent to them.
    pub loans: [usize; 2],
    /// Regions: their names, hosts that are there, and what is these hosts' own of each limit.
    pub regions: Vec<(String, usize, f64)>,
    /// Round trips of its questions, ms.
    pub lag: Option<Percentiles>,
    /// Frames that it has listened to and sent, and those that were lost here.
    pub frames: [u64; 3],
    /// Packets that it has not listened to, by reason.
    pub refused: Vec<(&'static str, u64)>,
    /// What was used of limits.
    pub overage: Arc<Vec<OverageReport>>,
}

/// Everything that a scrape tells.
#[derive(Clone, Debug)]
pub struct Scrape {
    /// Just read.
    pub sample: Sample,
    /// Read some time ago.
    pub slow: Arc<Slow>,
    /// How long ago.
    pub age: Duration,
    /// How long the daemon has run.
    pub uptime: Duration,
    /// The cluster, if the host is in one.
    pub cluster: Option<Clustered>,
}

/// The metrics in the OpenMetrics text format.
///
/// # Errors
/// If they cannot be written, which does not happen to memory.
pub fn openmetrics(scrape: Scrape, latency: &Latency) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("limiter");
    for (name, help, recorder) in [
        ("core_wait_seconds", "Time that work waited for the daemon's core", latency.waiting()),
        ("core_work_seconds", "Time that work held the daemon's core", latency.working()),
        (
            "request_duration_seconds",
            "Time from a request of the API to its answer, but for what waits on purpose",
            latency.requests(),
        ),
    ] {
        registry.register(name, help, recorder.histogram());
    }
    registry.register_collector(Box::new(Page(scrape)));
    let mut text = String::with_capacity(16 << 10);
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[cfg(test)]
mod tests;
