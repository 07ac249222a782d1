//! Who keeps a limit, and what is answered while those cannot.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use model::meter::{Choice, Limit};

/// Who keeps a limit, as it is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Each host by itself.
    #[default]
    Host,
    /// All hosts of the cluster together, each with a share of it.
    Cluster,
    /// The central store, to which each host tells what it has admitted.
    Synced,
    /// The central store, which is asked each time.
    Strict,
}

/// What is answered while a share cannot be had, or the store does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnError {
    /// What this host's floor in the cluster has room for.
    Floor,
    /// That it is over the limit.
    Closed,
    /// That it is within the limit, whatever others admit.
    Open,
    /// What this host's share of the cluster's limit has room for.
    Cluster,
}

/// How a host and the store agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// What is not told yet, % of the burst at the most, 1 to 50.
    pub budget: u8,
    /// How long it is not told at the most.
    pub interval: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { budget: 10, interval: Duration::from_millis(100) }
    }
}

impl Pace {
    /// The budget of a limit, units. There is none where it would be less than one.
    #[must_use]
    pub fn units(&self, limit: &Limit) -> u64 {
        let burst = limit.burst.unwrap_or(limit.requests);
        // No product that could overflow: a burst has up to 54 bits.
        (u128::from(burst) * u128::from(self.budget) / 100) as u64
    }
}

/// Who keeps a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Each host by itself.
    #[default]
    Host,
    /// All hosts of the cluster together, each with a share of it.
    Cluster(OnError),
    /// The central store, to which each host tells what it has admitted.
    Synced(OnError, Pace),
    /// The central store, which is asked each time.
    Strict(OnError),
}

/// Why a limit cannot be kept so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    /// Others are not asked.
    #[error("on_error, which is for scope: cluster, synced and strict")]
    OfHost,
    /// Only one scope has it.
    #[error("budget or interval, which is for scope: synced")]
    NoPace,
    /// A budget or an interval that is none.
    #[error("budget {0} % and interval {1:?}: give 1 to 50 %, and 10ms to 10s")]
    Pace(u8, Duration),
    /// Only time can be divided.
    #[error("scope: {0}, which is for token-bucket")]
    NotDivided(&'static str),
    /// The same of what is fallen back to.
    #[error(
        "another algorithm than token-bucket, which the cluster cannot keep: give on_error: closed or open"
    )]
    NoFallBack,
    /// It is the same.
    #[error("scope: cluster and on_error: cluster: give floor, closed or open")]
    Itself,
}

impl Scope {
    /// Checks who is to keep a limit of such an algorithm. Without an `on_error`, limits hold.
    ///
    /// # Errors
    /// If they cannot.
    pub fn new(
        kind: Kind,
        on_error: Option<OnError>,
        pace: Option<Pace>,
        algorithm: Choice,
    ) -> Result<Self, ScopeError> {
        const INTERVALS: RangeInclusive<Duration> =
            Duration::from_millis(10)..=Duration::from_secs(10);
        if let Some(Pace { budget, interval }) = pace {
            if kind != Kind::Synced {
                return Err(ScopeError::NoPace);
            }
            if !(1..=50).contains(&budget) || !INTERVALS.contains(&interval) {
                return Err(ScopeError::Pace(budget, interval));
            }
        }
        let is_bucket = algorithm == Choice::TokenBucket;
        match (kind, on_error) {
            (Kind::Host, None) => Ok(Self::Host),
            (Kind::Host, Some(_)) => Err(ScopeError::OfHost),
            (Kind::Cluster, _) if !is_bucket => Err(ScopeError::NotDivided("cluster")),
            (Kind::Synced, _) if !is_bucket => Err(ScopeError::NotDivided("synced")),
            (Kind::Cluster, Some(OnError::Cluster)) => Err(ScopeError::Itself),
            (Kind::Cluster, on_error) => Ok(Self::Cluster(on_error.unwrap_or(OnError::Floor))),
            (Kind::Synced, on_error) => {
                Ok(Self::Synced(on_error.unwrap_or(OnError::Floor), pace.unwrap_or_default()))
            }
            (Kind::Strict, Some(OnError::Floor | OnError::Cluster)) if !is_bucket => {
                Err(ScopeError::NoFallBack)
            }
            (Kind::Strict, Some(on_error)) => Ok(Self::Strict(on_error)),
            (Kind::Strict, None) if is_bucket => Ok(Self::Strict(OnError::Floor)),
            (Kind::Strict, None) => Ok(Self::Strict(OnError::Closed)),
        }
    }

    /// Its name, as it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Cluster(_) => "cluster",
            Self::Synced(..) => "synced",
            Self::Strict(_) => "strict",
        }
    }

    /// What is answered while others do not.
    #[must_use]
    pub const fn on_error(self) -> Option<OnError> {
        match self {
            Self::Host => None,
            Self::Cluster(on_error) | Self::Synced(on_error, _) | Self::Strict(on_error) => {
                Some(on_error)
            }
        }
    }

    /// The most units of a key under a `limit` that are admitted in any interval, in words. Each time that another one
    /// answers, there may be as much at once again as a key that nobody has used has.
    #[must_use]
    pub fn promise(self, limit: &Limit) -> String {
        let Limit { requests, window, .. } = *limit;
        let whose = if self == Self::Host { "each host" } else { "all hosts together" };
        let window = humantime::format_duration(window);
        let most = match limit.algorithm {
            Choice::TokenBucket => {
                let burst = limit.burst.unwrap_or(requests);
                format!("{burst} + {requests} each {window} in any interval")
            }
            Choice::FixedWindow => format!("{} in any {window}", 2 * requests),
            Choice::SlidingWindow => {
                format!("{} in any {window}", (2 * requests).saturating_sub(1))
            }
            Choice::SubWindows | Choice::SlidingLog => format!("{requests} in any {window}"),
        };
        let more = match self {
            Self::Cluster(_) => ", or one a host at once if that is more".to_owned(),
            Self::Synced(_, pace) => format!(", and {} more a host", pace.units(limit)),
            Self::Host | Self::Strict(_) => String::new(),
        };
        format!("{most}, {whose}{more}")
    }

    /// Whether the host's daemon has to be asked, always or at times.
    #[must_use]
    pub const fn needs_daemon(self) -> bool {
        match self {
            Self::Host => false,
            Self::Cluster(_) => true,
            Self::Synced(on_error, _) | Self::Strict(on_error) => {
                matches!(on_error, OnError::Floor | OnError::Cluster)
            }
        }
    }

    /// Whether the store is asked.
    #[must_use]
    pub const fn needs_store(self) -> bool {
        matches!(self, Self::Synced(..) | Self::Strict(_))
    }

    /// That of a single descriptor with another algorithm: each host keeps what its own keepers cannot.
    #[must_use]
    pub fn under(self, algorithm: Choice) -> Self {
        match self {
            _ if algorithm == Choice::TokenBucket => self,
            Self::Strict(OnError::Floor | OnError::Cluster) => Self::Strict(OnError::Closed),
            Self::Strict(_) => self,
            Self::Host | Self::Cluster(_) | Self::Synced(..) => Self::Host,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_promise_is_told_by_scope_and_algorithm() {
        let limit = Limit { burst: Some(40), ..Limit::new(200, Duration::from_secs(1)) };
        let by = |scope: Scope| scope.promise(&limit);
        assert_eq!(by(Scope::Host), "40 + 200 each 1s in any interval, each host");
        let pace = Pace::default();
        assert_eq!(
            by(Scope::Synced(OnError::Open, pace)),
            "40 + 200 each 1s in any interval, all hosts together, and 4 more a host"
        );
        let strict = |algorithm| {
            let limit = Limit { algorithm, ..Limit::new(5, Duration::from_secs(60)) };
            Scope::Strict(OnError::Closed).promise(&limit)
        };
        assert_eq!(strict(Choice::FixedWindow), "10 in any 1m, all hosts together");
        assert_eq!(strict(Choice::SlidingWindow), "9 in any 1m, all hosts together");
        assert_eq!(strict(Choice::SlidingLog), "5 in any 1m, all hosts together");
    }
}
