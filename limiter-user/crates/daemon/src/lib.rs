//! The daemon: whom the owner of what is in force on a host (`control`) is served to, and how the process runs.
//!
//! - [`http`] serves it on a socket and as a dashboard; [`metrics`] are what is scraped there.
//! - [`run`] starts it all, gives up what privileges it does not need, and ends it in order.
//!
//! It changes nothing itself: every request becomes one call of `control`.

pub mod http;
mod kernel_log;
pub mod metrics;
mod notify;
mod privileges;
mod run;
mod services;
mod socket;

pub use run::{check_files, run};
pub use socket::{Socket, SocketGuard};
