//! Home shares that move for good.

use crate::message::Transfer;
use crate::{HostId, Message, Moment};
use model::Share;

use super::clock::grace;
use super::{Escrow, Planted, Urgency};

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

impl Escrow {
    /// Takes what comes for good, each number once (I2).
    pub(super) fn take_transfers(&mut self, now: Moment, from: HostId, message: &Message) {
        for transfer in &message.transfers {
            let highest = self.kept.incoming.get(&from).copied().unwrap_or(0);
            let again = self.planted(Planted::TransferTakenTwice);
            if transfer.number > highest || again {
                let home = self.kept.home + transfer.share;
                // More than all there is comes of a store that went back, or of a lie (I1).
                if home > Share::WHOLE {
                    self.counters.transfers_refused += 1;
                    continue;
                }
                // One durable step: taken and remembered, or neither (I2).
                self.kept.home = home;
                self.kept.incoming.insert(from, transfer.number.max(highest));
                self.keep = true;
                // All others may grant out of it at once.
                self.taken = self.mark(now);
                let hot = self.settings.timing.hot.max(self.gap());
                self.peers.values_mut().for_each(|peer| peer.want(now, hot));
            }
            // Also what was taken before: its acknowledgement was lost.
            if let Some(peer) = self.peers.get_mut(&from) {
                peer.acknowledges = true;
            }
            self.say_soon(now, from, Urgency::Now);
        }
    }

    /// Forgets what has come to where it was sent: all up to the number that was taken last.
    pub(super) fn take_acknowledgements(&mut self, from: HostId, message: &Message) {
        let Some(&last) = message.received.iter().max() else { return };
        // Before anything else is concluded: this host may have started from an earlier copy of its state.
        self.give_up_what_was_given(last);
        let before = self.kept.outgoing.len();
        let arrived = |to: HostId, number: u64| to == from && number <= last;
        self.kept.outgoing.retain(|(to, transfer)| !arrived(*to, transfer.number));
        if self.kept.outgoing.len() < before {
            self.keep = true;
            let outgoing = &self.kept.outgoing;
            self.sendable
                .retain(|number, _| outgoing.iter().any(|(_, sent)| sent.number == *number));
        }
    }

    /// What is on its way to a host and may be sent.
    pub(super) fn transfers(&self, now: Moment, to: HostId) -> Vec<Transfer> {
        let sendable = |number: u64| self.sendable.get(&number).is_none_or(|from| *from <= now);
        let its = self.kept.outgoing.iter().filter(|(host, _)| *host == to);
        its.map(|(_, transfer)| *transfer).filter(|transfer| sendable(transfer.number)).collect()
    }

    /// Decides what of this host's home share is to be given away. It is sent when nobody can use anything
    /// that was delegated out of it (I3).
    pub(super) fn give_away(&mut self, now: Moment) {
        if now < self.quiet || self.kept.home.is_none() {
            return;
        }
        // All delegations end until then, those to this host itself and what it uses of its own too.
        let waits = !self.planted(Planted::TransferNotWaited);
        let peers = self.peers.values().map(|peer| peer.lent).max().unwrap_or_default();
        let own = self.own_votes.max(now.after(self.settings.timing.grant));
        let lent = peers.max(self.views.until()).max(own);
        let end = if waits { lent } else { now };
        let mark = self.mark(now);
        let share =
            if self.leaving { self.kept.home.without(self.ceded()) } else { self.surplus(now) };
        if !share.is_none() {
            self.ceding.push(PendingTransfer { share, end, mark, heard: None });
        }
    }

    /// Gives away what nobody can use any more: takes it off the home share, and in the same poll off what the
    /// kernel has, before the messages tell of it (I3).
    pub(super) fn hand_over(&mut self, now: Moment) {
        // Who decides about limits must know first how much this host has left, and what was voted before must
        // have ended.
        let asks = self.settings.majority;
        let last = self.ceding.iter().map(|ceded| ceded.mark).max().unwrap_or_default();
        let mut ceding = std::mem::take(&mut self.ceding);
        for ceded in ceding.iter_mut().filter(|ceded| asks && ceded.heard.is_none()) {
            ceded.heard = self.majority_heard(ceded.mark).then_some(now);
        }
        self.ceding = ceding;
        let wait = grace(self.longest());
        let heard =
            |ceded: &PendingTransfer| ceded.heard.is_some_and(|heard| heard.after(wait) <= now);
        let due = |ceded: &mut PendingTransfer| ceded.end <= now && (!asks || heard(ceded));
        let ready: Share = self.ceding.extract_if(.., due).map(|ceded| ceded.share).sum();
        if ready.is_none() {
            return;
        }
        let short =
            if self.leaving { self.heirs(now) } else { self.short(now).unwrap_or_default() };
        let lack: Share = short.iter().map(|(_, lacks)| *lacks).sum();
        let give = if self.leaving { ready } else { ready.min(lack) }.min(self.kept.home);
        let mut left = give;
        let mut waits = self.leaving;
        let (mut rest, mut free) = (lack, Vec::new());
        for (to, lacks) in short {
            // One transfer to each at a time: its acknowledgement tells of all numbers before it.
            if self.on_the_way(to).is_none() {
                free.push((to, lacks));
            } else {
                rest = rest.without(if self.leaving { lacks } else { Share::NONE });
                waits = true;
            }
        }
        for (to, lacks) in free {
            let share = if self.leaving { left } else { give };
            let share = share.times(lacks.units(), rest.units());
            rest = rest.without(if self.leaving { lacks } else { Share::NONE });
            if !share.is_none() {
                left = left.without(share);
                self.transfer(to, share, now);
                self.say_soon(now, to, Urgency::Now);
            }
        }
        // What is not wanted any more stays here.
        if waits && left > if self.leaving { Share::NONE } else { MIN_TRANSFER } {
            self.ceding.push(PendingTransfer {
                share: left,
                end: now,
                mark: last,
                heard: Some(Moment(0)),
            });
        }
    }

    fn transfer(&mut self, to: HostId, share: Share, from: Moment) {
        let number = self.kept.last_transfer.saturating_add(share.units());
        self.kept.last_transfer = number;
        self.kept.home = self.kept.home.without(share);
        self.kept.outgoing.push((to, Transfer { number, share }));
        self.sendable.insert(number, from);
        self.keep = true;
    }

    /// What is delegated no more, to be given away.
    pub(super) fn ceded(&self) -> Share {
        self.ceding.iter().map(|ceded| ceded.share).sum()
    }

    fn on_the_way(&self, to: HostId) -> Share {
        let its = self.kept.outgoing.iter().filter(|(host, _)| *host == to);
        its.map(|(_, transfer)| transfer.share).sum()
    }

    /// Those who stay, with their weights.
    fn heirs(&self, now: Moment) -> Vec<(HostId, Share)> {
        let span = self.delegation();
        let stays = |peer: &super::Peer| peer.alive(now, span) && peer.delegates;
        let heard = |host: &HostId| self.peers.get(host).is_some_and(stays);
        let view = self.views.present().iter();
        let others = view.filter(|(host, weight)| *host != self.settings.me && *weight > 0);
        let heirs = others.filter(|(host, _)| heard(host));
        heirs.map(|(host, weight)| (host, Share::from_units(weight.into()))).collect()
    }

    /// What is more than this host's weight says and others lack, as far as it is not being given away yet.
    fn surplus(&self, now: Moment) -> Share {
        let ceded = self.ceded();
        let view = self.views.present();
        let mine = view.part(Share::WHOLE, view.weight(self.settings.me));
        let surplus = self.kept.home.without(mine).without(ceded);
        // While owners change what is ceded would be used by nobody.
        let long = now.since(self.views.since) > self.settings.timing.every * 4;
        let settled = long && self.views.next().is_none();
        if !settled || surplus <= mine.times(1, HYSTERESIS).max(MIN_TRANSFER) {
            return Share::NONE;
        }
        let lack: Share = self.short(now).into_iter().flatten().map(|(_, lacks)| lacks).sum();
        let give = surplus.min(lack.without(ceded));
        if self.held.keys.is_empty() && self.owned.keys.is_empty() {
            return give;
        }
        // What is given lies idle for some moments, so it is not all given at once.
        let moving: Share = self.kept.outgoing.iter().map(|(_, transfer)| transfer.share).sum();
        let most = self.kept.home.times(1, ON_THE_WAY);
        give.min(most.without(moving + ceded)).min(most.times(1, STEPS).max(MIN_TRANSFER))
    }

    /// Who has less than its weight says, and how much less. None if that cannot be said.
    fn short(&self, now: Moment) -> Option<Vec<(HostId, Share)>> {
        let view = self.views.present();
        let mut short: Vec<(HostId, Share)> = Vec::new();
        for (host, weight) in view.iter().filter(|(host, _)| *host != self.settings.me) {
            // Whoever is not heard may have more than others see.
            let peer = self.peers.get(&host)?;
            if !peer.alive(now, self.delegation()) {
                return None;
            }
            let target = view.part(Share::WHOLE, weight);
            let has = self.whole_of(peer.offered?) + self.on_the_way(host);
            let lacks = target.without(has);
            if peer.delegates && lacks > target.times(1, 4 * HYSTERESIS) {
                short.push((host, lacks));
            }
        }
        Some(short)
    }
}
