//! Where a limit holds: on one host, or as one limit on all hosts of a cluster.

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

/// A limit of one host with a policy for partitions of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a local limit has no partition policy such as {}", partition.name())]
pub struct LocalPartition {
    /// The policy.
    partition: Partition,
}

impl LocalPartition {
    /// What to write instead.
    pub fn hint(&self) -> String {
        "leave the partition policy out, or give the limit the scope cluster".into()
    }
}

input_error!(LocalPartition);

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
}

impl Reach {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Local, Self::Cluster];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Cluster => "cluster",
        }
    }
}

impl Scope {
    /// The scope that is meant by what was said of it; local, or auto, if nothing was.
    ///
    /// # Errors
    /// [`LocalPartition`] for a limit of one host with a policy for partitions.
    pub fn read(
        reach: Option<Reach>,
        partition: Option<Partition>,
    ) -> Result<Self, LocalPartition> {
        match (reach.unwrap_or_default(), partition) {
            (Reach::Local, None) => Ok(Self::Local),
            // Refused, not ignored: whoever says it believes that the limit is for the cluster.
            (Reach::Local, Some(partition)) => Err(LocalPartition { partition }),
            (Reach::Cluster, partition) => {
                Ok(Self::Cluster { partition: partition.unwrap_or_default() })
            }
        }
    }

    /// Whether it is one host's.
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::Local)
    }

    /// How it is named.
    pub const fn reach(self) -> Reach {
        match self {
            Self::Local => Reach::Local,
            Self::Cluster { .. } => Reach::Cluster,
        }
    }

    /// What becomes of the shares of hosts that cannot be reached, where there are any.
    pub const fn partition(self) -> Option<Partition> {
        match self {
            Self::Local => None,
            Self::Cluster { partition } => Some(partition),
        }
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
        assert_eq!(Scope::read(None, None), Ok(Scope::Local));
        assert_eq!(Scope::read(Some(Reach::Local), None), Ok(Scope::Local));
        let cluster = Scope::read(Some(Reach::Cluster), None).unwrap();
        assert_eq!(Scope::read(Some(Reach::Cluster), auto), Ok(cluster));
        assert_eq!((cluster.reach(), cluster.partition()), (Reach::Cluster, auto));
        for reach in [None, Some(Reach::Local)] {
            let error = Scope::read(reach, auto).unwrap_err();
            assert!(error.to_string().contains("auto"), "{error}");
            assert!(error.hint().contains("cluster"));
        }
    }

    #[test]
    fn names_are_the_same_everywhere() {
        for partition in Partition::ALL {
            let json = serde_json::to_value(partition).unwrap();
            assert_eq!(json, partition.name());
            assert_eq!(serde_json::from_value::<Partition>(json).unwrap(), partition);
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
