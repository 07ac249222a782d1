//! Whether hosts go by a central store or by their shares of a limit: all of them by the one, or all by the other.
//!
//! Limits with `on_error: cluster` are kept by a store, and by shares where hosts have lost it. While one host is answered by
//! the store, no other one may use a share: together they would admit twice the rate. So a host that stays away from the
//! store says so, and does so for [`PROMISE`] from then on. It names the latest message that it has heard: the other host
//! knows when it sent that, and so how long the promise lasts at least. It uses its share while all promises last.
//!
//! Only durations count, and no message has to come in time or at all: what is lost, late or restarted leads to the floor.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::wire::bytes::Malformed;
use crate::{HostId, Moment};
use model::Stance;

/// For how long a host stays away from the store after it has said so.
pub const PROMISE: Duration = Duration::from_secs(1);

/// For how long others rely on that: shorter, for clocks that run wrong.
const RELY: Duration = Duration::from_millis(900);

/// For how long a share may be used after it was allowed.
const HOLD: Duration = Duration::from_millis(500);

/// Whoever asks the store is no more there after such a silence.
// It leaves the store sooner where its daemon does not answer: `api::STORE_HOLDS`.
const GONE: Duration = Duration::from_secs(5);

/// After a start others may not have been seen yet.
const SETTLE: Duration = Duration::from_secs(2);

/// For how long a host counts that is a member no more: as long as it may take until it is known to be lost.
const LEAVES: Duration = Duration::from_secs(5);

/// How often hosts tell each other how they stand while some lack the store, and how much later for each host: a
/// thousand of them take 600 ms.
const BEAT: Duration = Duration::from_millis(100);
const BEAT_A_HOST: Duration = Duration::from_micros(500);

/// The first byte of a message.
const FORM: u8 = 1;

/// What a host says to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// Random, another one after each start.
    run: u64,
    /// When, by the sender's clock.
    sent: Moment,
    /// Whether it would ask the store, and that does not answer.
    lacks: bool,
    /// Whether it stays away from the store.
    yields: bool,
    /// Whether it does not hear some host, so that shares cannot be used.
    blocked: bool,
    /// The run and the time of the receiver's latest message that it goes by.
    echo: Option<(u64, Moment)>,
}

impl Said {
    /// As it is sent.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        postcard::to_extend(self, vec![FORM]).unwrap_or_default()
    }

    /// Reads it.
    ///
    /// # Errors
    /// If it is none.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let (&FORM, bytes) = bytes.split_first().ok_or(Malformed)? else { return Err(Malformed) };
        postcard::from_bytes(bytes).map_err(|_| Malformed)
    }
}

/// How whoever asks the store on this host stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Who it is.
    pub serve: u64,
    /// When, by its own clock.
    pub at: u64,
    /// Whether the store answers.
    pub has: bool,
    /// Who answers at present.
    pub stance: Stance,
}

/// What others see of this host: they are told at once when it changes.
pub type Mark = [bool; 4];

#[derive(Clone, Copy, Debug)]
struct Peer {
    said: Said,
    heard: Moment,
}

impl Peer {
    fn is_fresh(&self, now: Moment) -> bool {
        now.since(self.heard) < PROMISE
    }
}

/// What a host knows of the store, of others and of what they may rely on.
#[derive(Debug)]
pub struct Fallback {
    run: u64,
    began: Moment,
    served: Option<Served>,
    /// When it has reported last.
    reported: Moment,
    /// Whether it may ask the store.
    in_store: bool,
    /// Who asks the store without being told to, and when that was.
    alone: Option<(u64, Moment)>,
    /// Until when it may use shares.
    escrow_until: Moment,
    /// When this host has promised last to stay away from the store.
    yielded: Moment,
    /// Since when some host lacks the store.
    trouble: Option<Moment>,
    /// The other hosts, and when each was seen last.
    hosts: BTreeMap<HostId, Moment>,
    lost: bool,
    peers: BTreeMap<HostId, Peer>,
}

impl Fallback {
    /// At a start, with a random number. What was before may last: promises, and what was allowed.
    #[must_use]
    pub fn new(run: u64, now: Moment) -> Self {
        Self {
            run,
            began: now,
            served: None,
            reported: now,
            in_store: true,
            alone: None,
            escrow_until: now.after(HOLD),
            yielded: now,
            trouble: None,
            hosts: BTreeMap::new(),
            lost: true,
            peers: BTreeMap::new(),
        }
    }

    /// Other hosts are these, and perhaps more that are lost.
    pub fn set_hosts(&mut self, now: Moment, hosts: BTreeSet<HostId>, lost: bool) {
        self.lost = lost;
        self.hosts.extend(hosts.into_iter().map(|host| (host, now)));
        self.hosts.retain(|_, seen| now.since(*seen) < LEAVES);
    }

    /// Another host has said something.
    pub fn hear(&mut self, now: Moment, from: HostId, said: Said) {
        // Messages may overtake each other.
        let is_old = |known: &Peer| known.said.run == said.run && known.said.sent >= said.sent;
        if !self.peers.get(&from).is_some_and(is_old) {
            self.peers.insert(from, Peer { said, heard: now });
        }
        // Nobody relies on what was heard by so old a message.
        self.peers.retain(|_, peer| now.since(peer.heard) < 2 * PROMISE);
    }

    /// Whoever asks the store tells how it stands, or that it has no such rules: who is to answer, and for how long if that
    /// is the share.
    pub fn report(&mut self, now: Moment, served: Option<Served>) -> (Stance, Duration) {
        if let (Some(new), Some(old)) = (served, self.served)
            && new.serve == old.serve
            && new.at < old.at
        {
            // A request that was overtaken: what it is answered is not taken.
            return (Stance::Between, Duration::ZERO);
        }
        self.alone = self.alone.filter(|(serve, _)| served.is_none_or(|new| new.serve != *serve));
        let stance = served.map(|served| served.stance);
        (self.served, self.reported) = (served, now);
        self.in_store = stance == Some(Stance::Store);
        if stance != Some(Stance::Escrow) {
            self.escrow_until = self.escrow_until.min(now);
        }
        let allowed = self.allowed(now);
        let stance = match served {
            Some(_) if self.wants_shares(now) && allowed > now => Stance::Escrow,
            Some(served) if served.has && !self.wants_shares(now) && self.is_free(now) => {
                Stance::Store
            }
            _ => return (Stance::Between, Duration::ZERO),
        };
        match stance {
            Stance::Escrow => self.escrow_until = allowed,
            _ => self.in_store = true,
        }
        (stance, allowed.since(now))
    }

    /// This one asks the store without being told to, as it can have no share.
    pub const fn leave_alone(&mut self, now: Moment, serve: u64) {
        self.alone = Some((serve, now));
    }

    /// What is to be said to a host.
    pub fn say(&mut self, now: Moment, to: HostId) -> Said {
        let [lacks, yields, blocked, _] = self.mark(now);
        if yields {
            self.yielded = now;
        }
        // Whoever takes back a promise goes on when nobody uses a share because of it.
        let goes_by = |peer: &&Peer| peer.said.yields || now >= self.escrow_until;
        let peer = self.peers.get(&to).filter(goes_by);
        let echo = peer.map(|peer| (peer.said.run, peer.said.sent));
        Said { run: self.run, sent: now, lacks, yields, blocked, echo }
    }

    /// What others see of this host: whether it lacks the store, stays away from it, does not hear all, and uses its share.
    pub fn mark(&mut self, now: Moment) -> Mark {
        let asks = (self.in_store && self.is_served(now))
            || self.alone.is_some_and(|(_, at)| now.since(at) < GONE);
        let yields = self.wants_shares(now) && !asks;
        [
            self.lacks(now),
            yields,
            self.is_blocked(now),
            self.served.is_some() && now < self.escrow_until,
        ]
    }

    /// After which time others are to be told again; `None` if all is well.
    pub fn beat(&mut self, now: Moment) -> Option<Duration> {
        let hosts = u32::try_from(self.hosts.len()).unwrap_or(u32::MAX);
        let busy = self.is_trouble(now)
            || (self.yielded > self.began && now.since(self.yielded) < PROMISE)
            || self.fresh(now).any(|(_, said)| said.yields);
        busy.then(|| BEAT.saturating_add(BEAT_A_HOST.saturating_mul(hosts)))
    }

    /// The other hosts that are known to lack the store, and those that do not answer.
    #[must_use]
    pub fn reasons(&self, now: Moment) -> [Vec<HostId>; 2] {
        let lacking = self.fresh(now).filter(|(_, said)| said.lacks).map(|(host, _)| host);
        [lacking.collect(), self.silent(now).collect()]
    }

    /// Whether hosts are lost, so that nobody knows whether they ask the store.
    #[must_use]
    pub const fn has_lost(&self) -> bool {
        self.lost
    }

    fn fresh(&self, now: Moment) -> impl Iterator<Item = (HostId, &Said)> {
        let fresh = self.peers.iter().filter(move |(_, peer)| peer.is_fresh(now));
        fresh.map(|(host, peer)| (*host, &peer.said))
    }

    fn silent(&self, now: Moment) -> impl Iterator<Item = HostId> {
        let is_silent =
            move |host: &HostId| !self.peers.get(host).is_some_and(|peer| peer.is_fresh(now));
        self.hosts.keys().copied().filter(is_silent)
    }

    fn is_served(&self, now: Moment) -> bool {
        now.since(self.reported) < GONE
    }

    /// Whether this host would ask the store, and that does not answer.
    #[must_use]
    pub fn lacks(&self, now: Moment) -> bool {
        self.is_served(now) && self.served.is_some_and(|served| !served.has)
    }

    fn is_trouble(&mut self, now: Moment) -> bool {
        let is_trouble = self.lacks(now) || self.fresh(now).any(|(_, said)| said.lacks);
        self.trouble = is_trouble.then(|| self.trouble.unwrap_or(now));
        is_trouble
    }

    /// Whether shares cannot be used, as some host does not answer. Without that, those that have the store would stay at
    /// their floors for as long.
    fn is_blocked(&mut self, now: Moment) -> bool {
        let (true, Some(since)) = (self.is_trouble(now), self.trouble) else { return false };
        // Each gets a while to answer.
        let lasts = now.since(since) >= PROMISE;
        self.lost || (lasts && self.silent(now).next().is_some())
    }

    fn wants_shares(&mut self, now: Moment) -> bool {
        self.is_trouble(now)
            && !self.is_blocked(now)
            && !self.fresh(now).any(|(_, said)| said.blocked)
    }

    /// Until when shares may be used: as long as all others are sure to stay away from the store.
    fn allowed(&self, now: Moment) -> Moment {
        if self.lost || now.since(self.began) < SETTLE {
            return now;
        }
        let until = |host: &HostId| {
            let said = self.peers.get(host).map(|peer| peer.said).filter(|said| said.yields);
            let heard = said.and_then(|said| said.echo).filter(|(run, _)| *run == self.run);
            heard.map_or(now, |(_, sent)| sent.after(RELY))
        };
        self.hosts.keys().map(until).fold(now.after(HOLD), Moment::min).max(now)
    }

    /// Whether nobody relies on this host's staying away from the store.
    fn is_free(&self, now: Moment) -> bool {
        // A run before may have promised something to hosts that this one has not heard.
        let is_settled = now.since(self.began) >= PROMISE;
        let knows = |peer: &Peer| {
            let heard = peer.said.echo.filter(|(run, _)| *run == self.run);
            !peer.is_fresh(now) || heard.is_some_and(|(_, sent)| sent > self.yielded)
        };
        now.since(self.yielded) >= PROMISE || (is_settled && self.peers.values().all(knows))
    }
}

#[cfg(test)]
mod tests;
