//! What the next packet of a source meets, asked of the maps that the kernel program asks.

use std::net::IpAddr;

use aya::Ebpf;
use aya::maps::lpm_trie::LpmTrie;
use aya::maps::{Array, HashMap, MapData};
use ipnet::IpNet;
use limiter_common::abi::Policy;
use limiter_common::key::{ClassKey, SourceKey};

use super::super::sources::MapKey as _;
use super::super::{Error, second};
use super::place::ClassPlace;

/// The maps that lead from a source to its policy, for reading alone: a second descriptor of each, so that a change
/// of limits keeps nobody from asking.
pub(crate) struct PolicyLookup {
    policies: Array<MapData, Policy>,
    exact: HashMap<MapData, ClassKey, u32>,
    v4: LpmTrie<MapData, [u8; 6], u32>,
    v6: LpmTrie<MapData, [u8; 18], u32>,
}

impl PolicyLookup {
    /// Opens the maps of a loaded object, which still has them.
    ///
    /// # Errors
    /// If one is not there, or is not what it should be.
    pub(crate) fn open(ebpf: &Ebpf) -> Result<Self, Error> {
        Ok(Self {
            policies: second(ebpf, "POLICIES")?,
            exact: second(ebpf, "EXACT")?,
            v4: second(ebpf, "PREFIXES4")?,
            v6: second(ebpf, "PREFIXES6")?,
        })
    }

    /// The slot that the maps lead to, in the kernel program's order. `None` where the default applies.
    pub(crate) fn slot(&self, source: SourceKey, class: u8) -> Option<u32> {
        let single = ClassKey { source, class: u64::from(class) };
        // First, as in the kernel program: a limit of the very source goes before that of any prefix.
        if let Ok(slot) = self.exact.get(&single, 0) {
            return Some(slot);
        }
        let address = source.address();
        let place = ClassPlace::prefix(IpNet::from(address), class);
        match address {
            IpAddr::V4(_) => self.v4.get(&place.v4()?, 0).ok(),
            IpAddr::V6(_) => self.v6.get(&place.v6()?, 0).ok(),
        }
    }

    /// The content of a slot, which is whole where a packet may meet it: see [`super`].
    pub(crate) fn policy(&self, slot: u32) -> Option<Policy> {
        self.policies.get(&slot, 0).ok()
    }
}
