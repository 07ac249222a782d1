//! Rates and bursts as people write them: `1000pps`, `400/minute`, `10mbit`, `64kbyte`.
//!
//! SI prefixes are powers of 1000, `ki`, `mi`, `gi` and `ti` of 1024; case does not matter. What
//! could mean two things is refused: a bare number, and `kbps` and its kin, by which tc means bytes
//! and most others mean bits.

mod burst;
mod duration;
mod number;
mod rate;

pub use burst::{format_burst, parse_burst};
pub use duration::{DurationError, parse_duration};
pub use rate::Rate;

use serde::{Deserialize, Serialize};

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Packets.
    Packets,
    /// Bytes of the frame, from the Ethernet header on.
    Bytes,
}

/// Why a rate or a burst was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
// One variant for each mistake that operators make, since each deserves another hint.
pub enum UnitError {
    /// No number at the beginning.
    #[error("{input:?} does not begin with a number")]
    NotANumber {
        /// What was read.
        input: String,
    },
    /// A minus sign.
    #[error("{input:?} is negative")]
    Negative {
        /// What was read.
        input: String,
    },
    /// Nothing at all.
    // Refused: to let nothing through is what the deny list is for.
    #[error("{input:?} is zero")]
    Zero {
        /// What was read.
        input: String,
    },
    /// A number alone.
    #[error("{input:?} has no unit")]
    NoUnit {
        /// What was read.
        input: String,
        /// How it could be meant.
        suggestion: String,
    },
    /// A unit that means bits to some and bytes to others.
    #[error("{unit:?} in {input:?} is ambiguous: tc means bytes per second by it, others bits")]
    Ambiguous {
        /// What was read.
        input: String,
        /// The unit in it.
        unit: String,
        /// How it could be meant.
        suggestion: String,
    },
    /// A unit that is none.
    #[error("{unit:?} in {input:?} is not a unit")]
    UnknownUnit {
        /// What was read.
        input: String,
        /// The unit in it.
        unit: String,
        /// Which there are.
        suggestion: String,
    },
    /// More than can be represented.
    #[error("{input:?} is too large")]
    TooLarge {
        /// What was read.
        input: String,
        /// What the bound is.
        bound: &'static str,
    },
    /// Less than can be represented.
    #[error("{input:?} is too small")]
    TooSmall {
        /// What was read.
        input: String,
        /// What the bound is.
        bound: &'static str,
    },
    /// More digits than can be represented.
    #[error("{input:?} is not a whole number of {of}")]
    NotWhole {
        /// What was read.
        input: String,
        /// What there must be a whole number of.
        of: &'static str,
    },
}

crate::invalid::input_error!(UnitError);

impl UnitError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        match self {
            Self::NotANumber { .. } | Self::Negative { .. } => {
                "write a number and a unit, such as 1000pps, 400/minute, 10mbit or 64kbyte".into()
            }
            Self::Zero { .. } => {
                "a limit passes at least something: the smallest rate is one packet an hour (1/hour) \
                 or one byte a second, the smallest burst one packet"
                    .into()
            }
            Self::NoUnit { suggestion, .. }
            | Self::Ambiguous { suggestion, .. }
            | Self::UnknownUnit { suggestion, .. } => suggestion.clone(),
            Self::TooLarge { bound, .. } => format!("the most is {bound}"),
            Self::TooSmall { bound, .. } => format!("the least is {bound}"),
            Self::NotWhole { of, .. } => format!("use a smaller unit or a whole number of {of}"),
        }
    }
}

#[cfg(test)]
mod tests;
