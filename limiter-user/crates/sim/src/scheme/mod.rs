//! What can keep a limit over many hosts: the escrow, and what it is compared with.

mod baseline;
mod escrow;

use std::collections::BTreeMap;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::rng::{digest, mix};
use super::scenario::Scenario;
pub(super) use baseline::Baseline;
use cluster::escrow::{Member, Partition, PersistentState, Region};
use cluster::wire::{MAX_CONTENT, OVERHEAD};
use cluster::{HostId, KeyId, Moment};
pub(super) use escrow::EscrowHost;
use model::Share;

/// A way to keep a limit over many hosts.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum SchemeKind {
    /// Shares are moved between hosts, never copied: what the daemon does.
    Escrow,
    /// Each host has the whole limit.
    None,
    /// Each host has the same share of it.
    Static,
    /// Hosts tell each other what they admitted, and take it from their own buckets of the whole limit.
    Debit,
    /// Each host has its part of the demand that it has heard of.
    Proportional,
    /// The escrow, all hosts of which believe to be in one region: what regions are for.
    Flat,
    /// No limit at all: who is there, as the daemon finds out.
    // The scenario asks for it: under any other it would limit nothing.
    #[value(skip)]
    Membership,
}

impl SchemeKind {
    /// All that keep a limit.
    // Without `Membership`, which keeps no limit and so compares with none of them.
    pub const ALL: [Self; 6] =
        [Self::Escrow, Self::Flat, Self::None, Self::Static, Self::Debit, Self::Proportional];

    /// Whether it says something about a scenario.
    pub fn is_for(self, scenario: &Scenario) -> bool {
        match self {
            // Without regions it is the escrow once more.
            Self::Flat => !scenario.regions.is_empty(),
            // Nobody takes tokens of the program's buckets afterwards.
            Self::Debit => !scenario.packets,
            _ => true,
        }
    }

    /// Whether it does without the escrow.
    pub const fn is_baseline(self) -> bool {
        !matches!(self, Self::Escrow | Self::Flat | Self::Membership)
    }

    /// Whether it has goals to reach; the others are there to compare with.
    pub const fn has_goals(self) -> bool {
        // Not `flat`: it is there to show what regions save, and is meant to send too much.
        matches!(self, Self::Escrow | Self::Membership)
    }

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Escrow => "escrow",
            Self::None => "none",
            Self::Static => "static",
            Self::Debit => "debit",
            Self::Proportional => "proportional",
            Self::Flat => "flat",
            Self::Membership => "membership",
        }
    }
}

/// What a host sends to another one.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Payload {
    /// What a frame of the escrow's says, as the wire has it.
    Frame(Vec<u8>),
    /// What a host has counted, and when it sent that.
    Counts(Moment, Vec<Count>),
}

/// What a host has counted of a source.
#[derive(Clone, Copy, Debug, PartialEq)]
// Sums since the start, so that loss and repetition of a message do no harm.
pub(super) struct Count {
    pub(super) key: KeyId,
    /// Admitted since the daemon's start.
    pub(super) admitted: f64,
    pub(super) demand: Share,
}

/// What a source takes in a packet of counts, as nobody has built them.
// The key of 48 bits that the escrow's messages have, and two words: baselines are not to lose by their encoding.
const ENTRY: usize = 22;

impl Payload {
    /// Bytes on the wire, IP and UDP left out.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Frame(content) => content.len() + OVERHEAD,
            Self::Counts(_, counts) => {
                let content = ENTRY * counts.len();
                content + OVERHEAD * content.div_ceil(MAX_CONTENT).max(1)
            }
        }
    }
}

/// What the daemon saw of a source since it last looked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    /// What was sent, as a part of the limit.
    pub(super) demand: Share,
    /// What was admitted, in seconds of the whole limit.
    pub(super) admitted: f64,
    /// Whether anything was dropped.
    pub(super) limited: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Actions {
    /// Written to the kernel: what may be used of a source, and until when.
    pub(super) shares: Vec<(KeyId, Share, Moment)>,
    /// Written to the kernel: what may be used of every source without end.
    pub(super) floor: Option<Share>,
    /// Taken from buckets, in seconds of the whole limit.
    pub(super) debits: Vec<(KeyId, f64)>,
    pub(super) messages: Vec<(HostId, Payload)>,
    /// It has handed over all that it had.
    pub(super) left: bool,
    /// When it has to be asked again.
    pub(super) next: Moment,
}

impl Actions {
    /// A digest of what is done.
    pub(super) fn digest(&self) -> u64 {
        let mut all = u64::from(self.left);
        let mut add = |word: u64| all = mix(all ^ word);
        self.floor.into_iter().for_each(|floor| add(floor.units()));
        for (key, share, until) in &self.shares {
            [key.number(), share.units(), until.0].into_iter().for_each(&mut add);
        }
        for (to, message) in &self.messages {
            add(to.0);
            if let Payload::Frame(content) = message {
                add(digest(0, content));
            }
        }
        all
    }
}

/// What a daemon is made with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Birth {
    pub(super) me: HostId,
    pub(super) weight: u32,
    pub(super) region: Region,
    /// Hosts that there are by the configuration.
    pub(super) hosts: usize,
    /// The part of all shares that it has by then: one part of so many, nothing if 0.
    pub(super) one_of: u64,
    /// What chance there is comes from this.
    pub(super) seed: u64,
    /// What is done with the shares of hosts that are lost.
    pub(super) policy: Partition,
    /// How long home leases last.
    pub(super) home_lease: Duration,
    pub(super) now: Moment,
}

/// How a host's disk is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Disk {
    /// What is written is durable at once.
    #[default]
    Good,
    /// It is so much later.
    Slow(Duration),
    /// Nothing can be written.
    Full,
}

/// What decides on a host.
// A machine can be copied, as hypervisors do.
pub(super) trait Scheme: Clone {
    /// The members that the host sees, itself included, with their weights and regions.
    fn members(&mut self, now: Moment, members: &BTreeMap<HostId, Member>);
    fn demand(&mut self, now: Moment, key: KeyId, sample: Sample);
    /// Nothing has come of a source for long.
    fn forget(&mut self, key: KeyId);
    fn receive(&mut self, now: Moment, from: HostId, message: &Payload);
    /// Everything due.
    fn poll(&mut self, now: Moment) -> Actions;
    /// What is on the disk, for those that keep something.
    fn kept(&self) -> PersistentState {
        PersistentState::default()
    }
    /// What it tells operators of itself, for those that tell something, about this source and that host, among others.
    fn reports(&self, _: Moment, _: KeyId, _: HostId) -> String {
        String::new()
    }
    /// The daemon was killed and starts with this on its disk, as `me`: another host if it was lost.
    fn restart(&mut self, now: Moment, me: HostId, kept: PersistentState);
    /// From now on the disk is so.
    fn set_disk(&mut self, _: Disk) {}
    /// From now on limits have this policy.
    fn set_policy(&mut self, _: Partition) {}
    /// From now on there is room for so many sources.
    fn set_room(&mut self, _: usize) {}
    /// Begins to hand over what it has.
    fn leave(&mut self, now: Moment);
}
