//! Tunnels of IP in IP whose packets count for the sender inside.
//!
//! Load balancers hand packets on so. By the outer header all would come from the balancer, and a limit would cut that
//! off. Nobody else's tunnels are looked into: whoever may choose an inner source may choose whom a limit hits.

use core::mem::size_of;

use crate::key::SourceKey;

/// Prefixes that there is room for.
pub const MAX_TUNNELS: usize = 16;

/// A prefix: bits that an address must have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Prefix {
    /// The address; other bits are 0.
    pub key: SourceKey,
    /// The bits that count.
    pub mask: SourceKey,
}

impl Prefix {
    /// Whether it contains an address.
    #[inline(always)]
    pub const fn contains(&self, address: SourceKey) -> bool {
        address.high & self.mask.high == self.key.high
            && address.low & self.mask.low == self.key.low
    }
}

/// Whose tunnels are looked into: a read-only global of the program, so that none of this is in the program of a host
/// without any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Tunnels {
    /// How many of the prefixes count.
    pub count: u64,
    /// Of outer sources.
    pub prefixes: [Prefix; MAX_TUNNELS],
}

const _: () = assert!(size_of::<Tunnels>() == 8 + 32 * MAX_TUNNELS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_contains_its_addresses() {
        let v4 = |last| SourceKey::from_ipv4([192, 0, 2, last]);
        let mask = SourceKey { high: !0, low: !0 << 4 };
        let prefix = Prefix { key: v4(16), mask };
        assert!(prefix.contains(v4(16)) && prefix.contains(v4(31)));
        assert!(!prefix.contains(v4(15)) && !prefix.contains(v4(32)));
        assert!(!prefix.contains(SourceKey { high: 1, ..v4(16) }));
    }
}
