//! What the data plane tells of sources, sketch and table.

use std::time::SystemTime;

use ipnet::IpNet;
use limiter_common::abi::EventKind;
use limiter_common::hll::Ranks;
use model::Limit;

/// What the distinct sources of a window are estimated from.
#[derive(Clone, Debug)]
pub struct WindowRanks {
    /// The registers.
    pub ranks: Ranks,
    /// The number of the window, modulo 2^16.
    pub window: u16,
    /// A number that stands for the secret of the hash that has filled them.
    pub key: u64,
}

/// Something that happened in the data plane.
#[derive(Clone, Debug)]
pub struct Event {
    /// When.
    pub time: SystemTime,
    /// To whom.
    pub source: IpNet,
    /// What.
    pub kind: EventKind,
    /// The limit in force for the source now.
    pub limit: Option<Limit>,
}
