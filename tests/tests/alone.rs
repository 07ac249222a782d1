//! End-to-end tests that need all processors: they measure what senders at full speed, or at an exact rate, get.
//! `cargo xtask test` runs them one at a time.

mod cpus;
mod flood;
mod limits;
mod shares;
