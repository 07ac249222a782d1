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
    pub(super) push_down: Option<PushDown>,
}

/// When an address is to be denied by the kernel, and for how long.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PushDown {
    pub(super) factor: u32,
    pub(super) r#for: String,
}

/// The name of a limit that does not hold where this one does.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Replaces {
    pub(super) name: Option<String>,
}

/// The unit of time of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A second.
    Second,
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// A day of 24 hours.
    Day,
    /// 7 days.
    Week,
    /// 30 days.
    Month,
    /// 365 days.
    Year,
}

impl Unit {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// The unit that is as long as a window.
    #[must_use]
    pub fn of(window: Duration) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.duration() == window)
    }

    /// By its name, in any case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "second" => Self::Second,
            "minute" => Self::Minute,
            "hour" => Self::Hour,
            "day" => Self::Day,
            "week" => Self::Week,
            "month" => Self::Month,
            "year" => Self::Year,
            _ => return None,
        })
    }

    /// How long it is.
    #[must_use]
    pub const fn duration(self) -> Duration {
        const DAY: u64 = 86_400;
        Duration::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => DAY,
            Self::Week => 7 * DAY,
            Self::Month => 30 * DAY,
            Self::Year => 365 * DAY,
        })
    }
}
