//! A limit of a key, compiled to one of the algorithms of [`limiter_common::algorithm`].

use std::hash::{Hash as _, Hasher as _};
use std::time::Duration;

use limiter_common::algorithm::{
    Algorithm, MAX_LIMIT, MAX_SUB_WINDOWS, SlidingLog, SubWindows, TokenBucket, Unfit, Window,
};
use limiter_common::gcra::{MAX_TOLERANCE, Ticks};
use serde::Deserialize;
use siphasher::sip::SipHasher13;

use crate::key::KeyHash;

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
const PARTS: u64 = 10;

/// The most units of a sliding log: it remembers each of them.
pub const MAX_LOG: u64 = 120;

/// The longest window, and the longest time that a bucket takes to fill, days.
const MAX_DAYS: u64 = span(MAX_TOLERANCE).as_secs() / 86_400;

/// By which algorithm a key is held to its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
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

/// A limit, as it is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
}

/// Why there can be no such limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
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

    /// Where the state of a key is. Token buckets of all limits mean the same by theirs: a time. What others count means
    /// something else under another limit, so a key begins anew there.
    #[must_use]
    pub const fn of(&self, key: KeyHash) -> KeyHash {
        KeyHash { high: key.high ^ self.layout, low: key.low }
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
    pub(crate) fn adopt(&self, state: &mut [u64], now: Ticks) {
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
