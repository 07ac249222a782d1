//! The keys that this host owns: who wants how much, what is there, what was granted.

use std::collections::BTreeSet;
use std::collections::hash_map::Entry;
use std::time::Duration;

use crate::message::{Grant, Report};
use crate::{HostId, KeyId, Message, Moment, ViewId};
use model::Share;

use super::allocation::{Need, Wanted, targets};
use super::claim::{Grantee, IssuedLease};
use super::clock::usable;
use super::holder::Held;
use super::host::Host;
use super::keys;
use super::keys::{ByHost, Dirty, Keys, Walk};
use super::loans::{Far, Planned, Said};
use super::peer::Amount;
use super::poll::Draft;
use super::pools::{Delegated, Known, Pools};
use super::view::Views;
use super::{Loans, MAX_OWNED, MAX_PEERS, Planted, Settings};

/// A key that this host owns by the view of somebody.
#[derive(Clone, Debug, Default)]
pub(super) struct Key {
    claims: ByHost<Grantee>,
    /// Whether this host owns it by some views.
    mine: Vec<(ViewId, bool)>,
    /// What was delegated by an older view comes to its end, and another host owns the key: its grants are left
    /// to run out.
    ending: bool,
    /// What there is between this host and the owners in other regions.
    pub(super) far: Option<Box<Far>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Owned {
    pub(super) keys: Keys<Key>,
    /// To be divided anew before the next round.
    pub(super) dirty: Dirty,
    /// Those that there is something between regions of.
    pub(super) far: BTreeSet<KeyId>,
}

impl Owned {
    /// A key, a new one if that is to be made and there are not too many.
    fn key(keys: &mut Keys<Key>, key: KeyId, make: bool) -> Option<&mut Key> {
        let full = keys.len() >= MAX_OWNED;
        match keys.entry(key) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(new) if make && !full => Some(new.insert(Key::default())),
            Entry::Vacant(_) => None,
        }
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
        // Who asks for nothing about an unknown key only confirms that: no reason to remember it.
        let Some(key) = Self::key(&mut self.keys, ask.key, wants) else { return !wants };
        if wants {
            self.far.insert(ask.key);
            key.far.get_or_insert_default();
        }
        let Some(far) = &mut key.far else { return true };
        let Some(changed) = far.ask(now, from, sent, echo, ask) else { return false };
        if changed {
            self.dirty.insert(ask.key);
        }
        true
    }

    /// Whether other regions may count on something that was lent.
    pub(super) fn lends(&self) -> bool {
        let mut far = self.keys.values().filter_map(|key| key.far.as_ref());
        far.any(|far| !far.outstanding().is_none())
    }

    /// Grants that others may go by.
    pub(super) fn granted(&self, me: HostId) -> usize {
        let claims = self.keys.values().flat_map(|key| key.claims.iter());
        claims.filter(|(host, claim)| *host != me && !claim.outstanding().is_none()).count()
    }
}

impl Key {
    fn owned(&mut self, key: KeyId, views: &Views, me: HostId, list: &[ViewId]) -> bool {
        !list.is_empty()
            && list.iter().all(|&id| {
                if let Some((_, mine)) = self.mine.iter().find(|(known, _)| *known == id) {
                    return *mine;
                }
                // Not remembered: this host may enter that view later, and then knows it.
                let Some(members) = views.find(id) else { return false };
                let mine = members.owner(me, key) == Some(me);
                // As many as a message may list, so that one list never drives out its own.
                if self.mine.len() == 16 {
                    self.mine.remove(0);
                }
                self.mine.push((id, mine));
                mine
            })
    }

    /// Nothing more is said of it.
    fn let_end(&mut self) {
        self.claims.values_mut().for_each(Grantee::let_end);
        self.claims.retain(|_, claim| !claim.given.is_empty());
        if let Some(far) = &mut self.far {
            far.let_end();
        }
    }

    /// Whether a majority decides about it. While hosts do not agree, what all of them may use.
    fn majority(&self) -> bool {
        let far = self.far.as_ref().is_some_and(|far| far.others_go_by_majority());
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
        (!given.end.has_come(now)).then_some((given.share, given.end))
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
        let Some(key) = Self::key(&mut self.keys, report.key, wants) else { return !wants };
        let Some(claim) = key.claims.get_or_add(from, MAX_PEERS) else { return false };
        if claim.hear(now, sent, echo, report, floor) {
            self.dirty.insert(report.key);
        }
        true
    }

    /// Takes what an owner in another region lends, in its latest message or not.
    pub(super) fn take_loans(
        &mut self,
        now: Moment,
        base: Moment,
        lender: (HostId, bool),
        message: &Message,
        settings: &Settings,
    ) {
        let longest = settings.timing.loan_in.max(settings.timing.loan_out);
        let early = settings.planted(Planted::LoanAcknowledgedEarly);
        for loan in &message.loans {
            let until = base.after(usable(loan.lasts.min(longest)));
            let far = self.keys.get_mut(&loan.key).and_then(|key| key.far.as_mut());
            let Some(far) = far else { continue };
            if far.take(now, lender, loan, until, base.after(longest), early) {
                self.dirty.insert(loan.key);
            }
        }
    }

    /// What is lent to and borrowed from owners in other regions.
    pub(super) fn count_loans(&self, now: Moment) -> Loans {
        let mut loans = Loans::default();
        for far in self.keys.values().filter_map(|key| key.far.as_ref()) {
            let (lent, borrowed) = far.count(now);
            loans.lent += usize::from(!lent.is_none());
            loans.borrowed += usize::from(!borrowed.is_none());
            loans.most_lent = loans.most_lent.max(lent);
            loans.most_borrowed = loans.most_borrowed.max(borrowed);
        }
        loans
    }

    /// The owners in other regions that have to be talked to often; see [`Far::busy`].
    pub(super) fn busy(&self, now: Moment, calm: Duration) -> BTreeSet<HostId> {
        let far = self.far.iter().filter_map(|key| self.keys.get(key)?.far.as_ref());
        far.flat_map(|far| far.busy(now, calm)).collect()
    }

    /// The keys that are to be divided now, in their order: `all`, or those that something has changed of.
    pub(super) fn take_dirty(
        &mut self,
        all: bool,
        held: &mut Held,
        views: &Views,
        floor: Share,
        me: HostId,
    ) -> Vec<KeyId> {
        if all {
            // A key that only this host wants is reported to nobody: nothing else would divide it.
            for (&key, held) in &mut held.keys {
                if held.owner(key, views) == Some(me) && held.wants_some(floor) {
                    self.dirty.insert(key);
                }
            }
            self.all_dirty();
        }
        keys::take(&mut self.dirty)
    }

    /// Divides a key among those who want it; what was decided may be said in this poll.
    pub(super) fn divide(
        &mut self,
        now: Moment,
        id: KeyId,
        pools: &Pools,
        host: &mut Host,
        held: &mut Held,
    ) {
        let gap = host.gap();
        let Host { settings, views, peers, .. } = host;
        let (me, timing, views, bounds) = (settings.me, settings.timing, &*views, pools.bounds);
        let blind = settings.planted(Planted::GrantNotSubtracted);
        // What this host wants itself, as long as it tracks the key and owns it by a view of its own.
        let present = held.owner_of(id, views) == Some(me);
        let mine = present || views.older_owners(id).any(|owner| owner == Some(me));
        let own = if mine { held.tell_own(id, pools.floor) } else { None };
        let Some(key) = Self::key(&mut self.keys, id, own.is_some()) else { return };
        let claim = match own {
            Some(_) => key.claims.get_or_add(me, MAX_PEERS),
            None => key.claims.get_mut(me),
        };
        if let Some(claim) = claim {
            claim.demand = own.unwrap_or_default();
            claim.heard = now;
            claim.majority = held.by_majority(id);
        }
        let majority = key.majority();
        let own_pool = bounds.of(key.pool(id, views, me, majority, &pools.short));
        key.claims.values_mut().for_each(|claim| claim.expire(now));
        let soon = pools.soon;
        let (mut borrowed, mut lent) = (Share::NONE, Share::NONE);
        if let Some(far) = &mut key.far {
            far.expire(now);
            (borrowed, lent) = (far.borrowed(soon), far.outstanding());
        }
        let pool = (own_pool + borrowed).min(bounds.most);
        let mut sum = key.claims.values().map(Grantee::outstanding).sum::<Share>() + lent;
        let present = [views.present().id];
        let owns = key.owned(id, views, me, &present);
        // A lowered grant needs a message and an answer, which may come too late: the old ones end as fast.
        key.ending = pool < sum && !owns;
        if key.ending {
            key.let_end();
            return;
        }
        // A host that crashed keeps nothing from the others for long; a few lost reports lower nobody.
        let silent = timing.forget.min(timing.grant * 3);
        let mut hosts = Walk::new(&pools.hosts);
        let wants: Vec<Wanted> = key
            .claims
            .iter()
            .map(|(host, claim)| {
                let Known { reached, own, weight } = hosts.find(host).copied().unwrap_or_default();
                let counts = reached && claim.heard.is_recent(now, silent);
                let demand = if counts { claim.demand } else { Share::NONE };
                Wanted { demand, own, weight, current: claim.current() }
            })
            .collect();
        let need = Need::new(&wants);
        let has_regions = views.present().has_regions();
        if has_regions && owns && key.far.is_none() && need.close > own_pool.max(pools.expected) {
            self.far.insert(id);
            key.far = Some(Box::default());
        }
        let mut loans = Vec::new();
        if let Some(mut far) = key.far.take() {
            let step = |its: &Delegated, key: &mut Key| {
                (its.until, bounds.of(key.pool(id, views, me, majority, its)))
            };
            far.lasting = pools.longer.iter().map(|its| step(its, key)).collect();
            far.majority = majority;
            loans = far.plan(
                now,
                &Planned {
                    id,
                    me,
                    view: views.present(),
                    weights: &pools.regions,
                    own: own_pool,
                    pool,
                    expected: pools.expected,
                    need,
                    alone: !has_regions || !owns,
                    timing: &timing,
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
                // `outstanding` stays until a lowered grant is acknowledged: only then can others have the rest.
                let others = sum.without(claim.outstanding());
                claim.set(target, if blind { pool } else { pool.without(others) });
                if host == me {
                    // The kernel is told before anybody hears of what this leaves.
                    let last = claim.given.pop();
                    claim.given.clear();
                    claim.given.extend(last.map(|given| IssuedLease {
                        first: Some(now),
                        end: now.after(timing.grant),
                        ..given
                    }));
                    claim.dirty = false;
                    held.touched.insert(id);
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
                && let Some(peer) = peers.get_mut(&host)
            {
                peer.want(now, gap);
            }
        }
        if let Some(far) = &mut key.far {
            for (host, urgent) in far.acknowledge(sum <= pool, soon) {
                // Who is not heard can be lent nothing, and need not be told at once.
                let peer = peers.get_mut(&host);
                if let Some(peer) = peer.filter(|peer| peer.lease(now, timing.loan_out).is_some()) {
                    peer.want(now, if urgent { gap } else { timing.hot.max(gap) });
                }
            }
            far.forget(now, &timing);
            if far.is_empty() {
                key.far = None;
                self.far.remove(&id);
            }
        }
        key.claims.retain(|host, claim| {
            let stale = claim.stale(now, timing.forget);
            !(stale || host == me && own.is_none() && claim.current().is_none())
        });
        if key.claims.is_empty() && key.far.is_none() {
            self.keys.remove(&id);
        }
    }

    /// Puts the loans of a divided key, and what is asked of others, into the messages.
    pub(super) fn loans(
        &mut self,
        now: Moment,
        id: KeyId,
        all: bool,
        settings: &Settings,
        drafts: &mut [Draft],
    ) {
        let Some(key) = self.keys.get_mut(&id).filter(|key| !key.ending) else { return };
        if let Some(far) = &mut key.far {
            let (me, timing) = (settings.me, &settings.timing);
            let outlives = settings.planted(Planted::LoanOutlives);
            far.say(id, all, &Said { now, me, timing, outlives }, drafts);
        }
    }

    /// Puts the grants of a divided key into the messages to those who may rely on them for some time.
    pub(super) fn grants(&mut self, id: KeyId, all: bool, drafts: &mut [Draft]) {
        let Some(key) = self.keys.get_mut(&id).filter(|key| !key.ending) else { return };
        let mut drafts = drafts.iter_mut().peekable();
        for (host, claim) in key.claims.iter_mut() {
            while drafts.next_if(|draft| draft.to < host).is_some() {}
            let Some(draft) = drafts.next_if(|draft| draft.to == host) else { continue };
            let Some(end) = draft.granted_until else { continue };
            let more = claim.given.len() > 1;
            let dirty = claim.dirty;
            let Some(last) = claim.given.last_mut() else { continue };
            // Nothing, acknowledged, needs no renewal: it is what the host has when this ends.
            if !(dirty || all && (more || !last.share.is_none())) {
                continue;
            }
            // The first time stays: an answer from before that acknowledges another life of the number (I5).
            last.first.get_or_insert(draft.message.sent);
            // Never earlier: the holder may go by what was said before, to its own end (I8).
            last.end = last.end.max(end);
            claim.dirty = false;
            draft.message.grants.push(Grant { key: id, share: last.share, number: last.number });
        }
    }
}
