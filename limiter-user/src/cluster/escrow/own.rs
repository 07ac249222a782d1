//! The keys that this host owns: who wants how much, what is there, what was granted.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::cluster::message::{Grant, Report};
use crate::cluster::{HostId, KeyId, Moment, Share, ViewId};

use super::keys::{ByHost, Dirty, Keys, Walk};
use super::peer::Amount;
use super::poll::Draft;
use super::view::Views;
use super::{Escrow, MAX_OWNED, MAX_PEERS, Planted, Want, max_min};

/// How much more is granted than is wanted where there is enough, so that what rises is not limited at once.
const SPARE: (u64, u64) = (6, 5);
/// The same where there is not: no more than what a demand is known to.
const CLOSE: (u64, u64) = (51, 50);

/// A grant that a host may go by.
#[derive(Clone, Copy, Debug)]
struct Given {
    number: u32,
    share: Share,
    /// When it was said first. None while it has not been.
    first: Option<Moment>,
    /// Its end here, once it was said.
    end: Moment,
}

/// What one host wants of a key and has of it.
#[derive(Clone, Debug, Default)]
struct Claim {
    demand: Share,
    /// When that came, and its moment by the reporter's clock.
    heard: Moment,
    sent: Moment,
    /// All that it may go by, numbers ascending.
    given: SmallVec<[Given; 2]>,
    /// The highest number that was used.
    number: u32,
    /// To be said before the next round.
    dirty: bool,
    /// Whether the host says that a majority decides about the limit.
    majority: bool,
}

impl Claim {
    /// Whatever it goes by, it is not more than this.
    fn outstanding(&self) -> Share {
        self.given.iter().map(|given| given.share).max().unwrap_or_default()
    }

    fn current(&self) -> Share {
        self.given.last().map_or(Share::NONE, |given| given.share)
    }

    fn expire(&mut self, now: Moment) {
        self.given.retain(|given| given.first.is_none() || given.end > now);
    }

    /// Decides on another grant. One that was never said is forgotten.
    fn give(&mut self, share: Share) {
        if self.given.last().is_some_and(|last| last.first.is_none()) {
            self.given.pop();
        } else {
            self.number += 1;
        }
        let given = Given { number: self.number, share, first: None, end: Moment(0) };
        self.given.push(given);
        self.dirty = true;
    }
}

/// A key that this host owns by the view of somebody.
#[derive(Debug, Default)]
pub(super) struct Key {
    claims: ByHost<Claim>,
    /// Whether this host owns it by some views.
    mine: Vec<(ViewId, bool)>,
    /// What was delegated by an older view comes to its end, and another host owns the key: its grants are left
    /// to run out.
    ending: bool,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Owned {
    pub(super) keys: Keys<Key>,
    /// To be divided anew before the next round.
    pub(super) dirty: Dirty,
}

impl Owned {
    /// Grants that others may go by.
    pub(super) fn granted(&self, me: HostId) -> usize {
        let claims = self.keys.values().flat_map(|key| key.claims.iter());
        claims.filter(|(host, claim)| *host != me && !claim.outstanding().is_none()).count()
    }
}

/// What is delegated by a list of views.
type Listed = (Arc<[ViewId]>, Amount);

/// What all keys are divided with: what is delegated to this host, as far as it lasts long enough, by the views that
/// it was delegated by, and what is known of hosts.
#[derive(Default)]
pub(super) struct Pools {
    /// Hosts that delegate by one list of views, together.
    alike: Vec<Listed>,
    /// What other hosts delegate by several lists, each of which is enough.
    several: Vec<Vec<Listed>>,
    /// All that may want something, in their order.
    hosts: Vec<(HostId, Known)>,
}

/// What is known of a host, whatever it wants.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// A grant that is given now reaches it.
    reached: bool,
    /// What it may use anyway.
    floor: Share,
    weight: u32,
}

/// What is known of a host that wants some of a key.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    demand: Share,
    /// What it may use anyway.
    floor: Share,
    weight: u32,
    current: Share,
}

/// The floor of a host that delegates so much beside it, the floor being that part of its home right.
pub(super) fn floor_beside(delegated: Share, part: Share) -> Share {
    delegated.times(part.units(), Share::WHOLE.without(part).units())
}

/// What each should be granted of a pool.
fn targets(pool: Share, wanted: &[Wanted]) -> Vec<Share> {
    let demanding = wanted.iter().filter(|want| !want.demand.is_none()).count();
    if demanding == 1 {
        let all = |want: &Wanted| if want.demand.is_none() { Share::NONE } else { pool };
        return wanted.iter().map(all).collect();
    }
    let want = |(numerator, denominator)| {
        move |want: &Wanted| want.demand.times(numerator, denominator).without(want.floor)
    };
    let (close, ample) = (want(CLOSE), want(SPARE));
    let needs = |want: &Wanted| Want { share: close(want), weight: want.weight };
    let mut targets = max_min(pool, &wanted.iter().map(needs).collect::<Vec<_>>());
    let left = pool.without(targets.iter().copied().sum());
    let more = |(want, target): (&Wanted, &Share)| Want {
        share: ample(want).without(*target),
        weight: want.weight,
    };
    let extra = max_min(left, &wanted.iter().zip(&targets).map(more).collect::<Vec<_>>());
    for (target, extra) in targets.iter_mut().zip(extra) {
        *target += extra;
    }
    let all: Share = wanted.iter().map(ample).sum();
    let short = all > pool;
    // Small changes are not worth a message, and where all are satisfied nobody needs what one has too much.
    for (target, want) in targets.iter_mut().zip(wanted) {
        let current = want.current;
        let change = target.without(current) + current.without(*target);
        // Where there is too little for all, what is not given lies idle.
        let near = change <= current.times(1, if short && *target > current { 400 } else { 50 });
        let enough = short || current >= close(want);
        let kept = !short && *target < current && *target > current.times(1, 2);
        if !want.demand.is_none() && (near && enough || kept) {
            *target = current;
        }
    }
    targets
}

impl Key {
    fn owned(&mut self, key: KeyId, views: &Views, me: HostId, list: &[ViewId]) -> bool {
        !list.is_empty()
            && list.iter().all(|&id| {
                if let Some((_, mine)) = self.mine.iter().find(|(known, _)| *known == id) {
                    return *mine;
                }
                let Some(members) = views.find(id) else { return false };
                let mine = members.owner(me, key) == Some(me);
                if self.mine.len() == 16 {
                    self.mine.remove(0);
                }
                self.mine.push((id, mine));
                mine
            })
    }

    /// Nothing more is said of it.
    fn let_end(&mut self) {
        for claim in self.claims.values_mut() {
            claim.given.retain(|given| given.first.is_some());
            claim.dirty = false;
        }
        self.claims.retain(|_, claim| !claim.given.is_empty());
    }

    /// What this host may grant of the key in all.
    fn pool(&mut self, key: KeyId, views: &Views, me: HostId, pools: &Pools) -> Share {
        // While hosts do not agree, what all of them may use.
        let majority = self.claims.values().any(|claim| claim.majority);
        let mut sum = Amount::default();
        for (list, amount) in &pools.alike {
            if self.owned(key, views, me, list) {
                sum.add(*amount);
            }
        }
        for lists in &pools.several {
            let owned = lists.iter().filter(|(list, _)| self.owned(key, views, me, list));
            sum.add(owned.fold(Amount::default(), |most, (_, amount)| most.max(*amount)));
        }
        if majority { sum.voted } else { sum.share }
    }
}

impl Owned {
    pub(super) fn all_dirty(&mut self) {
        self.dirty.extend(self.keys.keys().copied());
    }

    /// Whether something of a key was decided and could not be said yet.
    pub(super) fn unsaid(&self, key: KeyId) -> bool {
        self.keys.get(&key).is_some_and(|key| key.claims.values().any(|claim| claim.dirty))
    }

    /// What this host grants itself.
    pub(super) fn mine(&self, now: Moment, key: KeyId, me: HostId) -> Option<(Share, Moment)> {
        let given = self.keys.get(&key)?.claims.get(me)?.given.last()?;
        (given.end > now).then_some((given.share, given.end))
    }

    /// A key, a new one if that is to be made and there are not too many.
    fn key(&mut self, key: KeyId, make: bool) -> Option<&mut Key> {
        let full = self.keys.len() >= MAX_OWNED;
        match self.keys.entry(key) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(new) if make && !full => Some(new.insert(Key::default())),
            Entry::Vacant(_) => None,
        }
    }

    fn claim(&mut self, key: KeyId, host: HostId) -> Option<&mut Claim> {
        self.key(key, true)?.claims.get_or_add(host, MAX_PEERS)
    }

    /// Takes a report that answers `echo`; false if there are too many keys.
    pub(super) fn report(
        &mut self,
        now: Moment,
        from: HostId,
        sent: Moment,
        echo: Option<Moment>,
        report: &Report,
        floor: Share,
    ) -> bool {
        let wants = !report.demand.is_none();
        let Some(key) = self.key(report.key, wants) else { return !wants };
        let Some(claim) = key.claims.get_or_add(from, MAX_PEERS) else { return false };
        claim.expire(now);
        let mut changed = false;
        // The host goes by no grant before this one any more; it cannot have known this one before it was
        // said, so a report from before that is about another run or another life of the key (I5).
        let known = claim.given.iter().find(|given| given.number == report.in_use);
        if known.is_some_and(|known| known.first.is_some_and(|first| echo >= Some(first))) {
            let before = claim.outstanding();
            claim.given.retain(|given| given.number >= report.in_use);
            changed = claim.outstanding() < before;
        }
        if sent >= claim.sent {
            let (less, more) = (claim.demand.min(report.demand), claim.demand.max(report.demand));
            // Where more is wanted than was granted, how much more changes nothing.
            let current = claim.current();
            let asked = !current.is_none() && less > (current + floor).times(CLOSE.0, CLOSE.1);
            changed |= !asked && more.without(less) > claim.demand.times(1, 20);
            changed |= claim.majority != report.majority;
            claim.majority = report.majority;
            claim.demand = report.demand;
            claim.sent = sent;
            claim.heard = now;
        }
        if changed {
            self.dirty.insert(report.key);
        }
        true
    }
}

impl Escrow {
    /// What is delegated to this host for at least as long as a grant that is given now.
    pub(super) fn pools(&mut self, now: Moment) -> Pools {
        let mut pools = Pools { hosts: self.known_hosts(now), ..Pools::default() };
        if now < self.quiet {
            return pools;
        }
        let end = now.after(self.settings.timing.grant);
        let blind = self.planted(Planted::ViewsNotCompared);
        // What this host delegates to itself is as any delegation.
        if !self.leaving && !self.views.crowded() {
            let until = now.after(self.settings.timing.delegation);
            self.views.lend(until);
            let views = self.views.listed();
            let lent = Amount::of(self.lent());
            self.own.delegate(now, until, lent, &views);
            let (voted, until) = self.mandated(now, until);
            self.own.delegate(now, until, Amount::voted(voted), &views);
        }
        for peer in self.peers.values().chain([&self.own]) {
            let mut lists: SmallVec<[Listed; 1]> = SmallVec::new();
            for delegation in peer.delegations.iter().filter(|known| known.until >= end) {
                match lists.iter_mut().find(|(views, _)| *views == delegation.views) {
                    Some((_, amount)) => *amount = delegation.amount.max(*amount),
                    None => lists.push((Arc::clone(&delegation.views), delegation.amount)),
                }
            }
            if blind {
                lists.iter_mut().for_each(|(views, _)| *views = views[..1].into());
            }
            if lists.len() > 1 {
                pools.several.push(lists.into_vec());
                continue;
            }
            for (views, amount) in lists {
                match pools.alike.iter_mut().find(|(known, _)| *known == views) {
                    Some((_, sum)) => sum.add(amount),
                    None => pools.alike.push((views, amount)),
                }
            }
        }
        pools
    }

    /// What is known of each host that may want something of a key.
    fn known_hosts(&self, now: Moment) -> Vec<(HostId, Known)> {
        let (me, part) = (self.settings.me, self.settings.floor);
        let view = self.views.present();
        let mut hosts: Vec<(HostId, Known)> = Vec::with_capacity(self.peers.len() + 1);
        for (&host, peer) in &self.peers {
            let reached = peer.lease(now, self.settings.timing.grant).is_some();
            let floor = floor_beside(peer.offered.unwrap_or_default(), part);
            hosts.push((host, Known { reached, floor, weight: view.weight(host) }));
        }
        let at = hosts.partition_point(|(host, _)| *host < me);
        let known = Known { reached: true, floor: self.floor(), weight: view.weight(me) };
        hosts.insert(at, (me, known));
        hosts
    }

    /// Divides a key among those who want it; what was decided may be said in this poll.
    pub(super) fn divide(&mut self, now: Moment, id: KeyId, pools: &Pools) {
        let me = self.settings.me;
        let timing = self.settings.timing;
        let (floor, gap) = (self.floor(), self.gap());
        let blind = self.planted(Planted::GrantNotSubtracted);
        // What this host wants itself, as long as it tracks the key and owns it by a view of its own.
        let present = self.owner_of(id) == Some(me);
        let mine = present || self.views.older_owners(id).any(|owner| owner == Some(me));
        let own = self.held.wanted(id, floor).filter(|_| mine);
        let majority = self.held.by_majority(id);
        if let Some(claim) = match own {
            Some(_) => self.owned.claim(id, me),
            None => self.owned.keys.get_mut(&id).and_then(|key| key.claims.get_mut(me)),
        } {
            claim.demand = own.unwrap_or_default();
            claim.heard = now;
            claim.majority = majority;
        }
        let Some(key) = self.owned.keys.get_mut(&id) else { return };
        let pool = key.pool(id, &self.views, me, pools);
        key.claims.values_mut().for_each(|claim| claim.expire(now));
        let mut sum: Share = key.claims.values().map(Claim::outstanding).sum();
        let present = [self.views.present().id];
        key.ending = pool < sum && !key.owned(id, &self.views, me, &present);
        if key.ending {
            key.let_end();
            if key.claims.is_empty() {
                self.owned.keys.remove(&id);
            }
            return;
        }
        let silent = timing.forget.min(timing.grant * 3);
        let mut hosts = Walk::new(&pools.hosts);
        let wants: Vec<Wanted> = key
            .claims
            .iter()
            .map(|(host, claim)| {
                let Known { reached, floor, weight } =
                    hosts.find(host).copied().unwrap_or_default();
                let counts = reached && now.since(claim.heard) < silent;
                let demand = if counts { claim.demand } else { Share::NONE };
                Wanted { demand, floor, weight, current: claim.current() }
            })
            .collect();
        let targets = targets(pool, &wants);
        // First what is lowered, then what is raised: in each case only so far that with all that the others
        // may still go by it is no more than the pool (I4).
        for raise in [false, true] {
            for ((host, claim), &target) in key.claims.iter_mut().zip(&targets) {
                let current = claim.current();
                if raise != (target >= current) {
                    continue;
                }
                let outstanding = claim.outstanding();
                let others = sum.without(outstanding);
                let free = if blind { pool } else { pool.without(others) };
                let share = target.min(free);
                let little = share > current && share.without(current) < current.times(1, 400);
                if share != current && !little {
                    claim.give(share);
                }
                if host == me {
                    // The kernel is told before anybody hears of what this leaves.
                    let last = claim.given.pop();
                    claim.given.clear();
                    claim.given.extend(last.map(|given| Given {
                        first: Some(now),
                        end: now.after(timing.grant),
                        ..given
                    }));
                    claim.dirty = false;
                    self.held.touched.insert(id);
                }
                sum = others + claim.outstanding();
            }
        }
        for (host, claim) in key.claims.iter() {
            if claim.dirty
                && let Some(peer) = self.peers.get_mut(&host)
            {
                peer.want(now, gap);
            }
        }
        let unused = |claim: &Claim| claim.given.iter().all(|given| given.first.is_none());
        key.claims.retain(|host, claim| {
            let stale = now.since(claim.heard) > timing.forget && unused(claim);
            !(stale || host == me && own.is_none() && claim.current().is_none())
        });
        if key.claims.is_empty() {
            self.owned.keys.remove(&id);
        }
    }

    /// Puts the grants of a divided key into the messages to those who may rely on them for some time.
    pub(super) fn grants(&mut self, id: KeyId, all: bool, drafts: &mut [Draft]) {
        let Some(key) = self.owned.keys.get_mut(&id).filter(|key| !key.ending) else { return };
        let mut drafts = drafts.iter_mut().peekable();
        for (host, claim) in key.claims.iter_mut() {
            while drafts.next_if(|draft| draft.to < host).is_some() {}
            let Some(draft) = drafts.next_if(|draft| draft.to == host) else { continue };
            let Some(end) = draft.granted_until else { continue };
            let more = claim.given.len() > 1;
            let dirty = claim.dirty;
            let Some(last) = claim.given.last_mut() else { continue };
            if !(dirty || all && (more || !last.share.is_none())) {
                continue;
            }
            last.first.get_or_insert(draft.sent);
            last.end = last.end.max(end);
            claim.dirty = false;
            draft.grants.push(Grant { key: id, share: last.share, number: last.number });
        }
    }
}
