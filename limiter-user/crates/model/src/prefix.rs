//! Prefixes as operators write them.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::invalid::input_error;

/// Why a prefix was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// Neither an address nor a prefix.
    #[error("{input:?} is neither an IP address nor a prefix")]
    Unreadable {
        /// What was read.
        input: String,
    },
    /// A prefix whose address has bits beyond its length.
    #[error("{input} has host bits set; did you mean {network}?")]
    HostBits {
        /// What was read.
        input: String,
        /// The network that the address lies in.
        network: IpNet,
    },
}

impl PrefixError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        match self {
            Self::Unreadable { .. } => {
                "write an address (198.51.100.7) or a prefix (198.51.100.0/24, 2001:db8::/48)"
                    .into()
            }
            Self::HostBits { network, .. } => {
                format!("write {network}, or the bare address for one address alone")
            }
        }
    }
}

input_error!(PrefixError);

/// Reads an address or a prefix.
///
/// # Errors
/// If it is neither, or has host bits set.
pub fn read(input: &str) -> Result<IpNet, PrefixError> {
    let text = input.trim();
    // An address before a prefix: `IpNet` does not read one without its length.
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(unmapped(IpNet::from(address)));
    }
    let prefix: IpNet =
        text.parse().map_err(|_| PrefixError::Unreadable { input: input.into() })?;
    if prefix.trunc() != prefix {
        // Not cut silently: 10.0.0.1/8 may be meant as 10.0.0.1, and a limit for 16 million
        // sources in its place would be a surprise.
        return Err(PrefixError::HostBits { input: input.into(), network: prefix.trunc() });
    }
    Ok(unmapped(prefix))
}

/// A prefix without its length if it is a single address.
pub fn short_prefix(prefix: &IpNet) -> String {
    if prefix.prefix_len() == prefix.max_prefix_len() {
        prefix.addr().to_string()
    } else {
        prefix.to_string()
    }
}

/// Cuts an IPv4-mapped prefix (`::ffff:a.b.c.d/96+n`), or one of NAT64 (`64:ff9b::a.b.c.d/96+n`), down to IPv4: such
/// packets are of IPv4 sources.
fn unmapped(prefix: IpNet) -> IpNet {
    let IpNet::V6(v6) = prefix else { return prefix };
    // Shorter ones stay IPv6: they hold more than IPv4, and no packet's source is in them.
    let address = match v6.addr().segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
        }
        _ => v6.addr().to_ipv4_mapped(),
    };
    match (address, v6.prefix_len().checked_sub(96)) {
        (Some(address), Some(length)) => {
            Ipv4Net::new(address, length).map_or(prefix, |net| IpNet::V4(net.trunc()))
        }
        _ => prefix,
    }
}

/// The source that an address belongs to, when sources are told apart by so many bits.
pub fn source_of(address: IpAddr, ipv4_prefix: u8, ipv6_prefix: u8) -> IpNet {
    // As the kernel program does it: both families are one key there, told apart by the mapped
    // form.
    match unmapped(IpNet::from(address)) {
        IpNet::V4(net) => Ipv4Net::new(net.addr(), ipv4_prefix)
            .map_or(IpNet::V4(net), |cut| IpNet::V4(cut.trunc())),
        IpNet::V6(net) => Ipv6Net::new(net.addr(), ipv6_prefix)
            .map_or(IpNet::V6(net), |cut| IpNet::V6(cut.trunc())),
    }
}

/// The net itself and every shorter prefix that contains it, the longest first.
pub fn prefixes_of(net: IpNet) -> impl Iterator<Item = IpNet> + Clone {
    let shorter = move |length| IpNet::new(net.addr(), length).ok().map(|net| net.trunc());
    (0..=net.prefix_len()).rev().filter_map(shorter)
}
