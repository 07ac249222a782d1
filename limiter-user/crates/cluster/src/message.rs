//! What hosts tell each other about shares.

use std::time::Duration;

use serde::{Deserialize, Serialize};

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
    /// Whether the sender gives for as long as is needed between regions and over long ways. From its first such message on it
    /// always does.
    pub far: bool,
    /// Home shares on their way to the receiver, until it has acknowledged them.
    pub transfers: Vec<Transfer>,
    /// Numbers of transfers that have come from the receiver and are kept.
    pub received: Vec<u64>,
    /// How many times all shares had been counted when the sender's were.
    pub era: u64,
    /// Whether the sender is one of those who count.
    pub counts: bool,
    /// Whether it renews the receiver's home lease.
    pub renews: bool,
    /// What the latest recount came to, for a receiver that may not know.
    pub tally: Option<Tally>,
    /// What the sender has promised and kept of a recount, while there is one.
    pub standing: Option<Standing>,
    /// What the sender, who counts, asks of all others.
    pub ask: Option<Ask>,
}

/// One attempt to count all shares anew: Paxos's ballot number (Lamport, "Paxos made simple", 2001).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Attempt {
    /// Higher than that of all earlier attempts that its maker has heard of, from 1 on.
    pub number: u64,
    /// Who makes it.
    pub by: HostId,
}

impl Attempt {
    /// Before the first.
    pub const NONE: Self = Self { number: 0, by: HostId(0) };
}

impl Default for Attempt {
    fn default() -> Self {
        Self::NONE
    }
}

/// What a recount comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// The attempt that counted. Who has kept that it was counted by this one has its share in the next era, nobody else.
    pub counted: Attempt,
    /// How many hosts were: those who count the next time.
    pub hosts: u32,
    /// What they lacked to the whole. The host that counted gets it.
    pub lacking: Share,
}

/// What a host has promised about the recount of its era.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The latest attempt that it has answered: it takes part in no earlier one.
    pub promised: Attempt,
    /// The latest attempt that has told it that it is counted.
    pub counted: Attempt,
    /// What it has accepted, and in which attempt.
    pub accepted: Option<(Attempt, Tally)>,
    /// The latest attempt that has voided all earlier ones.
    pub voided: Attempt,
    /// Its home share, which does not change until the recount is over.
    pub home: Share,
    /// The hosts with shares whose home lease it has renewed so lately that they may go by it, as [`Standing::sum`] has
    /// them. None if it does not know all of them.
    pub renewed: Option<u64>,
}

impl Standing {
    /// A number for a set of hosts. No two sets that are likely to meet have the same.
    pub fn sum(hosts: impl Iterator<Item = HostId>) -> u64 {
        // Names of hosts are random numbers, or hashes. Zero is no set's: an odd start.
        hosts.fold(1, |sum, host| sum.wrapping_add(host.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }
}

/// What a host that counts asks of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Which attempt it is.
    pub attempt: Attempt,
    /// How far it has come.
    pub step: Step,
}

/// How far an attempt has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// To take part in no earlier attempt, and to give and take no home share until the recount is over.
    Promise,
    /// To keep that it is counted.
    Count,
    /// To accept this.
    Accept(Tally),
    /// To keep that nothing of an earlier attempt can be decided any more.
    Void,
    /// To go on as before: this attempt counts nobody.
    Release,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// Its number, unique among those of the sender for ever.
    /// An earlier copy of the sender's disk is known by it: its number is below the one that was taken.
    pub number: u64,
    /// How much of every limit.
    pub share: Share,
}
