//! Where a limit holds: on one host, as one limit on all hosts of a cluster, or on all that use the same store.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::invalid::{Invalid, input_error};

/// Where a limit holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// On this host alone.
    #[default]
    Local,
    /// On all hosts of the cluster together: what a source gets from all of them is within the limit.
    Cluster {
        /// What becomes of the shares of hosts that cannot be reached.
        partition: Partition,
    },
    /// On all hosts that use the same central store, which leases its tokens to them.
    Strict {
        /// What a host admits while the store leases nothing.
        on_error: OnError,
    },
}

/// What a host admits under a strict limit while the store leases nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum OnError {
    /// What it holds by leases, until they end; then one packet of each source
    #[default]
    Lease,
    /// One packet of each source, at once
    Closed,
    /// The whole limit, on each host by itself
    Open,
}

impl OnError {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Lease, Self::Closed, Self::Open];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Closed => "closed",
            Self::Open => "open",
        }
    }
}

/// What becomes of the shares of hosts that cannot be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Partition {
    /// As majority-reclaim where three hosts or more have shares, as conservative where it is two; nobody ever gets more
    /// than the limit
    #[default]
    Auto,
    /// They stay idle: nobody ever gets more than the limit
    Conservative,
    /// Hosts with more than half of all shares together use them; nobody ever gets more than the limit, and who is
    /// cut off from them has little
    MajorityReclaim,
    /// Those who remain use them: each side of a partition has the whole limit, so k sides let through k times
    /// as much together
    Available,
}

impl Partition {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::Auto, Self::Conservative, Self::MajorityReclaim, Self::Available];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Conservative => "conservative",
            Self::MajorityReclaim => "majority-reclaim",
            Self::Available => "available",
        }
    }

    /// Whether a majority of hosts may have to decide about it.
    pub const fn may_ask_majority(self) -> bool {
        matches!(self, Self::Auto | Self::MajorityReclaim)
    }

    /// How many times the limit all hosts may let through together while hosts on `sides` sides cannot reach
    /// each other.
    pub fn bound(self, sides: u32) -> f64 {
        match self {
            // A majority exists on one side at most, so what it reclaims nobody else can use (P6).
            Self::Auto | Self::Conservative | Self::MajorityReclaim => 1.0,
            // Each side takes the others for dead and uses the whole limit.
            Self::Available => f64::from(sides.max(1)),
        }
    }
}

/// A limit with something that belongs to another scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    /// A policy for partitions of the cluster.
    #[error("a {} limit has no partition policy such as {}", reach.name(), partition.name())]
    Partition {
        /// The scope.
        reach: Reach,
        /// The policy.
        partition: Partition,
    },
    /// What is done without the store.
    #[error("a {} limit has no on_error such as {}", reach.name(), on_error.name())]
    OnError {
        /// The scope.
        reach: Reach,
        /// What is done.
        on_error: OnError,
    },
}

impl ScopeError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        let (what, scope) = match self {
            Self::Partition { .. } => ("the partition policy", Reach::Cluster),
            Self::OnError { .. } => ("on_error", Reach::Strict),
        };
        format!("leave {what} out, or give the limit the scope {}", scope.name())
    }
}

input_error!(ScopeError);

/// A scope without what goes with it, as options and files name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
// Apart from [`Scope`], as a request may name one without the other, and clap takes no enum with
// fields.
pub enum Reach {
    /// On this host alone.
    #[default]
    Local,
    /// On all hosts of the cluster together.
    Cluster,
    /// On all hosts that use the same central store.
    Strict,
}

impl Reach {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Local, Self::Cluster, Self::Strict];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Cluster => "cluster",
            Self::Strict => "strict",
        }
    }
}

impl Scope {
    /// The scope that is meant by what was said of it; local, auto and lease, if nothing was.
    ///
    /// # Errors
    /// [`ScopeError`] for what belongs to another scope.
    pub fn read(
        reach: Option<Reach>,
        partition: Option<Partition>,
        on_error: Option<OnError>,
    ) -> Result<Self, ScopeError> {
        // Refused, not ignored: whoever says it believes that the limit has the other scope.
        match (reach.unwrap_or_default(), partition, on_error) {
            (Reach::Local, None, None) => Ok(Self::Local),
            (Reach::Cluster, partition, None) => {
                Ok(Self::Cluster { partition: partition.unwrap_or_default() })
            }
            (Reach::Strict, None, on_error) => {
                Ok(Self::Strict { on_error: on_error.unwrap_or_default() })
            }
            (reach, _, Some(on_error)) if reach != Reach::Strict => {
                Err(ScopeError::OnError { reach, on_error })
            }
            (reach, partition, _) => {
                let partition = partition.unwrap_or_default();
                Err(ScopeError::Partition { reach, partition })
            }
        }
    }

    /// Whether it is one host's.
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::Local)
    }

    /// Whether it is the cluster's.
    pub const fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster { .. })
    }

    /// How it is named.
    pub const fn reach(self) -> Reach {
        match self {
            Self::Local => Reach::Local,
            Self::Cluster { .. } => Reach::Cluster,
            Self::Strict { .. } => Reach::Strict,
        }
    }

    /// What becomes of the shares of hosts that cannot be reached, where there are any.
    pub const fn partition(self) -> Option<Partition> {
        match self {
            Self::Local | Self::Strict { .. } => None,
            Self::Cluster { partition } => Some(partition),
        }
    }

    /// What is done while the central store leases nothing, where that keeps the limit.
    pub const fn on_error(self) -> Option<OnError> {
        match self {
            Self::Local | Self::Cluster { .. } => None,
            Self::Strict { on_error } => Some(on_error),
        }
    }
}

/// Whether something that is no limit is for the cluster; it is on this host alone if nothing is said.
///
/// # Errors
/// If it is to be strict: a store has no part in it.
pub fn for_cluster(reach: Option<Reach>) -> Result<bool, Invalid> {
    match reach {
        Some(Reach::Strict) => {
            Err(Invalid::new("only a limit can be strict")
                .with_hint("take the scope local or cluster"))
        }
        reach => Ok(reach == Some(Reach::Cluster)),
    }
}

/// The error that something for the cluster gets where there is none.
pub fn no_cluster(what: &str) -> Invalid {
    let message = format!("{what} is to be for the cluster, but this host is in none");
    Invalid::new(message).with_hint(
        "add [cluster] with listen and a key to the configuration and restart the daemon, or choose \
         the scope local",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_local_or_auto() {
        let auto = Some(Partition::Auto);
        assert_eq!(Scope::read(None, None, None), Ok(Scope::Local));
        assert_eq!(Scope::read(Some(Reach::Local), None, None), Ok(Scope::Local));
        let cluster = Scope::read(Some(Reach::Cluster), None, None).unwrap();
        assert_eq!(Scope::read(Some(Reach::Cluster), auto, None), Ok(cluster));
        assert_eq!((cluster.reach(), cluster.partition()), (Reach::Cluster, auto));
        let strict = Scope::read(Some(Reach::Strict), None, None).unwrap();
        assert_eq!((strict.reach(), strict.on_error()), (Reach::Strict, Some(OnError::Lease)));
        for reach in [None, Some(Reach::Local), Some(Reach::Strict)] {
            let error = Scope::read(reach, auto, None).unwrap_err();
            assert!(error.to_string().contains("auto"), "{error}");
            assert!(error.hint().contains("cluster"));
        }
        for reach in [None, Some(Reach::Local), Some(Reach::Cluster)] {
            let error = Scope::read(reach, None, Some(OnError::Open)).unwrap_err();
            assert!(error.to_string().contains("open"), "{error}");
            assert!(error.hint().contains("strict"));
        }
    }

    #[test]
    fn names_are_the_same_everywhere() {
        for partition in Partition::ALL {
            let json = serde_json::to_value(partition).unwrap();
            assert_eq!(json, partition.name());
            assert_eq!(serde_json::from_value::<Partition>(json).unwrap(), partition);
        }
        for on_error in OnError::ALL {
            assert_eq!(serde_json::to_value(on_error).unwrap(), on_error.name());
        }
        let error = serde_json::from_str::<Partition>("\"lucky\"").unwrap_err().to_string();
        assert!(error.contains("lucky") && error.contains("majority-reclaim"), "{error}");
    }

    #[test]
    fn only_what_stays_available_is_exceeded() {
        let bounds = |sides| Partition::ALL.map(|partition| partition.bound(sides));
        assert_eq!([bounds(0), bounds(1), bounds(3)], [[1.0; 4], [1.0; 4], [1.0, 1.0, 1.0, 3.0]]);
    }
}
