//! By which number hosts talk of a source under a limit of the cluster.

use std::hash::Hasher as _;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv6Net};
use siphasher::sip::SipHasher24;

use cluster::KeyId;
use cluster::link::ClusterId;
use model::Target;

/// Makes numbers of sources.
///
/// All hosts have to make the same ones, at any moment, and nobody else may know them: whoever could choose
/// sources that meet on one number could make hosts share one limit between them. The number of the cluster
/// serves as the key of the hash: it is random, all members have it and only they, since frames that name it
/// are encrypted, and it never changes. The keys that seal frames do, at another moment on each host.
///
/// It is a number of the source and of the class that it has a bucket for, not of the limit: while a change of
/// limits is on its way, hosts have different ones for a source. Then its shares are of whichever each host
/// has, and together within the larger one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keys(SipHasher24);

impl Keys {
    /// Those of a cluster.
    pub(super) fn of(cluster: ClusterId) -> Self {
        // The second half only tells this use of the number from others.
        Self(SipHasher24::new_with_keys(cluster.0, u64::from_be_bytes(*b"limiter1")))
    }

    /// The number of a target: of a source and a class, or of a limit that sources share.
    pub(super) fn key(&self, target: &Target) -> KeyId {
        let source = target.prefix().unwrap_or(IpNet::V6(Ipv6Net::default()));
        let address = match source.network() {
            // One form for both families. The length below keeps an IPv4 prefix apart from others.
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let bits = source.prefix_len() + if source.addr().is_ipv4() { 96 } else { 0 };
        let mut hasher = self.0;
        hasher.write(&address.octets());
        // A prefix and its first address have the same octets.
        hasher.write_u8(bits);
        // As operators write it, which is the same on all hosts.
        hasher.write(target.class.to_string().as_bytes());
        if target.aggregate {
            // Apart from a source, and all sources from a prefix of all addresses.
            hasher.write(target.to_string().as_bytes());
        }
        KeyId::from_hash(hasher.finish())
    }

    /// The number of a key of `limiter-serve`.
    pub(super) fn named(&self, key: [u64; 2]) -> KeyId {
        let mut hasher = self.0;
        // Longer than the octets of a source and one of its length: apart from all of them.
        hasher.write(b"key");
        key.iter().for_each(|half| hasher.write(&half.to_be_bytes()));
        KeyId::from_hash(hasher.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Selector;

    #[test]
    fn numbers_are_of_source_class_and_cluster() {
        let keys = Keys::of(ClusterId(1));
        let key = |keys: &Keys, source: &str, class: &str| {
            let whom = Selector::Prefix(source.parse().unwrap());
            keys.key(&Target { whom, class: class.parse().unwrap(), aggregate: false })
        };
        let shared = |target: &str| keys.key(&target.parse().unwrap());
        let one = key(&keys, "192.0.2.1/32", "any");
        assert_eq!(one, key(&keys, "192.0.2.1/32", "any"));
        for other in [
            key(&keys, "192.0.2.2/32", "any"),
            key(&keys, "192.0.2.0/31", "any"),
            key(&keys, "192.0.2.1/32", "udp:53"),
            key(&keys, "2001:db8::/64", "any"),
            key(&Keys::of(ClusterId(2)), "192.0.2.1/32", "any"),
            shared("192.0.2.0/24 aggregate"),
        ] {
            assert_ne!(one, other);
        }
        // What rides in messages of older versions has to be the same.
        assert_eq!(one, KeyId::from_hash(KNOWN));
    }

    #[test]
    fn what_sources_share_has_a_number_of_its_own() {
        let keys = Keys::of(ClusterId(1));
        let all = ["default", "::/0", "0.0.0.0/0", "10.0.0.0/8"];
        let numbers: std::collections::BTreeSet<_> = all
            .iter()
            .flat_map(|whom| [format!("{whom} aggregate"), format!("{whom} udp:53 aggregate")])
            .map(|target| keys.key(&target.parse().unwrap()))
            .collect();
        assert_eq!(numbers.len(), 2 * all.len());
    }

    const KNOWN: u64 = 6_317_242_270_570_038_118;
}
