//! Which limits a packet must get through, as the kernel program finds them.

use ipnet::IpNet;

use super::class::{Class, Classes};
use crate::limit::Limit;
use crate::target::{Selector, Target, prefixes_of};

/// The limits that apply to a packet of `class` from `source`, in the order in which it meets them,
/// where `classes` are in use and `limit` finds the one for a target:
///
/// - that of the source itself: of the packet's class, or else of the next wider one that has a limit
///   for the source, at last of all packets; in each of them that of the longest prefix;
/// - those that sources share: that of the class, found likewise, that of the longest prefix, and that
///   of all sources.
pub fn applying(
    source: IpNet,
    class: Class,
    classes: &Classes,
    limit: impl Fn(&Target) -> Option<Limit>,
) -> Vec<Limit> {
    let for_whom = |whom, class, aggregate| limit(&Target { whom, class, aggregate });
    let of_prefix = |class, aggregate| {
        // As a trie finds it: the longest one alone, whatever shorter ones say.
        let mut prefixes = prefixes_of(source).map(Selector::Prefix);
        prefixes.find_map(|whom| for_whom(whom, class, aggregate))
    };
    let longest = |class, aggregate| {
        of_prefix(class, aggregate).or_else(|| for_whom(Selector::Default, class, aggregate))
    };
    let mut chain = classes.chain(class);
    // One limit a source: whoever is in a narrower class that limits it is not charged by a wider
    // one.
    let own = chain.clone().find_map(|class| longest(class, false));
    let of_class =
        chain.find_map(|class| (!class.is_any()).then(|| longest(class, true)).flatten());
    let shared =
        [of_class, of_prefix(Class::ANY, true), for_whom(Selector::Default, Class::ANY, true)];
    [own].into_iter().chain(shared).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;
    use crate::class::{Shown, TCP, UDP};

    fn limits(targets: &[&str]) -> Limits {
        let limit = |target: &&str| {
            Limit::new(target.parse().unwrap(), "5pps".parse().unwrap(), None).unwrap()
        };
        targets.iter().map(limit).collect()
    }

    #[test]
    fn the_class_comes_before_the_prefix() {
        let limits = limits(&[
            "default",
            "198.51.100.0/24",
            "198.51.100.0/24 tcp",
            "default udp",
            "203.0.113.0/24 udp:53",
            "default tcp/syn",
            "0.0.0.0/0 aggregate",
            "default aggregate",
            "default udp aggregate",
            "203.0.113.0/24 aggregate",
        ]);
        let classes = Classes::new(limits.classes()).unwrap();
        let found = |source: &str, protocol, port, flags| {
            let class = classes.find(&Shown { protocol, port, flags, ..Shown::default() });
            let source = source.parse::<std::net::IpAddr>().unwrap().into();
            let found = applying(source, class, &classes, |target| limits.get(target));
            found.iter().map(|limit| limit.target.short()).collect::<Vec<_>>().join(", ")
        };
        let all = "0.0.0.0/0 aggregate, default aggregate";
        let dns = Some(53);
        assert_eq!(
            found("203.0.113.7", UDP, dns, None),
            "203.0.113.0/24 udp:53, default udp aggregate, 203.0.113.0/24 aggregate, default aggregate"
        );
        // A wider class for everyone goes before all packets of a prefix.
        assert_eq!(
            found("198.51.100.7", UDP, dns, None),
            format!("default udp, default udp aggregate, {all}")
        );
        assert_eq!(
            found("198.51.100.7", TCP, dns, Some(16)),
            format!("198.51.100.0/24 tcp, {all}")
        );
        assert_eq!(found("198.51.100.7", TCP, dns, Some(2)), format!("default tcp/syn, {all}"));
        assert_eq!(found("192.0.2.7", TCP, dns, Some(16)), format!("default, {all}"));
        assert_eq!(found("2001:db8::7", 58, None, None), "default, default aggregate");
        let none = applying("::/64".parse().unwrap(), Class::ANY, &classes, |_| None);
        assert!(none.is_empty());
    }
}
