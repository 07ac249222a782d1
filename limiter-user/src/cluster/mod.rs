//! One limit for many hosts.
//!
//! A host may use a part of a limit by right. Rights are moved between hosts, never copied, so that their
//! sum is the limit whatever the network does: see `ALGORITHM.md`. What decides ([`escrow`]) knows neither
//! clock nor network; the daemon and the simulator drive the same code.

pub mod audit;
pub mod config;
pub mod escrow;
pub mod key_file;
pub mod limits;
pub mod link;
pub mod membership;
pub mod message;
pub mod rotation;
pub mod share;
pub mod simulate;
pub mod views;
pub mod wire;

use siphasher::sip::SipHasher24;

pub use config::ClusterConfig;
pub use escrow::Escrow;
pub use message::Message;
pub use share::Share;

/// A host, by its name: the first 64 bits of a hash of it. Two hosts of one name are told apart by their
/// incarnations and refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct HostId(pub u64);

impl HostId {
    /// That of the host of this name.
    pub fn of(name: &str) -> Self {
        Self(SipHasher24::new().hash(name.as_bytes()))
    }
}

/// A source under a limit of the cluster, by a hash that all its hosts compute with the same secret. Where
/// two sources meet on one number they share one limit; a host that tracks both of them grants neither more
/// than its floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct KeyId(pub u64);

/// A moment of one host's monotonic clock, ns. It means nothing to other hosts, who only send it back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
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

/// The members of the cluster as a host sees them, in short: a hash of their identities and weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct ViewId(pub u64);
