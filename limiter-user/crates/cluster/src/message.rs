//! What hosts tell each other about shares.

use std::time::Duration;

use super::{HostId, KeyId, Moment, ViewId};
use model::Share;

/// What one host tells another one about shares, as often as [`super`] says. All that it gives for a time
/// counts from `echo` for the receiver, and for the sender from when that had come: so the receiver's end
/// is never after the sender's, whatever their clocks say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// When it was made, by the sender's clock; later in each message.
    pub sent: Moment,
    /// The latest `sent` that has come from the receiver. Without it nothing is given.
    pub echo: Option<Moment>,
    /// The views that the sender has delegated by and that may still be relied on, the present one first.
    pub views: Vec<ViewId>,
    /// What the sender delegates to the receiver of each key that the receiver owns in all of `views`.
    pub delegated: Share,
    /// For how long.
    pub delegated_for: Duration,
    /// What the sender delegates instead of keys whose limit a majority decides about.
    pub majority: Share,
    /// For how long.
    pub majority_for: Duration,
    /// Whose shares the sender votes that the receiver may use, for as long as what is delegated. The vote weighs
    /// what is delegated.
    pub votes: Vec<Vote>,
    /// Keys that the receiver owns and the sender needs grants for.
    pub reports: Vec<Report>,
    /// What the receiver may use beside its floor, of keys that the sender owns.
    pub grants: Vec<Grant>,
    /// For how long.
    pub granted_for: Duration,
    /// Keys of which the sender, their owner in its region, wants to borrow from the receiver.
    pub asks: Vec<Report>,
    /// What the receiver, the owner of keys in another region, may pass on.
    pub loans: Vec<Loan>,
    /// Whether the sender gives for as long as is needed between regions. From its first such message on it always does.
    pub far: bool,
    /// Home shares on their way to the receiver, until it has acknowledged them.
    pub transfers: Vec<Transfer>,
    /// Numbers of transfers that have come from the receiver and are kept.
    pub received: Vec<u64>,
}

/// What a host asks an owner for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The source and its limit.
    pub key: KeyId,
    /// What it sends to this host, drops included, as a part of the limit.
    pub demand: Share,
    /// The number of the latest grant that the host goes by, 0 for none. It goes by no earlier one any more.
    pub in_use: u32,
    /// Whether a majority decides about the limit while hosts are lost.
    pub majority: bool,
}

/// That the receiver may use a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vote {
    /// Whose share it is: the receiver's own, or that of a host that is lost.
    pub host: HostId,
    /// What the sender knows that host to have beside its floor, the whole if it is the receiver.
    pub known: Share,
}

/// What an owner lets a host use, beside its floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The source and its limit.
    pub key: KeyId,
    /// How much.
    pub share: Share,
    /// Its number, from 1 on, higher than those of all earlier grants of the key by the owner to this host
    /// that may still be in force.
    pub number: u32,
}

/// What an owner lends to the owner of the same key in another region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loan {
    /// The source and its limit.
    pub key: KeyId,
    /// How much.
    pub share: Share,
    /// Its number, as that of a grant, among those of loans.
    pub number: u32,
    /// For how long.
    pub lasts: Duration,
}

/// Home shares that move for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Its number, unique among those of the sender for ever.
    /// An earlier copy of the sender's disk is known by it: its number is below the one that was taken.
    pub number: u64,
    /// How much of every limit.
    pub share: Share,
}
