//! Who is there, by address and by ledger.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use super::{Event, Identity, Members};
use crate::HostId;

/// Events that are kept until somebody asks for them.
pub(super) const MAX_EVENTS: usize = 4096;

/// The hosts that are there, and which of them has a ledger that was copied. It is apart from how it is found out who
/// is there: all hosts must decide alike about copies, whenever and from whom they heard of each other.
pub(super) struct Directory {
    pub(super) me: Identity,
    /// Others that are there.
    pub(super) alive: BTreeMap<SocketAddr, Identity>,
    copies: BTreeMap<HostId, BTreeSet<SocketAddr>>,
    /// Of all that are there, whatever their order.
    pub(super) hash: u64,
    pub(super) members: Arc<Members>,
    pub(super) refused: BTreeMap<HostId, Identity>,
    pub(super) events: VecDeque<Event>,
}

impl Directory {
    pub(super) fn new(me: Identity) -> Self {
        Self {
            hash: me.hash(),
            members: Arc::new(BTreeMap::from([(me.host(), me.clone())])),
            me,
            alive: BTreeMap::new(),
            copies: BTreeMap::new(),
            refused: BTreeMap::new(),
            events: VecDeque::new(),
        }
    }

    /// All by their addresses: those after one of them, or this host and all others.
    pub(super) fn after(&self, after: Option<SocketAddr>) -> impl Iterator<Item = &Identity> {
        let start = after.map_or(Unbounded, Excluded);
        let others = self.alive.range((start, Unbounded)).map(|(_, member)| member);
        after.is_none().then_some(&self.me).into_iter().chain(others)
    }

    /// This host is another one from now on.
    pub(super) fn set_me(&mut self, me: Identity) {
        // XOR takes the former one out again: no walk over a thousand members for each change.
        self.hash ^= self.me.hash() ^ me.hash();
        self.me = me;
        self.decide(self.me.host());
    }

    /// Somebody is there, perhaps otherwise than before.
    pub(super) fn put(&mut self, member: Identity) {
        self.hash ^= member.hash();
        self.copies.entry(member.host()).or_default().insert(member.address);
        let host = member.host();
        if let Some(before) = self.alive.insert(member.address, member) {
            self.hash ^= before.hash();
            // Another host has taken over the address: else the former one would live on without anybody.
            if before.host() != host {
                self.forget(&before);
            }
        }
        self.decide(host);
    }

    /// Somebody is not there any more; whether it was.
    pub(super) fn remove(&mut self, member: &Identity) -> bool {
        let Some(member) = self.alive.remove(&member.address) else { return false };
        self.hash ^= member.hash();
        self.forget(&member);
        true
    }

    fn forget(&mut self, member: &Identity) {
        if let Some(addresses) = self.copies.get_mut(&member.host()) {
            addresses.remove(&member.address);
            if addresses.is_empty() {
                self.copies.remove(&member.host());
            }
        }
        self.decide(member.host());
    }

    /// Decides anew who has a ledger.
    fn decide(&mut self, host: HostId) {
        let addresses = self.copies.get(&host).into_iter().flatten();
        let others = addresses.filter_map(|address| self.alive.get(address));
        let me = Some(&self.me).filter(|me| me.host() == host);
        let mut having: Vec<&Identity> = others.chain(me).collect();
        // All hosts sort alike, so they keep the same one without a word about it. The longer-running one wins, or
        // a cloned machine would take the shares of the one that it was cloned from.
        having.sort_by_key(|identity| (identity.epoch, identity.address));
        let mut having = having.into_iter().cloned();
        let (kept, refused) = (having.next(), having.next());
        let before = self.members.get(&host);
        let event = match (before, &kept) {
            (None, Some(kept)) => Some(Event::Up(kept.clone())),
            (Some(before), None) => Some(Event::Down(before.clone())),
            (Some(before), Some(kept)) if before != kept || before.weight != kept.weight => {
                Some(Event::Changed(kept.clone()))
            }
            _ => None,
        };
        if event.is_some() {
            let members = Arc::make_mut(&mut self.members);
            match &kept {
                Some(kept) => members.insert(host, kept.clone()),
                None => members.remove(&host),
            };
        }
        self.emit(event);
        match (kept, refused) {
            (Some(kept), Some(refused)) => {
                // Told once: each later word about either of them comes here again.
                if self.refused.get(&host) != Some(&refused) {
                    self.refused.insert(host, refused.clone());
                    self.emit(Some(Event::Conflict { kept, refused }));
                }
            }
            _ => drop(self.refused.remove(&host)),
        }
    }

    fn emit(&mut self, event: Option<Event>) {
        // Members can be asked for at any time: the oldest event is the one that is needed least.
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.extend(event);
    }
}
