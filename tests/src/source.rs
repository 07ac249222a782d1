//! Addresses that crafted frames claim to be from, all reserved for documentation.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// 198.51.100.`host`
#[must_use]
pub fn v4(host: u8) -> IpAddr {
    Ipv4Addr::new(198, 51, 100, host).into()
}

/// 2001:db8:7:`site`::`host`; the limiter tracks the /64 of each site.
#[must_use]
pub fn v6(site: u16, host: u16) -> IpAddr {
    Ipv6Addr::new(0x2001, 0xdb8, 7, site, 0, 0, 0, host).into()
}
