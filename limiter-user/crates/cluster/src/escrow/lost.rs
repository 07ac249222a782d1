//! What becomes of the shares of hosts that are not there.

use crate::{HostId, KeyId, Moment};
pub use model::Partition;
use model::Share;

use super::excess::NOISE;
use super::{Escrow, MAX_PEERS, Urgency};

impl Escrow {
    /// Sets what is done with a key while hosts are lost. It is forgotten with the key.
    pub fn set_partition(&mut self, key: KeyId, partition: Partition) {
        if self.held.set_partition(key, partition) {
            self.report_soon(self.clock.now(), key, Urgency::Hot);
        }
    }

    /// From now on, until the end of this run, this host goes by votes: there are limits that a majority decides
    /// about. It does not stop with the last of them, because others may not know yet that it was that.
    pub fn go_by_majority(&mut self) {
        self.settings.majority = true;
    }

    /// How many hosts with shares are lost, as this one sees it.
    pub fn count_lost(&self, now: Moment) -> usize {
        let now = self.clock.at(now);
        self.homes.keys().filter(|host| self.is_lost(now, **host)).count()
    }

    /// Whether a host is seen no more, and was not heard for longer than any lease.
    pub(super) fn is_lost(&self, now: Moment, host: HostId) -> bool {
        let span = self.longest();
        // Both: membership may be wrong about a host that still talks, and a silent member may only be slow.
        !self.views.present().has(host)
            && !self.peers.get(&host).is_some_and(|peer| peer.alive(now, span))
    }

    /// Remembers what a host has, for the case that it is lost, and, if it goes by votes, which moment of this
    /// host it has heard.
    pub(super) fn remember(
        &mut self,
        host: HostId,
        offered: Share,
        echo: Option<Moment>,
        votes: bool,
    ) {
        let home = self.whole_of(offered);
        // Who has handed everything over has left, and is not lost.
        if home.is_none() {
            self.homes.remove(&host);
            self.fresh.remove(&host);
        } else if self.homes.len() < MAX_PEERS || self.homes.contains_key(&host) {
            self.homes.insert(host, home);
            // Who does not go by votes yet may have given something away that those who vote do not know of.
            if let Some(echo) = echo.filter(|_| votes) {
                let fresh = self.fresh.entry(host).or_default();
                *fresh = echo.max(*fresh);
            }
        }
    }

    /// What lost hosts can have at most: what those that are not lost lack to the whole. None if one of these was
    /// not heard: it may have got what others have lost.
    pub(super) fn missing(&self, now: Moment) -> Option<Share> {
        if !self.bounded() && self.settings.majority {
            return Some(Share::WHOLE);
        }
        let (me, view) = (self.settings.me, self.views.present());
        let seen = view.iter().map(|(host, _)| host).filter(|host| *host != me);
        let heard = self.peers.keys().copied().filter(|host| !view.has(*host));
        let mut present = self.kept.home;
        for host in seen.chain(heard.filter(|host| !self.is_lost(now, *host))) {
            // Of a seen host that was never heard nobody knows what it has: then nothing may be called missing.
            present += self.homes.get(&host).copied().or_else(|| self.home_of(host))?;
        }
        Some(Share::WHOLE.without(present))
    }

    /// Works out this host's part of what lost hosts had: by weight, among those that it sees.
    pub(super) fn look_for_lost(&mut self, now: Moment) {
        (self.lost, self.doubts.lost) = (Share::NONE, Share::NONE);
        let Some(missing) = self.missing(now).filter(|_| now >= self.quiet && !self.leaving) else {
            return;
        };
        let theirs = self.homes.iter().filter(|(host, _)| self.is_lost(now, **host));
        let lost: Share = theirs.map(|(_, home)| *home).sum();
        let more =
            Some(lost.without(missing)).filter(|more| *more > NOISE && self.settings.majority);
        self.doubts.lost = more.unwrap_or_default();
        // A renamed host is lost by its former name and there by its new one: nothing is missing then (I13).
        let lost = lost.min(missing);
        let view = self.views.present();
        self.lost = view.part(lost, view.weight(self.settings.me));
    }
}
