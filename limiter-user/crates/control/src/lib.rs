//! The owner of what is in force on a host: data plane, store, and its part of a cluster.
//!
//! Every change goes through one [`Core`], one after the other; [`Shared`] is the handle that tasks have on it.
//! It decides no packet and no limit: `model` and `limiter-common` do. It serves nobody: `daemon` does.

mod access;
mod bans;
mod capture;
#[path = "rules/limits.rs"]
mod change;
pub mod cluster;
#[path = "rules/confirm.rs"]
mod confirm;
mod core;
mod events;
#[path = "rules/file.rs"]
mod file_limits;
mod file_lists;
pub mod groups;
mod history;
mod interfaces;
mod kept_changes;
mod life;
pub mod listen;
#[path = "rules/lists.rs"]
mod lists;
#[path = "rules/reload.rs"]
mod live;
mod overview;
mod plane;
mod ports;
#[path = "rules/refused.rs"]
mod refused;
#[path = "rules/replicated.rs"]
mod replicated;
#[path = "core/scrape.rs"]
pub mod scrape;
mod services;
#[path = "rules/shadows.rs"]
mod shadows;
#[path = "handle.rs"]
mod shared;
mod suggest;
mod top;
mod views;
#[path = "core/warnings.rs"]
mod warnings;

pub use self::access::{Access, Admins};
pub use self::confirm::check_period;
pub use self::core::{Core, no_such_limit};
pub use self::life::{Started, end, go_on, log_failure, start};
pub use self::overview::Watching;
pub use self::plane::{Buckets, Floors, Links, Plane, Policies, Samples, Shares};
pub use self::ports::ports;
pub use self::services::RETRY_INTERVAL;
pub use self::shared::{Actor, Shared, acting};
pub use self::suggest::suggest;
pub use self::top::{RATE_INTERVAL, Scan};

#[cfg(any(test, feature = "fake"))]
#[allow(missing_docs, clippy::unwrap_used, reason = "tests alone use it")]
pub mod fake;
#[cfg(test)]
mod reload_fuzz;
#[cfg(test)]
mod reload_tests;
#[cfg(test)]
mod replicated_tests;
#[cfg(test)]
mod tests;
