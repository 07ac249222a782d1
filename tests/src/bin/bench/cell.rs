//! What is measured: a contender under a pattern of traffic.

use std::net::IpAddr;

use clap::ValueEnum;
use serde::Serialize;

use crate::contender::Contender;

/// Who sends.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
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
    #[serde(rename = "zipf")]
    Zipf,
    /// Random sources out of 2^24, as if spoofed.
    #[serde(rename = "16m")]
    #[value(name = "16m")]
    Random,
}

/// A limit for each source.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Limit {
    /// Packets per second.
    pub(crate) rate: u32,
    /// Packets.
    pub(crate) burst: u32,
}

impl Pattern {
    /// The random sources come last: they fill every table.
    pub(crate) const ALL: [Self; 4] = [Self::One, Self::Many, Self::Zipf, Self::Random];

    /// Its name in tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::One => "1",
            Self::Many => "64k",
            Self::Zipf => "zipf",
            Self::Random => "16m",
        }
    }

    /// The limit of every contender. The sources of [`Pattern::Many`] send some tens of packets per
    /// second each, and are to be over their limit.
    pub(crate) const fn limit(self) -> Limit {
        match self {
            Self::Many => Limit { rate: 2, burst: 2 },
            Self::One | Self::Zipf | Self::Random => Limit { rate: 1000, burst: 2000 },
        }
    }
}

/// Of which kind the sources are.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
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
                let takes_part = match family {
                    Family::Ipv4 => true,
                    Family::Ipv6 => !contender.limits() || contender == Contender::Limiter,
                };
                let entry = Self::compared(contender, pattern);
                if takes_part {
                    cells.push(Self { contender, pattern, family, entry });
                }
            }
        }
        // Once more as an operator attaches them, where what a passed packet costs is a part of it.
        for contender in [Contender::Limiter, Contender::LruHash] {
            let (family, entry) = (Family::Ipv4, Entry::Attached);
            let cell = Self { contender, pattern, family, entry };
            if !cells.contains(&cell) {
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
        for pattern in Pattern::ALL {
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
