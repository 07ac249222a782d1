//! Who a host is.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use siphasher::sip::SipHasher24;

use crate::HostId;
use crate::wire::bytes::{Malformed, Reader, put_number, put_text};
use crate::wire::{Epoch, Versions};

/// Bytes of a host's name, at most.
pub const MAX_NAME_LEN: usize = 64;

/// Bytes of a region's name, at most.
pub const MAX_REGION_LEN: usize = 32;

/// The largest weight.
pub const MAX_WEIGHT: u32 = 1000;

/// Who a host is, as all members know it.
#[derive(Clone, Debug)]
pub struct Identity {
    host: HostId,
    name: Arc<str>,
    region: Arc<str>,
    /// Where it listens.
    pub address: SocketAddr,
    /// Since when it runs.
    pub epoch: Epoch,
    /// What it understands.
    pub versions: Versions,
    /// How often it has had to say that it is still there, or something about it has changed.
    pub renewal: u32,
    /// Its part of limits, beside those of others.
    pub weight: u32,
}

impl Identity {
    /// A host that starts with the ledger `host`. Names are cut to what may be sent of them.
    pub fn new(
        host: HostId,
        name: &str,
        region: &str,
        address: SocketAddr,
        epoch: Epoch,
        weight: u32,
    ) -> Self {
        let name = &name[..name.floor_char_boundary(MAX_NAME_LEN)];
        let region = &region[..region.floor_char_boundary(MAX_REGION_LEN)];
        Self {
            host,
            name: name.into(),
            region: region.into(),
            address,
            epoch,
            versions: Versions::THESE,
            renewal: 0,
            // A weight of 0 would leave a host without a home share, and without keys.
            weight: weight.clamp(1, MAX_WEIGHT),
        }
    }

    /// By which other parts know it: the number of its ledger.
    pub const fn host(&self) -> HostId {
        self.host
    }

    /// Its name, for operators; another host may have the same.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The region that it is in.
    pub fn region(&self) -> &str {
        &self.region
    }

    /// Appends it.
    pub fn write(&self, to: &mut Vec<u8>) {
        to.extend(self.host.0.to_be_bytes());
        put_text(to, &self.name);
        put_text(to, &self.region);
        put_address(to, self.address);
        to.extend(self.epoch.0.to_be_bytes());
        to.extend([self.versions.oldest, self.versions.newest]);
        put_number(to, self.renewal.into());
        put_number(to, self.weight.into());
    }

    /// Reads one.
    ///
    /// # Errors
    /// If there is none, or one that no host may have.
    pub fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let host = HostId(from.u64()?);
        let name = from.text(MAX_NAME_LEN)?;
        let region = from.text(MAX_REGION_LEN)?;
        let address = read_address(from)?;
        let epoch = Epoch(from.u64()?);
        let versions = Versions { oldest: from.u8()?, newest: from.u8()? };
        let (renewal, weight) = (from.small()?, from.small()?);
        // What is told to operators has to be fit for a terminal, and what is sent to has to be a host.
        let fit = |text: &str| !text.is_empty() && !text.contains(|char: char| char.is_control());
        let usable = host.0 != 0
            && fit(name)
            && fit(region)
            && versions.has(versions.newest)
            && (1..=MAX_WEIGHT).contains(&weight)
            && address.port() != 0
            && !address.ip().is_unspecified()
            && !address.ip().is_multicast()
            // Frames to it would be for nobody in particular.
            && epoch.short() != 0;
        if !usable {
            return Err(Malformed);
        }
        Ok(Self { versions, renewal, ..Self::new(host, name, region, address, epoch, weight) })
    }

    /// A number that stands for all of it.
    pub(super) fn hash(&self) -> u64 {
        let mut bytes = Vec::with_capacity(160);
        self.write(&mut bytes);
        SipHasher24::new().hash(&bytes)
    }

    /// The later one of one host, or of one address, is larger.
    fn age(&self) -> (Epoch, u32, HostId) {
        (self.epoch, self.renewal, self.host)
    }
}

pub(super) fn put_address(to: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => {
            to.push(4);
            to.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            to.push(6);
            to.extend(ip.octets());
        }
    }
    to.extend(address.port().to_be_bytes());
}

pub(super) fn read_address(from: &mut Reader<'_>) -> Result<SocketAddr, Malformed> {
    let ip: IpAddr = match from.u8()? {
        4 => from.u32()?.to_be_bytes().into(),
        6 => (u128::from(from.u64()?) << 64 | u128::from(from.u64()?)).to_be_bytes().into(),
        _ => return Err(Malformed),
    };
    Ok(SocketAddr::new(ip, from.u16()?))
}

/// The weight is not compared: who changes it renews the identity.
impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        self.address == other.address && self.age() == other.age()
    }
}

impl Eq for Identity {}

impl foca::Identity for Identity {
    type Addr = SocketAddr;

    fn renew(&self) -> Option<Self> {
        Some(Self { renewal: self.renewal.checked_add(1)?, ..self.clone() })
    }

    fn addr(&self) -> SocketAddr {
        self.address
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        // A host that restarts at its address must not wait until its former run is found to be dead.
        self.age() > adversary.age()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use foca::Identity as _;
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn identity(name: &str, port: u16, second: u64) -> Identity {
        let epoch = Epoch::starting(None, second, 1);
        let host = HostId(SipHasher24::new().hash(name.as_bytes()));
        Identity::new(host, name, "default", ([192, 0, 2, 1], port).into(), epoch, 100)
    }

    #[test]
    fn a_later_run_and_a_renewal_win() {
        let first = identity("a", 7, 100);
        let renewed = first.renew().unwrap();
        let restarted = identity("a", 7, 101);
        assert!(renewed.win_addr_conflict(&first) && !first.win_addr_conflict(&renewed));
        assert!(restarted.win_addr_conflict(&renewed) && !renewed.win_addr_conflict(&restarted));
        assert!(first != renewed && !first.win_addr_conflict(&first));
        assert_eq!(first.host(), restarted.host());
        // A machine that was installed anew has another ledger, and takes over at its address.
        let reinstalled = Identity { host: HostId(9), ..restarted.clone() };
        assert!(reinstalled.win_addr_conflict(&first) && reinstalled != restarted);
    }

    #[test]
    fn hosts_that_cannot_be_are_refused() {
        let refused = |identity: &Identity| {
            let mut bytes = Vec::new();
            identity.write(&mut bytes);
            assert!(Identity::read(&mut Reader::new(&bytes)).is_err(), "{identity:?}");
        };
        refused(&identity("", 7, 100));
        refused(&Identity { host: HostId(0), ..identity("a", 7, 100) });
        refused(&identity("\x1b[2J", 7, 100));
        refused(&identity("a", 0, 100));
        let versions = Versions { oldest: 7, newest: 6 };
        refused(&Identity { versions, ..identity("a", 7, 100) });
        refused(&Identity { weight: 0, ..identity("a", 7, 100) });
        refused(&Identity { weight: MAX_WEIGHT + 1, ..identity("a", 7, 100) });
        refused(&Identity { address: ([0, 0, 0, 0], 7).into(), ..identity("a", 7, 100) });
        refused(&Identity { address: ([224, 0, 0, 1], 7).into(), ..identity("a", 7, 100) });
        refused(&Identity { epoch: Epoch(1 << 32), ..identity("a", 7, 100) });
    }

    proptest! {
        #[test]
        fn it_is_read_as_it_was_written(
            host in 1..=u64::MAX,
            name in "[a-zäß.-]{1,80}",
            region in "[a-z0-9-]{1,40}",
            ip in prop_oneof![
                any::<[u8; 4]>().prop_map(IpAddr::from),
                any::<[u8; 16]>().prop_map(IpAddr::from),
            ],
            port in 1..=u16::MAX,
            epoch: u64,
            weight in 1..=MAX_WEIGHT,
            renewal: u32,
        ) {
            prop_assume!(!ip.is_unspecified() && !ip.is_multicast() && epoch as u32 != 0);
            let (host, address) = (HostId(host), (ip, port).into());
            let made =
                Identity::new(host, &name, &region, address, Epoch(epoch), weight);
            let versions = Versions { oldest: epoch as u8 / 2, newest: epoch as u8 };
            let made = Identity { versions, renewal, ..made };
            let mut bytes = Vec::new();
            made.write(&mut bytes);
            let read = Identity::read(&mut Reader::new(&bytes)).unwrap();
            prop_assert_eq!(&read, &made);
            prop_assert_eq!((read.host(), read.versions), (host, versions));
            prop_assert_eq!((read.name(), read.region()), (made.name(), made.region()));
            prop_assert_eq!(read.hash(), made.hash());
            prop_assert!(Identity::read(&mut Reader::new(&bytes[..bytes.len() - 1])).is_err());
        }
    }
}
