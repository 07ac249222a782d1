//! Who belongs to the cluster, and who is there: SWIM by foca, without socket and clock.
//!
//! A member is known by its address for foca, and by its ledger for everybody else. Two hosts with copies of
//! one ledger are two members for foca, so they are noticed: the one that has run for longer is listened to, the
//! other one is not until the first one is gone. A host that comes back at another address waits in the same way
//! until its former self is found to be dead. Names are for operators: two members may have one.

mod codec;
mod directory;
mod identity;
mod roster;
mod timing;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use foca::{Foca, Member, NoCustomBroadcast, Notification, OwnedNotification, State, Timer};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use self::codec::IdentityCodec;
use self::directory::Directory;
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

/// The members of a cluster that are there, by their ledgers.
pub type Members = BTreeMap<HostId, Identity>;

/// What operators call a host: its name, with its address where another member has the same, or its number where it is
/// not there.
pub fn called(members: &Members, host: HostId) -> String {
    let Some(member) = members.get(&host) else { return format!("{:016x}", host.0) };
    let name = member.name();
    if members.values().filter(|other| other.name() == name).count() > 1 {
        format!("{name} at {}", member.address)
    } else {
        name.to_owned()
    }
}

/// Something has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody is there.
    Up(Identity),
    /// Somebody is not there any more: it left, or it has not answered.
    Down(Identity),
    /// Somebody was started again, has another weight, or is back before it was given up.
    Changed(Identity),
    /// Two hosts have copies of one ledger.
    Conflict {
        /// The one that has run for longer.
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

/// What one host knows of the members: it finds out with foca who is there, and enters that into the directory.
pub struct Membership {
    /// `None` once this host has left.
    swim: Option<Swim>,
    directory: Directory,
    effects: Effects,
    timers: BTreeMap<(Moment, u64), Timer<Identity>>,
    submitted: u64,
    roster: Roster,
    /// Who is suspected, in which incarnation and since when, as of the latest sweep.
    suspects: BTreeMap<SocketAddr, (Member<Identity>, Moment)>,
    sweep: Moment,
    /// The number of members that foca is configured for.
    sized_for: usize,
    random: SmallRng,
    outgoing: VecDeque<(Identity, Vec<u8>)>,
    errors: u64,
}

impl Membership {
    /// A host that knows nobody. `seed` is for what is left to chance.
    pub fn new(now: Moment, me: Identity, seed: u64) -> Self {
        // By its identity as well: hosts with one seed would probe each other in step.
        let mut random = SmallRng::seed_from_u64(seed ^ me.hash());
        let swim = Foca::new(
            me.clone(),
            timing::config(1),
            SmallRng::seed_from_u64(random.random()),
            IdentityCodec,
        );
        Self {
            swim: Some(swim),
            directory: Directory::new(me),
            effects: Effects::default(),
            timers: BTreeMap::new(),
            submitted: 0,
            roster: Roster::new(now, random.random()),
            suspects: BTreeMap::new(),
            sweep: now.after(SWEEP),
            sized_for: 1,
            random,
            outgoing: VecDeque::new(),
            errors: 0,
        }
    }

    /// This host.
    pub const fn me(&self) -> &Identity {
        &self.directory.me
    }

    /// All that are there, this host included; of two with one ledger the one that is listened to.
    pub const fn members(&self) -> &Arc<Members> {
        &self.directory.members
    }

    /// Those that are there but not listened to, since another host has their ledger and has run for longer.
    pub const fn refused(&self) -> &BTreeMap<HostId, Identity> {
        &self.directory.refused
    }

    /// Whether somebody listens at this address.
    pub fn is_alive_at(&self, address: SocketAddr) -> bool {
        address == self.me().address || self.directory.alive.contains_key(&address)
    }

    /// Sayings that made no sense or came at the wrong time.
    pub const fn errors(&self) -> u64 {
        self.errors
    }

    /// Somebody has said who it is, just now: asks it to let this host in.
    pub fn add_peer(&mut self, now: Moment, somebody: Identity) {
        // Greetings come every few seconds; an announcement to a known member would ask for a list of all again.
        if somebody.address == self.me().address
            || self.directory.alive.get(&somebody.address) == Some(&somebody)
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
                Ok(message) => self.handle_message(now, from, message),
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
        let (alive, random) = (&self.directory.alive, &mut self.random);
        let pick = || {
            // From a random one on, so that it costs little with a thousand members.
            let start = alive.values().nth(random.random_range(0..alive.len().max(1)));
            start.cloned()
        };
        if let Some(asked) = self.roster.poll(now, self.directory.hash, pick) {
            self.send(asked);
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
        let mut changed = self.me().clone();
        changed.weight = weight.clamp(1, MAX_WEIGHT);
        // foca takes an identity as changed only if it wins against the one before.
        changed.renewal = changed.renewal.saturating_add(1);
        if changed.weight != self.me().weight {
            self.directory.set_me(changed.clone());
            self.drive(now, |swim, effects| swim.change_identity(changed, effects));
        }
    }

    /// Members that somebody suspects to be gone, as of the latest look at them.
    pub fn suspects(&self) -> BTreeSet<HostId> {
        let suspects = self.suspects.iter().map(|(address, (member, _))| (address, member.id()));
        // A host that was started again since that look has a new identity, which nobody has suspected yet.
        let present = suspects
            .filter(|(address, suspect)| self.directory.alive.get(address) == Some(suspect));
        present.map(|(_, suspect)| suspect.host()).collect()
    }

    /// The next thing to be sent, and to whom.
    pub fn outgoing(&mut self) -> Option<(Identity, Vec<u8>)> {
        self.outgoing.pop_front()
    }

    /// The next thing that has happened.
    pub fn event(&mut self) -> Option<Event> {
        self.directory.events.pop_front()
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
                // By its incarnation, too: a later one has refuted the suspicion that was there before.
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
            // A number beside the moment: two timers that are due together must not replace each other.
            self.submitted += 1;
            self.timers.insert((now.after(after), self.submitted), timer);
        }
        for note in std::mem::take(&mut self.effects.notes) {
            match note {
                OwnedNotification::MemberUp(member) => self.put(now, member),
                OwnedNotification::MemberDown(member) => {
                    if self.directory.remove(&member) {
                        self.roster.changed(now);
                    }
                }
                OwnedNotification::Rename(before, after) => {
                    // It may have gone down under its former identity: `MemberUp` tells if it comes back.
                    if self.directory.alive.contains_key(&before.address) {
                        self.put(now, after);
                    }
                }
                OwnedNotification::Rejoin(me) => self.directory.set_me(me),
                OwnedNotification::Active
                | OwnedNotification::Idle
                | OwnedNotification::Defunct => {}
            }
        }
        let count = self.directory.alive.len() + 1;
        // Twice as many, or half.
        if count >= 2 * self.sized_for || 2 * count <= self.sized_for {
            // Not with every change: foca would be set up anew for each host that comes and goes.
            self.sized_for = count;
            if let Some(swim) = &mut self.swim {
                self.errors += u64::from(swim.set_config(timing::config(count)).is_err());
            }
        }
    }

    fn put(&mut self, now: Moment, member: Identity) {
        self.directory.put(member);
        self.roster.changed(now);
    }

    fn send(&mut self, (to, message): (Identity, Message)) {
        let mut bytes = vec![ROSTER];
        message.write(&mut bytes);
        self.outgoing.push_back((to, bytes));
    }

    fn handle_message(&mut self, now: Moment, from: HostId, message: Message) {
        match message {
            Message::Pull { ticket, hash, after } => {
                // Only members are answered: what goes out goes where they listen.
                let Some(asking) = self.members().get(&from).cloned() else { return };
                let page = if hash == self.directory.hash {
                    Message::page(ticket, std::iter::empty())
                } else {
                    Message::page(ticket, self.directory.after(after))
                };
                self.send((asking, page));
            }
            Message::Page { ticket, more, members } => {
                // Members that nobody asked for would be a way to fill this host's list.
                if !self.roster.awaits(ticket) {
                    return;
                }
                let last = members.last().map(|member| member.address).filter(|_| more);
                let me = self.me().address;
                let members = members.into_iter().filter(|member| member.address != me);
                let members: Vec<_> = members.map(Member::alive).collect();
                self.drive(now, |swim, effects| {
                    swim.apply_many(members.into_iter(), false, effects)
                });
                if let Some(asked) = self.roster.answered(now, self.directory.hash, last) {
                    self.send(asked);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
