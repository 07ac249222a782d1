//! What is measured: a contender under a pattern of traffic.

use std::net::IpAddr;

use clap::ValueEnum;
use serde::Serialize;

use crate::contender::Contender;

/// Who sends.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Pattern {
    /// One source.
    #[serde(rename = "1")]
    #[value(name = "1")]
    One,
    /// 65,536 sources in turn.
    #[serde(rename = "64k")]
    #[value(name = "64k")]
    Many,
    /// Sources of which few send much: Zipf's law with exponent 1.1 over a million.
    Zipf,
    /// Random sources out of 2^24, as if spoofed.
    #[serde(rename = "16m")]
    #[value(name = "16m")]
    Random,
    /// 65,536 sources within their limits, with a bucket each: a healthy server.
    Conforming,
    /// The same, but that they share one more limit, which they are far over.
    Aggregate,
    /// The same on two CPUs at once, with as many sources of its own on each.
    #[serde(rename = "aggregate-2cpu")]
    #[value(name = "aggregate-2cpu")]
    AggregateTwo,
    /// 65,536 sources over the limit of a class of traffic for their prefix.
    Class,
    /// As conforming, by fixed windows.
    FixedWindow,
    /// As conforming, by sliding windows.
    SlidingWindow,
    /// Random sources out of 2^24, while a million prefixes are on the deny list: see --listed.
    Listed,
}

/// How much may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Limit {
    /// Packets per second.
    pub(crate) rate: u32,
    /// Packets.
    pub(crate) burst: u32,
}

/// A limit that no source reaches. Its burst makes the gate 1, so each of them has a bucket from its
/// first packet on, however fast this machine is.
const AMPLE: Limit = Limit { rate: 10_000, burst: 8 };

impl Pattern {
    /// Under which all contenders are compared.
    pub(crate) const COMPARED: [Self; 4] = [Self::One, Self::Many, Self::Zipf, Self::Random];

    /// The random sources come last: they fill every table.
    pub(crate) const ALL: [Self; 11] = [
        Self::One,
        Self::Many,
        Self::Zipf,
        Self::Conforming,
        Self::Aggregate,
        Self::AggregateTwo,
        Self::Class,
        Self::FixedWindow,
        Self::SlidingWindow,
        Self::Listed,
        Self::Random,
    ];

    /// Its name in tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::One => "1",
            Self::Many => "64k",
            Self::Zipf => "zipf",
            Self::Random => "16m",
            Self::Conforming => "conforming",
            Self::Aggregate => "aggregate",
            Self::AggregateTwo => "aggregate-2cpu",
            Self::Class => "class",
            Self::FixedWindow => "fixed-window",
            Self::SlidingWindow => "sliding-window",
            Self::Listed => "listed",
        }
    }

    /// CPUs that send and receive at once.
    pub(crate) const fn cpus(self) -> usize {
        if matches!(self, Self::AggregateTwo) { 2 } else { 1 }
    }

    /// The limit that a line is about. The sources of [`Pattern::Many`] send some tens of packets per
    /// second each, and are to be over their limit.
    pub(crate) const fn limit(self) -> Limit {
        match self {
            Self::Many | Self::Class => Limit { rate: 2, burst: 2 },
            Self::Conforming | Self::FixedWindow | Self::SlidingWindow => AMPLE,
            _ => Limit { rate: 1000, burst: 2000 },
        }
    }

    /// The limit of each source, which is another one where the line is about more than that.
    pub(crate) const fn limit_of_each(self) -> Limit {
        match self {
            Self::Aggregate | Self::AggregateTwo => AMPLE,
            Self::Class => Limit { rate: 1000, burst: 2000 },
            _ => self.limit(),
        }
    }

    /// What [`Pattern::limit`] is set for, if not for each source, as options of `limit set`.
    pub(crate) const fn target(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Aggregate | Self::AggregateTwo => Some(&["--aggregate"]),
            Self::Class => Some(&["--proto", "udp", "--dport", "9", "--for", "10.0.0.0/8"]),
            _ => None,
        }
    }

    /// The windows by which each source is limited, if not by a token bucket: rate and options of `limit set`. No source
    /// reaches the limit, and each needs a bucket, as in an hour so little is earned during an epoch of the sketch.
    pub(crate) const fn windows(self) -> Option<[&'static str; 3]> {
        match self {
            Self::FixedWindow => Some(["50000/hour", "--algorithm", "fixed-window"]),
            Self::SlidingWindow => Some(["50000/hour", "--algorithm", "sliding-window"]),
            _ => None,
        }
    }

    /// Whether `contender` is measured under it with sources of `family`.
    pub(crate) const fn takes(self, contender: Contender, family: Family) -> bool {
        use Contender::{Floor, Limiter, LruHash, XdpDrop};
        let is_ipv4 = matches!(family, Family::Ipv4);
        match self {
            // Of those that limit, the limiter is the only one here that knows IPv6.
            Self::One | Self::Many | Self::Zipf | Self::Random => {
                is_ipv4 || matches!(contender, XdpDrop | Floor | Limiter)
            }
            Self::Conforming => {
                matches!(contender, XdpDrop | Floor | Limiter)
                    || is_ipv4 && matches!(contender, LruHash)
            }
            // What the textbook's limiter and the firewalls do not have.
            Self::Aggregate
            | Self::AggregateTwo
            | Self::Class
            | Self::FixedWindow
            | Self::SlidingWindow
            | Self::Listed => is_ipv4 && matches!(contender, XdpDrop | Floor | Limiter),
        }
    }
}

/// Of which kind the sources are.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Family {
    /// Single addresses.
    Ipv4,
    /// A /64 each.
    Ipv6,
}

impl Family {
    pub(crate) const ALL: [Self; 2] = [Self::Ipv4, Self::Ipv6];

    /// Its name in tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
        }
    }

    /// The first source.
    pub(crate) fn base(self) -> IpAddr {
        match self {
            Self::Ipv4 => [10, 0, 0, 0].into(),
            Self::Ipv6 => [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into(),
        }
    }
}

/// What becomes of packets that a contender in XDP admits.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Entry {
    /// As an operator would set it up. Packets that XDP passes become socket buffers, which a rule
    /// of nftables then drops.
    Attached,
    /// The same program, but that it answers with a drop whatever it has decided.
    Forced,
}

/// One line of the result.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub(crate) struct Cell {
    pub(crate) contender: Contender,
    pub(crate) pattern: Pattern,
    pub(crate) family: Family,
    pub(crate) entry: Entry,
}

impl Cell {
    /// Everything that is measured under `pattern`, those that are compared first.
    pub(crate) fn with_pattern(pattern: Pattern) -> Vec<Self> {
        let mut cells = Vec::new();
        for family in Family::ALL {
            for contender in Contender::ALL {
                let entry = Self::compared(contender, pattern);
                if pattern.takes(contender, family) {
                    cells.push(Self { contender, pattern, family, entry });
                }
            }
        }
        // Once more as an operator attaches them, where what a passed packet costs is a part of it.
        for contender in [Contender::Limiter, Contender::LruHash] {
            let (family, entry) = (Family::Ipv4, Entry::Attached);
            let cell = Self { contender, pattern, family, entry };
            let both = pattern.takes(Contender::LruHash, family);
            if both && !cells.contains(&cell) {
                cells.push(cell);
            }
        }
        cells
    }

    /// One source is dropped nearly always, so there limiters in XDP are compared as they are. Under
    /// the other patterns many packets conform, and what becomes of them would be measured.
    fn compared(contender: Contender, pattern: Pattern) -> Entry {
        let limits_in_xdp = contender.is_xdp() && contender.limits();
        if pattern != Pattern::One && limits_in_xdp { Entry::Forced } else { Entry::Attached }
    }

    /// Whether this line is compared with the others of its pattern.
    pub(crate) fn is_compared(&self) -> bool {
        self.entry == Self::compared(self.contender, self.pattern)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contender_is_compared_once_per_pattern() {
        for pattern in Pattern::COMPARED {
            let cells = Cell::with_pattern(pattern);
            for contender in Contender::ALL {
                let mine = |cell: &&Cell| {
                    cell.contender == contender && cell.family == Family::Ipv4 && cell.is_compared()
                };
                assert_eq!(cells.iter().filter(mine).count(), 1, "{contender:?} {pattern:?}");
            }
        }
    }

    #[test]
    fn no_cell_is_measured_twice() {
        for pattern in Pattern::ALL {
            let cells = Cell::with_pattern(pattern);
            for (index, cell) in cells.iter().enumerate() {
                assert!(!cells[index + 1..].contains(cell), "{cell:?}");
            }
        }
    }
}
