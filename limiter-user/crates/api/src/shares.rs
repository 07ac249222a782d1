//! What `limiter-serve` and the daemon tell each other of limits that the hosts of a cluster share.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use model::{Share, Stance};

/// For how long whoever has read [`FloorsTold`] may go by it.
// The daemon waits for as long before other hosts hear that this one has less.
pub const FLOORS_HOLD: Duration = Duration::from_millis(500);

/// For how long a `limiter-serve` asks the store after its daemon has allowed it, and how long no daemon has to have said
/// anything before one asks by itself.
// Longer than a daemon promises others that its host does not, and shorter than it takes for a `limiter-serve` that is gone.
pub const STORE_HOLDS: Duration = Duration::from_secs(2);

/// `POST /v1/cluster/shares`: the keys of a `limiter-serve` that need a share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharesAsked {
    /// Whose buckets these are: random, and the same as long as they last.
    pub serve: u64,
    /// By its next request with this number it has taken what it was told: random, another one after each failure.
    pub run: u64,
    /// Decisions without a share that could be had, since its start.
    pub alone: u64,
    /// Its keys.
    pub keys: Vec<KeyAsked>,
    /// How it stands with the store, if rules have `on_error: cluster`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<FallbackAsked>,
}

/// How a `limiter-serve` stands with the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FallbackAsked {
    /// When that was so, by its own clock, which only rises.
    pub at: u64,
    /// Whether the store answers, and has done so for a while.
    pub has: bool,
    /// Who answers at present.
    pub stance: Stance,
}

/// Who is to answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FallbackTold {
    /// Who.
    pub stance: Stance,
    /// For how long after the request, if that is the share, ns.
    pub for_ns: u64,
    /// Why it is not the store, in words; empty if it is.
    pub why: String,
}

/// A key that needs a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyAsked {
    /// Its hash, the same on all hosts.
    pub key: [u64; 2],
    /// Units that its limit admits in a window.
    pub requests: u64,
    /// The window, ns.
    pub window_ns: u64,
    /// The burst, units.
    pub burst: u64,
    /// How long it has needed one, ns.
    pub age_ns: u64,
    /// Units that were admitted since then.
    pub admitted: u64,
    /// Units that were denied since then.
    pub denied: u64,
}

/// What may be used of the keys, in the order of the request: all that there is here, and for how long, ns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharesTold {
    /// Nothing beside the floor where the time is 0.
    pub shares: Vec<(Share, u64)>,
    /// Who is to answer where rules have `on_error: cluster`.
    #[serde(default)]
    pub fallback: Option<FallbackTold>,
}

/// What this host may use without end of each limit that hosts share, in a file beside the daemon's socket. It holds while
/// there is no daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FloorsTold {
    /// The boot that its times are of.
    pub boot: String,
    /// Whose buckets may use it, as in [`SharesAsked::serve`]; nobody's at first.
    pub serve: Option<u64>,
    /// Whether its buckets began full: nobody has used the host's part in this boot before.
    pub full: bool,
    /// All floors since then.
    pub floors: Vec<FloorTold>,
}

/// A floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FloorTold {
    /// Since when, ns of the clock of this boot with the time that the machine was suspended.
    pub at_ns: u64,
    /// The part of each rate.
    pub share: Share,
    /// How many hosts have home shares.
    pub hosts: u32,
}

impl FloorsTold {
    /// Where the daemon of a `socket` tells it.
    #[must_use]
    pub fn path(socket: &Path) -> PathBuf {
        socket.with_file_name("floors.json")
    }
}
