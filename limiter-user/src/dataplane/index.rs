//! Which limit applies to a source, as the kernel's tries would answer.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::policy::model::{LimitSpec, Target};

/// Limits by target.
#[derive(Default)]
pub(super) struct Index {
    limits: HashMap<Target, LimitSpec>,
    /// The prefix lengths that occur: IPv4, IPv6.
    lengths: [BTreeSet<u8>; 2],
}

impl Index {
    pub(super) fn new(limits: &[LimitSpec]) -> Self {
        let mut index = Self::default();
        for limit in limits {
            if let Target::Prefix(net) = limit.target {
                index.lengths[usize::from(net.addr().is_ipv6())].insert(net.prefix_len());
            }
            index.limits.insert(limit.target, limit.clone());
        }
        index
    }

    /// The limit of the longest prefix that contains `address`, else the default.
    pub(super) fn of(&self, address: IpAddr) -> Option<LimitSpec> {
        let lengths = &self.lengths[usize::from(address.is_ipv6())];
        lengths
            .iter()
            .rev()
            .filter_map(|&length| IpNet::new(address, length).ok())
            .find_map(|net| self.limits.get(&Target::Prefix(net.trunc())))
            .or_else(|| self.limits.get(&Target::Default))
            .cloned()
    }
}
