//! How all hosts of a cluster come to use another key, without a moment in which two of them do not
//! understand each other.
//!
//! A host seals with one key and may accept another one besides. Of the members that are there the one
//! with the lowest number leads. It makes the new key, and takes all members through three stages:
//!
//! 1. *Accepted*: the host goes on sealing with the old key and accepts the new one, too.
//! 2. *Using*: it seals with the new key and still accepts the old one. The leader begins with that when all
//!    members that it sees have told that they accept the new key *and* see the same members as it does, and
//!    nobody was lost in the last minute.
//! 3. *Forgotten*: it has only the new key. The leader begins with that when all members that it sees have been
//!    using the new key for ten seconds, in which what was sealed with the old one has come or never will.
//!
//! **Why nobody is cut off.** Each host keeps a stage durably before it tells of it or acts by it, and never
//! goes back. Somebody seals with the new key only once the leader has decided so, when all members had kept
//! it; somebody stops accepting the old one only once all members had kept that they seal with the new
//! one. So at every moment each member accepts what every other member seals with, whatever is lost, late or
//! doubled, and whoever starts again. A leader that is gone is followed by the next one, which goes on from
//! what the members tell: a stage that is reached twice is the same stage. A rotation may be replaced by one
//! of a higher number only while it is merely accepted, by the leader, who cannot be without a rotation
//! that has been decided, as it had to accept it first.
//!
//! **Who was away.** A host that has kept the new key, and was away when the others began to use it, is told
//! by their frames: what is sealed with the new key proves that this has been decided. A host that was away all
//! the time has only the old key and stays out: the operator gives it the file with the new one. Nobody keeps the
//! old key for its sake. It could only be used to hand out the new one, and then whoever has stolen the old key
//! would be handed it as well; keys are changed so that this ends.
//!
//! The new key travels under the old one. So a rotation ends what an old key is good for from now on; it does
//! not shut out somebody who has the old key *and* listens meanwhile. Against that, give all hosts a new
//! file by another way.

mod members;
mod message;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use self::members::{Members, PeerStage};
use self::message::{Kind, Message};
use super::wire;
use super::{HostId, Moment};
use crate::wire::KeyBytes as Key;
use model::rotation::{ACCEPTED, Stage};

/// How often something is said again until it is answered.
const EVERY: Duration = Duration::from_millis(500);
/// How old an answer may be by which it is decided that all have the key.
/// Four tries fit in: one lost answer must not hold the change up.
const FRESH: Duration = Duration::from_secs(2);
/// For how long the leader is asked.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How often a member tells by itself how far it is, as who leads may have forgotten.
const REMIND: Duration = Duration::from_secs(5);

/// A rotation. A later one has a higher number; chance tells two apart that have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    /// Its number, from 1.
    pub number: u64,
    /// Chance.
    pub tag: u64,
}

/// What has to be kept.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyState {
    /// The rotation that ended last.
    pub last: Id,
    /// The key that this host seals with.
    pub sealing: Key,
    /// Another one that it accepts.
    pub accepted: Option<Key>,
    /// The rotation that is under way, and how far it is: accepted or using.
    pub rotation: Option<(Id, Stage)>,
    /// There were others in it, so a host that sees nobody decides nothing.
    pub others: bool,
}

impl fmt::Debug for KeyState {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { last, rotation, .. } = self;
        // In short: this is logged, and keys must not be.
        let (sealing, accepted) = (short(&self.sealing), self.accepted.as_ref().map(short));
        write!(to, "Kept {{ {last:?}, {sealing:04x}, {accepted:04x?}, {rotation:?} }}")
    }
}

impl KeyState {
    /// That of a host that has only the keys of its file.
    pub fn new((sealing, accepted): (Key, Option<Key>)) -> Self {
        Self { last: Id::default(), sealing, accepted, rotation: None, others: false }
    }

    /// The keys for the link.
    pub fn ring(&self) -> wire::KeyRing {
        wire::KeyRing::from_bytes((self.sealing, self.accepted))
    }

    /// The latest rotation that this host knows of, and how far it is.
    fn state(&self) -> (Id, Stage) {
        self.rotation.unwrap_or((self.last, Stage::Forgotten))
    }

    /// The new key of the latest rotation.
    const fn key(&self) -> Key {
        match (self.rotation, self.accepted) {
            (Some((_, Stage::Accepted)), Some(accepted)) => accepted,
            _ => self.sealing,
        }
    }
}

/// A key in short, as frames name it. It says nothing about the key.
pub fn short(key: &Key) -> u16 {
    wire::Key::new(*key).short()
}

/// Why there can be no rotation now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is one.
    #[error("a rotation is under way")]
    Underway,
    /// The operator is changing keys.
    #[error("the key file has two keys")]
    TwoKeys,
}

/// How things stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The number of the rotation that is under way, or of the last one; 0 if there never was one.
    pub number: u64,
    /// How far this host is.
    pub stage: Stage,
    /// The key that it seals with, in short.
    pub sealing: u16,
    /// The other key that it accepts, in short.
    pub accepted: Option<u16>,
    /// Who leads.
    pub leader: HostId,
    /// Members that are not as far as the leader wants them to be, as far as the leader knows; none elsewhere.
    pub waiting: Vec<HostId>,
    /// Somebody was lost a short while ago, and may be back soon: nothing is decided without it.
    pub lost: bool,
}

/// What has to be said to whom.
pub type Messages = Vec<(HostId, Vec<u8>)>;

/// A host's part in changing keys. Time is an argument; what it has kept has to be durable before anything that
/// [`Self::poll`] returns is sent.
#[derive(Debug)]
pub struct Rotation {
    kept: KeyState,
    members: Members,
    /// The leader has been seeing all members use the new key since then.
    used: Option<Moment>,
    /// Whom this host has told how far it is since it leads, and which run of it.
    reported: Option<(HostId, u64)>,
    /// It is to be asked for a rotation until then.
    asks: Option<Moment>,
    /// Somebody has asked this host for one.
    wanted: bool,
    due: Moment,
    remind: Moment,
    messages: Messages,
    errors: u64,
}

impl Rotation {
    /// A host that goes on from what it has kept, and sees nobody yet.
    pub fn new(now: Moment, me: HostId, kept: KeyState) -> Self {
        Self {
            // Who was a member before this start may not have been seen yet.
            members: Members::new(me, kept.rotation.map(|_| now)),
            kept,
            used: None,
            reported: None,
            asks: None,
            wanted: false,
            due: now,
            remind: now,
            messages: Vec::new(),
            errors: 0,
        }
    }

    /// What has to be kept.
    pub const fn kept(&self) -> &KeyState {
        &self.kept
    }

    /// What made no sense.
    pub const fn errors(&self) -> u64 {
        self.errors
    }

    /// How things stand.
    pub fn status(&self, now: Moment) -> Status {
        let (id, stage) = self.kept.state();
        let behind =
            |told: Option<&PeerStage>| told.is_none_or(|told| (told.id, told.stage) < (id, stage));
        Status {
            number: id.number,
            stage,
            sealing: short(&self.kept.sealing),
            accepted: self.kept.accepted.as_ref().map(short),
            leader: self.members.leader(),
            waiting: match self.members.leads() && id.number > 0 {
                true => self.members.those(behind),
                false => Vec::new(),
            },
            lost: self.members.is_lost(now) || self.is_left_alone(),
        }
    }

    /// The members that are there are these, and which run of each.
    pub fn set_members(&mut self, now: Moment, members: BTreeMap<HostId, u64>) {
        if self.members.set(now, members) {
            self.kept.others |= self.kept.rotation.is_some() && !self.members.others.is_empty();
            // At once: another host may lead now, and know nothing of this rotation.
            (self.due, self.remind) = (now, now);
        }
    }

    /// Whether there can be a rotation now.
    ///
    /// # Errors
    /// Why not.
    pub const fn check(&self) -> Result<(), Refusal> {
        match (self.kept.rotation, self.kept.accepted) {
            (Some(_), _) => Err(Refusal::Underway),
            (None, Some(_)) => Err(Refusal::TwoKeys),
            (None, None) => Ok(()),
        }
    }

    /// The operator wants another key: the leader is to make one.
    ///
    /// # Errors
    /// Why there can be none now.
    pub fn ask(&mut self, now: Moment) -> Result<(), Refusal> {
        self.check()?;
        // One host makes the key, or two operators at once would make two.
        match self.members.leads() {
            true => self.wanted = true,
            false => (self.asks, self.due) = (Some(now.after(TIMEOUT)), now),
        }
        Ok(())
    }

    /// Whether [`Self::begin`] is to be called.
    pub const fn wants_key(&self) -> bool {
        self.wanted
    }

    /// Begins a rotation to a new random key; `tag` is another random number. Nothing happens where there is
    /// one.
    pub fn begin(&mut self, now: Moment, key: Key, tag: u64) {
        self.wanted = false;
        // Asked again: since the key was asked for, a rotation or another leader may have come.
        if self.check().is_ok() && self.members.leads() {
            let id = Id { number: self.kept.last.number + 1, tag };
            self.kept.accepted = Some(key);
            self.enter(now, id, Stage::Accepted);
        }
    }

    fn enter(&mut self, now: Moment, id: Id, stage: Stage) {
        self.kept.others |= !self.members.others.is_empty();
        self.kept.rotation = Some((id, stage));
        (self.used, self.asks, self.due) = (None, None, now);
    }

    /// Seals with the new key from now on.
    fn switch(&mut self, now: Moment, id: Id) {
        if let Some(new) = self.kept.accepted {
            self.kept.accepted = Some(std::mem::replace(&mut self.kept.sealing, new));
        }
        self.enter(now, id, Stage::Using);
    }

    /// Forgets the old key.
    fn finish(&mut self, now: Moment, id: Id) {
        (self.kept.accepted, self.kept.others) = (None, false);
        (self.kept.rotation, self.kept.last) = (None, id);
        (self.used, self.due) = (None, now);
    }

    /// A frame has come that was sealed with the accepted key, which is this one in short.
    pub fn heard(&mut self, now: Moment, accepted: u16) {
        if let (Some((id, Stage::Accepted)), Some(new)) = (self.kept.rotation, self.kept.accepted)
            && short(&new) == accepted
        {
            // Somebody seals with it, so the leader has decided: no message of the leader is needed.
            self.switch(now, id);
        }
    }

    /// What another host has said.
    pub fn receive(&mut self, now: Moment, from: HostId, bytes: &[u8]) {
        match Message::read(bytes) {
            Ok(Message { kind: Kind::Ask, id, .. }) => {
                // One that comes late was for a rotation that has been. Who came after the last one knows of none.
                let timely = id >= self.kept.last || id == Id::default();
                self.wanted |= self.members.leads() && timely && self.check().is_ok();
            }
            Ok(message) if message.kind == Kind::PeerStage => {
                self.handle_stage(now, from, &message);
            }
            Ok(message) if message.id.number == 0 => self.errors += 1,
            Ok(command) => self.handle_command(now, from, &command),
            Err(_) => self.errors += 1,
        }
    }

    /// Who leads wants this host to be as far.
    fn handle_command(&mut self, now: Moment, from: HostId, order: &Message) {
        let Message { id, stage, key, .. } = *order;
        let leader = from == self.members.leader();
        match self.kept.rotation {
            Some((mine, at)) if mine == id => self.go(now, id, at, stage),
            // It has been decided, or whoever offers another one does not lead.
            Some((mine, at)) if id > mine && at == Stage::Accepted && leader => {
                self.kept.accepted = Some(key);
                self.enter(now, id, Stage::Accepted);
                self.go(now, id, Stage::Accepted, stage);
            }
            None if id > self.kept.last && leader => self.take(now, id, stage, key),
            _ => {}
        }
        // Also where nothing has changed: the answer before may be lost.
        self.send(from, Kind::PeerStage);
    }

    /// Takes part in a rotation that this host did not know of.
    fn take(&mut self, now: Moment, id: Id, stage: Stage, key: Key) {
        let at = if key == self.kept.sealing {
            // The operator has given it the new key.
            Stage::Using
        } else if self.kept.accepted.is_none_or(|accepted| accepted == key) {
            self.kept.accepted = Some(key);
            Stage::Accepted
        } else {
            // A third key has no place: dropping one of the two could cut off who seals with it.
            return;
        };
        self.enter(now, id, at);
        self.go(now, id, at, stage);
    }

    fn go(&mut self, now: Moment, id: Id, at: Stage, to: Stage) {
        if at == Stage::Accepted && to >= Stage::Using {
            self.switch(now, id);
        }
        if to == Stage::Forgotten {
            self.finish(now, id);
        }
    }

    /// A member has told how far it is.
    fn handle_stage(&mut self, now: Moment, from: HostId, told: &Message) {
        let Message { id, stage, view, key, .. } = *told;
        if !self.members.tell(from, PeerStage { id, stage, view, at: now }) {
            return;
        }
        let (mine, at) = self.kept.state();
        if id == self.kept.last && stage < Stage::Forgotten {
            // It was away when all others were told that this has ended; there may be another one by now.
            let message = Message { kind: Kind::Command, stage: Stage::Forgotten, ..*told };
            self.messages.push((from, message.bytes()));
        }
        if !self.members.leads() || id < mine {
            return;
        }
        if id == mine {
            if at > stage && at != Stage::Forgotten {
                // It may have missed what all others were told.
                self.send(from, Kind::Command);
            }
            return;
        }
        match (self.kept.rotation, stage) {
            // A rotation that this host was not there for.
            (None, Stage::Forgotten) if key == self.kept.sealing => self.kept.last = id,
            (None, Stage::Accepted | Stage::Using) => self.take(now, id, Stage::Accepted, key),
            // Others have an older one, which cannot have been decided, or had one: this one comes after it.
            (Some((own, Stage::Accepted)), Stage::Accepted | Stage::Forgotten) => {
                let id = Id { number: id.number + 1, tag: own.tag };
                self.enter(now, id, Stage::Accepted);
            }
            _ => {}
        }
    }

    fn send(&mut self, to: HostId, kind: Kind) {
        let (id, stage) = self.kept.state();
        let message = Message { kind, id, stage, view: self.members.view, key: self.kept.key() };
        self.messages.push((to, message.bytes()));
    }

    /// Does what is due. What is kept has to be durable, and the link has to have its ring, before these are
    /// sent.
    pub fn poll(&mut self, now: Moment) -> Messages {
        if self.members.leads() {
            self.lead(now);
        }
        if now >= self.due {
            self.due = now.after(EVERY);
            self.repeat(now);
        }
        std::mem::take(&mut self.messages)
    }

    /// When something is due.
    pub const fn next(&self) -> Moment {
        self.due
    }

    fn is_left_alone(&self) -> bool {
        self.kept.others && self.members.others.is_empty()
    }

    /// The leader goes on where all are as far.
    fn lead(&mut self, now: Moment) {
        let Some((id, stage)) = self.kept.rotation else { return };
        let members = &self.members;
        match stage {
            Stage::Accepted => {
                let all = members.are(now, id, Stage::Accepted, true);
                let decides = all && !members.is_lost(now) && !self.is_left_alone();
                // Who uses it proves that a former leader has decided: this one must follow and not judge anew.
                if decides || members.any_uses(id) {
                    self.switch(now, id);
                }
            }
            Stage::Using if members.are(now, id, Stage::Using, false) => {
                // Frames sealed with the old key may be on their way, or in a socket buffer.
                let since = *self.used.get_or_insert(now);
                if now.since(since) >= ACCEPTED {
                    self.finish(now, id);
                }
            }
            // Who is new and behind begins the ten seconds anew: what it sealed before may be on its way.
            Stage::Using | Stage::Forgotten => self.used = None,
        }
    }

    fn repeat(&mut self, now: Moment) {
        let leader = self.members.leader();
        if leader != self.members.me {
            match self.asks {
                Some(until) if now < until => self.send(leader, Kind::Ask),
                _ => self.asks = None,
            }
            // A leader that is new here may not know of the last rotation; one that was away, of this one.
            let run = self.members.others.get(&leader).map(|run| (leader, *run));
            let new = run != self.reported && self.kept.state().0.number > 0;
            if new || self.kept.rotation.is_some() && now >= self.remind {
                (self.remind, self.reported) = (now.after(REMIND), run);
                self.send(leader, Kind::PeerStage);
            }
            return;
        }
        if self.asks.take().is_some() {
            // Who was asked is gone, and this host leads now.
            self.wanted = self.check().is_ok();
        }
        let (id, stage) = self.kept.state();
        if id.number == 0 {
            return;
        }
        let behind = |told: Option<&PeerStage>| match (self.kept.rotation, told) {
            // All are asked again and again: it is decided by answers that are fresh.
            (Some((_, Stage::Accepted)), _) => true,
            (_, Some(told)) => told.id == id && told.stage < stage,
            // Once it has ended, who is there since then tells by itself if there is something to be done.
            (rotation, None) => rotation.is_some(),
        };
        let hosts = self.members.those(behind);
        hosts.into_iter().for_each(|host| self.send(host, Kind::Command));
    }
}

#[cfg(test)]
mod tests;
