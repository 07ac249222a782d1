//! What becomes of the rights of hosts that are not there.

use crate::cluster::{HostId, KeyId, Moment, Share};

use super::{Escrow, MAX_PEERS};

/// What the others do with the rights of a host that they hear no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Partition {
    /// They leave them alone: the limit holds whatever happens.
    #[default]
    Conservative,
    /// Those who have more than half of all rights together use what the lost ones had beside their floors. The
    /// limit holds whatever happens; who is on the lesser side has its floor alone.
    MajorityReclaim,
    /// They use them as their own: each side of a partition uses the whole limit, so k sides use k times as
    /// much in all.
    Available,
}

impl Escrow {
    /// Sets what is done with a key while hosts are lost. It is forgotten with the key.
    pub fn set_partition(&mut self, key: KeyId, partition: Partition) {
        self.held.set_partition(key, partition);
    }

    /// Remembers what a host has, for the case that it is lost.
    pub(super) fn remember(&mut self, host: HostId, offered: Share, echo: Option<Moment>) {
        let home = self.whole_of(offered);
        if home.is_none() {
            self.homes.remove(&host);
            self.fresh.remove(&host);
        } else if self.homes.len() < MAX_PEERS || self.homes.contains_key(&host) {
            self.homes.insert(host, home);
            let fresh = self.fresh.entry(host).or_default();
            *fresh = echo.unwrap_or_default().max(*fresh);
        }
    }

    /// Works out this host's part of what lost hosts had: by weight, among those that it sees.
    pub(super) fn look_for_lost(&mut self, now: Moment) {
        self.lost = Share::NONE;
        let view = self.views.present();
        let mut present = self.kept.home;
        for (host, _) in view.iter().filter(|(host, _)| *host != self.settings.me) {
            // Who is not heard may have got what others have lost.
            let Some(home) = self.homes.get(&host).copied().or_else(|| self.home_of(host)) else {
                return;
            };
            present += home;
        }
        if now < self.quiet || self.leaving {
            return;
        }
        let span = self.settings.timing.longest();
        let gone = |host: HostId| {
            !view.has(host) && !self.peers.get(&host).is_some_and(|peer| peer.alive(now, span))
        };
        let theirs = self.homes.iter().filter(|(host, _)| gone(**host));
        let lost: Share = theirs.map(|(_, home)| *home).sum();
        let lost = lost.min(Share::WHOLE.without(present));
        let weights: u64 = view.iter().map(|(_, weight)| u64::from(weight)).sum();
        self.lost = lost.times(u64::from(view.weight(self.settings.me)), weights);
    }
}
