//! Addresses by which the host is managed, which no rule may shut out.
//!
//! They pass like allowed sources, before any limit is asked. The longest prefix of a list wins, so a denial of a wider
//! prefix does not hold for them. A rule for a part of them would, and is refused.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::invalid::Invalid;
use crate::target::{Selector, Target, short_prefix, source_of};

/// The management addresses of a daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Management {
    nets: Vec<IpNet>,
}

/// Reads an address or a prefix, as options and files have it.
///
/// # Errors
/// If it is neither, or means every source.
pub fn parse_management(text: &str) -> Result<IpNet, Invalid> {
    match text.parse::<Selector>()? {
        // A zero length is a slip with a grave effect: each source would be one that no limit
        // applies to.
        Selector::Prefix(net) if net.prefix_len() > 0 => Ok(net),
        _ => Err(Invalid::new(format!(
            "{text} covers every source, so that nothing would be limited"
        ))
        .with_hint("list the addresses that you administer the host from")),
    }
}

impl Management {
    /// The management addresses `listed`, where sources have so many bits: (IPv4, IPv6). An address
    /// within a source stands for all of it.
    pub fn new(listed: &[IpNet], lengths: (u8, u8)) -> Self {
        let widened = listed.iter().map(|net| {
            // The kernel program knows whole sources only.
            let source = source_of(net.addr(), lengths.0, lengths.1);
            if source.prefix_len() < net.prefix_len() { source } else { net.trunc() }
        });
        let all: BTreeSet<_> = widened.collect();
        // One that contains another says all there is to say, and each is an entry in the maps.
        let within = |net: &IpNet| all.iter().any(|other| other != net && other.contains(net));
        Self { nets: all.iter().filter(|net| !within(net)).copied().collect() }
    }

    /// The prefixes, none of which contains another.
    pub fn nets(&self) -> &[IpNet] {
        &self.nets
    }

    /// The prefix that `address` lies in.
    pub fn covering(&self, address: IpAddr) -> Option<IpNet> {
        self.nets.iter().find(|net| net.contains(&address)).copied()
    }

    /// Whether a rule for `target` would hold for none but management addresses.
    pub fn contains(&self, target: &Target) -> bool {
        let Some(target) = target.sources() else { return false };
        self.nets.iter().any(|net| net.contains(&target))
    }

    /// Whether a rule may be set for `target`: not for a part of a management prefix.
    ///
    /// # Errors
    /// If it may not; the message says which prefix is in its way.
    pub fn check(&self, target: &Target) -> Result<(), Invalid> {
        let Some(net) = target.sources() else { return Ok(()) };
        // A longer prefix wins in the trie, so its rule would shut out part of those who
        // administer the host.
        match self.nets.iter().find(|own| own.contains(&net) && **own != net) {
            None => Ok(()),
            Some(own) => Err(Invalid::new(format!(
                "{} lies in the management addresses {}, for which no rule may be set",
                target.whom.short(),
                short_prefix(own)
            ))
            .with_hint(
                "choose another target, or take the addresses off the daemon's --management",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Explain as _;

    fn management(listed: &[&str]) -> Management {
        let listed: Vec<_> = listed.iter().map(|text| parse_management(text).unwrap()).collect();
        Management::new(&listed, (32, 64))
    }

    fn target(text: &str) -> Target {
        text.parse().unwrap()
    }

    #[test]
    fn rules_for_parts_are_refused_and_wider_ones_are_not() {
        let management = management(&["192.0.2.0/24", "2001:db8::1"]);
        for wide in ["default", "192.0.2.0/24", "192.0.0.0/16", "198.51.100.1", "2001:db8::/64"] {
            management.check(&target(wide)).unwrap();
        }
        let refused = management.check(&target("192.0.2.7")).unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains("192.0.2.7") && refused.contains("192.0.2.0/24"));
        assert!(management.contains(&target("192.0.2.0/24")));
        assert!(!management.contains(&target("192.0.0.0/16")));
        assert!(!management.contains(&Target::DEFAULT));
    }

    #[test]
    fn an_address_stands_for_its_source() {
        let management = management(&["2001:db8::1", "192.0.2.1", "192.0.2.0/31"]);
        let nets: Vec<_> = management.nets().iter().map(ToString::to_string).collect();
        assert_eq!(nets, ["192.0.2.0/31", "2001:db8::/64"]);
        assert!(management.covering("2001:db8::9".parse().unwrap()).is_some());
        assert_eq!(management.covering("192.0.2.2".parse().unwrap()), None);
    }

    #[test]
    fn what_is_no_address_or_all_of_them_is_refused() {
        for (text, about) in [
            ("default", "every"),
            ("0.0.0.0/0", "every"),
            ("::/0", "every"),
            ("bastion", "bastion"),
        ] {
            let error = parse_management(text).unwrap_err();
            assert!(error.to_string().contains(about), "{error}");
            assert!(error.hint().is_some());
        }
    }
}
