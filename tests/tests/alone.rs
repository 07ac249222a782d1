//! End-to-end tests that need all processors: they measure what senders at full speed, or at an exact rate, get, what
//! hosts get of a flood that moves or of many sources, or by leases of a store, what a flood costs a proxy, whether grants are renewed in time,
//! or run twenty daemons. `cargo xtask test` runs them one at a time.

mod cluster_crowd;
mod cluster_decisions;
mod cluster_total;
mod cluster_twenty;
mod cpus;
mod flood;
mod grants;
mod groups;
mod limits;
mod push_down;
mod scopes;
mod sender;
mod shares;
mod strict_packets;
