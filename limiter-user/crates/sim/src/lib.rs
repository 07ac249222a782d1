//! `limiter simulate cluster`: the cluster on a virtual network.
//!
//! A run has hosts with clocks of their own, a kernel's bucket for each source, daemons that read its
//! counters and write shares, and a network between them that loses, delays, doubles and reorders. Faults
//! come as the scenario says. The judge sees what all hosts together admit, at every tick. All chance comes
//! from the seed: a run can be repeated exactly.
//!
//! What the hosts' daemons decide with is the very code of the daemon; beside it there are schemes that
//! do without escrow, to compare with.

mod clock;
mod demand;
mod goals;
mod host;
mod judge;
mod kernel;
pub(crate) mod members;
pub mod nemesis;
mod network;
mod outcome;
mod page;
mod progress;
mod promise;
mod queue;
mod regions;
mod rng;
mod runs;
mod scenario;
mod scheme;
mod suite;
mod world;

pub use clock::Span;
pub use demand::{Among, Demand, Pattern};
pub use goals::{Bound, Figure, GOALS, Goal};
pub use judge::{Judge, Verdict};
pub use network::Conditions;
pub use outcome::{Outcome, Series};
pub use page::page;
pub use progress::Progress;
pub use promise::Promise;
pub use regions::{Between, RegionPart};
pub use runs::{Summary, run, run_all};
pub use scenario::{Detection, Fault, FaultKind, Goals, MAX_HOSTS, Scenario, Store};
pub use scheme::SchemeKind;
pub use suite::{named, suite, text};

#[cfg(test)]
mod tests;
