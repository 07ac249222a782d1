//! What an interface's driver says of itself: offloads, channels, XDP features.

mod driver;
pub mod ethtool;
pub mod netdev;

pub use driver::{merging, merging_of, no_offload};
