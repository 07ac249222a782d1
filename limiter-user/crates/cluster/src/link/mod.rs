//! One host among others: whom it listens to, and what it sends.
//!
//! [`Link`] has neither socket nor clock; the daemon gives it both. Hosts address each other's present run:
//! who does not know it says hello first, to a seed for instance, and is told. What was recorded earlier
//! is for an earlier run, and is not listened to (see [`Opener`]).

mod founding;
mod hello;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::founding::{Bootstrap, Step};
use self::hello::Hello;
use super::agreement::Agreement;
use super::membership::{Event, Identity, Members, Membership};
use super::wire::{Content, Counts, KeyRing, Opened, Opener, Packet, Recipient, Rejection, Sealer};
use super::{HostId, Moment};

/// What has come and waits for somebody to take it, at most.
const MAX_DELIVERIES: usize = 8192;

/// Hellos that are answered in a second.
const MAX_ANSWERS: u32 = 500;

/// How often a seed that is not there is greeted, at first and at last; always as at first by a host that belongs
/// to no cluster.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(10)];

/// Hosts under the key that are no members: so many are remembered, and for how long after they were heard.
const MAX_OTHERS: usize = 256;
const REMEMBERED: Duration = Duration::from_secs(60);

/// A host that was heard this long ago takes part in founding a cluster.
const LATELY: Duration = Duration::from_secs(3);

/// A cluster, by a random number that the host has made up that founded it. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClusterId(pub u64);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl ClusterId {
    /// As frames name it. Never 0.
    const fn short(self) -> u16 {
        let id = self.0;
        let folded = (id ^ id >> 16 ^ id >> 32 ^ id >> 48) as u16;
        if folded == 0 { 1 } else { folded }
    }
}

/// What a host is, and knows when it starts.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Itself.
    pub me: Identity,
    /// The cluster that it belongs to; `None` until it has been let into one.
    pub cluster: Option<ClusterId>,
    /// What it tells of founding one, if it belongs to none.
    pub bootstrap: Bootstrap,
    /// What it has to agree about with others.
    pub agreement: Agreement,
    /// The keys.
    pub ring: KeyRing,
    /// For what is left to chance.
    pub seed: u64,
}

/// What has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// A member has said something.
    Said {
        /// Who.
        from: HostId,
        /// The hash of the limits that it has, if it told.
        digest: Option<u64>,
        /// What.
        content: Content,
    },
    /// Somebody came or went.
    Member(Event),
    /// This host may join this cluster: once that is kept, [`Link::belong`] makes it a member. Said again
    /// until then.
    Invited(ClusterId),
    /// This host has to vote ([`Link::voted`]) or to found ([`Link::belong`]), once that is kept, if its vote is
    /// still this one. Said again until then.
    Bootstrap(Step, Option<ClusterId>),
}

/// A host under the key that is no member, as it was heard last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// It.
    pub identity: Identity,
    /// The cluster that it belongs to, if to any.
    pub cluster: Option<ClusterId>,
    /// What it tells of founding one.
    pub bootstrap: Bootstrap,
    /// What it has to agree about with others.
    pub agreement: Agreement,
    /// When it was heard last.
    pub heard: Moment,
}

/// Those hosts, by their addresses.
pub type Others = BTreeMap<SocketAddr, Other>;

/// One host among others.
pub struct Link {
    cluster: Option<ClusterId>,
    bootstrap: Bootstrap,
    agreement: Agreement,
    /// By whom it was invited last while it belonged to no cluster.
    invited: Option<Hello>,
    others: Others,
    ring: KeyRing,
    sealer: Sealer,
    opener: Opener,
    membership: Membership,
    seeds: Vec<SocketAddr>,
    greet: Moment,
    pause: Duration,
    /// Answers since a moment.
    answers: (Moment, u32),
    counts: Counts,
    /// The other key in short, and when a frame came that was sealed with it.
    other_key: Option<(u16, Moment)>,
    outgoing: VecDeque<(SocketAddr, Vec<u8>)>,
    deliveries: VecDeque<Delivery>,
}

impl Link {
    /// A host that knows nobody yet.
    pub fn new(now: Moment, settings: Settings) -> Self {
        let Settings { me, cluster, bootstrap, agreement, ring, seed } = settings;
        Self {
            cluster,
            bootstrap,
            agreement,
            invited: None,
            others: Others::new(),
            ring,
            sealer: Sealer::new(me.host(), me.epoch),
            opener: Opener::new(me.host(), me.epoch),
            membership: Membership::new(now, me, seed),
            seeds: Vec::new(),
            greet: now,
            pause: PAUSES[0],
            answers: (now, 0),
            counts: Counts::default(),
            other_key: None,
            outgoing: VecDeque::new(),
            deliveries: VecDeque::new(),
        }
    }

    /// The cluster that it belongs to.
    pub const fn cluster(&self) -> Option<ClusterId> {
        self.cluster
    }

    /// What it tells of founding one, if it belongs to none.
    pub const fn bootstrap(&self) -> Bootstrap {
        self.bootstrap
    }

    /// What it has to agree about with others.
    pub const fn agreement(&self) -> &Agreement {
        &self.agreement
    }

    /// Hosts under the key that are no members, and were heard in the last minute.
    pub const fn others(&self) -> &Others {
        &self.others
    }

    /// This host has joined a cluster or founded one, and that is kept.
    pub fn belong(&mut self, now: Moment, cluster: ClusterId) {
        self.cluster = Some(cluster);
        // Who belongs to a cluster has no vote: one that is told on could found a second one.
        self.bootstrap = Bootstrap { expect: 0, vote: None, ..self.bootstrap };
        // Those of this cluster become members, those of none are heard again; `status` must go on to name the rest.
        self.others.retain(|_, other| other.cluster.is_some_and(|theirs| theirs != cluster));
        (self.greet, self.pause) = (now, PAUSES[0]);
        if let Some(hello) = self.invited.take().filter(|hello| hello.cluster == Some(cluster)) {
            self.membership.meet(now, hello.identity);
        }
        self.settle();
    }

    /// This host votes for the proposal, and that is kept.
    pub fn voted(&mut self, now: Moment, vote: ClusterId) {
        // Others wait for this vote: not only with the next greeting.
        self.bootstrap.vote = Some(vote);
        self.greet = now;
    }

    /// Greets all seeds at once.
    pub const fn look_around(&mut self, now: Moment) {
        (self.greet, self.pause) = (now, PAUSES[0]);
    }

    /// Who is there.
    pub const fn membership(&self) -> &Membership {
        &self.membership
    }

    /// The members that are there, this host included.
    pub const fn members(&self) -> &Arc<Members> {
        self.membership.members()
    }

    /// What has come and gone.
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Counts frames that the network did not take.
    pub const fn count_unsent(&mut self) {
        self.counts.unsent += 1;
    }

    /// The keys, to be changed.
    pub const fn ring(&mut self) -> &mut KeyRing {
        &mut self.ring
    }

    /// The key that was not the one to seal with when a frame came that was sealed with it, in short, and when
    /// one came last. Whoever has sent it may not be a member.
    pub const fn other_key(&self) -> Option<(u16, Moment)> {
        self.other_key
    }

    /// Where others may be found.
    pub fn set_seeds(&mut self, now: Moment, seeds: Vec<SocketAddr>) {
        if self.seeds != seeds {
            self.seeds = seeds;
            (self.greet, self.pause) = (now, PAUSES[0]);
        }
    }

    /// Tells all that this host has another weight.
    pub fn set_weight(&mut self, now: Moment, weight: u32) {
        self.membership.set_weight(now, weight);
        self.settle();
    }

    /// Tells the others that this host goes.
    pub fn leave(&mut self, now: Moment) {
        self.membership.leave(now);
        // A greeting after the farewell would have others look for it again.
        self.seeds.clear();
        self.settle();
    }

    /// A datagram has come.
    pub fn receive(&mut self, now: Moment, from: SocketAddr, datagram: &mut [u8]) {
        let length = datagram.len();
        match self.hear(now, from, datagram) {
            Ok(()) => {
                self.counts.received += 1;
                self.counts.received_bytes += length as u64;
            }
            Err(rejection) => self.counts.reject(rejection, now, from),
        }
        self.settle();
    }

    /// Says something to a member. Returns whether it is one.
    pub fn send(&mut self, to: HostId, digest: Option<u64>, content: &Content) -> bool {
        let member = self.members().get(&to).filter(|member| member.host() != self.me().host());
        let Some((address, run)) = member.map(|to| (to.address, to.epoch.short())) else {
            self.counts.unsent += 1;
            return false;
        };
        self.seal(address, run, digest, content);
        true
    }

    /// Does what is due.
    pub fn poll(&mut self, now: Moment) {
        self.membership.poll(now);
        if now >= self.greet {
            self.greet_seeds(now);
        }
        self.settle();
    }

    /// When something is due.
    pub fn next(&self) -> Moment {
        self.membership.next().min(self.greet)
    }

    /// The next frame to be sent, and where to.
    pub fn outgoing(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        self.outgoing.pop_front()
    }

    /// The next thing that has come.
    pub fn delivery(&mut self) -> Option<Delivery> {
        self.deliveries.pop_front()
    }

    const fn me(&self) -> &Identity {
        self.membership.me()
    }

    fn short(&self) -> u16 {
        self.cluster.map_or(0, ClusterId::short)
    }

    fn greet_seeds(&mut self, now: Moment) {
        let alive = |address: &SocketAddr| self.membership.is_alive_at(*address);
        self.others.retain(|at, other| now.since(other.heard) < REMEMBERED && !alive(at));
        // By their runs, where they are known: what is said to nobody's run is answered, and not heard.
        let others = self.others.iter().map(|(at, other)| (*at, other.identity.epoch.short()));
        let mut all: BTreeMap<_, _> = self.seeds.iter().map(|seed| (*seed, 0)).collect();
        all.extend(others);
        for (address, run) in all {
            if !self.membership.is_alive_at(address) {
                self.hello(address, run);
            }
        }
        self.next_step(now);
        self.greet = now.after(self.pause);
        self.pause =
            if self.cluster.is_none() { self.pause } else { 2 * self.pause }.min(PAUSES[1]);
    }

    /// Whether this host is to vote or to found.
    fn next_step(&mut self, now: Moment) {
        // Who has heard of a cluster joins it.
        if self.cluster.is_some()
            || self.invited.is_some()
            || self.deliveries.len() >= MAX_DELIVERIES
        {
            return;
        }
        // One with other prefixes would be refused as a member: it must not count as a founder.
        let fits =
            |other: &&Other| now.since(other.heard) < LATELY && other.agreement == self.agreement;
        let others: Vec<_> =
            self.others.values().filter(fits).map(|other| other.bootstrap).collect();
        match founding::step(self.bootstrap, &others) {
            Step::Wait => {}
            step => {
                self.deliveries.push_back(Delivery::Bootstrap(step, self.bootstrap.vote));
            }
        }
    }

    fn hello(&mut self, address: SocketAddr, run: u32) {
        let (cluster, bootstrap) = (self.cluster, self.bootstrap);
        let (agreement, identity) = (self.agreement.clone(), self.me().clone());
        let hello = Hello { cluster, bootstrap, agreement, identity };
        self.seal(address, run, None, &Content::Hello(hello.bytes()));
    }

    /// Says who this host is to somebody who does not know it, or an earlier run of it.
    fn answer(&mut self, now: Moment, address: SocketAddr, run: u32) {
        if now.since(self.answers.0) >= Duration::from_secs(1) {
            self.answers = (now, 0);
        }
        // Recorded frames may come from forged addresses: answers to them must not become a flood.
        if self.answers.1 < MAX_ANSWERS {
            self.answers.1 += 1;
            self.hello(address, run);
        }
    }

    fn seal(&mut self, address: SocketAddr, run: u32, digest: Option<u64>, content: &Content) {
        let Ok(contents) = Packet::encode(digest, content) else {
            self.counts.unsent += 1;
            return;
        };
        let cluster = self.short();
        for content in contents {
            match self.sealer.seal(&self.ring, cluster, run, &content) {
                Some(frame) => {
                    self.counts.sent += 1;
                    self.counts.sent_bytes += frame.len() as u64;
                    self.outgoing.push_back((address, frame));
                }
                None => self.counts.unsent += 1,
            }
        }
    }

    fn hear(
        &mut self,
        now: Moment,
        address: SocketAddr,
        datagram: &mut [u8],
    ) -> Result<(), Rejection> {
        let opened = self.opener.open(&self.ring, datagram)?;
        let run = opened.epoch.short();
        // Rotation takes it as proof that the key was decided on, so only whole seals get here.
        if let (true, Some(key)) = (opened.other_key, self.ring.other()) {
            self.other_key = Some((key.short(), now));
        }
        match opened.to {
            Recipient::This => self.listen(now, address, &opened),
            // It was meant for an earlier run, or is recorded: it changes nothing but tells the sender of this run.
            Recipient::Another => {
                self.answer(now, address, run);
                Err(Rejection::StaleRecipient)
            }
            Recipient::Anybody => {
                // It may have been recorded: it is answered, and nothing else.
                let Content::Hello(bytes) = Packet::decode(opened.content)?.content else {
                    return Err(Rejection::Malformed);
                };
                Hello::read(&bytes, &opened)?;
                self.answer(now, address, run);
                Ok(())
            }
        }
    }

    fn listen(
        &mut self,
        now: Moment,
        address: SocketAddr,
        opened: &Opened<'_>,
    ) -> Result<(), Rejection> {
        let Packet { digest, content } = Packet::decode(opened.content)?;
        let from = opened.from;
        if let Content::Hello(bytes) = content {
            return self.meet(now, address, Hello::read(&bytes, opened)?);
        }
        // Clusters may share a key, and their hosts names: what one says must not move the other's shares.
        if self.cluster.is_none() || opened.cluster != self.short() {
            return Err(Rejection::Cluster);
        }
        // Before the test for membership: foca's own messages are how a host becomes a member.
        if let Content::Membership(bytes) = content {
            self.membership.receive(now, from, &bytes);
            return Ok(());
        }
        // Of two hosts that have one name only one is listened to.
        let member = self.members().get(&from).filter(|_| from != self.me().host());
        if member.is_none_or(|member| member.epoch != opened.epoch) {
            return Err(Rejection::UnknownMember);
        }
        if self.deliveries.len() >= MAX_DELIVERIES {
            return Err(Rejection::QueueFull);
        }
        self.deliveries.push_back(Delivery::Said { from, digest, content });
        Ok(())
    }

    fn meet(&mut self, now: Moment, from: SocketAddr, hello: Hello) -> Result<(), Rejection> {
        match (self.cluster, hello.cluster) {
            (Some(mine), Some(theirs)) if mine != theirs => {
                self.note(now, hello);
                return Err(Rejection::Cluster);
            }
            // It shares no limit with this one, whatever its cluster.
            // Noted, not only refused: `status` names what differs.
            _ if hello.agreement != self.agreement => {
                self.note(now, hello);
                return Err(Rejection::Disagreement);
            }
            (Some(_), Some(_)) => {
                self.others.remove(&hello.identity.address);
                self.membership.meet(now, hello.identity);
            }
            // It has answered this host, which may be the only one to know where the other is.
            (Some(_), None) => {
                self.others.remove(&hello.identity.address);
                self.answer(now, from, hello.identity.epoch.short());
            }
            // Not joined yet: that is kept first, or a crash would leave a member that does not know its cluster.
            (None, Some(theirs)) => {
                if self.deliveries.len() < MAX_DELIVERIES {
                    self.deliveries.push_back(Delivery::Invited(theirs));
                }
                self.invited = Some(hello);
            }
            (None, None) => self.note(now, hello),
        }
        Ok(())
    }

    /// Remembers a host that is no member.
    fn note(&mut self, now: Moment, hello: Hello) {
        let Hello { cluster, bootstrap, agreement, identity } = hello;
        let address = identity.address;
        if self.others.len() < MAX_OTHERS || self.others.contains_key(&address) {
            let other = Other { identity, cluster, bootstrap, agreement, heard: now };
            self.others.insert(address, other);
        }
    }

    fn settle(&mut self) {
        while let Some((to, bytes)) = self.membership.outgoing() {
            self.seal(to.address, to.epoch.short(), None, &Content::Membership(bytes));
        }
        while let Some(event) = self.membership.event() {
            // It may be this host that is cut off: seeds are asked often again.
            if matches!(event, Event::Down(_)) {
                self.pause = PAUSES[0];
            }
            // Who is there can be asked for at any time: events are for whoever tells of them.
            if self.deliveries.len() < 2 * MAX_DELIVERIES {
                self.deliveries.push_back(Delivery::Member(event));
            }
        }
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
