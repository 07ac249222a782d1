//! What a host does when it is time.

use crate::{HostId, KeyId, Message, Moment};
use model::Share;

use super::pools::Pools;
use super::{Escrow, Granted, Outputs, Partition, Planted, holder, keys};

/// A message that is being made.
pub(super) struct Draft {
    pub(super) to: HostId,
    /// Until when its receiver may rely on a grant that it tells of, if it answers something at all.
    pub(super) granted_until: Option<Moment>,
    /// When what it answers came.
    pub(super) heard: Option<Moment>,
    pub(super) message: Message,
}

impl Escrow {
    /// Does everything that is due.
    pub fn poll(&mut self, now: Moment) -> Outputs {
        let now = self.clock.advance(now);
        let timing = self.host.settings.timing;
        let mut out = Outputs::default();
        if self.host.views.expire(now) {
            // Owners by the present view may be delegated to at last.
            self.round = self.round.min(now);
        }
        if self.host.lingers {
            self.enter_view(now);
        }
        // Before anything is delegated.
        let delegated = self.host.views.until();
        let waits = !self.host.settings.planted(Planted::HalfNotWaited);
        self.host.own_half.poll(now, delegated, timing.grant, waits);
        self.home.renew(&self.clock);
        let round = now >= self.round;
        self.host.own.counts = self.home.state.era.counts;
        // Before all that goes by home shares.
        self.recount.poll(now, round, &mut self.host, &mut self.home, &mut self.absent);
        self.host.renew_home_lease(now, round, &self.home.state.era);
        self.home.know_era(&self.host);
        self.held.set_auto(self.host.settings.majority && self.home.state.era.has_majority());
        // Before words and messages: both go by the quorum leases that come of it (I10).
        self.votes.count(now, &self.host, &self.home, &self.absent);
        let mut stale = Vec::new();
        if round {
            stale = self.held.expire(now, timing.forget);
            let idle = self.held.keys.is_empty() && self.owned.keys.is_empty();
            self.home.give_away(now, &self.host, self.votes.own, idle);
            self.absent.divide(now, &self.host, &self.home);
            if self.excess.add_up(now, &self.host, &self.home) {
                self.held.touch_all();
            }
            if !self.home.state.far && self.host.is_far(now, timing.delegation) {
                self.home.go_far();
            }
            // In step with its own clock, however late this poll is.
            let every =
                self.host.round(now, self.home.delegation(&timing)).as_nanos().max(1) as u64;
            let since = now.0.saturating_sub(self.round.0);
            self.round = Moment(self.round.0 + (since / every + 1) * every);
        }
        self.host.look_at_ways(now, self.home.state.far);
        self.home.hand_over(now, &mut self.host);
        self.host.emptied |= self.host.leaving && self.home.state.home.is_none();
        // From here on the home share is what it will be when the messages go out.
        let floor = self.floor();
        // Before it is known whether this host is alone: after a pause it may still grant to one that it sees no
        // more.
        let divided = self.divide(now, round);
        let (without_end, hosts) = if self.alone(now) {
            (Share::WHOLE, 1)
        } else {
            (floor, self.absent.hosts(&self.host, &self.home))
        };
        let told = self.told.replace((self.home.state.home, without_end, hosts));
        if told != self.told {
            (out.floor, out.hosts) = (Some(without_end), hosts);
            self.held.touch_all();
        }
        out.messages = self.messages(now, round, &divided);
        // A grant whose host gets no message now, or answers nothing, is divided again until it could be said.
        let unsaid = divided.into_iter().filter(|&key| self.owned.unsaid(key));
        let unsaid: Vec<KeyId> = unsaid.collect();
        self.owned.dirty.extend(unsaid);
        // Last, because a host that delegates in these messages stops to use the same itself.
        out.grants = self.kernel_grants(now, round);
        // The kernel keeps a word until it ends: one of a forgotten key is cut short.
        out.grants.extend(stale.into_iter().map(|key| {
            let until = self.clock.host(now);
            Granted { key, share: floor, until }
        }));
        out.keep = self.home.take_changed();
        // The last host has nobody to give to: all stays here. One that has a part sees nobody because it is cut off, and
        // waits: what it took away would lie idle.
        let home = self.home.state.home;
        let empty = home.is_none() || home == Share::WHOLE && self.host.sees_nobody();
        let has = !empty || !self.home.state.outgoing.is_empty();
        out.left = self.host.leaving && self.recount.lets_go(now, has, &self.host, &self.home);
        let due = self.host.peers.values().filter_map(|peer| peer.due).min();
        let next = [due, self.home.next(now), self.host.views.next()];
        let next = next.into_iter().flatten().fold(self.round, Moment::min);
        out.next = self.clock.host(next);
        out
    }

    /// Divides all keys that this host owns, or those that something has changed of; which.
    fn divide(&mut self, now: Moment, all: bool) -> Vec<KeyId> {
        let Self { host, home, votes, excess, held, owned, .. } = self;
        let floor = excess.scaled(host.settings.floor_of(home.state.home));
        let keys = owned.take_dirty(all, held, &host.views, floor, host.settings.me);
        if keys.is_empty() {
            return Vec::new();
        }
        let pools = Pools::new(now, host, home, votes, excess, !owned.far.is_empty());
        for &key in &keys {
            owned.divide(now, key, &pools, host, held);
        }
        keys
    }

    fn messages(&mut self, now: Moment, all: bool, divided: &[KeyId]) -> Vec<(HostId, Message)> {
        let floor = self.floor();
        let Self { host, home, votes, absent, held, owned, recount, .. } = self;
        let (timing, far) = (host.settings.timing, home.state.far);
        let receivers = host.receivers(now, all, home, owned);
        if receivers.is_empty() {
            return Vec::new();
        }
        let mut drafts: Vec<Draft> = Vec::with_capacity(receivers.len());
        for to in receivers {
            let granted_for = host.peers.get(&to).map_or(timing.grant, |peer| host.grant(to, peer));
            let peer = host.peers.entry(to).or_default();
            let shorter = host.settings.planted(Planted::GrantHeldLonger);
            let booked = if shorter { timing.grant } else { granted_for };
            let granted_until = peer.lease(now, booked);
            host.granted = host.granted.max(granted_until.unwrap_or_default());
            let heard = peer.heard();
            let message = Message {
                sent: peer.send(now),
                echo: peer.theirs,
                granted_for,
                far,
                ..Message::default()
            };
            drafts.push(Draft { to, granted_until, heard, message });
        }
        for &key in divided {
            owned.grants(key, all, &mut drafts);
            owned.loans(now, key, all, &host.settings, &mut drafts);
        }
        held.reports(now, all, host, floor, &mut drafts);
        let mut views = host.views.listed();
        views.extend(host.own_half.told());
        let (era, standing) = (home.state.era.clone(), recount.standing(now, host, home));
        let (lent, delegation) = (home.lent(&host.settings), home.delegation(&timing));
        let gives = host.gives(now, home);
        let mut messages = Vec::with_capacity(drafts.len());
        for Draft { to, mut message, .. } in drafts {
            let member = host.views.present().has(to);
            message.transfers = home.transfers(now, to);
            let Some(peer) = host.peers.get_mut(&to) else { continue };
            (message.era, message.counts) = (era.number, era.counts);
            // One that is not heard may be a copy of what it was in an earlier era.
            let knows = peer.era == era.number && peer.alive(now, delegation);
            message.tally = (!knows).then_some(era.tally);
            (message.standing, message.ask) = (standing, recount.ask(to));
            // Who is counted renews the home leases of those alone who are counted with it.
            let with = era.counted.is_none_or(|counted| peer.standing.counted == counted);
            let renewed = peer.lease(now, timing.home_lease);
            // What it has accepted may have ended the era: then it must not be renewed any more that one goes on in it.
            let renews = era.counts && era.accepted.is_none() && peer.era == era.number;
            let renewed = renewed.filter(|_| renews && with && peer.stays());
            message.renews = renewed.is_some();
            peer.renewed = peer.renewed.max(renewed.unwrap_or_default());
            let lease = peer.lease(now, delegation);
            // Who does not hear this host cannot use what it gives.
            let hears = peer.hears(now, delegation);
            let given = lease.filter(|_| gives && member && hears);
            // Who starts may have gone back to an earlier copy of what it had kept, and is told what was taken of it.
            let starts = given.is_none() || !peer.delegates;
            let tells = std::mem::take(&mut peer.acknowledges) || starts;
            let received = home.state.incoming.get(&to).filter(|_| tells);
            message.received.extend(received);
            // Told even where it is not in force: others add up who has what.
            message.delegated = lent;
            message.views.clone_from(&views);
            if let Some(end) = given {
                peer.lent = peer.lent.max(end);
                host.views.lend(end);
                message.delegated_for = delegation;
                let lost = || absent.voted_about(now, host, home);
                message.votes = votes.votes_for(now, to, end, host, lost);
                let (leased, until) = votes.leased(now, end, &host.settings, lent);
                message.majority = leased;
                // Leases end at one moment here, so what comes of them must too: the receiver's span is cut.
                message.majority_for = delegation.saturating_sub(end.since(until));
            }
            messages.push((to, message));
        }
        messages
    }

    /// What the kernel must be told.
    fn kernel_grants(&mut self, now: Moment, all: bool) -> Vec<Granted> {
        self.held.touched.extend(std::mem::take(&mut self.held.reclaimed));
        if all {
            self.held.touch_all();
        }
        let floor = self.floor();
        let mut grants = Vec::new();
        for key in keys::take(&mut self.held.touched) {
            let Some(held) = self.held.tracked(key) else { continue };
            let reclaims = held.reclaims(now, key, &self.host);
            // No message ends an own use, but this host's next delegation does: looked at again in each poll (I7).
            let usable = self.usable(now, key, held, reclaims);
            if reclaims {
                self.held.reclaimed.insert(key);
            }
            let Some(held) = self.held.keys.get_mut(&key) else { continue };
            // Each word costs a map update; one that only lasts longer may wait until half of it is over.
            let half = now.after(self.host.settings.timing.grant / 2);
            let same = match (held.word, usable) {
                (Some((had, end)), Some((share, until))) => {
                    had == share && (until == end || !all && until > end && end > half)
                }
                // What has ended is the floor already.
                (Some((_, end)), None) => end.has_come(now),
                // A grant of nothing ends what an earlier run had told the kernel: it is about to be acknowledged.
                (None, None) => !self.host.is_quiet(now) || held.grants.is_empty(),
                (None, Some(_)) => false,
            };
            if same {
                continue;
            }
            let (share, until) = usable.unwrap_or((floor, now));
            held.word = Some((share, until));
            grants.push(Granted { key, share, until: self.clock.host(until) });
        }
        grants
    }

    /// What this host may use of a tracked key beside its floor, floor included, and until when, if it uses its home share
    /// of it itself where it `reclaims`. None if it is the floor alone.
    pub(super) fn usable(
        &self,
        now: Moment,
        key: KeyId,
        held: &holder::Key,
        reclaims: bool,
    ) -> Option<(Share, Moment)> {
        let settings = &self.host.settings;
        // What it was given may have ended where its clock was wrong.
        if !self.host.takes.has_come(now) {
            return None;
        }
        let (mut share, mut until) = (Share::NONE, Moment(u64::MAX));
        let mut add = |more: Share, end: Moment| {
            if !more.is_none() {
                share += more;
                until = until.min(end);
            }
        };
        // The sum ends with its first part: one word has one end, and the next poll renews it.
        for (_, taken) in held.grants.iter().filter(|(_, taken)| !taken.until.has_come(now)) {
            add(taken.share, taken.until);
        }
        if let Some((mine, end)) = self.owned.mine(now, key, settings.me) {
            add(mine, end);
        }
        if reclaims {
            let end = now.after(settings.timing.grant);
            if self.held.by_majority(key) {
                let lent = self.home.lent(settings);
                let (leased, until) = self.votes.leased(now, end, settings, lent);
                add(self.excess.scaled(leased), until);
            } else {
                add(self.excess.scaled(settings.beside_floor(self.home.state.home)), end);
            }
        } else if self.host.uses_half(now) {
            let (half, end) = self.own_half(now, self.held.by_majority(key));
            add(half, end);
        }
        if held.partition == Partition::Available {
            add(self.absent.part, now.after(settings.timing.grant));
        }
        (!share.is_none()).then(|| (self.floor() + share, until))
    }
}
