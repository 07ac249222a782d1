//! What a host makes of a message.

use crate::{HostId, Message, Moment};

use super::clock::usable;
use super::{Escrow, Planted, Urgency};

impl Escrow {
    /// Takes a message of another host.
    pub fn receive(&mut self, now: Moment, from: HostId, message: &Message) {
        let now = self.clock.advance(now);
        let Self { host, home, absent, held, owned, recount, .. } = self;
        // Another host with this one's name: its shares must not enter the books as a peer's.
        if from == host.settings.me {
            return;
        }
        let heard = host.handle_message(now, self.clock.start, from, message);
        let Some((latest, echo)) = heard else { return };
        if let Some(tally) = message.tally.filter(|_| message.era > home.state.era.number) {
            recount.begin_era(now, message.era, tally, host, home, absent);
        }
        // Of another era, the shares that it tells of may be no more; it is told of this one, or tells of its own.
        if message.era != home.state.era.number {
            host.send_soon(now, from, Urgency::Now);
            return;
        }
        host.take_renewal(now, latest, echo, from, message);
        recount.hear(now, from, message, host, home);
        if message.far {
            // What it gives may last so long.
            home.go_far();
        }
        if latest {
            // Who does not go by votes yet may have given something away that those who vote do not know of.
            let fresh = echo.filter(|_| !message.votes.is_empty());
            absent.remember(from, host.settings.whole_of(message.delegated), fresh);
        }
        if let Some(echo) = echo {
            let base = if host.settings.planted(Planted::LeaseFromReceipt) { now } else { echo };
            if host.take_delegation(now, base, from, message) {
                owned.all_dirty();
            }
            if host.takes.has_come(now) {
                held.take_grants(now, base, (from, latest), message, host);
            }
            // What an earlier run of this host has lent of such loans is unknown to these books.
            if !host.is_quiet(now) {
                owned.take_loans(now, base, (from, latest), message, &host.settings);
            }
            if let Some(peer) = host.peers.get_mut(&from) {
                peer.take_votes(now, echo.after(usable(message.delegated_for)), message);
            }
            home.take_transfers(now, from, message, host);
        }
        // Needs no echo: a number that was taken stays taken, in whatever run it is told.
        home.take_acknowledgements(from, message, &host.settings);
        let own = host.peers.get(&from).map(|peer| peer.uses_anyway(now, host.settings.floor));
        for report in &message.reports {
            if !owned.report(now, from, message.sent, echo, report, own.unwrap_or_default()) {
                host.counters.keys_refused += 1;
            }
        }
        for ask in &message.asks {
            if !owned.ask(now, from, message.sent, echo, ask) {
                host.counters.keys_refused += 1;
            }
        }
    }
}
