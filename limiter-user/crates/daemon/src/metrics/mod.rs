//! What Prometheus is told: names and units by its conventions. Nothing is labelled by source: whoever forges sources
//! would choose the number of series.
//!
//! Counters are read from the maps at the moment of a scrape, so they go on where they were when the
//! daemon starts again. What takes a look at the whole table is at most [`control::scrape::KEPT`] old.

mod cluster;
mod page;
mod text;

use prometheus_client::registry::Registry;

use control::scrape::Scrape;
use page::Page;
use telemetry::Latency;
pub use text::classic;

/// The metrics in the OpenMetrics text format.
///
/// # Errors
/// If they cannot be written, which does not happen to memory.
pub fn openmetrics(scrape: Scrape, latency: &Latency) -> Result<String, std::fmt::Error> {
    // A new one for each scrape: its collector owns what was just read, so two scrapes cannot mix
    // their numbers.
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
