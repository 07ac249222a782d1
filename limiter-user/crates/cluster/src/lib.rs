//! One limit for many hosts: what each of them may use, who is there, what they tell each other, without I/O.
//!
//! A host may use a share of a limit. Shares are moved between hosts, never copied, so that their
//! sum is the limit whatever the network does: see `ALGORITHM.md`. What decides ([`escrow`]) knows neither
//! clock nor network; the daemon and the simulator drive the same code.

pub mod agreement;
pub mod audit;
pub mod config;
pub mod demand;
pub mod escrow;
pub mod fallback;
pub mod lease;
pub mod limits;
pub mod link;
pub mod membership;
pub mod message;
pub mod queries;
pub mod rotation;
pub mod wire;

pub use config::ClusterConfig;
pub use escrow::Escrow;
pub use message::Message;

/// A host, by the random number of its share ledger: whoever has the ledger owns the shares, whatever it is called
/// and wherever it listens. Never 0. Of two hosts with copies of one ledger one is refused.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct HostId(pub u64);

/// A source under a limit of the cluster, by a hash that all its hosts compute with the same secret. Where
/// two sources meet on one number they share one limit; a host that tracks both of them grants neither more
/// than its floor.
///
/// It has 48 bits, which are most of what messages about shares consist of. Of 100,000 sources at once any two meet
/// with a probability of 2·10⁻⁵, of 1000 with 2·10⁻⁹.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct KeyId(u64);

impl KeyId {
    /// Of how many bytes it is.
    pub const BYTES: usize = 6;

    /// That of a source with this hash.
    pub const fn from_hash(hash: u64) -> Self {
        Self(hash & (u64::MAX >> (64 - 8 * Self::BYTES)))
    }

    /// The number, below 2^48.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// As it is sent.
    pub fn bytes(self) -> [u8; Self::BYTES] {
        let [_, _, bytes @ ..] = self.0.to_be_bytes();
        bytes
    }

    /// What was sent.
    pub const fn from_bytes([a, b, c, d, e, f]: [u8; Self::BYTES]) -> Self {
        Self(u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
    }
}

/// A moment of one host's monotonic clock, ns. It means nothing to other hosts, who only send it back.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct Moment(pub u64);

impl Moment {
    /// The moment so much later.
    #[must_use]
    pub const fn after(self, span: std::time::Duration) -> Self {
        Self(self.0.saturating_add(span.as_nanos() as u64))
    }

    /// How much later than `earlier` it is, zero if it is not.
    pub const fn since(self, earlier: Self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The members of the cluster as a host sees them, in short: a hash of their identities and weights. Or a mark in a list of
/// them: see [`ViewId::HALF`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct ViewId(pub u64);

impl ViewId {
    /// In a list of views: half of what a message says is delegated by them, and the other half is not.
    // A host that does not know of it takes it for a view that it has never been in, and counts nothing that is delegated by
    // it: safe.
    pub const HALF: Self = Self(1);
}
