//! What a host makes of a message.

use crate::{HostId, Message, Moment};

use super::clock::usable;
use super::peer::Amount;
use super::pools::floor_beside;
use super::{Escrow, MAX_PEERS, Planted, Urgency};

/// The most views that a message may list.
const VIEWS: usize = 16;

impl Escrow {
    /// Takes a message of another host.
    pub fn receive(&mut self, now: Moment, from: HostId, message: &Message) {
        let now = self.clock.advance(now);
        if from == self.settings.me {
            return;
        }
        if self.peers.len() >= MAX_PEERS && !self.peers.contains_key(&from) {
            self.counters.hosts_refused += 1;
            return;
        }
        if message.far {
            // What it gives may last so long.
            self.go_far();
        }
        let start = self.clock.start;
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
        // Old messages still renew leases by their own moment; what a host has now only its latest one tells.
        if latest {
            peer.offered = Some(message.delegated);
            peer.delegates = !message.delegated_for.is_zero();
            self.remember(from, message.delegated, echo, !message.votes.is_empty());
        }
        if let Some(echo) = echo {
            let base = if self.planted(Planted::LeaseFromReceipt) { now } else { echo };
            self.take_delegation(now, base, from, message);
            // What an earlier run of this host goes by is in its kernel still, unknown to these books: none are
            // taken beside it.
            if now >= self.quiet {
                self.take_grants(now, base, from, message);
                self.take_loans(now, base, from, message);
            }
            self.take_votes(now, echo, from, message);
            self.take_transfers(now, from, message);
        }
        // Needs no echo: a number that was taken stays taken, in whatever run it is told.
        self.take_acknowledgements(from, message);
        let offered = self.peers.get(&from).and_then(|peer| peer.offered).unwrap_or_default();
        let floor = floor_beside(offered, self.settings.floor);
        for report in &message.reports {
            if !self.owned.report(now, from, message.sent, echo, report, floor) {
                self.counters.keys_refused += 1;
            }
        }
        for ask in &message.asks {
            if !self.owned.ask(now, from, message.sent, echo, ask) {
                self.counters.keys_refused += 1;
            }
        }
    }

    fn take_loans(&mut self, now: Moment, base: Moment, lender: HostId, message: &Message) {
        let longest = self.settings.timing.loan_in.max(self.settings.timing.loan_out);
        let early = self.planted(Planted::LoanAcknowledgedEarly);
        for loan in &message.loans {
            let until = base.after(usable(loan.lasts.min(longest)));
            let far = self.owned.keys.get_mut(&loan.key).and_then(|key| key.far.as_mut());
            let Some(far) = far else { continue };
            if far.take(now, lender, loan, until, base.after(longest), early) {
                self.owned.dirty.insert(loan.key);
            }
        }
    }

    fn take_delegation(&mut self, now: Moment, base: Moment, from: HostId, message: &Message) {
        if message.views.is_empty() || message.views.len() > VIEWS {
            return;
        }
        if !message.views.iter().all(|&view| self.views.find(view).is_some()) {
            // It may be known later, while the delegation lasts: so it is remembered all the same.
            self.counters.views_unknown += 1;
        }
        let until = base.after(usable(message.delegated_for));
        let voted = base.after(usable(message.majority_for));
        let Some(peer) = self.peers.get_mut(&from) else { return };
        let views = &message.views;
        let rose = peer.delegate(now, until, Amount::new(message.delegated), views);
        let rose_too = peer.delegate(now, voted, Amount::voted(message.majority), views);
        if rose || rose_too {
            self.owned.all_dirty();
        }
    }

    fn take_grants(&mut self, now: Moment, base: Moment, owner: HostId, message: &Message) {
        let longest = self.settings.timing.grant;
        // No longer than this host's own setting: `memory` must outlast every grant of a lower number (I5).
        let until = base.after(usable(message.granted_for.min(longest)));
        let memory = base.after(longest);
        let mut urgency = Urgency::None;
        for grant in message.grants.iter().filter(|grant| grant.number > 0) {
            let its = self.held.grant(now, owner, grant, until, memory);
            if its > Urgency::None {
                self.held.dirty.insert(grant.key);
            }
            urgency = urgency.max(its);
        }
        self.say_soon(now, owner, urgency);
    }
}
