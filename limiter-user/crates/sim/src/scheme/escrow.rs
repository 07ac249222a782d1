//! The escrow, as the daemon runs it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Actions, Birth, Disk, Payload, Sample, Scheme};
use cluster::escrow::{Era, Escrow, Member, Partition, PersistentState, Planted, Region, Settings};
use cluster::wire::{Content, Packet};
use cluster::{HostId, KeyId, Message, Moment};
use model::Share;

#[derive(Clone, Debug)]
pub(in super::super) struct EscrowHost {
    settings: Settings,
    escrow: Escrow,
    ledger: Ledger,
    /// The latest to each host: it says all that earlier ones would have said.
    messages: BTreeMap<HostId, Message>,
    /// The floor that the kernel has at the most, and the one that it is to have.
    floors: (Share, Option<Share>),
    policy: Partition,
    /// All hosts are told to be in one region.
    flat: bool,
    /// Sources that are tracked no more: the kernel is told before anybody else hears of it.
    forgotten: Vec<KeyId>,
    /// Sources that are tracked, in the order in which they came, and how many there is room for.
    tracked: Vec<KeyId>,
    room: usize,
    /// Sources that there is no room for.
    untracked: BTreeSet<KeyId>,
}

/// How soon is tried again to write to a disk that is full.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// What is kept, and the disk that it is kept on.
#[derive(Clone, Debug, Default)]
struct Ledger {
    disk: Disk,
    durable: PersistentState,
    /// What is being written, and when it is durable.
    writing: Option<(Moment, PersistentState)>,
    /// What is kept has changed since.
    keep: bool,
}

impl Ledger {
    /// Writes what is kept, if it is to be, and one write after the other. Whether all is durable.
    fn write(&mut self, now: Moment, keep: bool, kept: &PersistentState) -> bool {
        self.keep |= keep;
        if let Some((_, kept)) = self.writing.take_if(|(end, _)| *end <= now) {
            self.durable = kept;
        }
        if self.keep && self.writing.is_none() {
            self.keep = self.disk == Disk::Full;
            match self.disk {
                Disk::Good => self.durable = kept.clone(),
                Disk::Slow(by) => self.writing = Some((now.after(by), kept.clone())),
                Disk::Full => {}
            }
        }
        !self.keep && self.writing.is_none()
    }

    /// When it is to be looked at again.
    fn next(&self, now: Moment) -> Option<Moment> {
        let again = self.keep.then(|| now.after(RETRY_INTERVAL));
        self.writing.as_ref().map(|(end, _)| *end).or(again)
    }
}

impl EscrowHost {
    /// A host, with a fault if one is to be found.
    pub(in super::super) fn new(birth: Birth, planted: Option<Planted>) -> Self {
        let Birth { me, weight, region, one_of, seed, policy, home_lease, now, .. } = birth;
        let majority = policy.may_ask_majority();
        let mut settings =
            Settings { region, seed, planted, majority, ..Settings::new(me, weight) };
        settings.timing.home_lease = home_lease;
        // The beginning as if it had been founded long ago: what founding does is another scenario's business.
        let home = Share::WHOLE.times(1, one_of);
        let mut durable = PersistentState { home, ..PersistentState::default() };
        if one_of > 0 {
            durable.era = Era::first();
            durable.era.tally.hosts = one_of as u32;
        }
        Self {
            escrow: Escrow::new(settings.clone(), durable.clone(), now),
            settings,
            ledger: Ledger { durable, ..Ledger::default() },
            messages: BTreeMap::new(),
            floors: (Share::WHOLE, None),
            policy,
            flat: false,
            forgotten: Vec::new(),
            tracked: Vec::new(),
            room: usize::MAX,
            untracked: BTreeSet::new(),
        }
    }

    /// A host that knows of no regions.
    pub(in super::super) fn flat(birth: Birth) -> Self {
        Self { flat: true, ..Self::new(Birth { region: Region::default(), ..birth }, None) }
    }
}

impl Scheme for EscrowHost {
    fn members(&mut self, now: Moment, members: &BTreeMap<HostId, Member>) {
        if self.flat {
            let near = |member: &Member| Member { region: Region::default(), ..*member };
            let members = members.iter().map(|(host, member)| (*host, near(member))).collect();
            self.escrow.set_members(now, &members);
        } else {
            self.escrow.set_members(now, members);
        }
    }

    fn demand(&mut self, now: Moment, key: KeyId, sample: Sample) {
        // Who is tracked stays so, as in the daemon.
        if !self.tracked.contains(&key) {
            if self.tracked.len() >= self.room {
                self.untracked.insert(key);
                return;
            }
            self.untracked.remove(&key);
            self.tracked.push(key);
        }
        self.escrow.demand(now, key, sample.demand, sample.limited);
        // With each demand, as the daemon does: a limit's policy may change under a source.
        self.escrow.set_partition(key, self.policy);
    }

    fn forget(&mut self, key: KeyId) {
        self.escrow.forget(key);
        self.tracked.retain(|known| *known != key);
        self.untracked.remove(&key);
        self.forgotten.push(key);
    }

    fn receive(&mut self, now: Moment, from: HostId, message: &Payload) {
        // The real frames: what they round and what they leave out is a part of what happens.
        let Payload::Frame(content) = message else { return };
        if let Ok(Packet { content: Content::Shares(message), .. }) = Packet::decode(content) {
            self.escrow.receive(now, from, &message);
        }
    }

    fn poll(&mut self, now: Moment) -> Actions {
        let outputs = self.escrow.poll(now);
        // In the daemon's order: a crash after this step knows what was decided, one before it told nobody.
        let durable = self.ledger.write(now, outputs.keep, self.escrow.kept());
        let (told, wanted) = self.floors;
        let wanted = outputs.floor.or(wanted);
        // Who has less than it may have need not wait.
        let floor = wanted.filter(|floor| durable || *floor <= told);
        self.floors = (floor.unwrap_or(told), wanted.filter(|_| floor.is_none()));
        self.messages.extend(outputs.messages);
        let send = if durable { std::mem::take(&mut self.messages) } else { BTreeMap::new() };
        let payloads = send.into_iter().flat_map(|(host, message)| {
            let frames = Packet::encode_shares(None, &message);
            frames.into_iter().map(move |frame| (host, Payload::Frame(frame)))
        });
        let present = self.escrow.floor();
        // Before the grants: a key that came back in the meantime has its word from them.
        let forgotten = std::mem::take(&mut self.forgotten).into_iter();
        let grants = outputs.grants.iter().map(|grant| (grant.key, grant.share, grant.until));
        let own = self.escrow.share_of_untracked(now);
        let untracked = self.untracked.iter();
        let own = untracked.filter_map(|key| own.map(|(share, until)| (*key, share, until)));
        Actions {
            shares: forgotten.map(|key| (key, present, now)).chain(grants).chain(own).collect(),
            floor,
            debits: Vec::new(),
            messages: payloads.collect(),
            left: outputs.left && durable,
            next: self.ledger.next(now).map_or(outputs.next, |next| next.min(outputs.next)),
        }
    }

    fn kept(&self) -> PersistentState {
        self.ledger.durable.clone()
    }

    fn reports(&self, now: Moment, key: KeyId, host: HostId) -> String {
        let it = &self.escrow;
        let shares = (it.share_of(now, key), it.without_end(now), it.home_of(host));
        let counts = (it.count_grants(now), it.count_loans(now), it.counters());
        format!("{shares:?} {counts:?} {:?} {:?} {:?}", it.lost(now), it.home_lease(), it.doubts())
    }

    fn restart(&mut self, now: Moment, me: HostId, kept: PersistentState) {
        self.settings.me = me;
        self.forgotten.clear();
        self.tracked.clear();
        self.untracked.clear();
        self.messages.clear();
        self.floors = (Share::WHOLE, None);
        // From the disk alone: what was decided and not kept must not be remembered.
        self.escrow = Escrow::new(self.settings.clone(), kept.clone(), now);
        self.escrow.keep_half(self.room < usize::MAX);
        self.ledger = Ledger { disk: self.ledger.disk, durable: kept, ..Ledger::default() };
    }

    fn set_disk(&mut self, disk: Disk) {
        self.ledger.disk = disk;
    }

    fn set_policy(&mut self, policy: Partition) {
        self.policy = policy;
        if policy.may_ask_majority() {
            self.settings.majority = true;
            self.escrow.go_by_majority();
        }
    }

    fn set_room(&mut self, room: usize) {
        self.room = room;
        self.escrow.keep_half(room < usize::MAX);
        for key in self.tracked.split_off(room.min(self.tracked.len())) {
            self.forget(key);
            self.untracked.insert(key);
        }
    }

    fn leave(&mut self, now: Moment) {
        self.escrow.leave(now);
    }
}
