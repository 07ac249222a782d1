//! A laboratory for the algorithms of [`limiter_common::algorithm`]: what each admits of the same traffic.
//!
//! [`Traffic`] is a pattern, a file of packets, or what an [`adversary`] has found. A [`Judge`] gives it to all
//! algorithms at once, and compares them with the exact log. Requests cost one unit each.

pub mod adversary;
mod capture;
pub mod curves;
pub mod experiment;
mod judge;
mod settings;
#[cfg(test)]
mod tests;
mod traffic;

use limiter_common::gcra::{TICKS_PER_NS, Ticks};

pub use capture::{CaptureError, read};
pub use judge::{Judge, Tally};
pub use settings::{Candidate, LIMITS, NAMES, Settings, SettingsError};
pub use traffic::{PATTERNS, Pattern, Traffic};

/// A time in s.
pub fn seconds(time: Ticks) -> f64 {
    time as f64 / TICKS_PER_NS as f64 / 1e9
}

/// What all algorithms made of one traffic.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Sources that sent something.
    pub sources: usize,
    /// One for each algorithm, in their order.
    pub tallies: Vec<Tally>,
}

/// Has all candidates judge the traffic of some seeds.
pub fn judge(
    settings: &Settings,
    candidates: &[Candidate],
    traffic: &Traffic,
    seeds: std::ops::Range<u64>,
) -> Outcome {
    let mut judge = Judge::new(settings, candidates, false);
    let sources = traffic.sources();
    for seed in if traffic.is_random() { seeds } else { 0..1 } {
        for source in 0..sources {
            judge.source(&traffic.trace(settings, seed, source));
        }
    }
    Outcome { sources, tallies: judge.into_tallies() }
}
