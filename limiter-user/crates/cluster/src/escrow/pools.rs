//! What is delegated to this host, and for how long.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{HostId, Moment, ViewId};
use model::Share;

use super::excess::{Bounds, Excess};
use super::half::half;
use super::home::Home;
use super::host::Host;
use super::majority::Votes;
use super::peer::{Amount, Delegation};
use super::{Planted, Region};

/// In how many steps it is looked how long what is delegated lasts.
/// Each step costs a look at all delegations; fewer make loans shorter than they could be.
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
pub(super) struct Pools {
    pub(super) bounds: Bounds,
    /// What this host may use of every key without end.
    pub(super) floor: Share,
    /// When all grants that were given by now, or are given now, have ended.
    pub(super) soon: Moment,
    /// What lasts until then.
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
    /// What it may use whatever it is granted.
    pub(super) own: Share,
    pub(super) weight: u32,
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

impl Pools {
    /// What is delegated to this host for at least as long as a grant that is given now, and, where it `lends`, for
    /// longer.
    pub(super) fn new(
        now: Moment,
        host: &mut Host,
        home: &Home,
        votes: &Votes,
        excess: &Excess,
        lends: bool,
    ) -> Self {
        let floor = excess.scaled(host.settings.floor_of(home.state.home));
        let lent = home.lent(&host.settings);
        let kept = if host.uses_half(now) { excess.scaled(half(lent)) } else { Share::NONE };
        let mut pools = Self {
            bounds: excess.bounds(&host.settings),
            floor,
            soon: host.grants_end(now),
            short: Delegated::default(),
            longer: Vec::new(),
            hosts: known_hosts(now, host, floor + kept),
            regions: Vec::new(),
            expected: Share::NONE,
        };
        // Others may go by grants of an earlier run, which these books do not know: there is nothing to divide yet.
        if host.is_quiet(now) {
            return pools;
        }
        let timing = host.settings.timing;
        // What this host delegates to itself is as any delegation.
        if host.gives(now, home) {
            let until = now.after(home.delegation(&timing));
            host.views.lend(until);
            let (views, half) = (host.views.listed(), host.own_half);
            host.own.delegate(now, until, Amount::new(half.delegated(lent)), &views);
            let (voted, until) = votes.leased(now, until, &host.settings, lent);
            host.own.delegate(now, until, Amount::voted(half.delegated(voted)), &views);
        }
        let (me, view) = (host.settings.me, host.views.present());
        if view.has_regions() {
            let weight = |weight: u64| u32::try_from(weight).unwrap_or(u32::MAX);
            pools.regions = view.regions().map(|(region, its)| (region, weight(its))).collect();
            let mine = view.region(me);
            let near = host.peers.iter().filter(|(host, _)| view.region(**host) == mine);
            // What they say, in force or not: after a restart of one of them nothing is borrowed in its place.
            pools.expected = near.filter_map(|(_, peer)| peer.offered).sum::<Share>() + lent;
        }
        let given: Vec<SmallVec<[&Delegation; 2]>> = host
            .peers
            .iter()
            .chain([(&me, &host.own)])
            .map(|(&from, peer)| {
                let its = peer.delegations.iter();
                its.filter(|its| host.views.near(from, &its.views)).collect()
            })
            .collect();
        let blind = host.settings.planted(Planted::ViewsNotCompared);
        pools.short = delegated(&given, pools.soon, blind);
        if lends {
            // pool(t) at some t between a grant and the longest loan: a loan lasts to one of them, none longer.
            let step = now.after(timing.loan_in).since(pools.soon) / STEPS;
            let until = |at| pools.soon.after(step * at);
            pools.longer = (1..=STEPS).map(|at| delegated(&given, until(at), blind)).collect();
        }
        pools
    }
}

/// What is known of each host that may want something of a key.
fn known_hosts(now: Moment, host: &Host, own: Share) -> Vec<(HostId, Known)> {
    let (me, part) = (host.settings.me, host.settings.floor);
    let view = host.views.present();
    let mut hosts: Vec<(HostId, Known)> = Vec::with_capacity(host.peers.len() + 1);
    for (&other, peer) in &host.peers {
        let reached = peer.lease(now, host.grant(other, peer)).is_some();
        let own = peer.uses_anyway(now, part);
        hosts.push((other, Known { reached, own, weight: view.weight(other) }));
    }
    let at = hosts.partition_point(|(other, _)| *other < me);
    let known = Known { reached: true, own, weight: view.weight(me) };
    hosts.insert(at, (me, known));
    hosts
}
