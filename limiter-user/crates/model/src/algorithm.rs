//! By which algorithm a source is held to its limit.

use std::str::FromStr;

use limiter_common::abi::Terms;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::invalid::input_error;

/// An algorithm whose memory of a source is one word, as the kernel program keeps it: see
/// [`limiter_common::algorithm`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// At most burst + limit in any window.
    #[default]
    TokenBucket,
    /// At most twice the limit in any window.
    FixedWindow,
    /// Less than twice the limit in any window, and near it for steady traffic.
    SlidingWindow,
}

impl Algorithm {
    /// All of them, by their discriminants in [`Terms::algorithm`].
    const ALL: [Self; 3] = [Self::TokenBucket, Self::FixedWindow, Self::SlidingWindow];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token-bucket",
            Self::FixedWindow => "fixed-window",
            Self::SlidingWindow => "sliding-window",
        }
    }

    /// Whether it is the token bucket.
    pub const fn is_bucket(&self) -> bool {
        matches!(self, Self::TokenBucket)
    }

    /// Its number in [`Terms::algorithm`].
    pub(crate) const fn code(self) -> u32 {
        match self {
            Self::TokenBucket => Terms::TOKEN_BUCKET,
            Self::FixedWindow => Terms::FIXED_WINDOW,
            Self::SlidingWindow => Terms::SLIDING_WINDOW,
        }
    }

    /// The algorithm with a number; the token bucket for one that is none.
    pub(crate) fn from_code(code: u32) -> Self {
        Self::ALL.into_iter().find(|algorithm| algorithm.code() == code).unwrap_or_default()
    }
}

/// A name of no algorithm of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AlgorithmError {
    /// One whose memory grows with the limit.
    #[error(
        "{name} remembers more of a source the larger its limit is, and the kernel has one word"
    )]
    Memory {
        /// Its name.
        name: String,
    },
    /// None at all.
    #[error("there is no algorithm {name}")]
    Unknown {
        /// What was said.
        name: String,
    },
}

impl AlgorithmError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        match self {
            Self::Memory { .. } => "take sliding-window: it admits less than twice the limit in any window, and near it for steady traffic; \
                 `limiter simulate algorithms` compares both".into(),
            Self::Unknown { .. } => {
                format!("give {}", Algorithm::ALL.map(Algorithm::name).join(", "))
            }
        }
    }
}

input_error!(AlgorithmError);

impl FromStr for Algorithm {
    type Err = AlgorithmError;

    fn from_str(name: &str) -> Result<Self, AlgorithmError> {
        match name {
            "sub-windows" | "sliding-log" => Err(AlgorithmError::Memory { name: name.into() }),
            // As a meter it is the same.
            "leaky-bucket" => Ok(Self::TokenBucket),
            _ => {
                let known = Self::ALL.into_iter().find(|algorithm| algorithm.name() == name);
                known.ok_or_else(|| AlgorithmError::Unknown { name: name.into() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_those_of_one_algorithm() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.name().parse(), Ok(algorithm));
            assert_eq!(Algorithm::from_code(algorithm.code()), algorithm);
            let name = format!("{:?}", algorithm.name());
            assert_eq!(serde_json::to_string(&algorithm).unwrap(), name);
        }
        assert_eq!("leaky-bucket".parse(), Ok(Algorithm::TokenBucket));
    }

    #[test]
    fn what_the_kernel_has_no_memory_for_is_refused_with_what_to_take() {
        for name in ["sub-windows", "sliding-log"] {
            let error = name.parse::<Algorithm>().unwrap_err();
            assert!(error.hint().contains("sliding-window"), "{error}");
        }
        let error = "gcra".parse::<Algorithm>().unwrap_err();
        assert_eq!(error.hint(), "give token-bucket, fixed-window, sliding-window");
    }
}
