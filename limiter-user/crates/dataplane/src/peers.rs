//! The addresses that frames of the cluster come from: see [`limiter_common::peers`].

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use aya::Ebpf;
use aya::maps::{HashMap, MapData};
use limiter_common::key::SourceKey;
use limiter_common::peers::MAX_PEERS;

use super::sources::key_of;
use super::{Error, take};

/// The map of budgets. It knows nothing of limits: frames of the cluster pass before they are asked for.
pub struct PeerMap {
    map: HashMap<MapData, SourceKey, u64>,
    /// The addresses in it.
    known: BTreeSet<IpAddr>,
    /// Where frames of the cluster come to, if this host is in one.
    listen: Option<SocketAddr>,
}

impl PeerMap {
    /// Takes the map out of a loaded object, with the addresses that an earlier daemon has left.
    ///
    /// # Errors
    /// If it is not there, or cannot be read.
    pub(super) fn take(ebpf: &mut Ebpf, listen: Option<SocketAddr>) -> Result<Self, Error> {
        let map: HashMap<MapData, SourceKey, u64> = take(ebpf, "PEERS")?;
        let known = map.keys().map(|key| key.map(|key| key.address()));
        let known = known.collect::<Result<_, _>>().map_err(Error::map("read the map PEERS"))?;
        Ok(Self { map, known, listen })
    }

    /// Addresses of other hosts whose frames to this one pass unlimited.
    pub fn peers(&self) -> usize {
        self.listen.map_or(0, |_| self.known.len())
    }

    /// Where frames of the cluster pass unlimited that come from `address`, if they do.
    pub fn unlimited_frames(&self, address: IpAddr) -> Option<SocketAddr> {
        self.listen.filter(|_| self.known.contains(&address.to_canonical()))
    }

    /// Lets frames that hosts of the cluster send from these addresses, of members and seeds, pass unlimited. Those
    /// from addresses before do so while there is room for them: who was lost must be heard to come back. Returns how
    /// many addresses there is no room for.
    ///
    /// # Errors
    /// If the kernel refuses; some may have been changed.
    pub fn set_peers(&mut self, present: &BTreeSet<IpAddr>) -> Result<usize, Error> {
        let changed = changes(&self.known, present, MAX_PEERS as usize);
        let failed = |address| Error::map(format!("change the budget of {address}"));
        // Removed first, as the map has no room for both.
        for address in changed.gone {
            self.map.remove(&key_of(address)).map_err(failed(address))?;
            self.known.remove(&address);
        }
        for address in changed.come {
            // A budget of 0 is one that is full: a member that has just come may send at once.
            self.map.insert(key_of(address), 0, 0).map_err(failed(address))?;
            self.known.insert(address);
        }
        Ok(changed.left_out)
    }
}

/// What makes some addresses others.
#[derive(Debug, PartialEq)]
struct Changed {
    gone: Vec<IpAddr>,
    come: Vec<IpAddr>,
    /// How many have no room.
    left_out: usize,
}

/// What is to be added to and removed from `known`, which has room for `most`.
fn changes(known: &BTreeSet<IpAddr>, present: &BTreeSet<IpAddr>, most: usize) -> Changed {
    // A socket for both families shows IPv4 hosts as `::ffff:a.b.c.d`, but their packets are IPv4.
    let present: BTreeSet<IpAddr> = present.iter().map(IpAddr::to_canonical).collect();
    let mut come: Vec<IpAddr> = present.difference(known).copied().collect();
    let mut gone = Vec::new();
    if known.len() + come.len() > most {
        gone = known.difference(&present).copied().collect();
    }
    let room = most.saturating_sub(known.len() - gone.len());
    let left_out = come.len().saturating_sub(room);
    come.truncate(room);
    Changed { gone, come, left_out }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(range: std::ops::Range<u8>) -> BTreeSet<IpAddr> {
        range.map(|last| IpAddr::from([192, 0, 2, last])).collect()
    }

    #[test]
    fn who_is_gone_stays_while_there_is_room() {
        let of = |range| addresses(range).into_iter().collect::<Vec<_>>();
        let nothing = Changed { gone: vec![], come: vec![], left_out: 0 };
        assert_eq!(changes(&addresses(1..4), &addresses(1..3), 4), nothing);
        let one_more = Changed { come: of(4..5), ..nothing };
        assert_eq!(changes(&addresses(1..4), &addresses(4..5), 4), one_more);
        let replaced = Changed { gone: of(1..4), come: of(4..6), left_out: 0 };
        assert_eq!(changes(&addresses(1..4), &addresses(4..6), 4), replaced);
        // Those that are there already keep their place, and what is left of their budget.
        let too_many = Changed { gone: of(1..3), come: of(4..7), left_out: 2 };
        assert_eq!(changes(&addresses(1..4), &addresses(3..9), 4), too_many);
    }

    #[test]
    fn an_address_has_one_form() {
        let mapped = BTreeSet::from(["::ffff:192.0.2.1".parse::<IpAddr>().unwrap()]);
        let changed = changes(&addresses(0..0), &mapped, 4);
        assert_eq!(changed.come, [IpAddr::from([192, 0, 2, 1])]);
    }
}
