//! Who keeps a limit, and what is answered while those cannot.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::Deserialize;

use crate::synced::Pace;
use model::meter::Choice;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
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
