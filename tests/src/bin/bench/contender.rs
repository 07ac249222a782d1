//! Who is compared.

use clap::ValueEnum;
use serde::Serialize;

/// A limiter, or what none can beat.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Contender {
    /// An XDP program that drops everything.
    XdpDrop,
    /// The least that any limiter with memory of each source does: parse, hash, one cache line, drop.
    Floor,
    /// The real daemon's program.
    Limiter,
    /// The same with others on its deny list: see --denied.
    // Beside the others: two runs, one after the other, told more of the machine's neighbours than of the lists.
    LimiterDenying,
    /// The same with a limit that a cluster shares, of which this host has all.
    LimiterCluster,
    /// A token bucket in an LRU hash map, in XDP.
    LruHash,
    /// A dynamic set of nftables at the ingress hook.
    Nft,
    /// The hashlimit match of iptables in the raw table.
    Hashlimit,
}

impl Contender {
    pub(crate) const ALL: [Self; 8] = [
        Self::XdpDrop,
        Self::Floor,
        Self::Limiter,
        Self::LimiterDenying,
        Self::LimiterCluster,
        Self::LruHash,
        Self::Nft,
        Self::Hashlimit,
    ];

    /// Its name in tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::XdpDrop => "xdp-drop",
            Self::Floor => "floor",
            Self::Limiter => "limiter",
            Self::LimiterDenying => "limiter-denying",
            Self::LimiterCluster => "limiter-cluster",
            Self::LruHash => "lru-hash",
            Self::Nft => "nft",
            Self::Hashlimit => "hashlimit",
        }
    }

    /// Whether it is an XDP program.
    pub(crate) const fn is_xdp(self) -> bool {
        matches!(self, Self::XdpDrop | Self::Floor | Self::LruHash) || self.is_ours()
    }

    /// Whether it is the daemon's program.
    pub(crate) const fn is_ours(self) -> bool {
        matches!(self, Self::Limiter | Self::LimiterDenying | Self::LimiterCluster)
    }

    /// Whether it limits. Those that do not drop everything, whatever it is.
    pub(crate) const fn limits(self) -> bool {
        !matches!(self, Self::XdpDrop | Self::Floor)
    }
}
