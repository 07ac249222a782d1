//! Where a limit lies in the maps.

use std::fmt;

use aya::maps::lpm_trie::Key;
use ipnet::IpNet;
use limiter_common::class::{ANY, DESTINATIONS, is_of_destinations};
use limiter_common::key::ClassKey;

use super::super::sources::{MapKey, key_of, prefix_of, source_of_key};
use model::Selector;

/// Bits of a key before the address: the class, and a byte that sets a limit for everyone apart from one
/// for the prefix of all addresses.
const BEFORE: u32 = 16;
/// Bits of whole addresses, IPv4 and IPv6.
pub(crate) const WHOLE: (u8, u8) = (32, 128);
/// Bits of the class.
const CLASS: u32 = 8;

/// Whom a limit is for, and the number of its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClassPlace {
    pub(super) whom: Selector,
    pub(super) class: u8,
}

impl ClassPlace {
    /// Everyone, whatever they send.
    pub(super) const DEFAULT: Self = Self { whom: Selector::Default, class: ANY as u8 };

    pub(super) const fn prefix(net: IpNet, class: u8) -> Self {
        Self { whom: Selector::Prefix(net), class }
    }

    fn from_key(
        class: Option<&u8>,
        prefix_len: u32,
        net: impl FnOnce(u32) -> Option<IpNet>,
    ) -> Option<Self> {
        let class = *class?;
        match prefix_len.checked_sub(BEFORE) {
            None => Some(Self { whom: Selector::Default, class }),
            Some(length) => net(length).map(|net| Self::prefix(net, class)),
        }
    }

    /// The length of its key, and what the address begins with.
    fn key<const N: usize>(&self, address: &[u8], length: u8) -> Key<[u8; N]> {
        let mut data = [0; N];
        // In front of the address: so one trie serves all classes, and the longest match is one within the class.
        data[0] = self.class;
        // The class stands first: a trie compares from the first bit on, so no prefix of another class matches.
        data[N - address.len()..].copy_from_slice(address);
        Key::new(BEFORE + u32::from(length), data)
    }

    fn everyone<const N: usize>(&self) -> Key<[u8; N]> {
        let mut data = [0; N];
        data[0] = self.class;
        // Shorter than the key of the prefix of all addresses, so that this one is found last.
        Key::new(CLASS, data)
    }
}

/// Bits of an address that make one source of a class, where so many make one most often (IPv4, IPv6).
pub(crate) const fn lengths(class: u8, usual: (u8, u8)) -> (u8, u8) {
    match class as u32 {
        _ if is_of_destinations(class) => WHOLE,
        // What classes name is a prefix whatever its length: packets look for the longest.
        DESTINATIONS.. => (u8::MAX, u8::MAX),
        _ => usual,
    }
}

impl fmt::Display for ClassPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.whom.short())
    }
}

impl MapKey for ClassPlace {
    type Single = ClassKey;
    type V4 = [u8; 6];
    type V6 = [u8; 18];

    fn net(&self) -> Option<IpNet> {
        match self.whom {
            Selector::Default => None,
            Selector::Prefix(net) => Some(net),
        }
    }

    fn lengths(&self, usual: (u8, u8)) -> (u8, u8) {
        lengths(self.class, usual)
    }

    fn single(&self) -> ClassKey {
        // Asked for single sources only.
        let source = self.net().map_or_else(Default::default, |net| key_of(net.network()));
        ClassKey { source, class: u64::from(self.class) }
    }

    fn from_single(key: &ClassKey, lengths: (u8, u8)) -> Self {
        let class = key.class as u8;
        Self::prefix(source_of_key(key.source, self::lengths(class, lengths)), class)
    }

    fn v4(&self) -> Option<Key<[u8; 6]>> {
        match self.whom {
            Selector::Default => Some(self.everyone()),
            Selector::Prefix(IpNet::V4(v4)) => {
                Some(self.key(&v4.network().octets(), v4.prefix_len()))
            }
            Selector::Prefix(IpNet::V6(_)) => None,
        }
    }

    fn v6(&self) -> Option<Key<[u8; 18]>> {
        match self.whom {
            Selector::Default => Some(self.everyone()),
            Selector::Prefix(IpNet::V6(v6)) => {
                Some(self.key(&v6.network().octets(), v6.prefix_len()))
            }
            Selector::Prefix(IpNet::V4(_)) => None,
        }
    }

    fn from_v4(key: &Key<[u8; 6]>) -> Option<Self> {
        let data = key.data();
        let address = <[u8; 4]>::try_from(data.get(2..)?).ok()?;
        Self::from_key(data.first(), key.prefix_len(), |length| prefix_of(address, length))
    }

    fn from_v6(key: &Key<[u8; 18]>) -> Option<Self> {
        let data = key.data();
        let address = <[u8; 16]>::try_from(data.get(2..)?).ok()?;
        Self::from_key(data.first(), key.prefix_len(), |length| prefix_of(address, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_is_written() {
        for text in ["192.0.2.0/24", "0.0.0.0/0", "192.0.2.1/32"] {
            let place = ClassPlace::prefix(text.parse().unwrap(), 7);
            assert_eq!(ClassPlace::from_v4(&place.v4().unwrap()), Some(place));
            assert!(place.v6().is_none());
        }
        for text in ["2001:db8::/48", "::/0", "2001:db8::1/128"] {
            let place = ClassPlace::prefix(text.parse().unwrap(), 64);
            assert_eq!(ClassPlace::from_v6(&place.v6().unwrap()), Some(place));
            assert!(place.v4().is_none());
        }
        let everyone = ClassPlace { whom: Selector::Default, class: 3 };
        assert_eq!(ClassPlace::from_v4(&everyone.v4().unwrap()), Some(everyone));
        assert_eq!(ClassPlace::from_v6(&everyone.v6().unwrap()), Some(everyone));
        let single = ClassPlace::prefix("2001:db8:0:7::/64".parse().unwrap(), 9);
        assert_eq!(ClassPlace::from_single(&single.single(), (32, 64)), single);
    }
}
