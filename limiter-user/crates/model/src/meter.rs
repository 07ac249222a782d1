//! A limit of a key, compiled to one of the algorithms of [`limiter_common::algorithm`].

use std::fmt;
use std::hash::{Hash as _, Hasher as _};
use std::time::Duration;

use limiter_common::algorithm::{
    Algorithm, MAX_LIMIT, MAX_SUB_WINDOWS, SlidingLog, SubWindows, TokenBucket, Unfit, Window,
};
use limiter_common::gcra::{MAX_TOLERANCE, Ticks};
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

use crate::units::parse_duration;

/// What a tick of this crate is, ns.
// Sixteenths, as in the kernel, would end at limits per 13 days. With two, a limit per year fits, and a bucket of 100 k/s
// is exact to 0.02 %.
pub const TICK_NS: u64 = 2;

/// A time span in ticks.
#[must_use]
pub fn ticks(span: Duration) -> Ticks {
    Ticks::try_from(span.as_nanos() / u128::from(TICK_NS)).unwrap_or(Ticks::MAX)
}

/// Ticks as a time span.
#[must_use]
pub const fn span(ticks: Ticks) -> Duration {
    Duration::from_nanos(ticks.saturating_mul(TICK_NS))
}

/// The parts of a window that sub-windows have unless others are given.
pub const PARTS: u64 = 10;

/// The most units of a sliding log: it remembers each of them.
pub const MAX_LOG: u64 = 120;

/// The longest window, and the longest time that a bucket takes to fill, days.
const MAX_DAYS: u64 = span(MAX_TOLERANCE).as_secs() / 86_400;

/// By which algorithm a key is held to its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Choice {
    /// At most burst + limit in any window.
    #[default]
    TokenBucket,
    /// At most twice the limit in any window.
    FixedWindow,
    /// Less than twice the limit in any window, and near it for steady traffic.
    SlidingWindow,
    /// At most the limit in any window, and a part of one less where traffic is uneven.
    SubWindows,
    /// At most the limit in any window, exactly.
    SlidingLog,
}

/// A limit, as it is written down; in JSON as `{"rate": "5/second"}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Limit {
    /// Units in a window; with 0 nothing is admitted.
    pub requests: u64,
    /// How long the window is.
    pub window: Duration,
    /// The algorithm.
    pub algorithm: Choice,
    /// What a token bucket holds, units; as much as a window admits where none is given.
    pub burst: Option<u64>,
    /// Parts of a window, for [`Choice::SubWindows`].
    pub granularity: Option<u64>,
}

impl Limit {
    /// A token bucket that holds as much as it earns in a `window`.
    #[must_use]
    pub const fn new(requests: u64, window: Duration) -> Self {
        let algorithm = Choice::TokenBucket;
        Self { requests, window, algorithm, burst: None, granularity: None }
    }

    /// A token bucket of a rate: units, a slash, and a unit of time or a duration, such as `5/second` or `100/90s`.
    ///
    /// # Errors
    /// Anything else.
    pub fn of_rate(rate: &str) -> Result<Self, LimitError> {
        let (requests, window) = rate.trim().split_once('/').ok_or(LimitError::Rate)?;
        let requests = requests.parse().map_err(|_| LimitError::Rate)?;
        let unit = Unit::from_name(window).map(Unit::duration);
        let window = unit.or_else(|| parse_duration(window).ok()).ok_or(LimitError::Rate)?;
        Ok(Self::new(requests, window))
    }

    /// The limit, if there can be one.
    ///
    /// # Errors
    /// If no algorithm can keep it.
    pub fn checked(self) -> Result<Self, LimitError> {
        Meter::new(&self).map(|_| self)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, window, algorithm, burst, granularity } = self;
        match Unit::of(*window) {
            Some(unit) => write!(to, "{requests}/{}", unit.name())?,
            None => write!(to, "{requests}/{}", humantime::format_duration(*window))?,
        }
        if let Some(burst) = burst {
            write!(to, ", burst {burst}")?;
        }
        match (algorithm, granularity) {
            (Choice::TokenBucket, _) => Ok(()),
            (algorithm, None) => write!(to, ", {}", algorithm.name()),
            (algorithm, Some(parts)) => write!(to, ", {} of {parts} parts", algorithm.name()),
        }
    }
}

/// A limit in JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    rate: String,
    #[serde(default, skip_serializing_if = "Choice::is_default")]
    algorithm: Choice,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    granularity: Option<u64>,
}

impl TryFrom<Written> for Limit {
    type Error = LimitError;

    fn try_from(written: Written) -> Result<Self, LimitError> {
        let Written { rate, algorithm, burst, granularity } = written;
        Self { algorithm, burst, granularity, ..Self::of_rate(&rate)? }.checked()
    }
}

impl From<Limit> for Written {
    fn from(limit: Limit) -> Self {
        let Limit { requests, window, algorithm, burst, granularity } = limit;
        let rate = Limit::new(requests, window).to_string().replace(' ', "");
        Self { rate, algorithm, burst, granularity }
    }
}

impl Choice {
    /// Its name, as it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token-bucket",
            Self::FixedWindow => "fixed-window",
            Self::SlidingWindow => "sliding-window",
            Self::SubWindows => "sub-windows",
            Self::SlidingLog => "sliding-log",
        }
    }

    fn is_default(&self) -> bool {
        *self == Self::default()
    }
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

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// By its name, in any case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
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

/// Why there can be no such limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// A rate that is none.
    #[error("the rate is none: give 5/second, 1000/day or 100/90s")]
    Rate,
    /// A window of nothing.
    #[error("the window is 0")]
    NoWindow,
    /// A bucket that holds nothing.
    #[error("the burst is 0: give at least 1")]
    NoBurst,
    /// Too many units, or too long a window.
    #[error(
        "the limit is too large: at most {MAX_LIMIT} in a window, and {MAX_DAYS} days to fill a bucket"
    )]
    TooLarge,
    /// More units than a word has bits for in so short a window.
    #[error("the limit is too large for so short a window: take token-bucket")]
    TooFine,
    /// Parts that are none.
    #[error("granularity is from 2 to {MAX_SUB_WINDOWS} parts into which the window divides")]
    Parts,
    /// A sliding log of too many.
    #[error("sliding-log remembers each request, {MAX_LOG} at most: take sub-windows")]
    LongLog,
    /// What another algorithm has.
    #[error("only token-bucket has a burst")]
    BurstElsewhere,
    /// The same of parts.
    #[error("only sub-windows has a granularity")]
    GranularityElsewhere,
}

impl From<Unfit> for LimitError {
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::Nothing => Self::NoWindow,
            Unfit::TooLarge => Self::TooLarge,
            Unfit::TooFine => Self::TooFine,
            Unfit::Parts => Self::Parts,
        }
    }
}

/// A limit that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meter {
    kind: Kind,
    /// What its states are told apart by from those of other meters.
    layout: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Nothing is admitted.
    Closed,
    Bucket(TokenBucket),
    Window(Window),
    SubWindows(SubWindows),
    Log(SlidingLog),
}

impl Meter {
    /// The meter of a limit.
    ///
    /// # Errors
    /// If no algorithm can keep it.
    pub fn new(limit: &Limit) -> Result<Self, LimitError> {
        let kind = Kind::new(limit)?;
        let mut layout = 0;
        if !matches!(kind, Kind::Bucket(_)) {
            // The same in each process, whatever its build: the table outlives them.
            let mut hasher = SipHasher13::new();
            limit.hash(&mut hasher);
            layout = hasher.finish();
        }
        Ok(Self { kind, layout })
    }

    /// What its states are told apart by from those of other meters; the same for all token buckets.
    #[must_use]
    pub const fn layout(&self) -> u64 {
        self.layout
    }

    /// Its algorithm; none if nothing is admitted.
    #[must_use]
    pub fn algorithm(&self) -> Option<&dyn Algorithm> {
        match &self.kind {
            Kind::Closed => None,
            Kind::Bucket(bucket) => Some(bucket),
            Kind::Window(window) => Some(window),
            Kind::SubWindows(windows) => Some(windows),
            Kind::Log(log) => Some(log),
        }
    }

    /// The state as it is under this limit: a bucket of another one may owe more than this can.
    pub fn adopt(&self, state: &mut [u64], now: Ticks) {
        if let Kind::Bucket(bucket) = &self.kind {
            state[0] = bucket.clamped(state[0], now);
        }
    }
}

impl Kind {
    fn new(limit: &Limit) -> Result<Self, LimitError> {
        let Limit { requests, window, algorithm, burst, granularity } = *limit;
        if burst.is_some() && algorithm != Choice::TokenBucket {
            return Err(LimitError::BurstElsewhere);
        }
        if granularity.is_some() && algorithm != Choice::SubWindows {
            return Err(LimitError::GranularityElsewhere);
        }
        if burst == Some(0) {
            return Err(LimitError::NoBurst);
        }
        let window = ticks(window);
        if window == 0 {
            return Err(LimitError::NoWindow);
        }
        if requests == 0 {
            return Ok(Self::Closed);
        }
        Ok(match algorithm {
            Choice::TokenBucket => {
                Self::Bucket(TokenBucket::new(requests, window, burst.unwrap_or(requests))?)
            }
            // As much headroom as the limit: what was used already may be owed.
            Choice::FixedWindow => Self::Window(Window::fixed(requests, requests, window)?),
            Choice::SlidingWindow => Self::Window(Window::sliding(requests, requests, window)?),
            Choice::SubWindows => {
                let parts = granularity.unwrap_or(PARTS);
                Self::SubWindows(SubWindows::new(requests, window, parts)?)
            }
            Choice::SlidingLog if requests > MAX_LOG => return Err(LimitError::LongLog),
            Choice::SlidingLog => Self::Log(SlidingLog::new(requests, window)?),
        })
    }
}
