//! Who takes part in a change of keys, and how far each has told to be.

use std::collections::BTreeMap;

use super::{FRESH, Id};
use crate::{HostId, Moment};
use model::rotation::{GONE, Stage};

/// What a member has told, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerStage {
    pub(super) id: Id,
    pub(super) stage: Stage,
    pub(super) view: u64,
    pub(super) at: Moment,
}

/// The members that are there and what they have told. They are apart from the keys: they are known anew after each
/// start, and nothing about them has to be kept.
#[derive(Debug)]
pub(super) struct Members {
    pub(super) me: HostId,
    /// The others, and which run of them.
    pub(super) others: BTreeMap<HostId, u64>,
    /// A hash of all, whatever their order.
    pub(super) view: u64,
    told: BTreeMap<HostId, PeerStage>,
    /// When one was lost last, or this host started again in the middle of a rotation.
    lost: Option<Moment>,
}

impl Members {
    pub(super) fn new(me: HostId, lost: Option<Moment>) -> Self {
        let mut members =
            Self { me, others: BTreeMap::new(), view: 0, told: BTreeMap::new(), lost };
        members.view = members.hash();
        members
    }

    /// Who leads, as this host sees it.
    pub(super) fn leader(&self) -> HostId {
        // By number: who sees the same members finds the same leader, without a word about it.
        self.others.keys().next().map_or(self.me, |first| *first.min(&self.me))
    }

    pub(super) fn leads(&self) -> bool {
        self.leader() == self.me
    }

    /// These are there now; whether that is a change.
    pub(super) fn set(&mut self, now: Moment, mut others: BTreeMap<HostId, u64>) -> bool {
        others.remove(&self.me);
        if others == self.others {
            return false;
        }
        // What was told in an earlier run may have been lost with its disk.
        self.told.retain(|host, _| others.get(host) == self.others.get(host));
        // It may be cut off and still seal with the old key: deciding without it would shut it out.
        if self.others.keys().any(|host| !others.contains_key(host)) {
            self.lost = Some(now);
        }
        self.others = others;
        self.view = self.hash();
        true
    }

    fn hash(&self) -> u64 {
        // Each is spread first: bare numbers of two sets may well have one XOR.
        let all = self.others.keys().chain([&self.me]);
        all.fold(0, |hash, host| hash ^ host.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31))
    }

    /// Takes what a host has told; whether it is a member.
    pub(super) fn tell(&mut self, from: HostId, told: PeerStage) -> bool {
        let member = self.others.contains_key(&from);
        if member {
            self.told.insert(from, told);
        }
        member
    }

    /// Whether somebody was there lately who may be back soon.
    pub(super) fn is_lost(&self, now: Moment) -> bool {
        self.lost.is_some_and(|lost| now.since(lost) < GONE)
    }

    /// Whether all are that far; as they have told just now and of the same members, if that is to be `fresh`.
    pub(super) fn are(&self, now: Moment, id: Id, stage: Stage, fresh: bool) -> bool {
        self.others.keys().all(|host| {
            self.told.get(host).is_some_and(|told| {
                let agrees = now.since(told.at) < FRESH && told.view == self.view;
                // Who is in a later one has ended this one: it is not replaced once it is used.
                let later = stage == Stage::Using && told.id > id;
                later || told.id == id && told.stage >= stage && (agrees || !fresh)
            })
        })
    }

    /// Whether somebody uses the new key, which shows that it was decided before.
    pub(super) fn any_uses(&self, id: Id) -> bool {
        self.told.values().any(|told| told.id == id && told.stage >= Stage::Using)
    }

    /// Those of which this is true by what they have told last, if anything.
    pub(super) fn those(&self, are: impl Fn(Option<&PeerStage>) -> bool) -> Vec<HostId> {
        self.others.keys().copied().filter(|host| are(self.told.get(host))).collect()
    }
}
