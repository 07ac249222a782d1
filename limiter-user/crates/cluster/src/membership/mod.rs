//! Who belongs to the cluster, and who is there: SWIM by foca, without socket and clock.
//!
//! A member is known by its address for foca, and by its name for everybody else. Two hosts that were
//! given one name are two members for foca, so they are noticed: the one that has run for longer keeps the
//! name, the other one is not listened to until the first one is gone. A host that comes back under its
//! name at another address waits in the same way until its former self is found to be dead.

mod codec;
mod identity;
mod roster;
mod timing;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::time::Duration;

use foca::{Foca, Member, NoCustomBroadcast, Notification, OwnedNotification, State, Timer};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use self::codec::IdentityCodec;
pub use self::identity::{Identity, MAX_NAME_LEN, MAX_REGION_LEN, MAX_WEIGHT};
use self::roster::{Message, Roster};
use super::wire::bytes::Reader;
use super::{HostId, Moment};

/// What is said begins with who says it.
const FOCA: u8 = 0;
const ROSTER: u8 = 1;

/// How often suspicions are looked at, and how old one may become. Whoever suspects somebody ends that by
/// itself, unless it has to renew itself meanwhile; then nobody would.
const SWEEP: Duration = Duration::from_secs(1);
const SUSPECTED: Duration = Duration::from_secs(5);

/// Events that are kept until somebody asks for them.
const MAX_EVENTS: usize = 4096;

/// The members of a cluster that are there, by their names.
pub type Members = BTreeMap<HostId, Identity>;

/// Something has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody is there.
    Up(Identity),
    /// Somebody is not there any more: it left, or it has not answered.
    Down(Identity),
    /// Somebody was started again, or has another weight.
    Changed(Identity),
    /// Two hosts have one name.
    Conflict {
        /// The one that has had it for longer.
        kept: Identity,
        /// The one that is not listened to.
        refused: Identity,
    },
}

/// What foca wants.
#[derive(Debug, Default)]
struct Effects {
    sent: Vec<(Identity, Vec<u8>)>,
    timers: Vec<(Duration, Timer<Identity>)>,
    notes: Vec<OwnedNotification<Identity>>,
}

impl foca::Runtime<Identity> for Effects {
    fn notify(&mut self, notification: Notification<'_, Identity>) {
        self.notes.push(notification.to_owned());
    }

    fn send_to(&mut self, to: Identity, data: &[u8]) {
        let mut bytes = Vec::with_capacity(1 + data.len());
        bytes.push(FOCA);
        bytes.extend_from_slice(data);
        self.sent.push((to, bytes));
    }

    fn submit_after(&mut self, event: Timer<Identity>, after: Duration) {
        self.timers.push((after, event));
    }
}

type Swim = Foca<Identity, IdentityCodec, SmallRng, NoCustomBroadcast>;

/// What one host knows of the members.
pub struct Membership {
    /// `None` once this host has left.
    swim: Option<Swim>,
    me: Identity,
    effects: Effects,
    timers: BTreeMap<(Moment, u64), Timer<Identity>>,
    submitted: u64,
    /// Others that are there.
    alive: BTreeMap<SocketAddr, Identity>,
    named: BTreeMap<HostId, BTreeSet<SocketAddr>>,
    /// Of all that are there, whatever their order.
    hash: u64,
    members: Arc<Members>,
    refused: BTreeMap<HostId, Identity>,
    roster: Roster,
    /// Who is suspected, in which incarnation and since when, as of the latest sweep.
    suspects: BTreeMap<SocketAddr, (Member<Identity>, Moment)>,
    sweep: Moment,
    /// The number of members that foca is configured for.
    sized_for: usize,
    random: SmallRng,
    outgoing: VecDeque<(Identity, Vec<u8>)>,
    events: VecDeque<Event>,
    errors: u64,
}

impl Membership {
    /// A host that knows nobody. `seed` is for what is left to chance.
    pub fn new(now: Moment, me: Identity, seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed ^ me.hash());
        let swim = Foca::new(
            me.clone(),
            timing::config(1),
            SmallRng::seed_from_u64(random.random()),
            IdentityCodec,
        );
        Self {
            swim: Some(swim),
            hash: me.hash(),
            members: Arc::new(BTreeMap::from([(me.host(), me.clone())])),
            me,
            effects: Effects::default(),
            timers: BTreeMap::new(),
            submitted: 0,
            alive: BTreeMap::new(),
            named: BTreeMap::new(),
            refused: BTreeMap::new(),
            roster: Roster::new(now, random.random()),
            suspects: BTreeMap::new(),
            sweep: now.after(SWEEP),
            sized_for: 1,
            random,
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
            errors: 0,
        }
    }

    /// This host.
    pub const fn me(&self) -> &Identity {
        &self.me
    }

    /// All that are there, this host included; of two that have one name the one that keeps it.
    pub const fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// Those that are there but not listened to, since another host has had their name for longer.
    pub const fn refused(&self) -> &BTreeMap<HostId, Identity> {
        &self.refused
    }

    /// Whether somebody listens at this address.
    pub fn is_alive_at(&self, address: SocketAddr) -> bool {
        address == self.me.address || self.alive.contains_key(&address)
    }

    /// Sayings that made no sense or came at the wrong time.
    pub const fn errors(&self) -> u64 {
        self.errors
    }

    /// Somebody has said who it is, just now: asks it to let this host in.
    pub fn meet(&mut self, now: Moment, somebody: Identity) {
        // Greetings come every few seconds; an announcement to a known member would ask for a list of all again.
        if somebody.address == self.me.address
            || self.alive.get(&somebody.address) == Some(&somebody)
        {
            return;
        }
        self.drive(now, |swim, effects| swim.announce(somebody, effects));
    }

    /// What a member has said.
    pub fn receive(&mut self, now: Moment, from: HostId, bytes: &[u8]) {
        let mut reader = Reader::new(bytes);
        match reader.u8() {
            Ok(FOCA) => self.drive(now, |swim, effects| swim.handle_data(reader.rest(), effects)),
            Ok(ROSTER) => match Message::read(reader) {
                Ok(saying) => self.hear(now, from, saying),
                Err(_) => self.errors += 1,
            },
            _ => self.errors += 1,
        }
    }

    /// Does what is due.
    pub fn poll(&mut self, now: Moment) {
        while let Some(entry) = self.timers.first_entry()
            && entry.key().0 <= now
        {
            let timer = entry.remove();
            self.drive(now, |swim, effects| swim.handle_timer(timer, effects));
        }
        if now >= self.sweep {
            self.sweep = now.after(SWEEP);
            self.sweep_suspects(now);
        }
        if self.swim.is_none() {
            return;
        }
        let (alive, random) = (&self.alive, &mut self.random);
        let pick = || {
            // From a random one on, so that it costs little with a thousand members.
            let start = alive.values().nth(random.random_range(0..alive.len().max(1)));
            start.cloned()
        };
        if let Some(asked) = self.roster.poll(now, self.hash, pick) {
            self.say(asked);
        }
    }

    /// When something is due.
    pub fn next(&self) -> Moment {
        let timer = self.timers.first_key_value().map(|((moment, _), _)| *moment);
        let own = self.roster.next().min(self.sweep);
        timer.map_or(own, |moment| moment.min(own))
    }

    /// Tells the others that this host goes. Nothing is said afterwards.
    pub fn leave(&mut self, now: Moment) {
        let Some(mut swim) = self.swim.take() else { return };
        self.errors += u64::from(swim.leave_cluster(&mut self.effects).is_err());
        self.settle(now);
    }

    /// Tells all that this host has another weight.
    pub fn set_weight(&mut self, now: Moment, weight: u32) {
        let mut changed = self.me.clone();
        changed.weight = weight.clamp(1, MAX_WEIGHT);
        // foca takes an identity as changed only if it wins against the one before.
        changed.renewal = changed.renewal.saturating_add(1);
        if changed.weight != self.me.weight {
            self.become_me(changed.clone());
            self.drive(now, |swim, effects| swim.change_identity(changed, effects));
        }
    }

    /// Members that somebody suspects to be gone, as of the latest look at them.
    pub fn suspects(&self) -> BTreeSet<HostId> {
        self.suspects.values().map(|(member, _)| member.id().host()).collect()
    }

    /// The next thing to be sent, and to whom.
    pub fn outgoing(&mut self) -> Option<(Identity, Vec<u8>)> {
        self.outgoing.pop_front()
    }

    /// The next thing that has happened.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Ends suspicions that nobody else ends.
    fn sweep_suspects(&mut self, now: Moment) {
        let Some(swim) = &self.swim else { return };
        let (mut suspects, mut down) = (BTreeMap::new(), Vec::new());
        for member in swim.iter_membership_state() {
            if member.state() != State::Suspect {
                continue;
            }
            let before = self.suspects.get(&member.id().address);
            let since =
                before.filter(|(before, _)| before == member).map_or(now, |(_, since)| *since);
            if now.since(since) < SUSPECTED {
                suspects.insert(member.id().address, (member.clone(), since));
            } else {
                down.push(Member::new(member.id().clone(), member.incarnation(), State::Down));
            }
        }
        self.suspects = suspects;
        if !down.is_empty() {
            self.drive(now, |swim, effects| swim.apply_many(down.into_iter(), true, effects));
        }
    }

    fn drive(
        &mut self,
        now: Moment,
        act: impl FnOnce(&mut Swim, &mut Effects) -> Result<(), foca::Error>,
    ) {
        let Some(swim) = &mut self.swim else { return };
        self.errors += u64::from(act(swim, &mut self.effects).is_err());
        self.settle(now);
    }

    /// Takes over what foca wants and has found.
    fn settle(&mut self, now: Moment) {
        self.outgoing.extend(self.effects.sent.drain(..));
        for (after, timer) in self.effects.timers.drain(..) {
            self.submitted += 1;
            self.timers.insert((now.after(after), self.submitted), timer);
        }
        for note in std::mem::take(&mut self.effects.notes) {
            match note {
                OwnedNotification::MemberUp(member) => self.put(now, member),
                OwnedNotification::MemberDown(member) => self.remove(now, &member),
                OwnedNotification::Rename(before, after) => {
                    // It may have gone down under its former identity: `MemberUp` tells if it comes back.
                    if self.alive.contains_key(&before.address) {
                        self.put(now, after);
                    }
                }
                OwnedNotification::Rejoin(me) => self.become_me(me),
                OwnedNotification::Active
                | OwnedNotification::Idle
                | OwnedNotification::Defunct => {}
            }
        }
        let count = self.alive.len() + 1;
        // Twice as many, or half.
        if count >= 2 * self.sized_for || 2 * count <= self.sized_for {
            self.sized_for = count;
            if let Some(swim) = &mut self.swim {
                self.errors += u64::from(swim.set_config(timing::config(count)).is_err());
            }
        }
    }

    fn become_me(&mut self, me: Identity) {
        self.hash ^= self.me.hash() ^ me.hash();
        self.me = me;
        self.name(self.me.host());
    }

    fn put(&mut self, now: Moment, member: Identity) {
        self.hash ^= member.hash();
        self.named.entry(member.host()).or_default().insert(member.address);
        let host = member.host();
        if let Some(before) = self.alive.insert(member.address, member) {
            self.hash ^= before.hash();
            if before.host() != host {
                self.unname(&before);
            }
        }
        self.roster.changed(now);
        self.name(host);
    }

    fn remove(&mut self, now: Moment, member: &Identity) {
        if let Some(member) = self.alive.remove(&member.address) {
            self.hash ^= member.hash();
            self.unname(&member);
            self.roster.changed(now);
        }
    }

    fn unname(&mut self, member: &Identity) {
        if let Some(addresses) = self.named.get_mut(&member.host()) {
            addresses.remove(&member.address);
            if addresses.is_empty() {
                self.named.remove(&member.host());
            }
        }
        self.name(member.host());
    }

    /// Decides anew who has a name.
    fn name(&mut self, host: HostId) {
        let addresses = self.named.get(&host).into_iter().flatten();
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
        self.tell(event);
        match (kept, refused) {
            (Some(kept), Some(refused)) => {
                if self.refused.get(&host) != Some(&refused) {
                    self.refused.insert(host, refused.clone());
                    self.tell(Some(Event::Conflict { kept, refused }));
                }
            }
            _ => drop(self.refused.remove(&host)),
        }
    }

    fn tell(&mut self, event: Option<Event>) {
        // Members can be asked for at any time: the oldest event is the one that is needed least.
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.extend(event);
    }

    fn say(&mut self, (to, saying): (Identity, Message)) {
        let mut bytes = vec![ROSTER];
        saying.write(&mut bytes);
        self.outgoing.push_back((to, bytes));
    }

    fn hear(&mut self, now: Moment, from: HostId, saying: Message) {
        match saying {
            Message::Pull { ticket, hash, after } => {
                // Only members are answered: what goes out goes where they listen.
                let Some(asking) = self.members.get(&from).cloned() else { return };
                let page = if hash == self.hash {
                    Message::page(ticket, std::iter::empty())
                } else {
                    let start = after.map_or(Unbounded, Excluded);
                    let me = after.is_none().then_some(&self.me);
                    let others = self.alive.range((start, Unbounded)).map(|(_, member)| member);
                    Message::page(ticket, me.into_iter().chain(others))
                };
                self.say((asking, page));
            }
            Message::Page { ticket, more, members } => {
                // Members that nobody asked for would be a way to fill this host's list.
                if !self.roster.awaits(ticket) {
                    return;
                }
                let last = members.last().map(|member| member.address).filter(|_| more);
                let me = self.me.address;
                let members = members.into_iter().filter(|member| member.address != me);
                let members: Vec<_> = members.map(Member::alive).collect();
                self.drive(now, |swim, effects| {
                    swim.apply_many(members.into_iter(), false, effects)
                });
                if let Some(asked) = self.roster.answered(now, self.hash, last) {
                    self.say(asked);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
