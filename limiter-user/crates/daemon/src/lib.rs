//! The daemon: the owner of what is in force on a host, and those it serves.
//!
//! - [`control`] owns data plane, store and the share of a cluster, and serialises every change.
//! - [`http`] serves it on a socket and as a dashboard; [`metrics`] are what is scraped there.
//!
//! It decides no packet and no limit: `model` and `limiter-common` do.

pub mod control;
pub mod http;
pub mod listen;
pub mod metrics;
