//! Home shares that move for good.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::message::{Ask, Tally, Transfer};
use crate::{HostId, Message, Moment};
use model::Share;

use super::clock::{Clock, grace};
use super::host::Host;
use super::majority::counted;
use super::peer::Peer;
use super::recount::Era;
use super::{PersistentState, Planted, Settings, Timing, Urgency};

/// How much of its home share a host has on the way at most while there is demand, unless it leaves: the half.
const ON_THE_WAY: u64 = 2;
/// What part of that it begins to give away in one round.
const STEPS: u64 = 8;
/// Who has this part more than its weight says gives nothing away: 1/100.
const HYSTERESIS: u64 = 100;
/// Less than this is not worth a transfer.
const MIN_TRANSFER: Share = Share::from_units(1 << 16);

/// A part of the home share that this host delegates no more, to give it away at its end. Until then those to
/// whom it was delegated before may still use it, and so may this host: it is not idle.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingTransfer {
    share: Share,
    pub(super) end: Moment,
    /// It was still told to be delegated by then.
    mark: Moment,
    /// When a majority had heard that, if it decides about limits.
    heard: Option<Moment>,
}

/// The home share: what this host has for good, what of it is on its way to others, and what has come. All that must
/// survive a restart is here, so that each change of it is seen to be kept.
#[derive(Clone, Debug)]
pub(super) struct Home {
    pub(super) state: PersistentState,
    /// It has changed since [`Home::take_changed`].
    changed: bool,
    /// Parts that are to be given away and wait until nobody can use them.
    ceding: Vec<PendingTransfer>,
    /// From when transfers may be sent, by number.
    sendable: BTreeMap<u64, Moment>,
    /// After what this host had told when it last took shares of others.
    pub(super) taken: Moment,
    /// What this host has given up since its start: others had taken it, and what is kept here did not know that.
    pub(super) given_up: Share,
}

impl Home {
    /// With what was kept; transfers may be sent from `quiet` on.
    pub(super) fn new(state: PersistentState, quiet: Moment) -> Self {
        Self {
            // A crash may have come before the kernel was told: its old words still use what is on its way (I3).
            sendable: state.outgoing.iter().map(|(_, sent)| (sent.number, quiet)).collect(),
            state,
            changed: false,
            ceding: Vec::new(),
            taken: Moment(0),
            given_up: Share::NONE,
        }
    }

    /// Whether [`Home::state`] must be made durable; not again until it changes again.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Durable in this poll, before a message tells a moment beyond what was kept.
    pub(super) fn renew(&mut self, clock: &Clock) {
        if let Some(clock) = clock.renew(self.state.clock) {
            self.state.clock = clock;
            self.changed = true;
        }
    }

    /// Whether it is counted: then it does not change until that comes to an end.
    pub(super) const fn is_counted(&self) -> bool {
        self.state.era.counted.is_some()
    }

    /// Keeps that all who were counted have been heard in this era, if they have.
    pub(super) fn know_era(&mut self, host: &Host) {
        let era = &mut self.state.era;
        if era.known || era.tally.hosts > 2 {
            return;
        }
        let heard = host.peers.values().filter(|peer| peer.counts && peer.era == era.number);
        era.known = heard.count() + usize::from(era.counts) == era.tally.hosts as usize;
        self.changed |= era.known;
    }

    /// Takes what a host that counts asks; whether it is answered with more than before.
    pub(super) fn take_ask(&mut self, ask: Ask) -> bool {
        let taken = self.state.era.take(ask);
        self.changed |= taken;
        if self.is_counted() {
            // It is counted with what it has.
            self.cede_nothing();
        }
        taken
    }

    /// What waits to be given away stays.
    pub(super) fn cede_nothing(&mut self) {
        self.ceding.clear();
    }

    /// Begins the era that a recount has ended with. Who was counted has what it had, and the host that counted what was
    /// missing; whoever was not counted has nothing any more.
    pub(super) fn begin_era(&mut self, number: u64, tally: Tally, me: HostId) {
        let counts =
            number == self.state.era.number + 1 && self.state.era.counted == Some(tally.counted);
        let lacking = if tally.counted.by == me { tally.lacking } else { Share::NONE };
        let home = if counts { self.state.home + lacking } else { Share::NONE };
        self.given_up += self.state.home.without(home);
        self.state.home = home;
        // What was on its way was not counted with anybody who had not taken it, and nobody takes it any more.
        self.state.outgoing.clear();
        self.sendable.clear();
        self.ceding.clear();
        self.state.era = Era { number, counts, tally, ..Era::default() };
        self.changed = true;
    }

    /// From now on this host gives for as long as is needed over long ways. That is kept before it does so: after
    /// a restart it waits until all that it gave has ended.
    pub(super) fn go_far(&mut self) {
        self.changed |= !self.state.far;
        self.state.far = true;
    }

    pub(super) fn delegation(&self, timing: &Timing) -> Duration {
        timing.delegation(self.state.far)
    }

    /// The longest that anything is given for.
    pub(super) fn longest(&self, timing: &Timing) -> Duration {
        timing.longest(self.state.far)
    }

    /// What this host delegates of each key.
    pub(super) fn lent(&self, settings: &Settings) -> Share {
        settings.beside_floor(self.unceded())
    }

    /// What is not about to be given away.
    pub(super) fn unceded(&self) -> Share {
        self.state.home.without(self.ceded())
    }

    /// When something that is to be given away can be.
    pub(super) fn next(&self, now: Moment) -> Option<Moment> {
        self.ceding.iter().map(|ceded| ceded.end).filter(|end| !end.has_come(now)).min()
    }

    /// Takes what comes for good, each number once (I2).
    pub(super) fn take_transfers(
        &mut self,
        now: Moment,
        from: HostId,
        message: &Message,
        host: &mut Host,
    ) {
        // What comes is sent again, or counted as missing.
        let taken = (!self.is_counted()).then_some(&message.transfers);
        for transfer in taken.into_iter().flatten() {
            let highest = self.state.incoming.get(&from).copied().unwrap_or(0);
            let again = host.settings.planted(Planted::TransferTakenTwice);
            if transfer.number > highest || again {
                let home = self.state.home + transfer.share;
                // More than all there is comes of a store that went back, or of a lie (I1).
                if home > Share::WHOLE {
                    host.counters.transfers_refused += 1;
                    continue;
                }
                // One durable step: taken and remembered, or neither (I2).
                self.state.home = home;
                self.state.incoming.insert(from, transfer.number.max(highest));
                self.changed = true;
                // All others may grant out of it at once.
                self.taken = host.mark(now);
                let hot = host.settings.timing.hot.max(host.gap());
                host.peers.values_mut().for_each(|peer| peer.want(now, hot));
            }
            // Also what was taken before: its acknowledgement was lost.
            if let Some(peer) = host.peers.get_mut(&from) {
                peer.acknowledges = true;
            }
            host.send_soon(now, from, Urgency::Now);
        }
    }

    /// Forgets what has come to where it was sent: all up to the number that was taken last.
    pub(super) fn take_acknowledgements(
        &mut self,
        from: HostId,
        message: &Message,
        settings: &Settings,
    ) {
        let Some(&last) = message.received.iter().max() else { return };
        // Before anything else is concluded: this host may have started from an earlier copy of its state.
        self.give_up_what_was_given(last, settings);
        let before = self.state.outgoing.len();
        let arrived = |to: HostId, number: u64| to == from && number <= last;
        self.state.outgoing.retain(|(to, transfer)| !arrived(*to, transfer.number));
        if self.state.outgoing.len() < before {
            self.changed = true;
            let outgoing = &self.state.outgoing;
            self.sendable
                .retain(|number, _| outgoing.iter().any(|(_, sent)| sent.number == *number));
        }
    }

    /// Another host has taken this host's transfer of that number. If what is kept here does not know it, it is an earlier
    /// copy: what was given since, which is how far the numbers are apart, is not this host's any more.
    fn give_up_what_was_given(&mut self, number: u64, settings: &Settings) {
        let given = Share::from_units(number.saturating_sub(self.state.last_transfer));
        if given.is_none() || !settings.bounded() {
            return;
        }
        self.state.last_transfer = number;
        self.given_up += self.state.home.min(given);
        self.state.home = self.state.home.without(given);
        self.changed = true;
    }

    /// What is on its way to a host and may be sent.
    pub(super) fn transfers(&self, now: Moment, to: HostId) -> Vec<Transfer> {
        let sendable =
            |number: u64| self.sendable.get(&number).is_none_or(|from| from.has_come(now));
        let its = self.state.outgoing.iter().filter(|(host, _)| *host == to);
        its.map(|(_, transfer)| *transfer).filter(|transfer| sendable(transfer.number)).collect()
    }

    /// Decides what of this host's home share is to be given away. It is sent when nobody can use anything
    /// that was delegated out of it (I3): votes of its own last until `own_votes`. All is given at once where it is
    /// `idle`.
    pub(super) fn give_away(&mut self, now: Moment, host: &Host, own_votes: Moment, idle: bool) {
        if host.is_quiet(now) || self.state.home.is_none() || self.is_counted() {
            return;
        }
        // All delegations end until then, those to this host itself and what it uses of its own too.
        let waits = !host.settings.planted(Planted::TransferNotWaited);
        let peers = host.peers.values().map(|peer| peer.lent).max().unwrap_or_default();
        let own = own_votes.max(now.after(host.settings.timing.grant));
        let lent = peers.max(host.views.until()).max(own);
        let end = if waits { lent } else { now };
        let mark = host.mark(now);
        let share = if host.leaving { self.unceded() } else { self.surplus(now, host, idle) };
        if !share.is_none() {
            self.ceding.push(PendingTransfer { share, end, mark, heard: None });
        }
    }

    /// Gives away what nobody can use any more: takes it off the home share, and in the same poll off what the
    /// kernel has, before the messages tell of it (I3).
    pub(super) fn hand_over(&mut self, now: Moment, host: &mut Host) {
        // Who decides about limits must know first how much this host has left, and what was voted before must
        // have ended.
        let (asks, leaving) = (host.settings.majority, host.leaving);
        if self.is_counted() {
            return;
        }
        let last = self.ceding.iter().map(|ceded| ceded.mark).max().unwrap_or_default();
        let mut ceding = std::mem::take(&mut self.ceding);
        for ceded in ceding.iter_mut().filter(|ceded| asks && ceded.heard.is_none()) {
            ceded.heard = self.majority_heard(now, ceded.mark, host).then_some(now);
        }
        self.ceding = ceding;
        let wait = grace(self.longest(&host.settings.timing));
        let heard = |ceded: &PendingTransfer| {
            ceded.heard.is_some_and(|heard| heard.after(wait).has_come(now))
        };
        let due = |ceded: &mut PendingTransfer| ceded.end.has_come(now) && (!asks || heard(ceded));
        let ready: Share = self.ceding.extract_if(.., due).map(|ceded| ceded.share).sum();
        if ready.is_none() {
            return;
        }
        let short = match leaving {
            true => self.heirs(now, host),
            false => self.short(now, host).unwrap_or_default(),
        };
        let lack: Share = short.iter().map(|(_, lacks)| *lacks).sum();
        let give = if leaving { ready } else { ready.min(lack) }.min(self.state.home);
        let mut left = give;
        let mut waits = leaving;
        let (mut rest, mut free) = (lack, Vec::new());
        for (to, lacks) in short {
            // One transfer to each at a time: its acknowledgement tells of all numbers before it.
            if self.on_the_way(to).is_none() {
                free.push((to, lacks));
            } else {
                rest = rest.without(if leaving { lacks } else { Share::NONE });
                waits = true;
            }
        }
        for (to, lacks) in free {
            let share = if leaving { left } else { give };
            let share = share.times(lacks.units(), rest.units());
            rest = rest.without(if leaving { lacks } else { Share::NONE });
            if !share.is_none() {
                left = left.without(share);
                self.transfer(to, share, now);
                host.send_soon(now, to, Urgency::Now);
            }
        }
        // What is not wanted any more stays here.
        let little = if leaving { Share::NONE } else { MIN_TRANSFER };
        if waits && !left.without(little).is_none() {
            self.ceding.push(PendingTransfer {
                share: left,
                end: now,
                mark: last,
                heard: Some(Moment(0)),
            });
        }
    }

    fn transfer(&mut self, to: HostId, share: Share, from: Moment) {
        // By the share, not by one: from the gap an earlier copy of this disk learns what it has given since.
        let number = self.state.last_transfer.saturating_add(share.units());
        self.state.last_transfer = number;
        self.state.home = self.state.home.without(share);
        self.state.outgoing.push((to, Transfer { number, share }));
        self.sendable.insert(number, from);
        self.changed = true;
    }

    /// Whether hosts with more than half of all shares have heard what this one has said after that moment.
    fn majority_heard(&self, now: Moment, mark: Moment, host: &Host) -> bool {
        // What one says now it cannot have been given by another one who said that it had it within less time than
        // giving takes.
        let delegation = host.settings.timing.delegation;
        let span = if self.state.far { delegation * 4 / 5 } else { delegation / 2 };
        let knows = |peer: &&Peer| peer.echoed > Some(mark) && peer.hears(now, span);
        let heard = host.peers.values().filter(knows);
        let theirs: Share = heard.filter_map(|peer| peer.offered).map(counted).sum();
        theirs + counted(host.settings.beside_floor(self.state.home)) > host.settings.half()
    }

    /// What is delegated no more, to be given away.
    fn ceded(&self) -> Share {
        self.ceding.iter().map(|ceded| ceded.share).sum()
    }

    fn on_the_way(&self, to: HostId) -> Share {
        let its = self.state.outgoing.iter().filter(|(host, _)| *host == to);
        its.map(|(_, transfer)| transfer.share).sum()
    }

    /// Those who stay, with their weights.
    fn heirs(&self, now: Moment, host: &Host) -> Vec<(HostId, Share)> {
        let span = self.delegation(&host.settings.timing);
        let stays = |peer: &Peer| peer.alive(now, span) && peer.delegates;
        let heard = |heir: &HostId| host.peers.get(heir).is_some_and(stays);
        let view = host.views.present().iter();
        let heirs = view.filter(|(heir, _)| *heir != host.settings.me && heard(heir));
        heirs.map(|(heir, weight)| (heir, Share::from_units(weight.into()))).collect()
    }

    /// What is more than this host's weight says and others lack, as far as it is not being given away yet.
    fn surplus(&self, now: Moment, host: &Host, idle: bool) -> Share {
        let ceded = self.ceded();
        let view = host.views.present();
        let mine = view.part(Share::WHOLE, view.weight(host.settings.me));
        let surplus = self.state.home.without(mine).without(ceded);
        // While owners change what is ceded would be used by nobody.
        let long = now.since(host.views.since) > host.settings.timing.every * 4;
        let settled = long && host.views.next().is_none();
        if !settled || surplus <= mine.times(1, HYSTERESIS).max(MIN_TRANSFER) {
            return Share::NONE;
        }
        let lack: Share = self.short(now, host).into_iter().flatten().map(|(_, lacks)| lacks).sum();
        let give = surplus.min(lack.without(ceded));
        if idle {
            return give;
        }
        // What is given lies idle for some moments, so it is not all given at once.
        let moving = self.state.on_the_way();
        let most = self.state.home.times(1, ON_THE_WAY);
        give.min(most.without(moving + ceded)).min(most.times(1, STEPS).max(MIN_TRANSFER))
    }

    /// Who has less than its weight says, and how much less. None if that cannot be said.
    fn short(&self, now: Moment, host: &Host) -> Option<Vec<(HostId, Share)>> {
        let view = host.views.present();
        let delegation = self.delegation(&host.settings.timing);
        let mut short: Vec<(HostId, Share)> = Vec::new();
        for (other, weight) in view.iter().filter(|(other, _)| *other != host.settings.me) {
            // Whoever is not heard may have more than others see.
            let peer = host.peers.get(&other)?;
            if !peer.alive(now, delegation) {
                return None;
            }
            let target = view.part(Share::WHOLE, weight);
            let has = host.settings.whole_of(peer.offered?) + self.on_the_way(other);
            let lacks = target.without(has);
            if peer.delegates && lacks > target.times(1, 4 * HYSTERESIS) {
                short.push((other, lacks));
            }
        }
        Some(short)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_is_of_its_sender_s_transfers_alone() {
        let (one, other) = (HostId(1), HostId(2));
        let transfers = [1, 2].map(|number| Transfer { number, share: Share::from_units(1) });
        let outgoing = vec![(one, transfers[0]), (other, transfers[1])];
        let state = PersistentState { outgoing, last_transfer: 2, ..PersistentState::default() };
        let mut home = Home::new(state, Moment(100));
        let message = Message { received: vec![1], ..Message::default() };
        for changes in [true, false] {
            home.take_acknowledgements(one, &message, &Settings::new(HostId(3), 1));
            assert_eq!(home.state.outgoing, [(other, transfers[1])]);
            assert_eq!(home.take_changed(), changes);
        }
        // The other one still waits for its time.
        assert_eq!(home.transfers(Moment(99), other), []);
        assert_eq!(home.transfers(Moment(100), other), [transfers[1]]);
    }
}
