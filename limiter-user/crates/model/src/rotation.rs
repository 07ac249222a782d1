//! How far hosts are with another key of their cluster.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// For how long the old key is accepted when all use the new one.
// Frames that were sealed with the old key may still be on their way, or in a socket's buffer.
pub const ACCEPTED: Duration = Duration::from_secs(10);

/// How long after somebody was lost nothing is decided without it: it may be back soon, or be behind a cut. So long
/// a restart takes, and a rotation that is only accepted does no harm.
pub const GONE: Duration = Duration::from_secs(60);

/// How far a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
// The numbers are in the key file and on the wire, and a host only ever goes up.
pub enum Stage {
    /// It accepts the new key.
    Accepted = 1,
    /// It seals with the new key.
    Using = 2,
    /// It has only the new key.
    Forgotten = 3,
}

impl Stage {
    /// The stage of this number, 1 to 3, as files and messages have it.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Accepted),
            2 => Some(Self::Using),
            3 => Some(Self::Forgotten),
            _ => None,
        }
    }
}
