//! What the kernel program, the daemon, the simulator and the tests of `limiter` share.
//!
//! Every decision of the data plane is a pure function of (state, time, packet) in this crate: time
//! is always an argument, and memory is reached through [`engine::State`], which the kernel
//! implements over BPF maps and the tests over plain vectors. The layouts of those maps are in
//! [`abi`].
#![no_std]
#![cfg_attr(target_arch = "bpf", feature(core_intrinsics))]
#![cfg_attr(target_arch = "bpf", expect(internal_features, reason = "see atomic.rs"))]

#[cfg(any(test, feature = "user"))]
// For userspace alone: in the kernel there is neither allocator nor clock, and the compiler holds
// this there.
extern crate std;

pub mod abi;
pub mod algorithm;
pub mod atomic;
pub mod batch;
pub mod class;
pub mod drop_cache;
pub mod engine;
pub mod evidence;
pub mod features;
#[cfg(any(test, feature = "user"))]
pub mod floor;
pub mod gate;
pub mod gcra;
pub mod hash;
pub mod hll;
pub mod key;
pub mod lists;
#[cfg(all(loom, any(test, feature = "user")))]
pub mod orders;
pub mod packet;
pub mod peers;
pub mod promotions;
pub mod sampling;
#[cfg(all(test, not(loom)))]
mod schedule;
pub mod share;
#[cfg(any(test, feature = "user"))]
pub mod share_change;
pub mod shared;
pub mod sketch;
pub mod table;
pub mod tunnels;
