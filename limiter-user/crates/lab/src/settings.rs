//! A limit, and the algorithms that can have it.

use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::time::Duration;

use limiter_common::algorithm::{
    Algorithm, LeakyBucket, MAX_SUB_WINDOWS, SlidingLog, SubWindows, TokenBucket, Unfit, Window,
};
use limiter_common::gcra::{MAX_TOLERANCE, TICKS_PER_NS, Ticks, ticks};

/// The limits that are tried, units a window.
// A log takes a word for each unit, and traffic ten times the limit: beyond this a run takes minutes.
pub const LIMITS: RangeInclusive<u64> = 1..=100_000;

/// Longer windows have more ticks than all algorithms can add up.
const MAX_WINDOW_NS: u64 = MAX_TOLERANCE / TICKS_PER_NS;

/// The names of the algorithms, in the order of all results.
pub const NAMES: [&str; 6] = [
    "token-bucket",
    "leaky-bucket",
    "fixed-window",
    "sliding-window",
    "sub-windows",
    "sliding-log",
];

/// The limit that all algorithms have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Units that a source may send in a window; one of [`LIMITS`].
    pub limit: u64,
    /// The length of a window.
    pub window: Ticks,
    /// What a full bucket holds, units.
    pub burst: u64,
    /// Parts of a window, 2 to [`MAX_SUB_WINDOWS`].
    pub parts: u64,
}

/// Why no algorithm can have a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A limit outside [`LIMITS`].
    #[error("a limit of {0} a window cannot be tried")]
    Limit(u64),
    /// Sub-windows that do not fit into the window.
    #[error("the window does not divide into 2 to {MAX_SUB_WINDOWS} sub-windows of that length")]
    Granularity,
    /// A window beyond what a clock of ticks has.
    #[error("the window is longer than 13 days")]
    Window,
    /// A window or a burst that an algorithm cannot have.
    #[error("{name} cannot have this limit: {}", about(*why))]
    Unfit {
        /// The algorithm.
        name: &'static str,
        /// The reason.
        why: Unfit,
    },
}

const fn about(why: Unfit) -> &'static str {
    match why {
        Unfit::Nothing => "window and burst are at least 1",
        Unfit::TooLarge => "the window or the burst is longer than 13 days",
        Unfit::TooFine => "the window is too short to count so much in it",
        Unfit::Parts => "the window does not divide into its sub-windows",
    }
}

impl SettingsError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        match self {
            Self::Limit(_) => format!(
                "--limit is from {} to {} a window; all algorithms scale, so try a thousandth of yours",
                LIMITS.start(),
                LIMITS.end()
            ),
            Self::Granularity => {
                "for a window of 60s, --granularity is 1s, 2s, 5s, 15s or 30s, for example".into()
            }
            Self::Window | Self::Unfit { .. } => "name another --window or --burst".into(),
        }
    }
}

/// What the lab needs of an algorithm beside [`Algorithm`].
pub(crate) trait Judged: Algorithm + Send + Sync {
    /// Decides on a request of one unit at each of `times`.
    // A loop in each algorithm: a virtual call for each request would be a good part of what it takes.
    fn decide_all(&self, state: &mut [u64], times: &[Ticks], admitted: &mut Vec<bool>);
}

impl<A: Algorithm + Send + Sync> Judged for A {
    fn decide_all(&self, state: &mut [u64], times: &[Ticks], admitted: &mut Vec<bool>) {
        admitted.extend(times.iter().map(|time| self.take(state, *time, 1)));
    }
}

/// An algorithm with its limit.
pub struct Candidate {
    /// Its name.
    pub name: Cow<'static, str>,
    pub(crate) algorithm: Box<dyn Judged>,
}

impl Candidate {
    pub(crate) fn new(
        name: impl Into<Cow<'static, str>>,
        algorithm: impl Judged + 'static,
    ) -> Self {
        Self { name: name.into(), algorithm: Box::new(algorithm) }
    }

    /// The most units that it admits in any window, as proved.
    pub fn bound(&self) -> u64 {
        self.algorithm.bound()
    }

    /// What it remembers of a source.
    pub fn bytes(&self) -> usize {
        size_of::<u64>() * self.algorithm.words()
    }

    /// The words of a source that has sent nothing.
    pub(crate) fn state(&self) -> Vec<u64> {
        vec![0; self.algorithm.words()]
    }
}

impl Settings {
    /// A limit in a `window`. The burst is the limit unless it is given. A sub-window is `granularity` long, by default
    /// a 60th of the window, or the next longer part that divides it.
    ///
    /// # Errors
    /// As [`Settings::candidates`].
    pub fn new(
        limit: u64,
        window: Duration,
        burst: Option<u64>,
        granularity: Option<Duration>,
    ) -> Result<Self, SettingsError> {
        let to_ticks = |time: Duration| {
            let ns = u64::try_from(time.as_nanos()).ok().filter(|ns| *ns < MAX_WINDOW_NS);
            ns.map(ticks).ok_or(SettingsError::Window)
        };
        let window = to_ticks(window)?;
        let parts = match granularity.map(to_ticks).transpose()? {
            Some(part) => window.checked_rem(part).filter(|rest| *rest == 0).map(|_| window / part),
            None => (2..=MAX_SUB_WINDOWS).rev().find(|parts| window.is_multiple_of(*parts)),
        };
        let parts = parts.ok_or(SettingsError::Granularity)?;
        let settings = Self { limit, window, burst: burst.unwrap_or(limit), parts };
        settings.candidates().map(|_| settings)
    }

    /// All algorithms, named and ordered as [`NAMES`]; the exact log is last.
    ///
    /// # Errors
    /// A limit, window, burst or granularity that cannot be.
    pub fn candidates(&self) -> Result<Vec<Candidate>, SettingsError> {
        let Self { limit, window, burst, parts } = *self;
        if !LIMITS.contains(&limit) {
            return Err(SettingsError::Limit(limit));
        }
        let [token, leaky, fixed, sliding, sub, log] = NAMES;
        let unfit = |name: &'static str| move |why: Unfit| SettingsError::Unfit { name, why };
        let sub_windows = SubWindows::new(limit, window, parts).map_err(|why| match why {
            Unfit::Parts => SettingsError::Granularity,
            why => SettingsError::Unfit { name: sub, why },
        })?;
        Ok(vec![
            Candidate::new(token, TokenBucket::new(limit, window, burst).map_err(unfit(token))?),
            Candidate::new(leaky, LeakyBucket::new(limit, window, burst).map_err(unfit(leaky))?),
            Candidate::new(fixed, Window::fixed(limit, 0, window).map_err(unfit(fixed))?),
            Candidate::new(sliding, Window::sliding(limit, 0, window).map_err(unfit(sliding))?),
            Candidate::new(sub, sub_windows),
            Candidate::new(log, SlidingLog::new(limit, window).map_err(unfit(log))?),
        ])
    }
}
