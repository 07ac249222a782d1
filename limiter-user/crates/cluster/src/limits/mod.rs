//! Limits and denials that all hosts of a cluster have.
//!
//! Each host has a [`Replica`]: for each item what was last said of it, when, and by whom. The later one
//! wins, by a hybrid logical clock, then by the host's number; so all replicas that have heard the same are
//! equal, whatever the order, and hearing it twice changes nothing. A change is sent to all members at once.
//! A digest of everything rides in every packet of the cluster; where two differ for longer than a change
//! takes, the replicas are compared: sums of hashes of 64 parts, then of the parts of those that differ,
//! and the entries of the smallest.
//!
//! That something was removed is remembered for a week. A replica knows the latest removal that it has
//! forgotten: what is older and unknown to it was removed, or was set on a host that nobody has heard of for
//! a week, and is removed everywhere. So what was removed stays so, also when a host comes back that has
//! slept for a month.
//!
//! Nothing here knows a clock, a network or a disk: time and packets are arguments, and what has to be
//! durable is told as rows.

mod clock;
mod entry;
mod packet;
mod peer;
mod rows;
mod table;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use self::clock::Clock;
pub use self::clock::{FARTHEST, Stamp, WallMs};
use self::entry::{Content, Entry};
pub use self::entry::{Item, KEPT_MS, Value};
use self::packet::{Body, Load, Packet};
pub use self::packet::{MAX_PACKET_LEN, PacketError};
use self::peer::Peer;
use self::table::{PARTS, Part, Table};
use super::{HostId, Moment};
use model::layers::LimitOf;
use model::{Limit, Target};

/// Entries that a replica has at the most, removals included.
pub const MAX_ENTRIES: usize = 1 << 20;

/// Parts of so many entries are sent rather than compared.
const FEW: usize = 16;

/// Parts that are compared further at once.
const MAX_PARTS: usize = 8;

/// Packets that one call of [`Replica::poll`] makes for a peer, and for all, at the most.
/// Ten rounds a second bring 640 frames: shares use the same socket, and must not wait behind limits.
const MAX_PACKETS: usize = 8;
const MAX_PACKETS_TOTAL: usize = 64;

/// How soon after another the replica begins to compare itself with peers.
const BETWEEN: Duration = Duration::from_millis(250);

/// Peers that it knows at the most.
const MAX_PEERS: usize = 4096;

/// What time it is: by the wall clock, which may jump, and by the monotonic one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds since 1970.
    pub wall: WallMs,
    /// The monotonic clock.
    pub moment: Moment,
}

/// A change that came from another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// What it is about.
    pub item: Item,
    /// What it is now; nothing if it was removed.
    pub value: Option<Value>,
    /// The host where it was changed.
    pub by: HostId,
}

/// What was not taken, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// Packets that make no sense, or have another version.
    pub packets: u64,
    /// Entries that make no sense to this host.
    pub odd: u64,
    /// Entries whose stamps are more than a day ahead of this host's clock.
    pub ahead: u64,
    /// Entries for which there was no room.
    pub full: u64,
    /// Entries older than what was forgotten, which were removed everywhere.
    pub forgotten: u64,
}

/// How a replica fares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReplicaReport {
    /// Limits and denials.
    pub live: usize,
    /// Beside those, removals that are remembered.
    pub removed: usize,
    /// As [`Replica::digest`].
    pub digest: u64,
    /// Peers whose digests were others when they were last heard.
    pub differing: usize,
    /// What was not taken.
    pub refused: Refused,
    /// How far changes are stamped ahead of this host's wall clock, ms: so wrong is this clock or that of
    /// another host, or was when something was changed.
    pub clock_ahead_ms: u64,
}

/// The limits and denials of a cluster, as one host knows them.
pub struct Replica {
    me: HostId,
    clock: Clock,
    table: Table,
    /// The latest change that is a removal and was forgotten.
    forgotten: Stamp,
    peers: BTreeMap<HostId, Peer>,
    /// When it may begin to compare itself with a peer again, and with which it did last.
    again: Moment,
    compared: HostId,
    refused: Refused,
    /// An item of which something was said that this host does not understand, and why.
    odd: Option<(Item, String)>,
    /// What has changed since it was last told to be durable, and what was there before.
    unsaved: BTreeMap<Item, Option<Entry>>,
    /// As `forgotten`, before that.
    saved_forgotten: Stamp,
}

impl LimitOf for Replica {
    fn limit_of(&self, target: &Target) -> Option<Limit> {
        match self.get(&Item::Limit(*target))? {
            Value::Limit(limit) => Some(limit),
            Value::Denied(_) | Value::Override(_) => None,
        }
    }
}

impl Replica {
    /// A replica with the rows that were kept. Rows that make no sense are left out: they come from others again.
    pub fn new<'a>(kept: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let (mut table, mut forgotten) = (Table::new(), Stamp::default());
        for (key, row) in kept {
            match rows::read(key, row) {
                Some(rows::Read::Entry(item, entry, end)) => drop(table.put(item, entry, end)),
                Some(rows::Read::Forgotten(stamp)) => forgotten = stamp,
                None => tracing::warn!("a kept limit of the cluster makes no sense: {key}"),
            }
        }
        Self {
            // Not known before the cluster runs. It decides only between changes of one moment.
            me: HostId(0),
            // After all that is kept: where the clock was set back, new changes would lose to old ones.
            clock: Clock::after(table.latest().max(forgotten)),
            table,
            forgotten,
            peers: BTreeMap::new(),
            again: Moment::default(),
            compared: HostId(0),
            refused: Refused::default(),
            odd: None,
            unsaved: BTreeMap::new(),
            saved_forgotten: forgotten,
        }
    }

    /// This host, and the members of the cluster at present, this host among them or not.
    pub fn set_members(&mut self, me: HostId, members: impl IntoIterator<Item = HostId>) {
        self.me = me;
        // Who stays keeps its state: else each change of members would begin all comparisons anew.
        let mut former = std::mem::take(&mut self.peers);
        let members = members.into_iter().filter(|member| *member != me).take(MAX_PEERS);
        self.peers =
            members.map(|member| (member, former.remove(&member).unwrap_or_default())).collect();
    }

    /// A number that differs from other hosts' where anything does. It is to ride in every packet.
    pub fn digest(&self) -> u64 {
        self.table.digest()
    }

    /// What there is of an item.
    pub fn get(&self, item: &Item) -> Option<Value> {
        match &self.table.get(item)?.content {
            Content::Is(content) => item.value(content).ok(),
            Content::Gone(_) => None,
        }
    }

    /// The host that has said last what an item is.
    pub fn author(&self, item: &Item) -> Option<HostId> {
        self.table.get(item).filter(|entry| entry.is_live()).map(Entry::host)
    }

    /// All that there is.
    pub fn iter(&self) -> impl Iterator<Item = (Item, Value)> {
        self.table.iter().filter_map(|(item, entry)| match &entry.content {
            Content::Is(content) => Some((item.clone(), item.value(content).ok()?)),
            Content::Gone(_) => None,
        })
    }

    /// How it fares.
    pub fn report(&self) -> ReplicaReport {
        ReplicaReport {
            live: self.table.live(),
            removed: self.table.len() - self.table.live(),
            digest: self.digest(),
            differing: self.peers.values().filter(|peer| peer.differs()).count(),
            refused: self.refused,
            clock_ahead_ms: self.clock.ahead().as_millis() as u64,
        }
    }

    /// An item of which a member has said something that this host does not understand, as a later version may, and
    /// why; what it was before holds on.
    pub fn odd(&self) -> Option<&(Item, String)> {
        self.odd.as_ref()
    }

    /// Says what an item is from now on, nothing if it is removed, and tells all members. Returns whether
    /// that could be: not if there are too many, or the text is too long.
    pub fn set(&mut self, wall: WallMs, item: Item, value: Option<&Value>) -> bool {
        let content = match value {
            Some(value) => Content::Is(value.text().into()),
            None => Content::Gone(wall),
        };
        let entry = Entry { stamp: self.clock.tick(wall), host: self.me.0, content };
        let known = self.table.get(&item).is_some();
        // Removing what nobody knows would cost all hosts an entry for a week.
        if !entry.fits(&item) || (!known && (value.is_none() || self.is_full())) {
            return false;
        }
        let place = item.place();
        self.put(item, entry, value.and_then(Value::end));
        self.peers.values_mut().for_each(|peer| peer.send((place, place)));
        true
    }

    /// Notes the digest that came with a packet of a peer.
    pub fn heard(&mut self, now: Now, from: HostId, digest: u64) {
        let same = digest == self.digest();
        let Some(peer) = self.peers.get_mut(&from) else { return };
        peer.note(now.moment, same);
        // Who knows the same may forget the same. What a peer has forgotten and this host knows differs.
        if same && peer.forgotten > self.forgotten {
            self.forgotten = peer.forgotten;
            self.clock.see(now.wall, self.forgotten);
        }
    }

    /// Takes a packet of a peer.
    ///
    /// # Errors
    /// If it makes no sense; then nothing has changed.
    pub fn receive(
        &mut self,
        now: Now,
        from: HostId,
        bytes: &[u8],
    ) -> Result<Vec<Applied>, PacketError> {
        let (packet, odd) = Packet::read(bytes).inspect_err(|_| self.refused.packets += 1)?;
        self.refused.odd += odd;
        if from == self.me {
            return Ok(Vec::new());
        }
        if self.peers.len() < MAX_PEERS {
            self.peers.entry(from).or_default();
        }
        if let Some(peer) = self.peers.get_mut(&from) {
            // One too far ahead says nothing of what is known here.
            if packet.forgotten.ahead_of(now.wall) <= FARTHEST {
                peer.forgotten = packet.forgotten;
            }
        }
        let mut applied = Vec::new();
        match packet.body {
            Body::Sums(part, sums) => self.compare(from, part, &sums),
            Body::Want(part, bits) => {
                let Some(peer) = self.peers.get_mut(&from) else { return Ok(applied) };
                let wanted = (0..PARTS).filter(|number| bits >> number & 1 == 1);
                wanted.for_each(|number| peer.send(part.part(number).places()));
            }
            Body::Entries(entries) => {
                for (item, entry) in entries {
                    applied.extend(self.take(now, from, item, entry));
                }
                if let Some(peer) = self.peers.get_mut(&from).filter(|_| !applied.is_empty()) {
                    peer.progress();
                }
            }
        }
        Ok(applied)
    }

    /// What is to be sent now, to whom. Also forgets what is long over.
    pub fn poll(&mut self, now: Now) -> Vec<(HostId, Vec<u8>)> {
        // Before packets are made: each carries the stamp that this may raise.
        self.forget(now.wall);
        self.begin(now.moment);
        let (forgotten, table) = (self.forgotten, &self.table);
        let mut packets = Vec::new();
        // A peer that was not reached this time is the first one some other time.
        let first = self.compared;
        let (before, after): (Vec<_>, Vec<_>) =
            self.peers.iter_mut().partition(|(host, _)| **host <= first);
        for (host, peer) in after.into_iter().chain(before) {
            let mut room = MAX_PACKETS.min(MAX_PACKETS_TOTAL - packets.len());
            for body in peer.next_bodies(room) {
                packets.push((*host, Packet { forgotten, body }.bytes()));
                room -= 1;
            }
            let mut load = Load::default();
            while room > 0
                && let Some((first, last)) = peer.next_range()
            {
                let mut rest = table.between((first, last));
                let full = rest.find(|(_, item, entry)| !load.add(item, entry));
                let Some((place, ..)) = full else { continue };
                let entries = std::mem::take(&mut load).entries;
                packets.push((*host, Packet { forgotten, body: Body::Entries(entries) }.bytes()));
                room -= 1;
                peer.send((place, last));
            }
            if !load.entries.is_empty() {
                let body = Body::Entries(load.entries);
                packets.push((*host, Packet { forgotten, body }.bytes()));
            }
        }
        packets
    }

    fn is_full(&self) -> bool {
        self.table.len() >= MAX_ENTRIES
    }

    fn put(&mut self, item: Item, entry: Entry, end: Option<WallMs>) {
        let former = self.table.put(item.clone(), entry, end);
        // The first former one stays: `undo` goes back to what is durable, not to a change in between.
        self.unsaved.entry(item).or_insert(former);
    }

    /// Begins to compare with one peer that differs, each in turn.
    fn begin(&mut self, now: Moment) {
        if now < self.again {
            return;
        }
        // One peer at a time: where many differ in the same, each would send the same entries.
        let sums = self.table.sums(Part::ALL);
        let next = (self.compared.0.checked_add(1)).map_or(HostId(0), HostId);
        let turn: Vec<_> = self
            .peers
            .range(next..)
            .chain(self.peers.range(..next))
            .map(|(host, _)| *host)
            .collect();
        for host in turn {
            let Some(peer) = self.peers.get_mut(&host) else { continue };
            if peer.is_due(now) {
                peer.tell(Body::Sums(Part::ALL, sums));
                (self.compared, self.again) = (host, now.after(BETWEEN));
                return;
            }
        }
    }

    /// Compares the parts of `part` with those of a peer, which have these `sums`.
    fn compare(&mut self, from: HostId, part: Part, sums: &[u64]) {
        let Some(peer) = self.peers.get_mut(&from).filter(|peer| !peer.is_busy()) else { return };
        let own = self.table.sums(part);
        let (mut want, mut further) = (0u64, 0);
        for (number, (own, theirs)) in own.iter().zip(sums).enumerate() {
            if own == theirs {
                continue;
            }
            let inner = part.part(number);
            let count = self.table.count(inner, FEW + 1);
            // A sum of zero says that the peer has nothing there: comparing further would find nothing new.
            if *theirs == 0 || count <= FEW || !inner.has_parts() {
                if count > 0 {
                    peer.send(inner.places());
                }
                if *theirs != 0 {
                    want |= 1 << number;
                }
            // What is left differs the next time as well: one packet must not call forth sixty-four.
            } else if further < MAX_PARTS {
                further += 1;
                peer.tell(Body::Sums(inner, self.table.sums(inner)));
            }
        }
        if want != 0 {
            peer.tell(Body::Want(part, want));
        }
    }

    /// Takes an entry of a peer's.
    fn take(&mut self, now: Now, from: HostId, item: Item, entry: Entry) -> Option<Applied> {
        let since = match entry.content {
            Content::Gone(since) => Stamp::at(since),
            Content::Is(_) => Stamp::default(),
        };
        if since.ahead_of(now.wall) > FARTHEST || !self.clock.see(now.wall, entry.stamp) {
            self.refused.ahead += 1;
            return None;
        }
        let value = match &entry.content {
            Content::Gone(_) => None,
            Content::Is(content) => match item.value(content) {
                Ok(value) => Some(value),
                // What was there holds on: a word that only a later version knows must not remove a limit.
                Err(why) => {
                    self.refused.odd += 1;
                    self.odd = Some((item, why));
                    return None;
                }
            },
        };
        self.odd.take_if(|(odd, _)| *odd == item);
        let end = value.as_ref().and_then(Value::end);
        let known = self.table.get(&item);
        let was_live = known.is_some_and(Entry::is_live);
        match known {
            Some(known) if *known == entry => return None,
            Some(known) if *known > entry => {
                // The peer lacks something, too.
                let place = item.place();
                self.peers.get_mut(&from)?.send((place, place));
                return None;
            }
            Some(_) => {}
            // There is nothing that it could remove.
            None if Table::is_over(&entry, end, now.wall) => return None,
            None if self.is_full() => {
                self.refused.full += 1;
                return None;
            }
            None if value.is_some() && entry.stamp <= self.forgotten => {
                self.refused.forgotten += 1;
                // As long as the peer may need to hear of it, and no later change of it is hidden.
                let (stamp, content) = (entry.stamp.next(), Content::Gone(now.wall));
                let place = item.place();
                self.put(item, Entry { stamp, host: self.me.0, content }, None);
                self.peers.get_mut(&from)?.send((place, place));
                return None;
            }
            None => {}
        }
        let by = entry.host();
        self.put(item.clone(), entry, end);
        (value.is_some() || was_live).then_some(Applied { item, value, by })
    }

    /// Forgets removals, and what has ended, that are a week old.
    fn forget(&mut self, wall: WallMs) {
        while let Some(item) = self.table.over(wall) {
            let Some(entry) = self.table.remove(&item) else { return };
            self.forgotten = self.forgotten.max(entry.stamp);
            self.unsaved.entry(item).or_insert(Some(entry));
        }
    }
}

#[cfg(test)]
mod tests;
