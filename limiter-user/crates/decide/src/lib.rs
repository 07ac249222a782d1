//! Decisions for any key: which rule holds for a descriptor, and what is left of its limit.
//!
//! No sockets, no clock, no files: time is an argument, and the memory of the key table is the caller's.

pub mod act;
pub mod central;
pub mod decider;
pub mod key;
pub mod overrides;
pub mod quota;
pub mod rules;
pub mod scope;
pub mod shared;
pub mod side;
pub mod states;
pub mod synced;
pub mod table;
#[cfg(test)]
mod tests;
