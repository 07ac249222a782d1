//! The keys that this host owns: who wants how much, what is there, what was granted.

use std::collections::BTreeSet;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::cluster::message::{Grant, Report};
use crate::cluster::{HostId, KeyId, Moment, Share, ViewId};

use super::keys::{ByHost, Dirty, Keys, Walk};
use super::loans::{Far, Lasting, Planned, Said};
use super::peer::Amount;
use super::peer::Delegation;
use super::poll::Draft;
use super::view::Views;
use super::{Escrow, MAX_OWNED, MAX_PEERS, Planted, Region, Want, max_min};

/// How much more is granted than is wanted where there is enough, so that what rises is not limited at once.
const SPARE: (u64, u64) = (6, 5);
/// The same where there is not: no more than what a demand is known to.
const CLOSE: (u64, u64) = (51, 50);

/// In how many steps it is looked how long what is delegated lasts.
const STEPS: u32 = 8;

/// A grant that a host may go by, or a loan that it may count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    pub(super) number: u32,
    pub(super) share: Share,
    /// When it was said first. None while it has not been.
    pub(super) first: Option<Moment>,
    /// Its end here, once it was said.
    pub(super) end: Moment,
}

/// What one host wants of a key and has of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Claim {
    pub(super) demand: Share,
    /// When that came, and its moment by the reporter's clock.
    pub(super) heard: Moment,
    sent: Moment,
    /// All that it may go by, numbers ascending.
    pub(super) given: SmallVec<[Given; 2]>,
    /// The highest number that was used.
    number: u32,
    /// To be said before the next round.
    pub(super) dirty: bool,
    /// Whether the host says that a majority decides about the limit.
    pub(super) majority: bool,
}

impl Claim {
    /// Whatever it goes by, it is not more than this.
    pub(super) fn outstanding(&self) -> Share {
        self.given.iter().map(|given| given.share).max().unwrap_or_default()
    }

    /// The same of what was said and lasts until then.
    pub(super) fn outstanding_at(&self, end: Moment) -> Share {
        let lasts = self.given.iter().filter(|given| given.end >= end);
        lasts.map(|given| given.share).max().unwrap_or_default()
    }

    pub(super) fn current(&self) -> Share {
        self.given.last().map_or(Share::NONE, |given| given.share)
    }

    pub(super) fn expire(&mut self, now: Moment) {
        self.given.retain(|given| given.first.is_none() || given.end > now);
    }

    /// Decides on another grant. One that was never said is forgotten.
    pub(super) fn give(&mut self, share: Share) {
        if self.given.last().is_some_and(|last| last.first.is_none()) {
            self.given.pop();
        } else {
            self.number += 1;
        }
        let given = Given { number: self.number, share, first: None, end: Moment(0) };
        self.given.push(given);
        self.dirty = true;
    }

    /// Nothing more is said of it.
    pub(super) fn let_end(&mut self) {
        self.given.retain(|given| given.first.is_some());
        self.dirty = false;
    }

    /// Whether it has not been heard of for so long, and nothing of it may be gone by.
    pub(super) fn stale(&self, now: Moment, forget: std::time::Duration) -> bool {
        let unused = self.given.iter().all(|given| given.first.is_none());
        now.since(self.heard) > forget && unused
    }

    /// Gives this much, or as much as is free.
    fn set(&mut self, target: Share, free: Share) {
        let current = self.current();
        let share = target.min(free);
        let little = share > current && share.without(current) < current.times(1, 400);
        if share != current && !little {
            self.give(share);
        }
    }

    /// Takes what a host reports that answers `echo`; whether that changes anything.
    pub(super) fn hear(
        &mut self,
        now: Moment,
        sent: Moment,
        echo: Option<Moment>,
        report: &Report,
        floor: Share,
    ) -> bool {
        self.expire(now);
        let mut changed = false;
        // The host goes by no grant before this one any more; it cannot have known this one before it was
        // said, so a report from before that is about another run or another life of the key (I5).
        let known = self.given.iter().find(|given| given.number == report.in_use);
        if known.is_some_and(|known| known.first.is_some_and(|first| echo >= Some(first))) {
            let before = self.outstanding();
            self.given.retain(|given| given.number >= report.in_use);
            changed = self.outstanding() < before;
        }
        if sent >= self.sent {
            let (less, more) = (self.demand.min(report.demand), self.demand.max(report.demand));
            // Where more is wanted than was granted, how much more changes nothing.
            let current = self.current();
            let asked = !current.is_none() && less > (current + floor).times(CLOSE.0, CLOSE.1);
            changed |= !asked && more.without(less) > self.demand.times(1, 20);
            changed |= self.majority != report.majority;
            self.majority = report.majority;
            self.demand = report.demand;
            self.sent = sent;
            self.heard = now;
        }
        changed
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
    /// What there is between this host and the owners in other regions.
    pub(super) far: Option<Box<Far>>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Owned {
    pub(super) keys: Keys<Key>,
    /// To be divided anew before the next round.
    pub(super) dirty: Dirty,
    /// Those that there is something between regions of.
    pub(super) far: BTreeSet<KeyId>,
}

impl Owned {
    /// What there is of a key between regions; a key that is new if `make` says so and there are not too many.
    fn far(&mut self, key: KeyId, make: bool) -> Option<&mut Far> {
        let known = self.key(key, make)?;
        if known.far.is_none() && make {
            self.far.insert(key);
            return Some(self.keys.get_mut(&key)?.far.get_or_insert_default());
        }
        self.keys.get_mut(&key)?.far.as_deref_mut()
    }

    /// Takes what the owner in another region asks for; false if there are too many keys.
    pub(super) fn ask(
        &mut self,
        now: Moment,
        from: HostId,
        sent: Moment,
        echo: Option<Moment>,
        ask: &Report,
    ) -> bool {
        let wants = !ask.demand.is_none();
        let Some(far) = self.far(ask.key, wants) else { return !wants };
        let Some(changed) = far.ask(now, from, sent, echo, ask) else { return false };
        if changed {
            self.dirty.insert(ask.key);
        }
        true
    }

    /// Grants that others may go by.
    pub(super) fn granted(&self, me: HostId) -> usize {
        let claims = self.keys.values().flat_map(|key| key.claims.iter());
        claims.filter(|(host, claim)| *host != me && !claim.outstanding().is_none()).count()
    }
}

/// What is delegated by a list of views.
type Listed = (Arc<[ViewId]>, Amount);

/// What is delegated to this host until some moment or longer, by the views that it was delegated by.
#[derive(Default)]
pub(super) struct Delegated {
    until: Moment,
    /// Hosts that delegate by one list of views, together.
    alike: Vec<Listed>,
    /// What other hosts delegate by several lists, each of which is enough.
    several: Vec<Vec<Listed>>,
}

/// What all keys are divided with.
#[derive(Default)]
pub(super) struct Pools {
    /// What lasts as long as a grant.
    short: Delegated,
    /// What lasts longer, in the order of moments, if anything is lent.
    longer: Vec<Delegated>,
    /// All that may want something, in their order.
    hosts: Vec<(HostId, Known)>,
    /// Regions with their weights.
    regions: Vec<(Region, u32)>,
    /// What hosts of this region say that they delegate.
    expected: Share,
}

/// What hosts need of a pool.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Need {
    pub(super) close: Share,
    pub(super) ample: Share,
}

impl Need {
    fn of(wanted: &[Wanted]) -> Self {
        let sum = |(numerator, denominator)| {
            let want =
                |want: &Wanted| want.demand.times(numerator, denominator).without(want.floor);
            wanted.iter().map(want).sum()
        };
        Self { close: sum(CLOSE), ample: sum(SPARE) }
    }
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
pub(super) struct Wanted {
    pub(super) demand: Share,
    /// What it may use anyway.
    pub(super) floor: Share,
    pub(super) weight: u32,
    pub(super) current: Share,
}

/// The floor of a host that delegates so much beside it, the floor being that part of its home right.
pub(super) fn floor_beside(delegated: Share, part: Share) -> Share {
    delegated.times(part.units(), Share::WHOLE.without(part).units())
}

/// What each should be granted of a pool.
pub(super) fn targets(pool: Share, wanted: &[Wanted]) -> Vec<Share> {
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
        self.claims.values_mut().for_each(Claim::let_end);
        self.claims.retain(|_, claim| !claim.given.is_empty());
        if let Some(far) = &mut self.far {
            far.let_end();
        }
    }

    /// Whether a majority decides about it. While hosts do not agree, what all of them may use.
    fn majority(&self) -> bool {
        let far = self.far.as_ref().is_some_and(|far| far.majority());
        far || self.claims.values().any(|claim| claim.majority)
    }

    /// What is delegated to this host of the key in all.
    fn pool(
        &mut self,
        key: KeyId,
        views: &Views,
        me: HostId,
        majority: bool,
        pools: &Delegated,
    ) -> Share {
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
        self.keys.get(&key).is_some_and(|key| {
            let far = key.far.as_ref().is_some_and(|far| far.unsaid());
            far || key.claims.values().any(|claim| claim.dirty)
        })
    }

    /// What this host grants itself.
    pub(super) fn mine(&self, now: Moment, key: KeyId, me: HostId) -> Option<(Share, Moment)> {
        let given = self.keys.get(&key)?.claims.get(me)?.given.last()?;
        (given.end > now).then_some((given.share, given.end))
    }

    fn remove(&mut self, key: KeyId) {
        self.keys.remove(&key);
        self.far.remove(&key);
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
        let changed = claim.hear(now, sent, echo, report, floor);
        if changed {
            self.dirty.insert(report.key);
        }
        true
    }
}

/// What is delegated until then or longer.
fn delegated(given: &[SmallVec<[&Delegation; 2]>], until: Moment, blind: bool) -> Delegated {
    let mut pools = Delegated { until, ..Delegated::default() };
    for delegations in given {
        let mut lists: SmallVec<[Listed; 1]> = SmallVec::new();
        for delegation in delegations.iter().filter(|known| known.until >= until) {
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

impl Escrow {
    /// What is delegated to this host for at least as long as a grant that is given now, and for longer.
    pub(super) fn pools(&mut self, now: Moment) -> Pools {
        let mut pools = Pools { hosts: self.known_hosts(now), ..Pools::default() };
        if now < self.quiet {
            return pools;
        }
        let timing = self.settings.timing;
        // What this host delegates to itself is as any delegation.
        if !self.leaving && !self.views.crowded() {
            let until = now.after(self.delegation());
            self.views.lend(until);
            let views = self.views.listed();
            let lent = Amount::of(self.lent());
            self.own.delegate(now, until, lent, &views);
            let (voted, until) = self.mandated(now, until);
            self.own.delegate(now, until, Amount::voted(voted), &views);
        }
        let view = self.views.present();
        if view.has_regions() {
            let weight = |weight: u64| u32::try_from(weight).unwrap_or(u32::MAX);
            pools.regions = view.regions().map(|(region, its)| (region, weight(its))).collect();
            let mine = view.region(self.settings.me);
            let near = self.peers.iter().filter(|(host, _)| view.region(**host) == mine);
            pools.expected = near.filter_map(|(_, peer)| peer.offered).sum::<Share>() + self.lent();
        }
        let own = std::iter::once((&self.settings.me, &self.own));
        let given: Vec<SmallVec<[&Delegation; 2]>> = self
            .peers
            .iter()
            .chain(own)
            .map(|(&host, peer)| {
                let its = peer.delegations.iter();
                its.filter(|its| self.views.near(host, &its.views)).collect()
            })
            .collect();
        let blind = self.planted(Planted::ViewsNotCompared);
        pools.short = delegated(&given, now.after(timing.grant), blind);
        if !self.owned.far.is_empty() {
            let step = timing.loan_in.saturating_sub(timing.grant) / STEPS;
            let until = |at| now.after(timing.grant + step * at);
            pools.longer = (1..=STEPS).map(|at| delegated(&given, until(at), blind)).collect();
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
        let majority = key.majority();
        let own_pool = key.pool(id, &self.views, me, majority, &pools.short);
        key.claims.values_mut().for_each(|claim| claim.expire(now));
        let soon = now.after(timing.grant);
        let (mut borrowed, mut lent) = (Share::NONE, Share::NONE);
        if let Some(far) = &mut key.far {
            far.expire(now);
            (borrowed, lent) = (far.borrowed(soon), far.outstanding());
        }
        let pool = own_pool + borrowed;
        let mut sum = key.claims.values().map(Claim::outstanding).sum::<Share>() + lent;
        let present = [self.views.present().id];
        let owns = key.owned(id, &self.views, me, &present);
        key.ending = pool < sum && !owns;
        if key.ending {
            key.let_end();
            if key.claims.is_empty() && key.far.as_ref().is_none_or(|far| far.is_empty()) {
                self.owned.remove(id);
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
        let need = Need::of(&wants);
        let has_regions = self.views.present().has_regions();
        if has_regions && owns && key.far.is_none() && need.close > own_pool.max(pools.expected) {
            self.owned.far.insert(id);
            key.far = Some(Box::default());
        }
        let mut loans = Vec::new();
        if let Some(mut far) = key.far.take() {
            let step = |its: &Delegated, key: &mut Key| {
                (its.until, key.pool(id, &self.views, me, majority, its))
            };
            let lasting = Lasting::new(pools.longer.iter().map(|its| step(its, key)));
            far.set_lasting(lasting, majority);
            loans = far.plan(
                now,
                &Planned {
                    id,
                    me,
                    view: self.views.present(),
                    weights: &pools.regions,
                    own: own_pool,
                    pool,
                    expected: pools.expected,
                    need,
                    alone: !has_regions || !owns,
                    timing: &self.settings.timing,
                },
            );
            key.far = Some(far);
        }
        let targets = targets(pool.without(loans.iter().copied().sum()), &wants);
        // First what is lowered, then what is raised: in each case only so far that with all that the others
        // may still go by it is no more than the pool (I4).
        for raise in [false, true] {
            for ((host, claim), &target) in key.claims.iter_mut().zip(&targets) {
                if raise != (target >= claim.current()) {
                    continue;
                }
                let others = sum.without(claim.outstanding());
                claim.set(target, if blind { pool } else { pool.without(others) });
                if host == me {
                    // The kernel is told before anybody hears of what this leaves.
                    let last = claim.given.pop();
                    claim.given.clear();
                    claim.given.extend(last.map(|given| Given {
                        first: Some(now),
                        end: soon,
                        ..given
                    }));
                    claim.dirty = false;
                    self.held.touched.insert(id);
                }
                sum = others + claim.outstanding();
            }
            let lent = key.far.iter_mut().flat_map(|far| far.lent_mut());
            for ((_, claim), &target) in lent.zip(&loans) {
                if raise == (target >= claim.current()) {
                    let others = sum.without(claim.outstanding());
                    claim.set(target, pool.without(others));
                    sum = others + claim.outstanding();
                }
            }
        }
        for (host, claim) in key.claims.iter() {
            if claim.dirty
                && let Some(peer) = self.peers.get_mut(&host)
            {
                peer.want(now, gap);
            }
        }
        if let Some(far) = &mut key.far {
            for (host, urgent) in far.acknowledge(sum <= pool, soon) {
                if let Some(peer) = self.peers.get_mut(&host) {
                    peer.want(now, if urgent { gap } else { timing.hot.max(gap) });
                }
            }
            far.forget(now, &timing);
            if far.is_empty() {
                key.far = None;
                self.owned.far.remove(&id);
            }
        }
        key.claims.retain(|host, claim| {
            let stale = claim.stale(now, timing.forget);
            !(stale || host == me && own.is_none() && claim.current().is_none())
        });
        if key.claims.is_empty() && key.far.is_none() {
            self.owned.keys.remove(&id);
        }
    }

    /// Puts the loans of a divided key, and what is asked of others, into the messages.
    pub(super) fn loans(&mut self, now: Moment, id: KeyId, all: bool, drafts: &mut [Draft]) {
        let Some(key) = self.owned.keys.get_mut(&id).filter(|key| !key.ending) else { return };
        if let Some(far) = &mut key.far {
            let (me, timing) = (self.settings.me, &self.settings.timing);
            let outlives = self.settings.planted == Some(Planted::LoanOutlives);
            far.say(id, all, &Said { now, me, timing, outlives }, drafts);
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
