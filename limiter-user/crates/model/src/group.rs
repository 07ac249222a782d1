//! Groups: the sources of a prefix, limited together as far as they have no buckets.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use limiter_common::abi::Policy;
use limiter_common::key::GROUP_IPV4_PREFIX;
use serde::{Serialize, Serializer};

use crate::compile::compile_tier;
use crate::units::parse_burst;
use crate::{Class, Invalid, Rate, Selector, Target, Tier, Unit};

/// Lengths that the IPv6 prefix of a group can have: what a site gets, and what a home gets (RFC 6177).
const IPV6_PREFIXES: [u8; 2] = [48, 56];

/// How much a group may send: `RATE` or `RATE,BURST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimit(pub Tier);

impl FromStr for GroupLimit {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let (rate, burst) = match text.split_once(',') {
            Some((rate, burst)) => (rate, Some(burst)),
            None => (text, None),
        };
        let rate: Rate = rate.parse()?;
        let burst = burst.map(|burst| parse_burst(burst, rate.unit())).transpose()?;
        Ok(Self(Tier::new(rate, burst)?))
    }
}

impl fmt::Display for GroupLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tier { rate, burst, .. } = self.0;
        match rate.unit() {
            Unit::Packets => write!(f, "{rate},{burst}"),
            Unit::Bytes => write!(f, "{rate},{}", self.0.burst_text()),
        }
    }
}

impl Serialize for GroupLimit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What groups are, and their limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// What each of them may send; `None` where groups are not limited.
    pub limit: Option<GroupLimit>,
    /// Leading bits of an IPv6 address that make one.
    pub ipv6_prefix: u8,
}

impl Groups {
    /// Whether there can be such groups of sources with so many bits, IPv4 and IPv6.
    ///
    /// # Errors
    /// What is wrong, and the option that is to blame.
    pub fn check(&self, ipv4: u8, ipv6: u8) -> Result<(), (&'static str, Invalid)> {
        let Self { limit, ipv6_prefix } = *self;
        if !IPV6_PREFIXES.contains(&ipv6_prefix) {
            let problem = format!("/{ipv6_prefix} is no prefix of groups");
            return Err(("--group-ipv6-prefix", Invalid::new(problem).with_hint("give 48 or 56")));
        }
        let families = [("ipv4", ipv4, GROUP_IPV4_PREFIX as u8), ("ipv6", ipv6, ipv6_prefix)];
        for (family, source, group) in families {
            if limit.is_some() && source <= group {
                let problem = format!(
                    "a group is a /{group}, and --{family}-prefix {source} makes that one source"
                );
                let hint = format!(
                    "limit sources alone, or give --{family}-prefix {} at least",
                    group + 1
                );
                return Err(("--group-limit", Invalid::new(problem).with_hint(hint)));
            }
        }
        Ok(())
    }

    /// The policy of each group, as [`crate::compile::compile`] makes it; `None` where groups are not limited.
    ///
    /// # Errors
    /// As that.
    pub fn compile(&self, window_shift: u32, max_frame: u32) -> Result<Option<Policy>, Invalid> {
        let compiled = |GroupLimit(tier)| {
            compile_tier(&Target::DEFAULT, &tier, window_shift, max_frame).map(Policy::new)
        };
        self.limit.map(compiled).transpose()
    }
}

/// The target that the limit of a group is told with.
pub const fn target_of(group: IpNet) -> Target {
    Target { whom: Selector::Prefix(group), class: Class::ANY, aggregate: true }
}

/// The prefix of an address whose length comes from a map, where IPv4 is never longer than a group's.
pub fn prefix_of(address: IpAddr, length: u8) -> IpNet {
    IpNet::new(address, length).map_or_else(|_| address.into(), |net| net.trunc())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(limit: &str, ipv6_prefix: u8) -> Groups {
        Groups { limit: Some(limit.parse().unwrap()), ipv6_prefix }
    }

    #[test]
    fn a_limit_is_a_rate_with_or_without_a_burst() {
        let read = |text: &str| text.parse::<GroupLimit>().map(|limit| limit.to_string());
        assert_eq!(read("10kpps").unwrap(), "10kpps,12000");
        assert_eq!(read("10kpps, 2k").unwrap(), "10kpps,2000");
        assert_eq!(read("10mbit,64kbyte").unwrap(), "10mbit,64 kbyte");
        for wrong in ["", "10", "10kpps,", "10kpps,64kbyte", "10kpps,0", "10kpps,1,2"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn groups_are_wider_than_sources() {
        let blamed = |groups: Groups, ipv4, ipv6| groups.check(ipv4, ipv6).err().map(|it| it.0);
        assert_eq!(blamed(groups("10kpps", 48), 32, 64), None);
        assert_eq!(blamed(groups("10kpps", 56), 25, 57), None);
        assert_eq!(blamed(groups("10kpps", 48), 24, 64), Some("--group-limit"));
        assert_eq!(blamed(groups("10kpps", 56), 32, 56), Some("--group-limit"));
        assert_eq!(blamed(groups("10kpps", 52), 32, 64), Some("--group-ipv6-prefix"));
        // Where they have no limit they take nothing from sources.
        assert_eq!(blamed(Groups { limit: None, ipv6_prefix: 48 }, 24, 48), None);
    }

    #[test]
    fn a_group_has_the_policy_of_a_source() {
        let policy = groups("1000pps,2000", 48).compile(27, 1514).unwrap().unwrap();
        assert_eq!((policy.gate, policy.first_terms.burst), (16, 2000));
        assert_eq!(Groups { limit: None, ipv6_prefix: 48 }.compile(27, 1514), Ok(None));
    }
}
