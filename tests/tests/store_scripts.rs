//! The script that decides in a central store, in the real one: beside the algorithms of a host, and beside scripts of others.

mod decisions;
mod failures;
mod learning;
mod lockstep;
mod log;
mod peers;
mod script;
mod states;
