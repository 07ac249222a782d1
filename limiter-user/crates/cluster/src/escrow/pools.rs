//! What is delegated to this host, and for how long.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{HostId, Moment, ViewId};
use model::Share;

use super::peer::{Amount, Delegation};
use super::{Escrow, Planted, Region};

/// In how many steps it is looked how long what is delegated lasts.
const STEPS: u32 = 8;

/// What is delegated by a list of views.
type Listed = (Arc<[ViewId]>, Amount);

/// What is delegated to this host until some moment or longer, by the views that it was delegated by.
#[derive(Default)]
pub(super) struct Delegated {
    pub(super) until: Moment,
    /// Hosts that delegate by one list of views, together.
    pub(super) alike: Vec<Listed>,
    /// What other hosts delegate by several lists, each of which is enough.
    pub(super) several: Vec<Vec<Listed>>,
}

/// What all keys are divided with.
#[derive(Default)]
pub(super) struct Pools {
    /// What lasts as long as a grant.
    pub(super) short: Delegated,
    /// What lasts longer, in the order of moments, if anything is lent.
    pub(super) longer: Vec<Delegated>,
    /// All that may want something, in their order.
    pub(super) hosts: Vec<(HostId, Known)>,
    pub(super) regions: Vec<(Region, u32)>,
    /// What hosts of this region say that they delegate.
    pub(super) expected: Share,
}

/// What is known of a host, whatever it wants.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// A grant that is given now reaches it.
    pub(super) reached: bool,
    /// What it may use anyway.
    pub(super) floor: Share,
    pub(super) weight: u32,
}

/// The floor of a host that delegates so much beside it, the floor being that part of its home share.
pub(super) fn floor_beside(delegated: Share, part: Share) -> Share {
    delegated.times(part.units(), Share::WHOLE.without(part).units())
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
        // Nearly all hosts delegate by one list, the same one: summed up here, they cost one look for each key.
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
        // Others may go by grants of an earlier run, which these books do not know: there is nothing to divide yet.
        if now < self.quiet {
            return pools;
        }
        let timing = self.settings.timing;
        // What this host delegates to itself is as any delegation.
        if !self.leaving && !self.views.crowded(self.kept.far) {
            let until = now.after(self.delegation());
            self.views.lend(until);
            let views = self.views.listed();
            let lent = Amount::new(self.lent());
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
            // What they say, in force or not: after a restart of one of them nothing is borrowed in its place.
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
            // pool(t) at some t between a grant and the longest loan: a loan lasts to one of them, none longer.
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
}
