//! What sources are ranked and summed by, and what they get.

use std::cmp::Ordering;
use std::ops::AddAssign;

use limiter_common::abi::Tally;
use serde::{Deserialize, Serialize};

/// What `top` sorts by, the most first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
// Queries of other hosts carry a variant as its index (postcard), so new ones go to the end.
pub enum Sort {
    /// Packets dropped.
    #[default]
    Dropped,
    /// Packets per second at present.
    Pps,
    /// Bits per second at present.
    Bits,
    /// Packets passed and dropped.
    Packets,
    /// Bytes offered.
    Bytes,
}

impl Sort {
    /// All of them, in the order of their discriminants.
    pub const ALL: [Self; 5] = [Self::Dropped, Self::Pps, Self::Bits, Self::Packets, Self::Bytes];

    /// The name in options and queries.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dropped => "dropped",
            Self::Pps => "pps",
            Self::Bits => "bits",
            Self::Packets => "packets",
            Self::Bytes => "bytes",
        }
    }
}

/// What lines of `top` are ranked by: what is sorted by, then packets per second at present, then packets.
/// Where nothing is dropped, the heaviest are still those that send most.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
// Ties have to be broken: where nothing is dropped all weigh the same, and the bucket's number
// would decide.
pub struct Weight {
    /// What is sorted by.
    pub sorted_by: f64,
    pps: f64,
    packets: f64,
}

impl Weight {
    /// The weight of what weighs `sorted_by`, sends `pps` and has sent so many packets.
    pub const fn new(sorted_by: f64, pps: f64, packets: f64) -> Self {
        Self { sorted_by, pps, packets }
    }

    /// The order in which the heavier one comes first.
    pub fn heavier_first(&self, other: &Self) -> Ordering {
        // `total_cmp`, as sums of rates may be no numbers where a host has told nonsense, and an
        // order has to be one.
        let by = |of: fn(&Self) -> f64| of(other).total_cmp(&of(self));
        by(|it| it.sorted_by).then_with(|| by(|it| it.pps)).then_with(|| by(|it| it.packets))
    }
}

impl AddAssign for Weight {
    fn add_assign(&mut self, other: Self) {
        self.sorted_by += other.sorted_by;
        self.pps += other.pps;
        self.packets += other.packets;
    }
}

/// Whose buckets are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Those of sources, and of groups of them.
    Sources,
    /// Those of destinations.
    Destinations,
}

/// What a line of `top` is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum GroupBy {
    /// A source, of each class of packets that has a limit of its own.
    #[default]
    Source,
    /// The sources of an IPv4 /24, of an IPv6 /64, or of an IPv6 /56 or /48 of which many have a bucket.
    Prefix,
    /// All sources of a class of packets that has a limit of its own.
    Class,
    /// A destination port.
    Port,
    /// An address that packets go to, if it has a limit.
    Destination,
}

impl GroupBy {
    /// The name in options and queries.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Prefix => "prefix",
            Self::Class => "class",
            Self::Port => "port",
            Self::Destination => "destination",
        }
    }
}

/// What all sources together got, per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Packets passed per second.
    pub passed_pps: f64,
    /// Packets dropped per second.
    pub dropped_pps: f64,
    /// Bits passed per second.
    pub passed_bps: f64,
    /// Bits dropped per second.
    pub dropped_bps: f64,
    /// How long a time these are the average of, seconds.
    pub seconds: f64,
}

impl Totals {
    /// The averages between two pairs of passed and dropped, `seconds` apart.
    pub fn new(before: [Tally; 2], now: [Tally; 2], seconds: f64) -> Self {
        // Counters of fresh maps begin at zero, so a later count may be less. And two looks may be
        // at the same moment.
        let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds.max(1e-3);
        let [passed_pps, dropped_pps] =
            [0, 1].map(|which| rate(before[which].packets, now[which].packets));
        let [passed_bps, dropped_bps] =
            [0, 1].map(|which| 8.0 * rate(before[which].bytes, now[which].bytes));
        Self { passed_pps, dropped_pps, passed_bps, dropped_bps, seconds }
    }
}

/// What a source has got, and gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Packets passed.
    pub passed: u64,
    /// Packets dropped.
    pub dropped: u64,
    /// Bytes offered.
    pub bytes: u64,
    /// Packets passed per second at present.
    pub passed_pps: f64,
    /// Packets dropped per second at present.
    pub dropped_pps: f64,
    /// Bits per second at present.
    pub bps: f64,
}

impl Usage {
    /// Adds what it gets elsewhere.
    pub const fn add(&mut self, other: &Self) {
        // Sums over hosts: what another host says may be anything, and must not wrap to a small
        // number.
        self.passed = self.passed.saturating_add(other.passed);
        self.dropped = self.dropped.saturating_add(other.dropped);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.passed_pps += other.passed_pps;
        self.dropped_pps += other.dropped_pps;
        self.bps += other.bps;
    }
}
