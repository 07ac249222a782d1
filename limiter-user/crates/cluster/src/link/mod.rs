//! One host among others: whom it listens to, and what it sends.
//!
//! [`Link`] has neither socket nor clock; the daemon gives it both. Hosts address each other's present run:
//! who does not know it says hello first, to a seed for instance, and is told. What was recorded earlier
//! is for an earlier run, and is not listened to (see [`crate::wire::Opener`]).

mod affiliation;
mod founding;
mod frames;
mod greeter;
mod hello;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::affiliation::{Affiliation, Other, Others};
pub use self::founding::{Bootstrap, Step};
use self::frames::{Frames, Run};
use self::greeter::Greeter;
use self::hello::Hello;
use super::agreement::Agreement;
use super::membership::{Event, Identity, Members, Membership};
use super::wire::{Content, Counts, KeyRing, Opened, Packet, Recipient, Rejection};
use super::{HostId, Moment};

/// What has come and waits for somebody to take it, at most.
/// With full frames these are 9 MiB: more than that no member can make the daemon keep.
const MAX_DELIVERIES: usize = 8192;

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
        // In frames 0 stands for a sender that belongs to no cluster.
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
    /// Draws a number for each frame that no copy of this machine draws.
    pub salt: fn() -> u64,
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

/// One host among others: what comes and what is due is given to the part that it concerns.
pub struct Link {
    affiliation: Affiliation,
    frames: Frames,
    greeter: Greeter,
    membership: Membership,
    deliveries: VecDeque<Delivery>,
}

impl Link {
    /// A host that knows nobody yet.
    pub fn new(now: Moment, settings: Settings) -> Self {
        let Settings { me, cluster, bootstrap, agreement, ring, seed, salt } = settings;
        Self {
            affiliation: Affiliation::new(cluster, bootstrap, agreement),
            frames: Frames::new(&me, ring, salt),
            greeter: Greeter::new(now),
            membership: Membership::new(now, me, seed),
            deliveries: VecDeque::new(),
        }
    }

    /// To which cluster it belongs.
    pub const fn affiliation(&self) -> &Affiliation {
        &self.affiliation
    }

    /// This host has joined a cluster or founded one, and that is kept.
    pub fn belong(&mut self, now: Moment, cluster: ClusterId) {
        let invited = self.affiliation.belong(cluster);
        self.greeter.hurry(now);
        if let Some(member) = invited {
            self.membership.add_peer(now, member);
        }
        self.settle();
    }

    /// This host votes for the proposal, and that is kept.
    pub fn voted(&mut self, now: Moment, vote: ClusterId) {
        // Others wait for this vote: not only with the next greeting.
        self.affiliation.bootstrap.vote = Some(vote);
        self.greeter.due = now;
    }

    /// Greets all seeds at once.
    pub const fn look_around(&mut self, now: Moment) {
        self.greeter.hurry(now);
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
        &self.frames.counts
    }

    /// Counts frames that the network did not take.
    pub const fn count_unsent(&mut self) {
        self.frames.counts.unsent += 1;
    }

    /// The keys, to be changed.
    pub const fn ring(&mut self) -> &mut KeyRing {
        &mut self.frames.ring
    }

    /// The key that was not the one to seal with when a frame came that was sealed with it, in short, and when
    /// one came last. Whoever has sent it may not be a member.
    pub const fn other_key(&self) -> Option<(u16, Moment)> {
        self.frames.other_key
    }

    /// Where others may be found.
    pub fn set_seeds(&mut self, now: Moment, seeds: Vec<SocketAddr>) {
        if self.greeter.seeds != seeds {
            self.greeter.seeds = seeds;
            self.greeter.hurry(now);
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
        self.greeter.seeds.clear();
        self.settle();
    }

    /// A datagram has come.
    pub fn receive(&mut self, now: Moment, from: SocketAddr, datagram: &mut [u8]) {
        let length = datagram.len();
        let handled = self.handle_datagram(now, from, datagram);
        let counts = &mut self.frames.counts;
        match handled {
            Ok(()) => {
                counts.received += 1;
                counts.received_bytes += length as u64;
            }
            Err(rejection) => counts.reject(rejection, now, from),
        }
        self.settle();
    }

    /// Says something to a member. Returns whether it is one.
    pub fn send(&mut self, to: HostId, digest: Option<u64>, content: &Content) -> bool {
        let me = self.membership.me().host();
        let member = self.members().get(&to).filter(|member| member.host() != me);
        let Some(run) = member.map(|to| self.run_of(to)) else {
            self.count_unsent();
            return false;
        };
        self.frames.seal(self.affiliation.short(), run, digest, content);
        true
    }

    /// Does what is due.
    pub fn poll(&mut self, now: Moment) {
        self.membership.poll(now);
        if now >= self.greeter.due {
            let Self { affiliation, membership, greeter, .. } = self;
            affiliation.forget(now, |address| membership.is_alive_at(address));
            // What a seed understands is not known: each version in turn.
            let version = greeter.version(membership.me().versions);
            let seed = |&address: &SocketAddr| (address, Run { address, number: 0, version });
            let mut all: BTreeMap<_, _> = greeter.seeds.iter().map(seed).collect();
            // By their runs, where they are known: what is said to nobody's run is answered, and not heard.
            let others = self.affiliation.others.iter();
            all.extend(others.map(|(at, other)| (*at, self.run_of(&other.identity))));
            all.retain(|address, _| !self.membership.is_alive_at(*address));
            all.into_values().for_each(|run| self.hello(run));
            if self.deliveries.len() < MAX_DELIVERIES
                && let Some(step) = self.affiliation.step(now)
            {
                let vote = self.affiliation.bootstrap.vote;
                self.deliveries.push_back(Delivery::Bootstrap(step, vote));
            }
            self.greeter.greeted(now, self.affiliation.cluster.is_some());
        }
        self.settle();
    }

    /// When something is due.
    pub fn next(&self) -> Moment {
        self.membership.next().min(self.greeter.due)
    }

    /// The next frame to be sent, and where to.
    pub fn outgoing(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        self.frames.outgoing.pop_front()
    }

    /// The next thing that has come.
    pub fn delivery(&mut self) -> Option<Delivery> {
        self.deliveries.pop_front()
    }

    /// How a host is spoken to that is known.
    fn run_of(&self, to: &Identity) -> Run {
        let version = self.membership.me().versions.with(to.versions);
        Run { address: to.address, number: to.epoch.short(), version }
    }

    /// Says who this host is to somebody who does not know it, or an earlier run of it.
    fn hello(&mut self, run: Run) {
        let hello = self.affiliation.hello(self.membership.me());
        self.frames.seal(self.affiliation.short(), run, None, &Content::Hello(hello.bytes()));
    }

    fn handle_datagram(
        &mut self,
        now: Moment,
        address: SocketAddr,
        datagram: &mut [u8],
    ) -> Result<(), Rejection> {
        let opened = self.frames.open(now, datagram)?;
        // Who has written in a version understands it.
        let run = Run { address, number: opened.epoch.short(), version: opened.version };
        let handled = match opened.to {
            Recipient::This => return self.handle_content(now, run, &opened),
            // It was meant for an earlier run, or is recorded: it changes nothing but tells the sender of this run.
            Recipient::Another => Err(Rejection::StaleRecipient),
            Recipient::Anybody => {
                // It may have been recorded: it is answered, and nothing else.
                let Content::Hello(bytes) = Packet::decode(opened.content)?.content else {
                    return Err(Rejection::Malformed);
                };
                Hello::read(&bytes, &opened)?;
                Ok(())
            }
        };
        if self.greeter.may_answer(now) {
            self.hello(run);
        }
        handled
    }

    fn handle_content(
        &mut self,
        now: Moment,
        run: Run,
        opened: &Opened<'_>,
    ) -> Result<(), Rejection> {
        let Packet { digest, content } = Packet::decode(opened.content)?;
        let from = opened.from;
        if let Content::Hello(bytes) = content {
            return self.handle_hello(now, run, Hello::read(&bytes, opened)?);
        }
        // Clusters may share a key: what a host of one says must not move the other's shares.
        if self.affiliation.cluster.is_none() || opened.cluster != self.affiliation.short() {
            return Err(Rejection::Cluster);
        }
        // Before the test for membership: foca's own messages are how a host becomes a member.
        if let Content::Membership(bytes) = content {
            self.membership.receive(now, from, &bytes);
            return Ok(());
        }
        // Of two hosts with copies of one ledger only one is listened to.
        let me = self.membership.me().host();
        let member = self.members().get(&from).filter(|_| from != me);
        if member.is_none_or(|member| member.epoch != opened.epoch) {
            return Err(Rejection::UnknownMember);
        }
        if self.deliveries.len() >= MAX_DELIVERIES {
            return Err(Rejection::QueueFull);
        }
        self.deliveries.push_back(Delivery::Said { from, digest, content });
        Ok(())
    }

    fn handle_hello(&mut self, now: Moment, run: Run, hello: Hello) -> Result<(), Rejection> {
        let affiliation = &mut self.affiliation;
        match (affiliation.cluster, hello.cluster) {
            (Some(mine), Some(theirs)) if mine != theirs => {
                affiliation.note(now, hello);
                return Err(Rejection::Cluster);
            }
            // It shares no limit with this one, whatever its cluster.
            // Noted, not only refused: `status` names what differs.
            _ if hello.agreement != affiliation.agreement => {
                affiliation.note(now, hello);
                return Err(Rejection::Disagreement);
            }
            (Some(_), Some(_)) => {
                affiliation.others.remove(&hello.identity.address);
                self.membership.add_peer(now, hello.identity);
            }
            // It has answered this host, which may be the only one to know where the other is.
            (Some(_), None) => {
                affiliation.others.remove(&hello.identity.address);
                if self.greeter.may_answer(now) {
                    self.hello(run);
                }
            }
            // Not joined yet: that is kept first, or a crash would leave a member that does not know its cluster.
            (None, Some(theirs)) => {
                if self.deliveries.len() < MAX_DELIVERIES {
                    self.deliveries.push_back(Delivery::Invited(theirs));
                }
                affiliation.invited = Some(hello);
            }
            (None, None) => affiliation.note(now, hello),
        }
        Ok(())
    }

    fn settle(&mut self) {
        while let Some((to, bytes)) = self.membership.outgoing() {
            let run = self.run_of(&to);
            self.frames.seal(self.affiliation.short(), run, None, &Content::Membership(bytes));
        }
        while let Some(event) = self.membership.event() {
            // It may be this host that is cut off: seeds are asked often again.
            if matches!(event, Event::Down(_)) {
                self.greeter.be_quick();
            }
            // Who is there can be asked for at any time: events are for whoever tells of them.
            // Twice as many: what members say must not fill the room for events.
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
