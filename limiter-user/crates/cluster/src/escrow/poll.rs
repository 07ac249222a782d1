//! What a host does when it is time.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::{HostId, KeyId, Message, Moment};
use model::Share;

use super::{Escrow, Granted, Outputs, keys};

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
        let timing = self.settings.timing;
        let mut out = Outputs::default();
        if self.views.expire(now) {
            // Owners by the present view may be delegated to at last.
            self.round = self.round.min(now);
        }
        // Durable in this poll, before a message tells a moment beyond what was kept.
        if let Some(clock) = self.clock.renew(self.kept.clock) {
            self.kept.clock = clock;
            self.keep = true;
        }
        self.count_votes(now);
        let round = now >= self.round;
        let mut stale = Vec::new();
        if round {
            stale = self.held.expire(now, timing.forget);
            self.give_away(now);
            self.look_for_lost(now);
            self.add_up(now);
            // In step with its own clock, however late this poll is.
            let every = self.every(now).as_nanos().max(1) as u64;
            let since = now.0.saturating_sub(self.round.0);
            self.round = Moment(self.round.0 + (since / every + 1) * every);
        }
        self.hand_over(now);
        // From here on the home share is what it will be when the messages go out.
        let floor = self.floor();
        // Before it is known whether this host is alone: after a pause it may still grant to one that it sees no
        // more.
        let divided = self.divide_all(now, round);
        let (without_end, hosts) =
            if self.alone(now) { (Share::WHOLE, 1) } else { (floor, self.hosts()) };
        let told = self.told.replace((self.kept.home, without_end, hosts));
        if told != self.told {
            (out.floor, out.hosts) = (Some(without_end), hosts);
            self.held.touched.extend(self.held.keys.keys().copied());
        }
        out.messages = self.messages(now, round, &divided);
        // A grant whose host gets no message now, or answers nothing, is divided again until it could be said.
        let unsaid = divided.into_iter().filter(|&key| self.owned.unsaid(key));
        let unsaid: Vec<KeyId> = unsaid.collect();
        self.owned.dirty.extend(unsaid);
        // Last, because a host that delegates in these messages stops to use the same itself.
        out.grants = self.words(now, round);
        // The kernel keeps a word until it ends: one of a forgotten key is cut short.
        out.grants.extend(stale.into_iter().map(|key| {
            let until = self.clock.host(now);
            Granted { key, share: floor, until }
        }));
        out.keep = std::mem::take(&mut self.keep);
        // The last host has nobody to give to: its share stays here and in what it keeps.
        let alone = self.views.present().iter().all(|(host, _)| host == self.settings.me);
        let empty = self.kept.home.is_none() || alone;
        out.left = self.leaving && empty && self.kept.outgoing.is_empty();
        let due = self.peers.values().filter_map(|peer| peer.due).min();
        let waiting = self.ceding.iter().map(|ceded| ceded.end).filter(|end| *end > now).min();
        let next =
            [due, waiting, self.views.next()].into_iter().flatten().fold(self.round, Moment::min);
        out.next = self.clock.host(next);
        out
    }

    /// How long a round takes: where others are so far away that much of a grant is over when it comes, half as
    /// long as usual, so that the next one comes in time.
    fn every(&self, now: Moment) -> Duration {
        let timing = self.settings.timing;
        let view = self.views.present();
        let mine = view.region(self.settings.me);
        // No grants go to other regions.
        let near = |host: HostId| view.region(host).is_none_or(|region| Some(region) == mine);
        let far = |(&host, peer): (&HostId, &super::Peer)| {
            peer.alive(now, self.delegation()) && peer.far(timing.grant * 3 / 10) && near(host)
        };
        if self.peers.iter().any(far) { timing.every / 2 } else { timing.every }
    }

    /// Divides all keys that this host owns, or those that something has changed of; which.
    fn divide_all(&mut self, now: Moment, all: bool) -> Vec<KeyId> {
        if all {
            let floor = self.floor();
            let me = self.settings.me;
            // A key that only this host wants is reported to nobody: nothing else would divide it.
            let (held, owned, views) = (&mut self.held, &mut self.owned, &self.views);
            for (&key, held) in &mut held.keys {
                if held.owner(key, views) == Some(me) && held.wants_some(floor) {
                    owned.dirty.insert(key);
                }
            }
            self.owned.all_dirty();
        }
        let keys = keys::take(&mut self.owned.dirty);
        if keys.is_empty() {
            return Vec::new();
        }
        let pools = self.pools(now);
        for &key in &keys {
            self.divide(now, key, &pools);
        }
        keys
    }

    /// Who gets a message now.
    fn receivers(&mut self, now: Moment, round: bool) -> BTreeSet<HostId> {
        let due = self.peers.iter().filter(|(_, peer)| peer.due(now));
        let view = self.views.present();
        let mut receivers: BTreeSet<HostId> = due.map(|(host, _)| *host).collect();
        if round {
            let heard = |peer: &super::Peer| peer.alive(now, self.delegation());
            let heard = self.peers.iter().filter(|(_, peer)| heard(peer)).map(|(host, _)| *host);
            let mut all: BTreeSet<HostId> =
                view.iter().map(|(host, _)| host).chain(heard).collect();
            all.remove(&self.settings.me);
            if view.has_regions() {
                self.leave_out_far(now, &mut all);
            }
            for host in &all {
                self.peers.entry(*host).or_default().rounded = now;
            }
            receivers.extend(all);
        }
        receivers
    }

    /// Leaves out hosts of other regions to whom there is nothing to say so soon.
    fn leave_out_far(&self, now: Moment, hosts: &mut BTreeSet<HostId>) {
        let timing = self.settings.timing;
        let view = self.views.present();
        let mine = view.region(self.settings.me);
        let far = self.owned.far.iter().filter_map(|key| self.owned.keys.get(key)?.far.as_ref());
        let busy = far.flat_map(|far| far.busy(now, timing.far_every));
        let mut busy: BTreeSet<HostId> = busy.collect();
        busy.extend(self.kept.outgoing.iter().map(|(host, _)| *host));
        let calm = if self.settings.majority { timing.every * 2 } else { timing.far_every };
        hosts.retain(|host| {
            let near = view.region(*host).is_none_or(|region| Some(region) == mine);
            let Some(peer) = self.peers.get(host) else { return true };
            // Who has answered something once may be answered later.
            let new = peer.echoed.is_none() || peer.theirs.is_none();
            let pause = if busy.contains(host) { timing.every } else { calm };
            // A round may come a little early.
            let due = now.since(peer.rounded) + timing.every / 4 >= pause;
            near || new || due
        });
    }

    fn messages(&mut self, now: Moment, all: bool, divided: &[KeyId]) -> Vec<(HostId, Message)> {
        let timing = self.settings.timing;
        let receivers = self.receivers(now, all);
        if receivers.is_empty() {
            return Vec::new();
        }
        let mut drafts: Vec<Draft> = Vec::with_capacity(receivers.len());
        for to in receivers {
            let peer = self.peers.entry(to).or_default();
            let granted_until = peer.lease(now, timing.grant);
            let heard = peer.heard();
            let message = Message {
                sent: peer.send(now),
                echo: peer.theirs,
                granted_for: timing.grant,
                far: self.kept.far,
                ..Message::default()
            };
            drafts.push(Draft { to, granted_until, heard, message });
        }
        for &key in divided {
            self.grants(key, all, &mut drafts);
            self.loans(now, key, all, &mut drafts);
        }
        self.reports(now, all, &mut drafts);
        let gives = now >= self.quiet && !self.leaving && !self.views.crowded(self.kept.far);
        let views = self.views.listed();
        let (lent, delegation) = (self.lent(), self.delegation());
        let mut messages = Vec::with_capacity(drafts.len());
        for Draft { to, mut message, .. } in drafts {
            let member = self.views.present().has(to);
            message.transfers = self.transfers(now, to);
            let Some(peer) = self.peers.get_mut(&to) else { continue };
            let lease = peer.lease(now, delegation);
            // Who does not hear this host cannot use what it gives.
            let hears = peer.hears(now, delegation);
            let given = lease.filter(|_| gives && member && hears);
            // Who starts may have gone back to an earlier copy of what it had kept, and is told what was taken of it.
            let starts = given.is_none() || !peer.delegates;
            let tells = std::mem::take(&mut peer.acknowledges) || starts;
            let received = self.kept.incoming.get(&to).filter(|_| tells);
            message.received.extend(received);
            // Told even where it is not in force: others add up who has what.
            message.delegated = lent;
            message.views.clone_from(&views);
            if let Some(end) = given {
                peer.lent = peer.lent.max(end);
                self.views.lend(end);
                message.delegated_for = delegation;
                message.votes = self.votes_for(now, to, end);
                let (mandated, until) = self.mandated(now, end);
                message.majority = mandated;
                // Mandates end at one moment here, so what comes of them must too: the receiver's span is cut.
                message.majority_for = delegation.saturating_sub(end.since(until));
            }
            messages.push((to, message));
        }
        messages
    }

    /// What the kernel must be told.
    fn words(&mut self, now: Moment, all: bool) -> Vec<Granted> {
        self.held.touched.extend(std::mem::take(&mut self.held.reclaimed));
        if all {
            self.held.touched.extend(self.held.keys.keys().copied());
        }
        let floor = self.floor();
        let mut words = Vec::new();
        for key in keys::take(&mut self.held.touched) {
            let Some(held) = self.held.keys.get(&key).filter(|held| held.tracked) else {
                continue;
            };
            let reclaims = self.reclaims(now, key, held);
            // No message ends an own use, but this host's next delegation does: looked at again in each poll (I7).
            let usable = self.usable_of(now, key, held, reclaims);
            if reclaims {
                self.held.reclaimed.insert(key);
            }
            let Some(held) = self.held.keys.get_mut(&key) else { continue };
            // Each word costs a map update; one that only lasts longer may wait until half of it is over.
            let half = now.after(self.settings.timing.grant / 2);
            let same = match (held.word, usable) {
                (Some((had, end)), Some((share, until))) => {
                    had == share && (until == end || !all && until > end && end > half)
                }
                // What has ended is the floor already.
                (had, None) => had.is_none_or(|(_, end)| end <= now),
                (None, Some(_)) => false,
            };
            if same {
                continue;
            }
            held.word = usable;
            let (share, until) = usable.unwrap_or((floor, now));
            words.push(Granted { key, share, until: self.clock.host(until) });
        }
        words
    }
}
