//! Home rights that move for good.

use crate::cluster::message::Transfer;
use crate::cluster::{HostId, Message, Moment, Share};

use super::{Escrow, Planted, Urgency};

/// What part of its home right a host has on the way at most, unless it leaves: so much lies idle meanwhile.
const ON_THE_WAY: u64 = 64;
/// The same while it knows of no demand.
const UNUSED: u64 = 4;
/// Who has this part more than its weight says gives nothing away: 1/100.
const HYSTERESIS: u64 = 100;
/// Less than this is not worth a transfer.
const LEAST: Share = Share::of_units(1 << 16);

impl Escrow {
    /// Takes what comes for good, each number once (I2).
    pub(super) fn take_transfers(&mut self, from: HostId, message: &Message) {
        for transfer in &message.transfers {
            let highest = self.kept.incoming.get(&from).copied().unwrap_or(0);
            let again = self.planted(Planted::TransferTakenTwice);
            if transfer.number > highest || again {
                let home = self.kept.home + transfer.share;
                if home > Share::WHOLE {
                    self.counters.transfers_refused += 1;
                    continue;
                }
                self.kept.home = home;
                self.kept.incoming.insert(from, transfer.number.max(highest));
                self.keep = true;
            }
            let now = self.clock.now();
            if let Some(peer) = self.peers.get_mut(&from) {
                peer.taken = Some(transfer.number.max(highest));
            }
            self.say_soon(now, from, Urgency::Now);
        }
    }

    /// Forgets what has come to where it was sent.
    pub(super) fn take_acknowledgements(&mut self, from: HostId, message: &Message) {
        let before = self.kept.outgoing.len();
        let arrived = |to: HostId, number: u64| to == from && message.received.contains(&number);
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

    /// Decides who is given some of this host's home right, and takes it off at once. It is sent when nobody
    /// can use anything that was delegated out of it (I3).
    pub(super) fn give_away(&mut self, now: Moment) {
        if now < self.quiet || self.kept.home.is_none() {
            return;
        }
        let gifts = if self.leaving { self.legacies(now) } else { self.surplus(now) };
        if gifts.is_empty() {
            return;
        }
        // All delegations end until then, those to this host itself and what it uses of its own too.
        let waits = !self.planted(Planted::TransferNotWaited);
        let peers = self.peers.values().map(|peer| peer.lent).max().unwrap_or_default();
        let end = peers.max(self.views.until()).max(now.after(self.settings.timing.grant));
        let from = if waits { end } else { now };
        for (to, share) in gifts {
            let number = self.kept.next_transfer.max(1);
            self.kept.next_transfer = number + 1;
            self.kept.home = self.kept.home.without(share);
            self.kept.outgoing.push((to, Transfer { number, share }));
            self.sendable.insert(number, from);
            self.keep = true;
        }
    }

    fn on_the_way(&self, to: HostId) -> Share {
        let its = self.kept.outgoing.iter().filter(|(host, _)| *host == to);
        its.map(|(_, transfer)| transfer.share).sum()
    }

    /// Everything, to those who stay, by weight.
    fn legacies(&self, now: Moment) -> Vec<(HostId, Share)> {
        let me = self.settings.me;
        let heard = |host: HostId| {
            let span = self.settings.timing.delegation;
            let stays = |peer: &super::Peer| peer.alive(now, span) && peer.delegates;
            self.peers.get(&host).is_some_and(stays)
        };
        let heirs: Vec<(HostId, u32)> = self
            .views
            .present()
            .iter()
            .filter(|&(host, weight)| host != me && weight > 0 && heard(host))
            .filter(|&(host, _)| self.on_the_way(host).is_none())
            .collect();
        let mut weights: u64 = heirs.iter().map(|(_, weight)| u64::from(*weight)).sum();
        let mut left = self.kept.home;
        let mut gifts = Vec::new();
        for (host, weight) in heirs {
            let share = left.times(u64::from(weight), weights);
            weights -= u64::from(weight);
            left = left.without(share);
            if !share.is_none() {
                gifts.push((host, share));
            }
        }
        gifts
    }

    /// What is more than this host's weight says, to those who have less than theirs.
    fn surplus(&self, now: Moment) -> Vec<(HostId, Share)> {
        let timing = self.settings.timing;
        let view = self.views.present();
        let weights: u64 = view.iter().map(|(_, weight)| u64::from(weight)).sum();
        let target = |weight: u32| Share::WHOLE.times(u64::from(weight), weights);
        let mine = target(view.weight(self.settings.me));
        let surplus = self.kept.home.without(mine);
        let moving: Share = self.kept.outgoing.iter().map(|(_, transfer)| transfer.share).sum();
        let settled = now.since(self.views.since) > timing.every * 4;
        let unused = self.held.keys.is_empty() && self.owned.keys.is_empty();
        let most = self.kept.home.times(1, if unused { UNUSED } else { ON_THE_WAY });
        if !settled || surplus <= mine.times(1, HYSTERESIS).max(LEAST) || moving >= most {
            return Vec::new();
        }
        let mut short: Vec<(HostId, Share)> = Vec::new();
        for (host, weight) in view.iter().filter(|(host, _)| *host != self.settings.me) {
            let known = self.peers.get(&host).filter(|peer| peer.alive(now, timing.delegation));
            let Some((peer, offered)) = known.and_then(|peer| Some((peer, peer.offered?))) else {
                // Whoever is not heard may have more than others see.
                return Vec::new();
            };
            let has = self.whole_of(offered) + self.on_the_way(host);
            let lacks = target(weight).without(has);
            if peer.delegates && lacks > target(weight).times(1, 4 * HYSTERESIS) {
                short.push((host, lacks));
            }
        }
        let lack: Share = short.iter().map(|(_, lacks)| *lacks).sum();
        let give = surplus.min(lack).min(most.without(moving));
        short
            .into_iter()
            .filter(|(host, _)| self.on_the_way(*host).is_none())
            .map(|(host, lacks)| (host, give.times(lacks.units(), lack.units())))
            .filter(|(_, share)| !share.is_none())
            .collect()
    }
}
