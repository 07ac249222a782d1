//! The daemon and the command line of `limiter`, an XDP rate limiter per source.
//!
//! - [`dataplane`] loads the kernel program, attaches it, tells it the limits and reads its state.
//! - [`model`] has the limits: their units, their rules and how they are compiled for the kernel; [`store`]
//!   keeps them.
//! - [`daemon`] owns both and serialises every change; [`http`] serves it, [`client`] asks it.
//! - [`doctor`] tells what a machine lacks.
//! - [`observe`] tells what goes on to whoever listens.
//! - [`report`] has what is told, as JSON and as text; [`cli`] the commands.

pub mod cli;
pub mod client;
pub mod cluster;
pub mod config;
pub mod daemon;
pub mod dataplane;
pub mod doctor;
pub mod error;
pub mod http;
pub(crate) mod instances;
pub(crate) mod listen;
pub mod observe;
pub mod report;
pub mod store;
