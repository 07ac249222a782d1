//! What becomes of the shares of hosts that are not there.

use std::collections::{BTreeMap, BTreeSet};

use crate::{HostId, Moment};
pub use model::Partition;
use model::Share;

use super::MAX_PEERS;
use super::excess::NOISE;
use super::home::Home;
use super::host::Host;
use super::majority::VOTES;

/// What other hosts had. It outlasts what is known of them as peers: it matters when they are gone.
#[derive(Clone, Debug, Default)]
pub(super) struct Absent {
    /// What other hosts had when they were heard last.
    homes: BTreeMap<HostId, Share>,
    /// The latest own moment that these have told to have heard.
    fresh: BTreeMap<HostId, Moment>,
    /// What this host uses beside of keys whose limit stays available.
    pub(super) part: Share,
    /// What lost hosts had and those that are there have now.
    pub(super) doubted: Share,
}

impl Absent {
    /// Remembers what a host has, for the case that it is lost, and which moment of this host it has heard, if it goes
    /// by votes.
    pub(super) fn remember(&mut self, host: HostId, home: Share, fresh: Option<Moment>) {
        // Who has handed everything over has left, and is not lost.
        if home.is_none() {
            self.homes.remove(&host);
            self.fresh.remove(&host);
        } else if self.homes.len() < MAX_PEERS || self.homes.contains_key(&host) {
            self.homes.insert(host, home);
            if let Some(heard) = fresh {
                let fresh = self.fresh.entry(host).or_default();
                *fresh = heard.max(*fresh);
            }
        }
    }

    /// What hosts had before they were counted anew says nothing of what they have.
    pub(super) fn begin_era(&mut self) {
        *self = Self::default();
    }

    /// How many hosts have home shares, as far as `host` knows, which is not alone: those that it sees or has heard to
    /// have some.
    pub(super) fn hosts(&self, host: &Host, home: &Home) -> u32 {
        let seen = host.views.present().iter().map(|(host, _)| host);
        let sent = home.state.outgoing.iter().map(|(host, _)| *host);
        // Each that is not counted may bring a packet more than the burst holds, each too many costs only burst.
        let all: BTreeSet<HostId> = seen.chain(self.homes.keys().copied()).chain(sent).collect();
        // After a restart it has heard nobody yet.
        u32::try_from(all.len()).unwrap_or(u32::MAX).max(2)
    }

    /// Those that are lost, as `host` sees it, and what they had.
    pub(super) fn lost(
        &self,
        now: Moment,
        host: &Host,
        home: &Home,
    ) -> impl Iterator<Item = (HostId, Share)> {
        let longest = home.longest(&host.settings.timing);
        let lost = self.homes.iter().filter(move |(lost, _)| host.is_lost(now, **lost, longest));
        lost.map(|(lost, had)| (*lost, *had))
    }

    /// What lost hosts can have at most: what those that are not lost lack to the whole. None if one of these was
    /// not heard: it may have got what others have lost.
    fn missing(&self, now: Moment, host: &Host, home: &Home) -> Option<Share> {
        if !host.settings.bounded() && host.settings.majority {
            return Some(Share::WHOLE);
        }
        let (me, view) = (host.settings.me, host.views.present());
        let longest = home.longest(&host.settings.timing);
        let seen = view.iter().map(|(host, _)| host).filter(|host| *host != me);
        let heard = host.peers.keys().copied().filter(|host| !view.has(*host));
        let mut present = home.state.home;
        for other in seen.chain(heard.filter(|heard| !host.is_lost(now, *heard, longest))) {
            // Of a seen host that was never heard nobody knows what it has: then nothing may be called missing.
            present += self.homes.get(&other).copied().or_else(|| host.home_of(other))?;
        }
        Some(Share::WHOLE.without(present))
    }

    /// Works out this host's part of what lost hosts had: by weight, among those that it sees.
    pub(super) fn divide(&mut self, now: Moment, host: &Host, home: &Home) {
        (self.part, self.doubted) = (Share::NONE, Share::NONE);
        let missing = self.missing(now, host, home);
        let Some(missing) = missing.filter(|_| !host.is_quiet(now) && !host.leaving) else {
            return;
        };
        let lost: Share = self.lost(now, host, home).map(|(_, had)| had).sum();
        let more =
            Some(lost.without(missing)).filter(|more| *more > NOISE && host.settings.majority);
        self.doubted = more.unwrap_or_default();
        // A ledger that got another number is lost by the former one and there by the new one: nothing is missing (I13).
        let lost = lost.min(missing);
        let view = host.views.present();
        self.part = view.part(lost, view.weight(host.settings.me));
    }

    /// Hosts with shares that this one hears no more and may vote about: it must have heard them since it
    /// last took shares of others, who may have known more. Together they have what the others lack at most: what is
    /// more has gone to these.
    pub(super) fn voted_about(
        &self,
        now: Moment,
        host: &Host,
        home: &Home,
    ) -> Vec<(HostId, Share)> {
        // What they had is about to be given to those who are counted. And of two, one that is lost may go on with its own
        // where the limit is `auto`, while a third one that has just come still goes by votes.
        let two = host.settings.bounded() && home.state.era.tally.hosts <= 2;
        if home.is_counted() || two {
            return Vec::new();
        }
        let settings = &host.settings;
        let fresh = |host| self.fresh.get(&host).is_some_and(|fresh| *fresh > home.taken);
        let lost = self.lost(now, host, home).filter(|(lost, _)| fresh(*lost));
        // A unit less, for what rounding has added.
        let known = |home: Share| settings.beside_floor(home).without(Share::from_units(1));
        let missing = self.missing(now, host, home).unwrap_or_default();
        let mut left = settings.beside_floor(missing);
        let mut capped = |(host, home): (HostId, Share)| {
            let known = known(home).min(left);
            left = left.without(known);
            (!known.is_none()).then_some((host, known))
        };
        // One place less: the vote about the receiver's own share comes first.
        lost.filter_map(&mut capped).take(VOTES - 1).collect()
    }
}
