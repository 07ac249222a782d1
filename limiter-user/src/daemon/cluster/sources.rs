//! Which sources are under limits of the cluster, and what they send.
//!
//! A look goes at all sources that are tracked, and on through the table of buckets for others that have
//! begun to send: as far as it gets in a millisecond, so that a million buckets cost no more than a thousand.
//! Where the kernel has told that a source is limited, its buckets are looked at at once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ipnet::IpNet;

use super::demand::{Gauge, Look};
use super::key::Keys;
use crate::cluster::escrow::MAX_HELD;
use crate::cluster::{KeyId, Moment, Share};
use crate::daemon::Plane;
use crate::dataplane::ClusterMember;
use crate::policy::Target;

/// How long the search for new sources may take at a time, while the core is locked.
const BUDGET: Duration = Duration::from_millis(1);
/// Buckets that are searched at a time, at least and at most.
const CHUNK: [usize; 2] = [1 << 10, 1 << 20];
/// New sources that are looked at closely at a time, at most.
const MOST_FOUND: usize = 2048;
/// A source that sends little for so long is tracked no more.
const IDLE: Duration = Duration::from_secs(3);
/// For how long two sources of one number are left at their floor.
const TWICE: Duration = Duration::from_secs(10);
/// Numbers of which that is remembered, at most.
const MOST_TWICE: usize = 1024;
/// Less of a limit than this is nobody's concern, whatever the floor.
const LITTLE: Share = Share::of_units(1 << 23);

/// A source that is tracked.
#[derive(Clone, Debug)]
struct Tracked {
    bucket: usize,
    tag: u64,
    gauge: Gauge,
    limited: bool,
    /// When it last sent so much that it matters.
    busy: Moment,
    /// The look that it was there at.
    turn: u64,
}

/// What a source sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Demand {
    pub(super) key: KeyId,
    /// As a part of its limit, drops included.
    pub(super) part: Share,
    /// Whether packets of it are dropped.
    pub(super) limited: bool,
    /// The limit that it is under.
    pub(super) target: Target,
}

/// What a look has come to.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// What tracked sources send, where there is something to tell.
    pub(super) demands: Vec<Demand>,
    /// Sources to be forgotten, whose buckets are to have their floor, with those.
    pub(super) over: Vec<(KeyId, (usize, u64))>,
    /// Sources to be forgotten that have no bucket any more.
    pub(super) gone: Vec<KeyId>,
}

/// What matters of a look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// What this host may use of every key.
    pub(super) floor: Share,
    /// The least that limits of the cluster let through whole, packets a second.
    pub(super) slowest: f64,
}

impl Bounds {
    /// The least part of a limit that matters.
    fn least(&self) -> Share {
        self.floor.times(1, 2).max(LITTLE)
    }
}

/// All of them.
#[derive(Debug)]
pub(super) struct Sources {
    keys: Keys,
    tracked: BTreeMap<KeyId, Tracked>,
    at: BTreeMap<usize, KeyId>,
    /// Numbers that two sources have, and when that was seen last.
    twice: BTreeMap<KeyId, Moment>,
    turn: u64,
    search: Search,
    /// Sources that were not tracked because there were too many.
    pub(super) refused: u64,
}

impl Sources {
    pub(super) fn new(keys: Keys) -> Self {
        Self {
            keys,
            tracked: BTreeMap::new(),
            at: BTreeMap::new(),
            twice: BTreeMap::new(),
            turn: 0,
            search: Search::default(),
            refused: 0,
        }
    }

    /// How many are tracked, and how many of them are limited.
    pub(super) fn count(&self) -> (usize, usize) {
        (self.tracked.len(), self.tracked.values().filter(|it| it.limited).count())
    }

    /// Whether there is nothing to look at often.
    pub(super) fn is_empty(&self) -> bool {
        self.tracked.is_empty()
    }

    /// The bucket of a tracked source, and its tag.
    pub(super) fn bucket(&self, key: KeyId) -> Option<(usize, u64)> {
        self.tracked.get(&key).map(|it| (it.bucket, it.tag))
    }

    /// The tracked source with a bucket.
    pub(super) fn key_at(&self, bucket: usize) -> Option<KeyId> {
        self.at.get(&bucket).copied()
    }

    /// Numbers that two sources have at present.
    pub(super) fn twice(&self) -> usize {
        self.twice.len()
    }

    /// Tracks a source no more.
    pub(super) fn drop(&mut self, key: KeyId) -> Option<(usize, u64)> {
        let tracked = self.tracked.remove(&key)?;
        self.at.remove(&tracked.bucket);
        Some((tracked.bucket, tracked.tag))
    }

    /// Tracks nothing any more; which sources were.
    pub(super) fn drop_all(&mut self) -> Vec<(KeyId, (usize, u64))> {
        self.at.clear();
        let all = std::mem::take(&mut self.tracked);
        all.into_iter().map(|(key, it)| (key, (it.bucket, it.tag))).collect()
    }

    /// Looks at the buckets of `plane`, of which those of `noticed` are known to be limited.
    pub(super) fn look(
        &mut self,
        plane: &dyn Plane,
        now: Moment,
        noticed: &[IpNet],
        bounds: Bounds,
    ) -> Seen {
        let mut seen = Seen::default();
        self.turn += 1;
        // Buckets that are another source's by now.
        let mut found: Vec<usize> = Vec::new();
        let buckets: Vec<usize> = self.at.keys().copied().collect();
        plane.cluster_members(&mut buckets.into_iter(), &mut |member| {
            if !self.know(now, &member, bounds, &mut seen) {
                found.push(member.bucket.bucket);
            }
        });
        self.clear_up(now, &mut seen);
        found.extend(noticed.iter().flat_map(|source| plane.buckets_of(*source)));
        self.search.go_on(plane, now, bounds, &mut found);
        found.retain(|bucket| !self.at.contains_key(bucket));
        found.sort_unstable();
        found.dedup();
        plane.cluster_members(&mut found.into_iter(), &mut |member| {
            self.take(now, &member, bounds, &mut seen);
        });
        seen
    }

    /// Notes what a tracked source sends. Returns whether the bucket is still its own.
    fn know(
        &mut self,
        now: Moment,
        member: &ClusterMember,
        bounds: Bounds,
        seen: &mut Seen,
    ) -> bool {
        let bucket = member.bucket;
        let Some(&key) = self.at.get(&bucket.bucket) else { return false };
        let its = |tracked: &&mut Tracked| tracked.tag == bucket.tag;
        let Some(tracked) = self.tracked.get_mut(&key).filter(its) else { return false };
        tracked.turn = self.turn;
        let starts = bucket.limited && !tracked.limited;
        if let Some(Look { demand: part, sends, drops }) = tracked.gauge.look(now, member, starts) {
            // Whoever sends nothing is not limited, whatever became of its last packet.
            tracked.limited = sends && (drops || bucket.limited);
            if part >= bounds.least() || tracked.limited {
                tracked.busy = now;
            }
            let (limited, target) = (tracked.limited, member.limit.target);
            seen.demands.push(Demand { key, part, limited, target });
        }
        true
    }

    /// Tracks those no more that are gone, or send little.
    fn clear_up(&mut self, now: Moment, seen: &mut Seen) {
        let turn = self.turn;
        let ends = |it: &Tracked| it.turn != turn || now.since(it.busy) > IDLE;
        let ending: Vec<KeyId> =
            self.tracked.iter().filter(|(_, it)| ends(it)).map(|(key, _)| *key).collect();
        for key in ending {
            let there = self.tracked.get(&key).is_some_and(|it| it.turn == turn);
            match self.drop(key) {
                Some(bucket) if there => seen.over.push((key, bucket)),
                _ => seen.gone.push(key),
            }
        }
        seen.demands.retain(|demand| self.tracked.contains_key(&demand.key));
        self.twice.retain(|_, since| now.since(*since) <= TWICE);
    }

    /// Tracks a source from now on, if it sends so much that it matters.
    fn take(&mut self, now: Moment, member: &ClusterMember, bounds: Bounds, seen: &mut Seen) {
        let bucket = member.bucket;
        let key = self.keys.key(member.source, member.class);
        if let Some(since) = self.twice.get_mut(&key) {
            *since = now;
            return;
        }
        if let Some(other) = self.drop(key) {
            // Two sources, or one with two buckets: neither has more than its floor.
            seen.demands.retain(|demand| demand.key != key);
            seen.over.push((key, other));
            if self.twice.len() < MOST_TWICE {
                self.twice.insert(key, now);
            }
            return;
        }
        if self.tracked.len() >= MAX_HELD {
            self.refused += 1;
            return;
        }
        // Who is limited wants more than its floor.
        let guess = if bucket.limited { bounds.least().times(4, 1) } else { Share::NONE };
        let (gauge, part) = Gauge::begin(now, member, guess);
        let young = gauge.is_young(now);
        if young && !bucket.limited && part < bounds.least() {
            return;
        }
        let (limited, turn) = (bucket.limited, self.turn);
        let tracked =
            Tracked { bucket: bucket.bucket, tag: bucket.tag, gauge, limited, busy: now, turn };
        self.tracked.insert(key, tracked);
        self.at.insert(bucket.bucket, key);
        if !part.is_none() {
            seen.demands.push(Demand { key, part, limited, target: member.limit.target });
        }
    }
}

/// Goes through the table again and again for buckets that count more than a little.
#[derive(Debug)]
struct Search {
    /// What buckets had counted, as far as that fits.
    counted: Vec<u32>,
    /// Where it goes on.
    at: usize,
    chunk: usize,
    /// When it was at the start.
    began: Moment,
    /// How long it took the last time; nothing while it is there for the first time.
    took: Option<Duration>,
}

impl Default for Search {
    fn default() -> Self {
        let (counted, at, chunk) = (Vec::new(), 0, 16 * CHUNK[0]);
        Self { counted, at, chunk, began: Moment(0), took: None }
    }
}

impl Search {
    fn go_on(&mut self, plane: &dyn Plane, now: Moment, bounds: Bounds, found: &mut Vec<usize>) {
        let buckets = plane.buckets();
        if self.counted.len() != buckets {
            *self = Self { counted: vec![0; buckets], ..Self::default() };
        }
        if self.at == 0 {
            self.began = now;
        }
        let end = (self.at + self.chunk).min(buckets);
        // What a source sends in the time that a round takes, if it matters.
        let seconds = self.took.unwrap_or_default().as_secs_f64();
        let enough = (bounds.slowest * bounds.least().part() * seconds).ceil().max(1.0) as u32;
        let first = self.took.is_none();
        let begun = Instant::now();
        let counted = &mut self.counted;
        plane.cluster_buckets(self.at..end, &mut |bucket| {
            let packets = bucket.counts.packets() as u32;
            let Some(before) = counted.get_mut(bucket.bucket) else { return };
            let more = packets.wrapping_sub(std::mem::replace(before, packets));
            let matters = more >= enough && !first || bucket.limited && (more > 0 || first);
            if matters && found.len() < MOST_FOUND {
                found.push(bucket.bucket);
            }
        });
        let ratio = BUDGET.as_secs_f64() / begun.elapsed().as_secs_f64().max(1e-6);
        let next = self.chunk as f64 * ratio.clamp(0.25, 2.0);
        self.chunk = (next as usize).clamp(CHUNK[0], CHUNK[1]);
        self.at = end;
        if end >= buckets {
            self.at = 0;
            self.took = Some(now.since(self.began).max(Duration::from_millis(50)));
        }
    }
}

#[cfg(test)]
mod tests;
