//! The keys that this host tracks: what it asks for and what it was granted.

use std::collections::hash_map::Entry;
use std::time::Duration;

use smallvec::SmallVec;

use crate::message::{Grant, Report};
use crate::{HostId, KeyId, Message, Moment};
use model::Share;

use super::clock::usable;
use super::host::Host;
use super::keys::{Dirty, Keys};
use super::owner::Owned;
use super::poll::Draft;
use super::taken::HeldLease;
use super::view::Views;
use super::{MAX_HELD, Partition, Urgency};

/// Of how many owners grants of one key count: one, and those before it while the view changes.
const OWNERS: usize = 4;

/// Where more keys than this are tracked, one that nothing has changed of is reported every other round.
const MANY: usize = 64;

/// A key that this host tracks.
#[derive(Clone, Debug, Default)]
pub(super) struct Key {
    demand: Share,
    limited: bool,
    /// Whether the host has told of it since it was last forgotten.
    pub(super) tracked: bool,
    /// When it was told of last.
    seen: Moment,
    /// The demand that was reported last.
    told: Share,
    /// By owner.
    pub(super) grants: SmallVec<[(HostId, HeldLease); 1]>,
    /// What the kernel was told last.
    pub(super) word: Option<(Share, Moment)>,
    owner: Option<HostId>,
    pub(super) partition: Partition,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    pub(super) keys: Keys<Key>,
    /// To be reported before the next round.
    pub(super) dirty: Dirty,
    /// What may be used of them may have changed.
    pub(super) touched: Dirty,
    /// The kernel was told that the host uses its own share of them.
    pub(super) reclaimed: Dirty,
    /// How often all were reported.
    rounds: u64,
    /// Whether a majority decides about limits with [`Partition::Auto`].
    auto: bool,
}

impl Held {
    /// Keys that it has a grant of.
    pub(super) fn granted(&self, now: Moment) -> usize {
        let lasts = |key: &&Key| key.grants.iter().any(|(_, taken)| !taken.until.has_come(now));
        self.keys.values().filter(lasts).count()
    }

    /// A majority decides about limits with [`Partition::Auto`] from now on, or not.
    pub(super) fn set_auto(&mut self, auto: bool) {
        if self.auto != auto {
            self.auto = auto;
            self.touch_all();
        }
    }
}

impl Key {
    /// Its owner, remembered until the view changes.
    pub(super) fn owner(&mut self, key: KeyId, views: &Views) -> Option<HostId> {
        if self.owner.is_none() {
            self.owner = views.owner(key);
        }
        self.owner
    }

    /// Whether this host tracks it and wants some of it.
    pub(super) fn wants_some(&self, floor: Share) -> bool {
        self.tracked && !self.idle(floor)
    }

    fn granted_by(&mut self, owner: HostId) -> Option<&mut HeldLease> {
        self.grants.iter_mut().find(|(by, _)| *by == owner).map(|(_, taken)| taken)
    }

    fn idle(&self, floor: Share) -> bool {
        self.demand <= floor.times(1, 2)
    }

    /// What is said of it to its owner.
    fn report(
        &mut self,
        now: Moment,
        key: KeyId,
        owner: HostId,
        floor: Share,
        auto: bool,
    ) -> Report {
        let demand = if self.idle(floor) { Share::NONE } else { self.demand };
        self.told = demand;
        let taken = self.granted_by(owner).filter(|taken| !taken.memory.has_come(now));
        let in_use = taken.map_or(0, |taken| taken.number);
        Report { key, demand, in_use, majority: self.by_majority(auto) }
    }

    /// Whether a majority decides about its limit.
    pub(super) fn by_majority(&self, auto: bool) -> bool {
        self.partition == Partition::MajorityReclaim || auto && self.partition == Partition::Auto
    }

    /// Whether this host uses all of its home share of it itself: nobody to whom it has delegated that, itself
    /// included, may still rely on it (I7).
    pub(super) fn reclaims(&self, now: Moment, key: KeyId, host: &Host) -> bool {
        if !host.uses_own(now) {
            return false;
        }
        let lapsed = |owner: Option<HostId>| match owner {
            // Then it is in this host's own pool already.
            Some(owner) if owner == host.settings.me => false,
            Some(owner) => host.peers.get(&owner).is_none_or(|peer| peer.lent.has_come(now)),
            None => true,
        };
        let present = self.owner.or_else(|| host.views.owner(key));
        host.views.counting_owners(key, present).into_iter().all(lapsed)
    }

    /// Whether the owner must hear of it in each round.
    fn reported(&self, now: Moment, floor: Share) -> bool {
        !self.idle(floor) || self.grants.iter().any(|(_, taken)| taken.counts(now))
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
        let full = self.keys.len() >= MAX_HELD;
        let held = match self.keys.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if full => return None,
            Entry::Vacant(new) => new.insert(Key::default()),
        };
        if !held.tracked {
            held.tracked = true;
            self.touched.insert(key);
        }
        held.demand = demand;
        // Packets are dropped for want of a share: worth a message at once, where more could come of it.
        let starts = limited && !held.limited;
        held.limited = limited;
        held.seen = now;
        let told = held.told;
        let demand = if held.idle(floor) { Share::NONE } else { held.demand };
        let word = held.word.filter(|(_, until)| !until.has_come(now));
        let has = word.map_or(floor, |(share, _)| share);
        // Where more was asked for than is granted, how much more changes nothing.
        let asked = told.min(demand) > has + has.times(1, 20);
        Some(if demand.is_none() && told.is_none() {
            Urgency::None
        } else if demand.is_none()
            || starts && !asked
            || limited && demand > told + told.times(1, 4) && !asked
        {
            // Who has stopped may have what others wait for.
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
        held.is_some_and(|held| held.by_majority(self.auto))
    }

    /// Nothing of a key is used any more.
    pub(super) fn forget(&mut self, now: Moment, key: KeyId) -> Option<Urgency> {
        let held = self.keys.get_mut(&key).filter(|held| held.tracked)?;
        // Its grants stay until they end: their numbers must be known if the key comes back (I5).
        held.tracked = false;
        held.demand = Share::NONE;
        held.limited = false;
        held.word = None;
        held.seen = now;
        Some(if held.told.is_none() { Urgency::None } else { Urgency::Hot })
    }

    /// Takes a grant that ends `until` here, of the owner's latest message or not; how soon that is to be acknowledged.
    fn grant(
        &mut self,
        now: Moment,
        (owner, latest): (HostId, bool),
        grant: &Grant,
        until: Moment,
        memory: Moment,
    ) -> Urgency {
        let Some(held) = self.keys.get_mut(&grant.key) else { return Urgency::None };
        held.grants.retain(|(_, taken)| !taken.memory.has_come(now));
        if until.has_come(now) {
            return Urgency::None;
        }
        // A faulty owner may grant more than there is.
        let share = grant.share.min(Share::WHOLE);
        let new = HeldLease { number: grant.number, share, until, memory };
        let full = held.grants.len() >= OWNERS;
        let known = held.granted_by(owner);
        let before = known.as_deref().copied();
        match known {
            // A higher number was acknowledged, perhaps, and the owner has granted the difference to others (I5).
            Some(known) if grant.number < known.number => return Urgency::None,
            Some(known) if (grant.number, share) == (known.number, known.share) => {
                known.prolong(&new);
            }
            // This host's clock stood still for so long that the owner has forgotten it, and counts anew. What it said
            // last is what is in its books.
            Some(known) if grant.number == known.number && !latest => return Urgency::None,
            Some(known) => *known = new,
            None if full => return Urgency::None,
            None => held.grants.push((owner, new)),
        }
        self.touched.insert(grant.key);
        match before {
            // Others wait for what this host gives up.
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

    /// What this host wants of a key, if it tracks it. As its owner, which is told by this.
    pub(super) fn tell_own(&mut self, key: KeyId, floor: Share) -> Option<Share> {
        let held = self.keys.get_mut(&key).filter(|held| held.tracked)?;
        held.told = if held.idle(floor) { Share::NONE } else { held.demand };
        Some(held.told)
    }

    /// Forgets what has not been told of for so long. The kernel may still have it, and is to be told.
    pub(super) fn expire(&mut self, now: Moment, forget: Duration) -> Vec<KeyId> {
        let stale = |held: &Key| held.tracked && !held.seen.is_recent(now, forget);
        let mut stale: Vec<KeyId> =
            self.keys.iter().filter(|(_, held)| stale(held)).map(|(key, _)| *key).collect();
        stale.sort_unstable();
        for &key in &stale {
            self.forget(now, key);
        }
        self.keys.retain(|_, held| {
            held.grants.retain(|(_, taken)| !taken.memory.has_come(now));
            // A tracked one was told of lately.
            !held.grants.is_empty() || held.seen.is_recent(now, forget)
        });
        stale
    }

    /// A key that this host tracks.
    pub(super) fn tracked(&self, key: KeyId) -> Option<&Key> {
        self.keys.get(&key).filter(|held| held.tracked)
    }

    /// What may be used of all keys may have changed.
    pub(super) fn touch_all(&mut self) {
        self.touched.extend(self.keys.keys().copied());
    }

    /// The owner of a tracked key, remembered until the view changes.
    pub(super) fn owner_of(&mut self, key: KeyId, views: &Views) -> Option<HostId> {
        self.keys.get_mut(&key)?.owner(key, views)
    }

    /// Sees to it that the owner hears of a key.
    pub(super) fn report_soon(
        &mut self,
        now: Moment,
        key: KeyId,
        urgency: Urgency,
        host: &mut Host,
        owned: &mut Owned,
    ) {
        if urgency == Urgency::None {
            return;
        }
        let Some(owner) = self.owner_of(key, &host.views) else { return };
        if owner == host.settings.me {
            owned.dirty.insert(key);
            return;
        }
        self.dirty.insert(key);
        host.send_soon(now, owner, urgency);
    }

    /// Takes the grants of a message.
    pub(super) fn take_grants(
        &mut self,
        now: Moment,
        base: Moment,
        (owner, latest): (HostId, bool),
        message: &Message,
        host: &mut Host,
    ) {
        // By the message, not by what this host does: what comes after it is of owners who say so, too.
        // No longer than its own setting: `memory` must outlast every grant of a lower number (I5).
        let longest = host.settings.timing.longest_grant(message.far);
        let until = base.after(usable(message.granted_for.min(longest)));
        let memory = base.after(longest);
        let mut urgency = Urgency::None;
        for grant in message.grants.iter().filter(|grant| grant.number > 0) {
            let its = self.grant(now, (owner, latest), grant, until, memory);
            if its > Urgency::None {
                self.dirty.insert(grant.key);
            }
            urgency = urgency.max(its);
        }
        host.send_soon(now, owner, urgency);
    }

    /// Puts into the messages what their receivers are to be told of the keys that they own: all, or what is urgent.
    pub(super) fn reports(
        &mut self,
        now: Moment,
        all: bool,
        host: &Host,
        floor: Share,
        drafts: &mut [Draft],
    ) {
        // New owners know nothing yet.
        let halves = self.keys.len() > MANY && host.views.next().is_none();
        self.rounds += u64::from(all);
        let Self { keys, dirty, rounds, auto, .. } = self;
        let auto = *auto;
        let mut report = |key: KeyId, held: &mut Key, dirty: &mut Dirty| {
            let Some(owner) = held.owner(key, &host.views) else { return };
            let at = draft_to(drafts, owner);
            let dirty = at.is_some() && dirty.remove(&key);
            let turn = !halves || (key.number() ^ *rounds) & 1 == 0;
            if !(dirty || turn && held.reported(now, floor)) {
                return;
            }
            for former in former_owners(host, now, key, owner) {
                if let Some(at) = draft_to(drafts, former) {
                    drafts[at].message.reports.push(held.report(now, key, former, floor, auto));
                }
            }
            if let Some(at) = at {
                drafts[at].message.reports.push(held.report(now, key, owner, floor, auto));
            }
        };
        if all {
            keys.iter_mut().for_each(|(key, held)| report(*key, held, dirty));
        } else {
            for key in dirty.iter().copied().collect::<Vec<_>>() {
                if let Some(held) = keys.get_mut(&key) {
                    report(key, held, dirty);
                }
            }
        }
        // Maps have no order of their own; with the keys sorted the same run is the same for ever.
        for draft in drafts {
            draft.message.reports.sort_unstable_by_key(|report| report.key);
        }
    }
}

/// Which of the messages goes to a host.
fn draft_to(drafts: &[Draft], to: HostId) -> Option<usize> {
    drafts.binary_search_by_key(&to, |draft| draft.to).ok()
}

/// Other hosts that own a key by an older view: they grant on out of what was delegated to them by it, until the owner
/// by the present one is delegated to.
fn former_owners(host: &Host, now: Moment, key: KeyId, owner: HostId) -> Vec<HostId> {
    let relies =
        |other: HostId| host.peers.get(&other).is_some_and(|peer| !peer.lent.has_come(now));
    let mut former: Vec<HostId> = Vec::new();
    for other in host.views.older_owners(key).flatten() {
        if other != owner && other != host.settings.me && relies(other) && !former.contains(&other)
        {
            former.push(other);
        }
    }
    former
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::escrow::Settings;

    #[test]
    fn grants_of_so_many_owners_count() {
        let mut host = Host::new(Settings::new(HostId(1), 1), Moment(0), Moment(0));
        let (key, share) = (KeyId::from_hash(1), Share::from_units(1));
        let mut held = Held::default();
        held.demand(Moment(1), key, Share::WHOLE, false, Share::NONE);
        let grants = vec![Grant { key, share, number: 1 }];
        let granted_for = Duration::from_millis(500);
        let message = Message { grants, granted_for, ..Message::default() };
        for owner in 1..OWNERS as u64 + 2 {
            held.take_grants(Moment(1), Moment(1), (HostId(owner), true), &message, &mut host);
        }
        assert_eq!(held.keys[&key].grants.len(), OWNERS);
    }
}
