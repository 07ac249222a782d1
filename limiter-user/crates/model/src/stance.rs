//! Who answers on a host about limits that a central store keeps, and the cluster where it cannot.

use serde::{Deserialize, Serialize};

/// Who answers on a host about limits with `on_error: cluster`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stance {
    /// The store. No other host uses its share then.
    Store,
    /// This host's floor, while hosts agree on what comes next, or cannot.
    #[default]
    Between,
    /// This host's share. No other host asks the store then.
    Escrow,
}

impl Stance {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Store, Self::Between, Self::Escrow];

    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Between => "between",
            Self::Escrow => "escrow",
        }
    }

    /// Who answers, in words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Store => "the store answers",
            Self::Between => "this host's floor answers",
            Self::Escrow => "this host's share of the cluster's limit answers",
        }
    }
}
