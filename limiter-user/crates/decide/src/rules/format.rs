//! The file format: that of `envoyproxy/ratelimit`, read as it is, and some keys more.

use std::time::Duration;

use serde::Deserialize;
use serde_saphyr::Spanned;

use crate::meter::Choice;

/// One file: a domain.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(default)]
    pub(super) domain: String,
    #[serde(default)]
    pub(super) descriptors: Option<Vec<Descriptor>>,
}

/// An entry of a descriptor, and what may follow it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Descriptor {
    pub(super) key: Option<Spanned<String>>,
    pub(super) value: Option<String>,
    pub(super) rate_limit: Option<RateLimit>,
    #[serde(default)]
    pub(super) descriptors: Option<Vec<Self>>,
    #[serde(default)]
    pub(super) shadow_mode: bool,
    #[serde(default)]
    pub(super) quota_mode: bool,
    #[serde(default)]
    pub(super) share_threshold: bool,
    // Read and checked. A metric for each value of a key would have no bound: `limiter top --keys` tells of them.
    #[serde(default, rename = "detailed_metric")]
    _detailed_metric: bool,
    #[serde(default, rename = "value_to_metric")]
    _value_to_metric: bool,
    pub(super) metadata: Option<serde_json::Map<String, serde_json::Value>>,
}

/// A limit.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RateLimit {
    #[serde(default)]
    pub(super) requests_per_unit: u32,
    pub(super) unit: Option<String>,
    #[serde(default)]
    pub(super) unlimited: bool,
    pub(super) name: Option<String>,
    #[serde(default)]
    pub(super) replaces: Vec<Replaces>,
    // Ours.
    #[serde(default)]
    pub(super) algorithm: Choice,
    pub(super) burst: Option<u32>,
    pub(super) granularity: Option<u32>,
}

/// The name of a limit that does not hold where this one does.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Replaces {
    pub(super) name: Option<String>,
}

/// The unit of time of a limit, by its number in `RateLimitResponse.RateLimit.Unit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Unit {
    /// A second.
    Second = 1,
    /// A minute.
    Minute = 2,
    /// An hour.
    Hour = 3,
    /// A day of 24 hours.
    Day = 4,
    /// 30 days.
    Month = 5,
    /// 365 days.
    Year = 6,
    /// 7 days.
    Week = 7,
}

impl Unit {
    const ALL: [(Self, &'static str, u64); 7] = [
        (Self::Second, "second", 1),
        (Self::Minute, "minute", 60),
        (Self::Hour, "hour", 3_600),
        (Self::Day, "day", 86_400),
        (Self::Week, "week", 7 * 86_400),
        (Self::Month, "month", 30 * 86_400),
        (Self::Year, "year", 365 * 86_400),
    ];

    /// By its name, in any case.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(_, known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(unit, ..)| *unit)
    }

    /// By its number.
    #[must_use]
    pub fn from_number(number: i32) -> Option<Self> {
        Self::ALL.iter().find(|(unit, ..)| *unit as i32 == number).map(|(unit, ..)| *unit)
    }

    /// How long it is.
    #[must_use]
    pub fn duration(self) -> Duration {
        let found = Self::ALL.iter().find(|(unit, ..)| *unit == self);
        Duration::from_secs(found.map_or(0, |&(_, _, seconds)| seconds))
    }
}
