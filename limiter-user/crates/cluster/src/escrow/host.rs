//! This host among the others: how it is set up, whom it sees and hears, and whether it gives anything now.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::message::Standing;
use crate::{HostId, Message, Moment};
use model::Share;

use super::clock::usable;
use super::half::{OwnHalf, delegates_by, half};
use super::home::Home;
use super::owner::Owned;
use super::peer::{Amount, Peer};
use super::recount::Era;
use super::view::Views;
use super::{Counters, MAX_PEERS, Member, Planted, Settings, Urgency};

/// The shortest time between two messages to one host; longer by as much for each so many hosts there are, because
/// what is urgent often concerns all of them.
const GAP: Duration = Duration::from_millis(10);
const GAP_HOSTS: u32 = 32;

/// The most views that a message may list.
const VIEWS: usize = 16;

/// For how many rounds in turn a way has to be long until leases last longer. It is so for ever then: not for a network that
/// was slow for some seconds.
const FAR_ROUNDS: u32 = 32;

/// Settings, views and peers, which nearly every decision reads. They are apart from what is decided with them, so that
/// each part of the escrow changes its own books only.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) settings: Settings,
    /// Until then this host gives nothing: what it gave before may be outstanding.
    pub(super) quiet: Moment,
    /// Until then it takes no grants, because its clock was wrong.
    pub(super) takes: Moment,
    pub(super) leaving: bool,
    /// It leaves and had nothing, which others have heard, perhaps: they do not mind its home lease any more. So it uses
    /// nothing of what still comes, and hands it on.
    pub(super) emptied: bool,
    /// Until when this host may use what is beside its floor: while half of those who count renew that, itself among
    /// them, the others cannot count without it.
    pub(super) home_lease: Moment,
    /// Those that membership tells of, this host among them.
    pub(super) members: BTreeMap<HostId, Member>,
    /// Whether others are there besides: see [`Host::there`].
    pub(super) lingers: bool,
    /// Whether grants last as long as the way to their holders needs.
    grants_longer: bool,
    /// Since when all are seen to give for longer.
    far_since: Option<Moment>,
    /// When all grants that it has given have ended.
    pub(super) granted: Moment,
    /// Whether it keeps half of its home share.
    pub(super) own_half: OwnHalf,
    pub(super) views: Views,
    pub(super) peers: BTreeMap<HostId, Peer>,
    /// What this host delegates to itself.
    pub(super) own: Peer,
    pub(super) counters: Counters,
}

impl Host {
    pub(super) fn new(settings: Settings, start: Moment, quiet: Moment) -> Self {
        let Settings { me, weight, region, .. } = settings;
        let members = BTreeMap::from([(me, Member { weight, region })]);
        Self {
            quiet,
            takes: start,
            leaving: false,
            emptied: false,
            home_lease: start,
            grants_longer: false,
            far_since: None,
            granted: start,
            own_half: OwnHalf::default(),
            views: Views::new(me, members.clone(), start),
            members,
            lingers: false,
            peers: BTreeMap::new(),
            own: Peer::default(),
            counters: Counters::default(),
            settings,
        }
    }

    /// Takes what a message tells of its sender and the moment that it answers, if that is one of this run, which began
    /// at `start`. Returns whether the message is the sender's latest, and that moment; `None` if it is not heard.
    pub(super) fn handle_message(
        &mut self,
        now: Moment,
        start: Moment,
        from: HostId,
        message: &Message,
    ) -> Option<(bool, Option<Moment>)> {
        if self.peers.len() >= MAX_PEERS && !self.peers.contains_key(&from) {
            self.counters.hosts_refused += 1;
            return None;
        }
        let peer = self.peers.entry(from).or_default();
        let latest = peer.hear(now, message.sent);
        // Only what answers a message of this run counts: before it others may have been told other things.
        let echo = message.echo.filter(|&echo| echo >= start && echo <= peer.last_sent);
        if message.echo.is_some() && echo.is_none() {
            self.counters.echoes_refused += 1;
        }
        if let Some(echo) = echo {
            peer.answers(now, echo);
        }
        if latest {
            (peer.era, peer.far) = (message.era, message.far);
        }
        Some((latest, echo))
    }

    /// Takes what a message of this era tells of its sender's shares, and that it renews this host's home lease.
    pub(super) fn take_renewal(
        &mut self,
        now: Moment,
        latest: bool,
        echo: Option<Moment>,
        from: HostId,
        message: &Message,
    ) {
        let home_lease = usable(self.settings.timing.home_lease);
        let Some(peer) = self.peers.get_mut(&from) else { return };
        // Old messages still renew leases by their own moment; what a host has now only its latest one tells.
        if latest {
            peer.offered = Some(message.delegated);
            // What it delegated of that half has to end first.
            let ends = now.after(message.delegated_for);
            let (_, keeps) = delegates_by(&message.views);
            peer.half_from = keeps.then(|| peer.half_from.unwrap_or(ends));
            peer.delegates = !message.delegated_for.is_zero();
            peer.counts = message.counts;
        }
        if let (true, Some(echo)) = (message.renews, echo) {
            peer.renews = peer.renews.max(echo.after(home_lease));
        }
    }

    /// Takes what a message delegates; whether that is much more than before.
    pub(super) fn take_delegation(
        &mut self,
        now: Moment,
        base: Moment,
        from: HostId,
        message: &Message,
    ) -> bool {
        let (views, is_half) = delegates_by(&message.views);
        if views.is_empty() || views.len() > VIEWS {
            return false;
        }
        let halves = is_half && !self.settings.planted(Planted::HalfCountedWhole);
        let part = |share: Share| if halves { half(share) } else { share };
        if !views.iter().all(|&view| self.views.find(view).is_some()) {
            // It may be known later, while the delegation lasts: so it is remembered all the same.
            self.counters.views_unknown += 1;
        }
        let until = base.after(usable(message.delegated_for));
        let voted = base.after(usable(message.majority_for));
        let Some(peer) = self.peers.get_mut(&from) else { return false };
        let rose = peer.delegate(now, until, Amount::new(part(message.delegated)), views);
        let rose_too = peer.delegate(now, voted, Amount::voted(part(message.majority)), views);
        rose || rose_too
    }

    /// What another host has last said to have as its home share, as far as it has.
    pub(super) fn home_of(&self, host: HostId) -> Option<Share> {
        let delegated = self.peers.get(&host)?.offered?;
        Some(self.settings.whole_of(delegated))
    }

    /// Whether what this host gave before may be outstanding: then it gives nothing.
    pub(super) fn is_quiet(&self, now: Moment) -> bool {
        !self.quiet.has_come(now)
    }

    /// Whether it may use its own home share, of keys that it delegates nothing of, for as long as a grant lasts.
    pub(super) fn uses_own(&self, now: Moment) -> bool {
        !self.is_quiet(now) && !self.emptied && self.is_leased(now, self.settings.timing.grant)
    }

    /// Whether its home lease lasts so long.
    pub(super) fn is_leased(&self, now: Moment, span: Duration) -> bool {
        self.home_lease >= now.after(span)
    }

    /// Whether this host delegates at present.
    pub(super) fn gives(&self, now: Moment, home: &Home) -> bool {
        // Who has nothing needs no lease to be given some.
        let leased = self.is_leased(now, home.delegation(&self.settings.timing));
        let may = leased || home.state.home.is_none();
        !self.is_quiet(now) && may && !self.leaving && !self.views.crowded(home.state.far)
    }

    /// Works out until when the home lease lasts, once a `round`, and more often where it may end before the next one.
    pub(super) fn renew_home_lease(&mut self, now: Moment, round: bool, era: &Era) {
        let before = self.own.renews;
        self.own.renews = match era.accepted {
            _ if !era.counts => Moment(0),
            None => Moment(u64::MAX),
            // That may have ended the era: then others may have the rest.
            Some(_) => before.min(now.after(usable(self.settings.timing.home_lease))),
        };
        let lasts = self.is_leased(now, 2 * self.settings.timing.longest(true));
        // Before that, leases may have been forgotten.
        if !round && lasts && !self.is_quiet(now) && self.own.renews == before {
            return;
        }
        let needed = era.tally.hosts.div_ceil(2);
        let all = self.peers.values().chain([&self.own]);
        let mut renewed: Vec<Moment> = all.map(|peer| peer.renews).collect();
        renewed.sort_unstable_by(|a, b| b.cmp(a));
        let needed = (needed as usize).checked_sub(1);
        let needed = needed.filter(|_| !self.settings.planted(Planted::HomeLeaseNotNeeded));
        self.home_lease = match needed {
            Some(last) => renewed.get(last).copied().unwrap_or_default(),
            None => Moment(u64::MAX),
        };
    }

    /// Forgets what concerns the era before, and tells all of the new one.
    pub(super) fn begin_era(&mut self, now: Moment) {
        (self.home_lease, self.own.renews) = (now, Moment(0));
        for peer in self.peers.values_mut() {
            (peer.counts, peer.offered, peer.standing) = (false, None, Standing::default());
            peer.renews = Moment(0);
        }
        self.tell_all(now);
    }

    /// Sees to it that all hosts get a message.
    pub(super) fn tell_all(&mut self, now: Moment) {
        let gap = self.gap();
        self.peers.values_mut().for_each(|peer| peer.want(now, gap));
    }

    /// The members, and those that are none any more, but have talked with this host within `span`.
    pub(super) fn there(&self, now: Moment, span: Duration) -> BTreeMap<HostId, Member> {
        // Membership may be wrong about them. To enter another view, and then this one again, costs more than to wait
        // for some messages: what was delegated under either has to end first.
        let talks = |host: &HostId| {
            let talks =
                |peer: &Peer| peer.delegates && peer.alive(now, span) && peer.hears(now, span);
            self.peers.get(host).is_some_and(talks)
        };
        let mut there = self.members.clone();
        for (host, member) in self.views.present().members() {
            if !there.contains_key(&host) && talks(&host) {
                there.insert(host, member);
            }
        }
        there
    }

    /// Whether no other member is there, as this host sees it.
    pub(super) fn sees_nobody(&self) -> bool {
        self.views.present().iter().all(|(host, _)| host == self.settings.me)
    }

    /// Whether a host is seen no more, and was not heard for so long, the longest of any lease.
    pub(super) fn is_lost(&self, now: Moment, host: HostId, longest: Duration) -> bool {
        // Both: membership may be wrong about a host that still talks, and a silent member may only be slow.
        !self.views.present().has(host)
            && !self.peers.get(&host).is_some_and(|peer| peer.alive(now, longest))
    }

    /// The host that the others vote for where one is lost: one of those who count, as others have heard nothing of what
    /// was lost.
    pub(super) fn coordinator(&self) -> Option<HostId> {
        let counts = |host: HostId| match host == self.settings.me {
            true => self.own.counts,
            false => self.peers.get(&host).is_some_and(|peer| peer.counts),
        };
        // Views may differ: two coordinators split the votes, and then neither has a majority (I9).
        let mut seen = self.views.present().iter().map(|(host, _)| host);
        // In order of their numbers.
        seen.clone().find(|host| counts(*host)).or_else(|| seen.next())
    }

    /// Whether this host is the first of those that it sees.
    pub(super) fn is_first(&self) -> bool {
        self.views.present().iter().next().is_some_and(|(host, _)| host == self.settings.me)
    }

    /// A moment after all that this host has told anybody.
    pub(super) fn mark(&self, now: Moment) -> Moment {
        self.peers.values().map(|peer| peer.last_sent).max().unwrap_or_default().max(now)
    }

    /// How long after the last message to a host the next one goes out at the earliest.
    pub(super) fn gap(&self) -> Duration {
        GAP * (1 + u32::try_from(self.peers.len()).unwrap_or(u32::MAX) / GAP_HOSTS).min(20)
    }

    /// Sees to it that a host gets a message.
    pub(super) fn send_soon(&mut self, now: Moment, to: HostId, urgency: Urgency) {
        let span = match urgency {
            Urgency::None => return,
            Urgency::Hot => self.settings.timing.hot.max(self.gap()),
            Urgency::Now => self.gap(),
        };
        if let Some(peer) = self.peers.get_mut(&to) {
            peer.want(now, span);
        }
    }

    /// Whether a host is of this one's region, or of none that is known.
    fn is_near(&self, host: HostId) -> bool {
        let view = self.views.present();
        view.region(host).is_none_or(|region| Some(region) == view.region(self.settings.me))
    }

    /// How long a round takes: where others are so far away that much of a grant is over when it comes, half as
    /// long as usual, so that the next one comes in time.
    pub(super) fn round(&self, now: Moment, delegation: Duration) -> Duration {
        let timing = self.settings.timing;
        // No grants go to other regions.
        let far = |(&host, peer): (&HostId, &Peer)| {
            peer.alive(now, delegation) && peer.takes(timing.grant * 3 / 10) && self.is_near(host)
        };
        if self.peers.iter().any(far) { timing.every / 2 } else { timing.every }
    }

    /// Whether there is a way to another host on which most of a grant is over when it comes, for many rounds in turn.
    pub(super) fn is_far(&mut self, now: Moment, delegation: Duration) -> bool {
        let timing = &self.settings.timing;
        // Nobody delegates for longer than a home lease still lasts.
        if timing.home_lease < 2 * timing.longest(true) {
            return false;
        }
        let most = timing.grant * 3 / 5;
        for peer in self.peers.values_mut() {
            // Who hears this host no more answers one moment for ever.
            let answers = peer.alive(now, delegation) && peer.hears(now, delegation);
            let slow = answers && peer.takes(most);
            peer.slow_rounds = if slow { peer.slow_rounds + 1 } else { 0 };
        }
        self.peers.values().any(|peer| peer.slow_rounds >= FAR_ROUNDS)
    }

    /// How long a grant to a host lasts.
    pub(super) fn grant(&self, to: HostId, peer: &Peer) -> Duration {
        let timing = &self.settings.timing;
        let longer = self.grants_longer && self.views.present().has(to);
        if longer { peer.grant(timing) } else { timing.grant }
    }

    /// Works out whether grants may be longer: when all who are there delegate for longer, as grants are made of that. They
    /// are made of loans, too, which are no longer: not where there are regions.
    pub(super) fn look_at_ways(&mut self, now: Moment, far: bool) {
        let view = self.views.present();
        let is_far = |host| self.peers.get(&host).is_some_and(|peer| peer.far);
        let mut others = view.iter().filter(|(host, _)| *host != self.settings.me);
        let all = far && !view.has_regions() && others.all(|(host, _)| is_far(host));
        // What others delegate rests on votes, which were for less time a moment ago.
        self.far_since = all.then(|| self.far_since.unwrap_or(now));
        let lasts = |since| now.since(since) >= self.settings.timing.delegation;
        self.grants_longer = self.far_since.is_some_and(lasts);
    }

    /// When all grants that were given by now, or are given now, have ended.
    pub(super) fn grants_end(&self, now: Moment) -> Moment {
        let grants = self.peers.iter().map(|(&to, peer)| self.grant(to, peer));
        let longest = grants.max().unwrap_or_default().max(self.settings.timing.grant);
        self.granted.max(now.after(longest))
    }

    /// Who gets a message now.
    pub(super) fn receivers(
        &mut self,
        now: Moment,
        round: bool,
        home: &Home,
        owned: &Owned,
    ) -> BTreeSet<HostId> {
        let due = self.peers.iter().filter(|(_, peer)| peer.due(now));
        let view = self.views.present();
        let mut receivers: BTreeSet<HostId> = due.map(|(host, _)| *host).collect();
        if round {
            let delegation = home.delegation(&self.settings.timing);
            let heard = |peer: &Peer| peer.alive(now, delegation);
            let heard = self.peers.iter().filter(|(_, peer)| heard(peer)).map(|(host, _)| *host);
            let mut all: BTreeSet<HostId> =
                view.iter().map(|(host, _)| host).chain(heard).collect();
            all.remove(&self.settings.me);
            if view.has_regions() {
                let mut busy = owned.busy(now, self.settings.timing.far_every);
                busy.extend(home.state.outgoing.iter().map(|(host, _)| *host));
                self.leave_out_far(now, &mut all, &busy);
            }
            for host in &all {
                self.peers.entry(*host).or_default().rounded = now;
            }
            receivers.extend(all);
        }
        receivers
    }

    /// Leaves out hosts of other regions to whom there is nothing to say so soon.
    fn leave_out_far(&self, now: Moment, hosts: &mut BTreeSet<HostId>, busy: &BTreeSet<HostId>) {
        let timing = self.settings.timing;
        let calm = if self.settings.majority { timing.every * 3 } else { timing.far_every };
        hosts.retain(|host| {
            let Some(peer) = self.peers.get(host) else { return true };
            // Who has answered something once may be answered later.
            let new = peer.echoed.is_none() || peer.theirs.is_none();
            let pause = if busy.contains(host) { timing.every } else { calm };
            // A round may come a little early.
            let due = now.since(peer.rounded) + timing.every / 4 >= pause;
            self.is_near(*host) || new || due
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ViewId;
    use crate::escrow::{Region, Timing};

    #[test]
    fn the_more_hosts_the_longer_between_two_messages_up_to_a_fifth_of_a_second() {
        let mut host = Host::new(Settings::new(HostId(1), 1), Moment(0), Moment(0));
        for (peers, ms) in [(0, 10), (31, 10), (32, 20), (64, 30), (1_000, 200)] {
            host.peers = (0..peers).map(|peer| (HostId(peer), Peer::default())).collect();
            assert_eq!(host.gap(), Duration::from_millis(ms), "{peers} hosts");
        }
    }

    #[test]
    fn over_long_ways_rounds_are_halved_and_after_many_of_them_leases_last_longer() {
        let (other, now) = (HostId(2), Moment(10_000_000_000));
        let mut host = Host::new(Settings::new(HostId(1), 1), Moment(0), Moment(0));
        let Timing { every, delegation, .. } = host.settings.timing;
        let mut at = |took, home_lease| {
            host.settings.timing.home_lease = home_lease;
            let peer = host.peers.entry(other).or_default();
            // The last answer alone: others would take off a sixteenth each.
            peer.slow_rounds = std::mem::take(peer).slow_rounds;
            peer.hear(now, Moment(1));
            peer.answers(now, Moment(now.0 - Duration::as_nanos(&took) as u64));
            (host.round(now, delegation) == every / 2, host.is_far(now, delegation))
        };
        // Just long enough, and not.
        let long = 2 * Timing::default().longest(true);
        let (ms, short) = (Duration::from_millis, long - Duration::from_nanos(1));
        // A grant lasts for half a second.
        assert_eq!(at(ms(150), long), (false, false));
        assert_eq!(at(ms(151), long), (true, false));
        for _ in 0..31 {
            assert_eq!(at(ms(301), long), (true, false));
        }
        // One that is not so slow, or that nobody hears any more, and all begins anew.
        for took in [ms(300), delegation + ms(1)] {
            assert_eq!(at(took, long), (true, false));
            for _ in 0..31 {
                assert_eq!(at(ms(301), long), (true, false));
            }
        }
        // Not where a home lease has no room for it.
        assert_eq!(at(ms(301), short), (true, false));
        assert_eq!(at(ms(301), long), (true, true));
    }

    #[test]
    fn grants_last_longer_when_all_who_are_there_have_given_for_longer_for_a_delegation() {
        let start = Moment(0);
        let mut host = Host::new(Settings::new(HostId(1), 1), start, start);
        let delegation = host.settings.timing.delegation;
        let see = |host: &mut Host, region| {
            let member = |host| (HostId(host), Member { weight: 1, region: Region(region * host) });
            let members = [1, 2, 3].map(member);
            host.views = Views::new(HostId(1), BTreeMap::from(members), start);
        };
        see(&mut host, 0);
        let at = |host: &mut Host, ns, own, others: [bool; 2]| {
            for (id, far) in [2, 3].into_iter().zip(others) {
                host.peers.entry(HostId(id)).or_default().far = far;
            }
            host.look_at_ways(Moment(ns), own);
            host.grants_longer
        };
        let later = delegation.as_nanos() as u64;
        assert!(!at(&mut host, 1, true, [true, false]));
        assert!(!at(&mut host, 1 + later, true, [true, true]));
        assert!(!at(&mut host, 2 * later, true, [true, true]));
        assert!(at(&mut host, 1 + 2 * later, true, [true, true]));
        // Not if one of them does not, this one, or where there are regions.
        assert!(!at(&mut host, 2 + 2 * later, true, [false, true]));
        assert!(!at(&mut host, 2 + 2 * later, true, [true, true]));
        assert!(at(&mut host, 2 + 3 * later, true, [true, true]));
        assert!(!at(&mut host, 3 + 3 * later, false, [true, true]));
        assert!(!at(&mut host, 4 + 3 * later, true, [true, true]));
        assert!(at(&mut host, 4 + 4 * later, true, [true, true]));
        see(&mut host, 7);
        assert!(!at(&mut host, 5 + 4 * later, true, [true, true]));
    }

    #[test]
    fn what_is_delegated_by_a_view_that_is_not_known_is_counted() {
        let mut host = Host::new(Settings::new(HostId(1), 1), Moment(0), Moment(0));
        host.peers.insert(HostId(2), Peer::default());
        let known = host.views.present().id;
        let mut counted = |view| {
            let message = Message { views: vec![view], ..Message::default() };
            host.take_delegation(Moment(2), Moment(1), HostId(2), &message);
            host.counters.views_unknown
        };
        assert_eq!([counted(known), counted(ViewId(7)), counted(known)], [0, 1, 1]);
    }
}
