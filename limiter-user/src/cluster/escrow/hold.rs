//! The keys that this host tracks: what it asks for and what it was granted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::cluster::message::{Grant, Report};
use crate::cluster::{HostId, KeyId, Moment, Share};

use super::{Dirty, Escrow, MAX_HELD, Partition, Urgency};

/// Of how many owners grants of one key count: one, and those before it while the view changes.
const OWNERS: usize = 4;

/// Where more keys than this are tracked, one that nothing has changed of is reported every other round.
const MANY: usize = 64;

/// A grant that this host goes by.
#[derive(Clone, Copy, Debug)]
struct Taken {
    number: u32,
    share: Share,
    /// Its end.
    until: Moment,
    /// Until then a grant of a lower number could still come and be in force: its number is remembered (I5).
    memory: Moment,
}

/// A key that this host tracks.
#[derive(Clone, Debug, Default)]
pub(super) struct Key {
    demand: Share,
    limited: bool,
    /// Whether the host has told of it since it was last forgotten.
    tracked: bool,
    /// When it was told of last.
    seen: Moment,
    /// The demand that was reported last.
    told: Share,
    grants: BTreeMap<HostId, Taken>,
    /// What the kernel was told last.
    pub(super) word: Option<(Share, Moment)>,
    owner: Option<HostId>,
    partition: Partition,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) keys: BTreeMap<KeyId, Key>,
    /// To be reported before the next round.
    pub(super) dirty: Dirty,
    /// What may be used of them may have changed.
    pub(super) touched: Dirty,
    /// The kernel was told that the host uses its own right of them.
    pub(super) reclaimed: Dirty,
}

impl Held {
    /// Keys that it has a grant of.
    pub(super) fn granted(&self, now: Moment) -> usize {
        let lasts = |key: &&Key| key.grants.values().any(|taken| taken.until > now);
        self.keys.values().filter(lasts).count()
    }
}

impl Key {
    pub(super) fn tracked(&self) -> bool {
        self.tracked
    }

    fn idle(&self, floor: Share) -> bool {
        self.demand.is_none() || self.demand < floor.times(1, 2)
    }

    /// What is said of it to its owner.
    fn report(&mut self, now: Moment, key: KeyId, owner: HostId, floor: Share) -> Report {
        let demand = if self.idle(floor) { Share::NONE } else { self.demand };
        self.told = demand;
        let taken = self.grants.get(&owner).filter(|taken| taken.memory > now);
        let majority = self.partition == Partition::MajorityReclaim;
        Report { key, demand, in_use: taken.map_or(0, |taken| taken.number), majority }
    }

    /// Whether the owner must hear of it in each round.
    fn reported(&self, now: Moment, floor: Share) -> bool {
        let granted = |taken: &Taken| taken.until > now && !taken.share.is_none();
        !self.idle(floor) || self.grants.values().any(granted)
    }
}

impl Held {
    /// Takes what a source sends. None if there are too many keys.
    pub(super) fn demand(
        &mut self,
        now: Moment,
        key: KeyId,
        demand: Share,
        limited: bool,
        floor: Share,
    ) -> Option<Urgency> {
        if self.keys.len() >= MAX_HELD && !self.keys.contains_key(&key) {
            return None;
        }
        let held = self.keys.entry(key).or_default();
        if !held.tracked {
            held.tracked = true;
            self.touched.insert(key);
        }
        // What rises is believed at once, what falls nearly so.
        held.demand = if demand >= held.demand {
            demand
        } else {
            held.demand.times(1, 4) + demand.times(3, 4)
        };
        let starts = limited && !held.limited;
        held.limited = limited;
        held.seen = now;
        let told = held.told;
        let demand = if held.idle(floor) { Share::NONE } else { held.demand };
        let has = held.word.filter(|(_, until)| *until > now).map_or(floor, |(share, _)| share);
        // Where more was asked for than is granted, how much more changes nothing.
        let asked = told.min(demand) > has + has.times(1, 20);
        Some(if demand.is_none() && told.is_none() {
            Urgency::None
        } else if starts && !asked || limited && demand > told + told.times(1, 4) && !asked {
            Urgency::Now
        } else if !asked
            && (demand > told.max(has.times(4, 5)) + told.times(1, 10) || demand < told.times(3, 4))
        {
            Urgency::Hot
        } else {
            Urgency::None
        })
    }

    /// Sets what becomes of a tracked key while hosts are lost. Returns whether it was something else before.
    pub(super) fn set_partition(&mut self, key: KeyId, partition: Partition) -> bool {
        let Some(held) = self.keys.get_mut(&key).filter(|held| held.partition != partition) else {
            return false;
        };
        held.partition = partition;
        self.touched.insert(key);
        true
    }

    /// Whether a majority decides about the limit of a key.
    pub(super) fn by_majority(&self, key: KeyId) -> bool {
        let held = self.keys.get(&key);
        held.is_some_and(|held| held.partition == Partition::MajorityReclaim)
    }

    /// Nothing of a key is used any more.
    pub(super) fn forget(&mut self, now: Moment, key: KeyId) -> Option<Urgency> {
        let held = self.keys.get_mut(&key).filter(|held| held.tracked)?;
        held.tracked = false;
        held.demand = Share::NONE;
        held.limited = false;
        held.word = None;
        held.seen = now;
        Some(if held.told.is_none() { Urgency::None } else { Urgency::Hot })
    }

    /// Takes a grant that ends `until` here; how soon that is to be acknowledged.
    pub(super) fn grant(
        &mut self,
        now: Moment,
        owner: HostId,
        grant: &Grant,
        until: Moment,
        memory: Moment,
    ) -> Urgency {
        let Some(held) = self.keys.get_mut(&grant.key) else { return Urgency::None };
        held.grants.retain(|_, taken| taken.memory > now);
        if until <= now {
            return Urgency::None;
        }
        let share = grant.share.min(Share::WHOLE);
        let new = Taken { number: grant.number, share, until, memory };
        let before = held.grants.get(&owner).copied();
        match before {
            Some(before) if grant.number < before.number => return Urgency::None,
            Some(before) if grant.number == before.number => {
                let until = before.until.max(until);
                let memory = before.memory.max(memory);
                held.grants.insert(owner, Taken { until, memory, ..before });
            }
            None if held.grants.len() >= OWNERS => return Urgency::None,
            _ => {
                held.grants.insert(owner, new);
            }
        }
        self.touched.insert(grant.key);
        match before {
            Some(before) if before.number < new.number && new.share < before.share => Urgency::Now,
            // The owner says so again: it has not heard that this is known.
            _ if new.share.is_none() => Urgency::Hot,
            _ => Urgency::None,
        }
    }

    pub(super) fn owners_changed(&mut self) {
        for held in self.keys.values_mut() {
            held.owner = None;
        }
    }

    /// What this host wants of a key, if it tracks it.
    pub(super) fn wanted(&self, key: KeyId, floor: Share) -> Option<Share> {
        let held = self.keys.get(&key).filter(|held| held.tracked)?;
        Some(if held.idle(floor) { Share::NONE } else { held.demand })
    }

    /// Forgets what has not been told of for so long. The kernel may still have it, and is to be told.
    pub(super) fn expire(&mut self, now: Moment, forget: Duration) -> Vec<KeyId> {
        let stale = |held: &Key| held.tracked && now.since(held.seen) > forget;
        let stale: Vec<KeyId> =
            self.keys.iter().filter(|(_, held)| stale(held)).map(|(key, _)| *key).collect();
        for &key in &stale {
            self.forget(now, key);
        }
        self.keys.retain(|_, held| {
            held.grants.retain(|_, taken| taken.memory > now);
            held.tracked || !held.grants.is_empty() || now.since(held.seen) <= forget
        });
        stale
    }
}

impl Escrow {
    /// The owner of a tracked key, remembered until the view changes.
    pub(super) fn owner_of(&mut self, key: KeyId) -> Option<HostId> {
        let held = self.held.keys.get_mut(&key)?;
        if held.owner.is_none() {
            held.owner = self.views.owner(key);
        }
        held.owner
    }

    /// Sees to it that the owner hears of a key.
    pub(super) fn report_soon(&mut self, now: Moment, key: KeyId, urgency: Urgency) {
        if urgency == Urgency::None {
            return;
        }
        let Some(owner) = self.owner_of(key) else { return };
        if owner == self.settings.me {
            self.owned.dirty.insert(key);
            return;
        }
        self.held.dirty.insert(key);
        self.say_soon(now, owner, urgency);
    }

    /// Sees to it that a host gets a message.
    pub(super) fn say_soon(&mut self, now: Moment, to: HostId, urgency: Urgency) {
        let span = match urgency {
            Urgency::None => return,
            Urgency::Hot => self.settings.timing.hot.max(self.gap()),
            Urgency::Now => self.gap(),
        };
        if let Some(peer) = self.peers.get_mut(&to) {
            peer.want(now, span);
        }
    }

    /// What hosts are to be told of the keys that they own: all, or what is urgent for those of `due`.
    pub(super) fn reports(
        &mut self,
        now: Moment,
        due: &BTreeSet<HostId>,
        all: bool,
    ) -> BTreeMap<HostId, Vec<Report>> {
        let floor = self.floor();
        let keys: Vec<KeyId> = if all {
            self.held.keys.keys().copied().collect()
        } else {
            self.held.dirty.iter().copied().collect()
        };
        let mut reports: BTreeMap<HostId, Vec<Report>> = BTreeMap::new();
        // New owners know nothing yet.
        let halves = self.held.keys.len() > MANY && self.views.next().is_none();
        self.rounds += u64::from(all);
        let rounds = self.rounds;
        for key in keys {
            let turn = !halves || (key.0 ^ rounds) & 1 == 0;
            let Some(owner) = self.owner_of(key) else { continue };
            let dirty = due.contains(&owner) && self.held.dirty.remove(&key);
            let former = self.former_owners(now, key, owner);
            let Some(held) = self.held.keys.get_mut(&key) else { continue };
            if !(dirty || turn && held.reported(now, floor)) {
                continue;
            }
            for owner in former.into_iter().chain([owner]).filter(|owner| due.contains(owner)) {
                let report = held.report(now, key, owner, floor);
                reports.entry(owner).or_default().push(report);
            }
        }
        reports
    }

    /// Other hosts that own a key by an older view: they grant on out of what was delegated to them by it, until
    /// the owner by the present one is delegated to.
    fn former_owners(&self, now: Moment, key: KeyId, owner: HostId) -> Vec<HostId> {
        let relies = |host: HostId| self.peers.get(&host).is_some_and(|peer| peer.lent > now);
        let mut former: Vec<HostId> = Vec::new();
        for host in self.views.older_owners(key).flatten() {
            if host != owner && host != self.settings.me && relies(host) && !former.contains(&host)
            {
                former.push(host);
            }
        }
        former
    }

    /// What this host may use of a tracked key beside its floor, floor included, and until when. None if it
    /// is the floor alone.
    pub(super) fn usable(&self, now: Moment, key: KeyId) -> Option<(Share, Moment)> {
        let held = self.held.keys.get(&key).filter(|held| held.tracked)?;
        let (mut share, mut until) = (Share::NONE, Moment(u64::MAX));
        let mut add = |more: Share, end: Moment| {
            if !more.is_none() {
                share += more;
                until = until.min(end);
            }
        };
        for taken in held.grants.values().filter(|taken| taken.until > now) {
            add(taken.share, taken.until);
        }
        if let Some((mine, end)) = self.owned.mine(now, key, self.settings.me) {
            add(mine, end);
        }
        if self.reclaims(now, key) {
            let end = now.after(self.settings.timing.grant);
            if held.partition == Partition::MajorityReclaim {
                let (mandated, until) = self.mandated(now, end);
                add(mandated, until);
            } else {
                add(self.beside_floor(self.kept.home), end);
            }
        }
        if held.partition == Partition::Available {
            add(self.lost, now.after(self.settings.timing.grant));
        }
        (!share.is_none()).then(|| (self.floor() + share, until))
    }

    /// Whether this host uses all of its home right of a key itself: nobody to whom it has delegated that,
    /// itself included, may still rely on it (I7).
    pub(super) fn reclaims(&self, now: Moment, key: KeyId) -> bool {
        if now < self.quiet {
            return false;
        }
        let me = self.settings.me;
        let lapsed = |owner: Option<HostId>| match owner {
            Some(owner) if owner == me => false,
            Some(owner) => self.peers.get(&owner).is_none_or(|peer| peer.lent <= now),
            None => true,
        };
        let held = self.held.keys.get(&key).and_then(|held| held.owner);
        let present = held.or_else(|| self.views.owner(key));
        self.views.counting_owners(key, present).into_iter().all(lapsed)
    }
}
