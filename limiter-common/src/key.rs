//! What a source is: an address cut to a prefix.

use core::net::{Ipv4Addr, Ipv6Addr};

/// An address as one 128-bit number in two host-order halves; IPv4 in its IPv4-mapped form
/// (`::ffff:a.b.c.d`, RFC 4291 §2.5.5.2), so that one type serves both families.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct SourceKey {
    /// The first eight bytes of the address.
    // Two halves: a register of BPF has 64 bits.
    pub high: u64,
    /// The last eight bytes of the address.
    pub low: u64,
}

/// Leading bits of an IPv4 address that make a group of sources: the smallest network that is routed by itself.
pub const GROUP_IPV4_PREFIX: u32 = 24;

/// The first eight bytes of addresses that a NAT64 makes of IPv4: 64:ff9b::/96 (RFC 6052 §2.1).
const NAT64: u64 = 0x0064_ff9b_0000_0000;

/// The upper half of the low word of an IPv4-mapped address.
const MAPPED: u64 = 0xffff_0000_0000;

impl SourceKey {
    /// The key of a whole IPv4 address.
    #[inline(always)]
    pub const fn from_ipv4(octets: [u8; 4]) -> Self {
        Self { high: 0, low: MAPPED | u32::from_be_bytes(octets) as u64 }
    }

    /// The key of a whole IPv6 address.
    #[inline(always)]
    pub const fn from_ipv6(octets: [u8; 16]) -> Self {
        let all = u128::from_be_bytes(octets);
        Self { high: (all >> 64) as u64, low: all as u64 }
    }

    /// The key of a neighbour by the address of its interface: `aa:bb:cc:dd:ee:ff` is `fe80:aabb:ccdd:eeff::`.
    // A /64 of fe80::/10 that no address is in: those are in fe80::/64 (RFC 4291 §2.5.6).
    #[inline(always)]
    pub const fn from_link(octets: [u8; 6]) -> Self {
        let [a, b, c, d, e, f] = octets;
        Self { high: u64::from_be_bytes([0xfe, 0x80, a, b, c, d, e, f]), low: 0 }
    }

    /// Whether the address tells hosts of one link apart at the most: it is in fe80::/10, or it is none, `::` or
    /// `0.0.0.0`.
    #[inline(always)]
    pub const fn is_of_link(&self) -> bool {
        self.high >> 54 == 0xfe80 >> 6 || self.high == 0 && (self.low == 0 || self.low == MAPPED)
    }

    /// The IPv4 address that a NAT64 has made this one of, or itself.
    #[inline(always)]
    pub const fn before_nat64(self) -> Self {
        if self.high == NAT64 && self.low >> 32 == 0 {
            return Self { high: 0, low: MAPPED | self.low };
        }
        self
    }

    /// Whether this is an IPv4 (or IPv4-mapped) address.
    #[inline(always)]
    pub const fn is_ipv4(&self) -> bool {
        self.high == 0 && self.low & !0xffff_ffff == MAPPED
    }

    /// The IPv4 address in host order, if it is one.
    #[inline(always)]
    pub const fn ipv4(&self) -> Option<u32> {
        if self.is_ipv4() { Some(self.low as u32) } else { None }
    }

    /// The group that the source belongs to, and how many leading bits make it: [`GROUP_IPV4_PREFIX`], or `ipv6` of
    /// an IPv6 address (1 to 64).
    #[inline(always)]
    pub const fn group(self, ipv6: u32) -> (Self, u32) {
        if self.is_ipv4() {
            let rest = (1 << (32 - GROUP_IPV4_PREFIX)) - 1;
            return (Self { high: 0, low: self.low & !rest }, GROUP_IPV4_PREFIX);
        }
        let mask = u64::MAX << (64u32.wrapping_sub(ipv6) & 63);
        (Self { high: self.high & mask, low: 0 }, ipv6)
    }

    /// The sixteen bytes of the address in network order, IPv4 in its mapped form.
    #[inline(always)]
    pub const fn octets(&self) -> [u8; 16] {
        ((self.high as u128) << 64 | self.low as u128).to_be_bytes()
    }

    /// The key as an address of its own family.
    pub const fn address(&self) -> core::net::IpAddr {
        match self.ipv4() {
            Some(bits) => core::net::IpAddr::V4(Ipv4Addr::from_bits(bits)),
            None => core::net::IpAddr::V6(Ipv6Addr::from_octets(self.octets())),
        }
    }
}

/// A source's packets of one class: see [`crate::class`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct ClassKey {
    /// The source.
    pub source: SourceKey,
    /// The class.
    // As wide as its alignment: the kernel's hash maps compare keys byte by byte, padding
    // included.
    pub class: u64,
}

/// How many leading bits of an address tell sources apart, as masks.
///
/// IPv4 defaults to /32. IPv6 defaults to /64, because whoever holds one IPv6 address usually holds
/// the 2^64 of its subnet (RFC 6177).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PrefixMasks {
    /// Mask of the IPv4 address, host order.
    // Wide, though 32 bits would do: no padding in a read-only global that the loader writes as
    // bytes.
    pub ipv4: u64,
    /// Mask of the high half of an IPv6 address.
    pub ipv6_high: u64,
    /// Mask of the low half of an IPv6 address.
    pub ipv6_low: u64,
}

impl PrefixMasks {
    /// Masks for prefixes of `ipv4` (0..=32) and `ipv6` (0..=128) bits; longer ones are cut to the
    /// address length.
    pub const fn new(ipv4: u8, ipv6: u8) -> Self {
        let v6 = if ipv6 >= 128 { u128::MAX } else { !(u128::MAX >> ipv6) };
        let v4 = if ipv4 >= 32 { u32::MAX } else { !(u32::MAX >> ipv4) };
        Self { ipv4: v4 as u64, ipv6_high: (v6 >> 64) as u64, ipv6_low: v6 as u64 }
    }

    /// The prefix lengths these masks stand for: (IPv4, IPv6).
    pub const fn lengths(&self) -> (u8, u8) {
        let v6 = self.ipv6_high.count_ones() + self.ipv6_low.count_ones();
        (self.ipv4.count_ones() as u8, v6 as u8)
    }

    /// The source that `address` belongs to.
    #[inline(always)]
    pub const fn apply(&self, address: SourceKey) -> SourceKey {
        let address = address.before_nat64();
        if address.is_ipv4() {
            // The mark of the family stays, or the source would become an IPv6 address.
            SourceKey { high: 0, low: address.low & (MAPPED | self.ipv4) }
        } else {
            SourceKey { high: address.high & self.ipv6_high, low: address.low & self.ipv6_low }
        }
    }
}

impl Default for PrefixMasks {
    fn default() -> Self {
        Self::new(32, 64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbours_and_what_a_nat64_has_made() {
        let v6 = |text: &str| SourceKey::from_ipv6(text.parse::<Ipv6Addr>().unwrap().octets());
        let masks = PrefixMasks::default();
        for of_link in ["fe80::1", "febf:ffff::1", "::", "::ffff:0.0.0.0"] {
            assert!(v6(of_link).is_of_link(), "{of_link}");
        }
        for other in ["fec0::1", "::1", "2001:db8::1", "::ffff:0.0.0.1", "::1:0:0"] {
            assert!(!v6(other).is_of_link(), "{other}");
        }
        let neighbour = SourceKey::from_link([0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff]);
        assert_eq!(neighbour, v6("fe80:aabb:ccdd:eeff::"));
        assert_eq!(masks.apply(neighbour), neighbour);
        let v4 = SourceKey::from_ipv4([198, 51, 100, 7]);
        assert_eq!(masks.apply(v6("64:ff9b::198.51.100.7")), v4);
        assert_eq!(
            PrefixMasks::new(24, 64).apply(v6("64:ff9b::c633:6407")).ipv4(),
            Some(0xc633_6400)
        );
        // A longer prefix is somebody's own (RFC 8215).
        assert_eq!(masks.apply(v6("64:ff9b:1::c633:6407")), v6("64:ff9b:1::"));
    }

    proptest! {
        #[test]
        fn ipv4_round_trips_and_masks(bits: u32, length in 0u8..=32) {
            let key = SourceKey::from_ipv4(bits.to_be_bytes());
            prop_assert_eq!(key.ipv4(), Some(bits));
            let cut = PrefixMasks::new(length, 64).apply(key).ipv4();
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            prop_assert_eq!(cut, Some(bits & mask));
        }

        #[test]
        fn ipv6_masks_like_a_u128(bits: u128, length in 0u8..=128) {
            let key = SourceKey::from_ipv6(bits.to_be_bytes());
            prop_assume!(!key.is_ipv4());
            let cut = PrefixMasks::new(32, length).apply(key);
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            prop_assert_eq!(cut.octets(), (bits & mask).to_be_bytes());
            prop_assert_eq!(PrefixMasks::new(32, length).lengths(), (32, length));
        }
    }

    #[test]
    fn a_group_is_a_wider_prefix_of_the_same_family() {
        let masks = |ipv6| PrefixMasks::new(GROUP_IPV4_PREFIX as u8, ipv6);
        let v4 = SourceKey::from_ipv4([203, 0, 113, 7]);
        let v6 = SourceKey { high: 0x2001_0db8_1234_5678, low: 9 };
        for bits in [48, 56, 64] {
            assert_eq!(v4.group(bits), (masks(0).apply(v4), 24));
            assert_eq!(v6.group(bits), (masks(bits as u8).apply(v6), bits));
        }
    }

    #[test]
    fn an_ipv4_mapped_source_is_the_ipv4_source() {
        let wire = Ipv4Addr::new(198, 51, 100, 7).to_ipv6_mapped();
        let key = SourceKey::from_ipv6(wire.octets());
        assert_eq!(key, SourceKey::from_ipv4([198, 51, 100, 7]));
        assert_eq!(key.address(), Ipv4Addr::new(198, 51, 100, 7));
    }
}
