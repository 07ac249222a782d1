//! Harness of the end-to-end tests and of the demonstration: network namespaces joined by a veth
//! pair, the real daemon and client, senders of crafted packets, and a count of what got past XDP
//! that does not rely on the limiter.
//!
//! Everything here panics on failure: a harness that cannot set up the world has no way on. What it
//! creates is named after this process and removed on drop, also while a panic unwinds; what a
//! killed run left behind is removed by the next one.

pub mod api;
pub mod backbone;
pub mod browser;
pub mod bystander;
pub mod cli;
pub mod cost;
pub mod cover;
pub mod daemon;
pub mod demand;
pub mod disk;
pub mod envoy;
pub mod fleet;
pub mod flood;
pub mod frame;
pub mod hosts;
pub mod lab;
pub mod leases;
pub mod leftovers;
pub mod machine;
pub mod measuring;
pub mod model;
pub mod monitor;
pub mod namespace;
pub mod nginx;
mod object;
pub mod observer;
pub mod offload;
pub mod oracle;
mod packet_socket;
pub mod pcap;
pub mod process;
pub mod program;
pub mod reports;
pub mod resp;
pub mod screen;
pub mod sender;
pub mod serve;
pub mod source;
pub mod store;
pub mod timeline;
pub mod tun;
pub mod wiretap;
pub mod zipf;

pub use browser::Browser;
pub use bystander::Bystander;
pub use cli::Cli;
pub use daemon::{Daemon, DaemonOptions};
pub use disk::SmallDisk;
pub use fleet::Fleet;
pub use flood::{Flood, Flooded, Sources};
pub use lab::Lab;
pub use monitor::Monitor;
pub use namespace::Namespace;
pub use observer::Observer;
pub use program::Program;
pub use sender::{Sender, Sent, Stream};
pub use source::{v4, v6};
pub use store::Store;
pub use timeline::Timeline;

/// Panics unless this process has root's privileges, which namespaces and XDP need.
pub fn require_root() {
    assert!(is_root(), "end-to-end tests need root: run `cargo xtask test` as root or with sudo");
}

/// Whether this process has root's privileges.
#[must_use]
pub fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}
