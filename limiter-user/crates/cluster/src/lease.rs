//! Leases of tokens that a central store keeps: which sources need one, how large, and what becomes of it.
//!
//! A lease of g tokens for a time L is the share g / (rate · L) of the limit until its end, which the kernel enforces. A
//! source has one: what is bought is added to what is left of it, and both are spread to the new end. So tokens are
//! never held for longer than the longest lease on average, and whoever dies holds no more: see `docs/design/leases.md`.

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::time::Duration;

use foldhash::fast::FixedState;

use crate::escrow::Granted;
use crate::{KeyId, Moment};
use model::lease::MAX_LEASE;
use model::{OnError, Share};

/// The shortest lease.
// Half of it is left for a renewal: two looks, and a call or two of a store that is slow for a moment.
const MIN_LEASE: Duration = Duration::from_millis(200);
/// So many sources have leases of twice that, and so on: 10,000 ask for 20,000 a second.
const SOURCES: f64 = 2_500.0;
/// Tokens of a lease for which it is made longer.
// Fewer are a coarse share: whole tokens alone can be bought.
const TOKENS: f64 = 16.0;
/// An answer that leaves less of a lease is none.
const MIN_LEFT: Duration = Duration::from_millis(5);
/// How soon is asked again where there was no answer.
const RETRY_INTERVAL: Duration = Duration::from_millis(25);
/// After such a time an answer comes no more.
const ANSWERED: Duration = MAX_LEASE;
/// For how long the whole limit is written at a time, where a rule says so.
// As long as a lease: it ends as soon when the daemon dies.
const OPEN: Duration = MAX_LEASE;
/// What is wanted beyond what a source sends: 1/16. It may send a little more until the next look.
const MORE: u64 = 17;

/// What is known of a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// Packets a second.
    pub rate: f64,
    /// Packets at once.
    pub burst: u64,
    /// What is done while the store leases nothing.
    pub on_error: OnError,
}

/// Something that the store is asked. `N` names a source to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask<N> {
    /// So many tokens for a time, or as many as there are. The number is for [`Leases::answer`].
    Buy(u64, N, u64, Duration),
    /// So many tokens are given back.
    GiveBack(N, u64),
}

/// What went on since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Tokens that the store has leased.
    pub leased: u64,
    /// Tokens that were given back to it.
    pub given_back: u64,
    /// How often it was asked for tokens, and did not answer.
    pub asked: u64,
    /// See `asked`.
    pub unanswered: u64,
}

/// A source.
#[derive(Clone, Debug)]
struct Lease<N> {
    name: N,
    terms: Terms,
    wanted: Share,
    /// Tokens that it has not earned at a moment, and when it will have.
    left: f64,
    at: Moment,
    until: Moment,
    /// The store is being asked.
    asked: bool,
    /// It had all that was asked for last.
    full: bool,
    /// Not to be asked before.
    retry: Moment,
}

impl<N> Lease<N> {
    /// Tokens that are left now.
    fn left(&self, now: Moment) -> f64 {
        let (span, rest) = (self.until.since(self.at), self.until.since(now));
        if rest.is_zero() { 0.0 } else { self.left * rest.as_secs_f64() / span.as_secs_f64() }
    }

    /// What it may use of its limit.
    fn share(&self, now: Moment) -> Share {
        let all = self.terms.rate * self.until.since(now).as_secs_f64();
        if all > 0.0 {
            Share::from_part(self.left(now) / all).min(Share::WHOLE)
        } else {
            Share::NONE
        }
    }

    /// From now on it has so many.
    const fn hold(&mut self, now: Moment, left: f64) {
        (self.left, self.at) = (left, now);
    }

    /// It keeps no more than `most` tokens. How many whole ones it gives up.
    fn keep(&mut self, now: Moment, most: f64) -> u64 {
        let left = self.left(now);
        let back = (left - most).max(0.0).floor();
        self.hold(now, left - back);
        back as u64
    }
}

/// All of them.
#[derive(Debug)]
pub struct Leases<N> {
    leases: HashMap<KeyId, Lease<N>, FixedState>,
    /// What the store was asked: of whom, when, for how long, and how much.
    asked: HashMap<u64, (KeyId, N, Moment, Duration, u64)>,
    next: u64,
    changed: BTreeSet<KeyId>,
    back: Vec<(N, u64)>,
    /// Since when the store leases nothing.
    lost: Option<Moment>,
    /// What went on.
    pub counters: Counters,
}

impl<N: Clone> Leases<N> {
    /// Nothing yet, and no store. Questions have numbers from a random one on: answers to a daemon before this one are none.
    #[must_use]
    pub fn new(now: Moment, first: u64) -> Self {
        Self {
            leases: HashMap::default(),
            asked: HashMap::new(),
            next: first,
            changed: BTreeSet::new(),
            back: Vec::new(),
            lost: Some(now),
            counters: Counters::default(),
        }
    }

    /// Sources that want a lease, and those that have one.
    #[must_use]
    pub fn count(&self, now: Moment) -> (usize, usize) {
        (self.leases.len(), self.leases.values().filter(|it| it.until > now).count())
    }

    /// Since when the store leases nothing, if it does not.
    #[must_use]
    pub const fn lost(&self) -> Option<Moment> {
        self.lost
    }

    /// A source sends such a part of its limit.
    pub fn demand(
        &mut self,
        now: Moment,
        key: KeyId,
        name: impl Fn() -> N,
        terms: Terms,
        part: Share,
    ) {
        let new = || Lease {
            name: name(),
            terms,
            wanted: Share::NONE,
            left: 0.0,
            at: now,
            until: now,
            asked: false,
            full: true,
            retry: now,
        };
        let lease = self.leases.entry(key).or_insert_with(new);
        // A lease under another limit is other tokens.
        if lease.terms != terms {
            *lease = Lease { asked: lease.asked, ..new() };
            self.changed.insert(key);
        }
        lease.wanted = part.times(MORE, MORE - 1).min(Share::WHOLE);
        if self.lost.is_some() {
            return;
        }
        // A little less is no matter: what is not used of it is less than a call costs.
        if lease.wanted < lease.share(now).times(1, 2) {
            let rest = terms.rate * lease.until.since(now).as_secs_f64();
            let back = lease.keep(now, lease.wanted.part() * rest);
            let name = lease.name.clone();
            self.give_back(key, name, back);
        }
    }

    /// A source sends nothing any more, or has no bucket.
    pub fn forget(&mut self, now: Moment, key: KeyId) {
        let Some(mut lease) = self.leases.remove(&key) else { return };
        // Its bucket is to have its floor, whoever says so.
        let back = lease.keep(now, 0.0);
        self.give_back(key, lease.name, back);
    }

    fn give_back(&mut self, key: KeyId, name: N, tokens: u64) {
        // What is given for a time that a rule says is no lease.
        if tokens > 0 && self.lost.is_none() {
            self.back.push((name, tokens));
            self.changed.insert(key);
            self.counters.given_back += tokens;
        }
    }

    /// How long leases are now for a source that wants such a part of a rate.
    fn length(&self, rate: f64, wanted: Share) -> Duration {
        let many = MIN_LEASE.mul_f64(1.0 + self.leases.len() as f64 / SOURCES);
        let slow = TOKENS / (rate * wanted.part()).max(TOKENS);
        many.max(Duration::from_secs_f64(slow)).min(MAX_LEASE)
    }

    /// The store leases something, or does not.
    pub fn store(&mut self, now: Moment, is_there: bool) {
        if is_there != self.lost.is_some() {
            return;
        }
        self.lost = if is_there { None } else { Some(now) };
        self.asked.clear();
        // What waits to be given back would come as if it was there.
        self.back.clear();
        for (key, lease) in &mut self.leases {
            (lease.asked, lease.retry, lease.full) = (false, now, true);
            match lease.terms.on_error {
                OnError::Lease => continue,
                // Nothing of it was leased: the end stays that is written.
                OnError::Open if is_there => lease.hold(now, 0.0),
                OnError::Open => (lease.left, lease.at, lease.until) = (0.0, now, now),
                OnError::Closed => {
                    (lease.left, lease.at, lease.until) = (0.0, now, now);
                    self.changed.insert(*key);
                }
            }
        }
    }

    /// What the store is to be asked now, so much at the most.
    pub fn asks(&mut self, now: Moment, most: usize) -> Vec<Ask<N>> {
        if self.lost.is_some() {
            return Vec::new();
        }
        let lost = self.asked.extract_if(|_, (_, _, at, ..)| now.since(*at) > ANSWERED);
        for (key, ..) in lost.map(|(_, it)| it).collect::<Vec<_>>() {
            self.counters.unanswered += 1;
            self.leases.get_mut(&key).into_iter().for_each(|lease| lease.asked = false);
        }
        let back = self.back.drain(..self.back.len().min(most));
        let mut asks: Vec<_> = back.map(|(name, tokens)| Ask::GiveBack(name, tokens)).collect();
        let mut due = Vec::new();
        for (key, lease) in &self.leases {
            if lease.asked || now < lease.retry || lease.wanted.is_none() {
                continue;
            }
            let length = self.length(lease.terms.rate, lease.wanted);
            // Where the store had less than was asked for, it has no more before others have used theirs.
            let rises = lease.full && lease.wanted > lease.share(now).times(2, 1);
            if lease.until.since(now) > length / 2 && !rises {
                continue;
            }
            let (left, all) = (lease.left(now), lease.terms.rate * length.as_secs_f64());
            // Who has none gets a packet at least. No more than the whole limit, which is all that the kernel can be told.
            let least = if left < 1.0 { 1.0 } else { 0.0 };
            let lacks =
                (all * lease.wanted.part() - left).round().max(least).min((all - left).floor());
            if lacks >= 1.0 {
                due.push((lease.until, *key, length, lacks as u64));
            }
        }
        // The first to end comes first.
        due.sort_unstable();
        due.truncate(most.saturating_sub(asks.len()));
        for (_, key, length, tokens) in due {
            let Some(lease) = self.leases.get_mut(&key) else { continue };
            lease.asked = true;
            self.next = self.next.wrapping_add(1);
            self.counters.asked += 1;
            self.asked.insert(self.next, (key, lease.name.clone(), now, length, tokens));
            asks.push(Ask::Buy(self.next, lease.name.clone(), tokens, length));
        }
        asks
    }

    /// The store has leased so many tokens, or has not answered.
    pub fn answer(&mut self, now: Moment, number: u64, tokens: Option<u64>) {
        // One that comes too late may be of the time before the store was lost. Its tokens are nobody's.
        let Some((key, name, at, length, asked)) = self.asked.remove(&number) else { return };
        let Some(tokens) = tokens.map(|tokens| tokens.min(asked)) else {
            self.counters.unanswered += 1;
            let Some(lease) = self.leases.get_mut(&key) else { return };
            // With many sources the store has much to do.
            (lease.asked, lease.retry) = (false, now.after(RETRY_INTERVAL.max(length / 8)));
            return;
        };
        self.counters.leased += tokens;
        // From when it was asked: the store may have charged them at once.
        let until = at.after(length);
        let rest = until.since(now);
        let Some(lease) = self.leases.get_mut(&key).filter(|it| it.asked) else {
            return self.give_back(key, name, tokens);
        };
        (lease.asked, lease.full) = (false, tokens == asked);
        if tokens == 0 {
            lease.retry = now.after(length / 4);
            return;
        }
        if rest < MIN_LEFT {
            return self.give_back(key, name, tokens);
        }
        lease.hold(now, lease.left(now) + tokens as f64);
        lease.until = until;
        let back = lease.keep(now, lease.terms.rate * rest.as_secs_f64());
        self.changed.insert(key);
        self.give_back(key, name, back);
    }

    /// What sources may use from now on, where that has changed.
    pub fn poll(&mut self, now: Moment) -> Vec<Granted> {
        if self.lost.is_some() {
            for (key, lease) in &mut self.leases {
                if lease.terms.on_error == OnError::Open && lease.until.since(now) < OPEN / 2 {
                    lease.until = now.after(OPEN);
                    lease.hold(now, lease.terms.rate * OPEN.as_secs_f64());
                    self.changed.insert(*key);
                }
            }
        }
        let changed = mem::take(&mut self.changed).into_iter();
        changed
            .filter_map(|key| {
                let lease = self.leases.get(&key)?;
                Some(Granted { key, share: lease.share(now), until: lease.until })
            })
            .collect()
    }

    /// Whether some are to be polled for again and again: the whole limit is written anew.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let is_open = |lease: &Lease<N>| lease.terms.on_error == OnError::Open;
        self.lost.is_some() && self.leases.values().any(is_open)
    }
}

#[cfg(test)]
mod tests;
