//! The owner of what is in force on a host: data plane, store, and its part of a cluster.
//!
//! Every change goes through one [`Core`], one after the other; [`CoreHandle`] is the handle that tasks have on it.
//! It decides no packet and no limit: `model` and `limiter-common` do. It serves nobody: `daemon` does.

mod access;
mod bans;
mod capture;
pub mod cluster;
mod core;
mod events;
pub mod groups;
mod handle;
mod history;
mod host;
mod interfaces;
mod kept_changes;
mod life;
pub mod listen;
mod overview;
mod plane;
mod ports;
pub mod rules;
mod scan;
mod services;
mod sketch;
mod suggest;
mod top;
mod views;

pub use self::access::{Access, Admins};
pub use self::core::{Core, scrape};
pub use self::handle::{Actor, CoreHandle, acting};
pub use self::host::Host;
pub use self::life::{Started, end, go_on, log_failure, start};
pub use self::overview::Watching;
pub use self::plane::{Buckets, Floors, Links, Plane, Policies, Samples, Shares};
pub use self::ports::ports;
pub use self::rules::confirm::check_period;
pub use self::scan::{RATE_INTERVAL, Scan};
pub use self::services::RETRY_INTERVAL;
pub use self::sketch::{save as save_sketch, sketch_cells};
pub use self::suggest::suggest;

#[cfg(any(test, feature = "fake"))]
#[allow(missing_docs, clippy::unwrap_used, reason = "tests alone use it")]
pub mod fake;
#[cfg(test)]
mod reload_fuzz_tests;
#[cfg(test)]
mod reload_tests;
#[cfg(test)]
mod replicated_tests;
#[cfg(test)]
mod tests;
