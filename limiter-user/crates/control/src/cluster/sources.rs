//! Which sources are under limits of the cluster, and what they send.
//!
//! A look goes at sources that are tracked, and on through the table of buckets for others that have begun to
//! send: in each case as far as it gets in a moment, so that a million buckets cost no more than a thousand.
//! Where the kernel has told that a source is limited, its buckets are looked at at once.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::time::Duration;

use foldhash::fast::FixedState;
use ipnet::IpNet;

use super::key::Keys;
use super::pace::AdaptiveBatch;
use super::room::AdmissionControl;
use super::untracked::UntrackedSources;
use super::watched::{Bounds, Watch};
use crate::Shares;
use cluster::{KeyId, Moment};
use dataplane::{ClusterBucket, ClusterMember};
use model::share::IDLE;
use model::{Limit, Selector, Share, Target};

/// How long the search for new sources may take at a time, while others wait to be heard.
// The search and the tracked sources share a loop with messages; together they stay below the time
// between two grants.
const BUDGET: Duration = Duration::from_millis(1);
/// Buckets that are searched at a time, at least and at most.
// The least makes progress even on a slow machine. The most bounds one overrun when the speed
// suddenly changes.
const CHUNK: RangeInclusive<usize> = 1 << 10..=1 << 20;
/// How long a look at tracked sources may take at a time, likewise.
const LOOK: Duration = Duration::from_millis(2);
/// Of those so many at a time, at least and at most: the others have their turn later.
const TURN: RangeInclusive<usize> = 1 << 8..=1 << 14;
/// New sources that are looked at closely at a time, at most.
// Each new source needs its policy and a first message. More at a time would make one scan long.
const MAX_FOUND: usize = 256;
/// For how long two sources of one number are left at their floor.
// Long enough for one of them to end, so that the number does not change hands with every scan.
const TWICE: Duration = Duration::from_secs(10);
/// Numbers of which that is remembered, at most.
// Any two of 100,000 sources meet with a probability of 2·10⁻⁵. The bound only guards the memory.
const MAX_TWICE: usize = 1024;
/// A source that is tracked.
#[derive(Clone, Debug)]
struct Tracked {
    bucket: usize,
    tag: u64,
    watch: Watch,
    /// The look that it was there at, and when that was.
    turn: u64,
    looked: Moment,
    /// The how manyth source it is.
    number: u64,
}

/// What a source sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Demand {
    pub(super) key: KeyId,
    /// As a part of its limit, drops included.
    pub(super) part: Share,
    /// Whether packets of it are dropped.
    pub(super) limited: bool,
    /// Its limit, for whose it is: a source's, or of one that sources share.
    pub(super) limit: Limit,
}

/// Whose a bucket is.
fn whose(member: &ClusterMember) -> Target {
    let target = member.limit.target;
    if target.aggregate {
        return target;
    }
    Target { whom: Selector::Prefix(member.source), class: member.class, aggregate: false }
}

/// What a look has come to.
#[derive(Debug, Default)]
pub(super) struct Observation {
    /// What tracked sources send, where there is something to tell.
    pub(super) demands: Vec<Demand>,
    /// Sources to be forgotten, whose buckets are to have their floor, with those.
    pub(super) over: Vec<(KeyId, (usize, u64))>,
    /// Sources to be forgotten that have no bucket any more.
    pub(super) gone: Vec<KeyId>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Sources {
    keys: Keys,
    /// How long this thread has worked.
    worked: fn() -> Duration,
    // Keys are hashes under a secret already, so a fixed hasher opens no way to make them collide.
    tracked: HashMap<KeyId, Tracked, FixedState>,
    // In the order of buckets, so that a turn reads the kernel's memory forwards.
    at: BTreeMap<usize, KeyId>,
    /// How many of them are looked at at a time, and from which bucket on.
    pace: AdaptiveBatch,
    from: usize,
    /// Numbers that two sources have, and when that was seen last.
    twice: BTreeMap<KeyId, Moment>,
    turn: u64,
    /// Sources that were ever tracked.
    number: u64,
    search: Search,
    /// How many may be tracked.
    pub(super) room: AdmissionControl,
    /// Those that there is no room for.
    pub(super) untracked: UntrackedSources,
}

impl Sources {
    /// How long the thread has worked is told by `worked`.
    pub(super) fn new(keys: Keys, now: Moment, worked: fn() -> Duration) -> Self {
        Self {
            keys,
            worked,
            tracked: HashMap::default(),
            at: BTreeMap::new(),
            pace: AdaptiveBatch::new(TURN, LOOK),
            from: 0,
            twice: BTreeMap::new(),
            turn: 0,
            number: 0,
            search: Search::new(worked),
            room: AdmissionControl::new(now),
            untracked: UntrackedSources::default(),
        }
    }

    /// How many sources send so much that it matters, and have no more than their floor because there are too many:
    /// as of the latest time that the table was gone through, or of the present one if it has found more already. On
    /// a busy machine that takes many seconds.
    pub(super) fn left_out(&self) -> usize {
        // A finished count alone would say nothing for seconds after a flood begins.
        self.search.left_out.max(self.search.leaves_out)
    }

    /// How many are tracked, and how many of them are limited.
    pub(super) fn count(&self) -> (usize, usize) {
        (self.tracked.len(), self.tracked.values().filter(|it| it.watch.limited).count())
    }

    /// How many are tracked.
    pub(super) fn len(&self) -> usize {
        self.tracked.len()
    }

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

    /// Tracks a source no more. Returns its number, its bucket and the bucket's tag.
    pub(super) fn drop(&mut self, key: KeyId) -> Option<(KeyId, (usize, u64))> {
        let tracked = self.tracked.remove(&key)?;
        self.at.remove(&tracked.bucket);
        Some((key, (tracked.bucket, tracked.tag)))
    }

    /// Tracks nothing any more; which sources were.
    pub(super) fn drop_all(&mut self) -> Vec<(KeyId, (usize, u64))> {
        self.at.clear();
        self.untracked = UntrackedSources::default();
        let all = std::mem::take(&mut self.tracked);
        all.into_iter().map(|(key, it)| (key, (it.bucket, it.tag))).collect()
    }

    /// Looks at the buckets of `plane`, of which those of `noticed` are known to be limited.
    pub(super) fn look(
        &mut self,
        plane: &dyn Shares,
        now: Moment,
        noticed: &[IpNet],
        bounds: Bounds,
    ) -> Observation {
        let mut seen = Observation::default();
        self.turn += 1;
        // First, so that the scan below does not spend its time on sources that go.
        self.give_up(&mut seen);
        // Who begins to be limited is looked at at once, whoever's turn it is.
        let noticed = noticed.iter().flat_map(|source| plane.buckets_of(*source));
        let (mut turn, mut found): (Vec<usize>, Vec<usize>) =
            noticed.partition(|bucket| self.at.contains_key(bucket));
        turn.extend(self.whose_turn());
        turn.sort_unstable();
        // A source that the kernel reports may have its turn as well; one read is enough.
        turn.dedup();
        let begun = (self.worked)();
        // Buckets that are another source's by now.
        let mut others: Vec<usize> = Vec::new();
        plane.cluster_members(&mut turn.iter().copied(), &mut |member| {
            if !self.know(now, &member, bounds, &mut seen) {
                others.push(member.bucket.bucket);
            }
        });
        self.clear_up(now, &turn, &mut seen);
        // Measured without the search: that has a pace of its own.
        self.pace.took(turn.len(), (self.worked)().saturating_sub(begun));
        found.extend(others);
        // Who has long been silent makes room for others.
        // The room may have shrunk below what is tracked.
        let free = self.room.most().saturating_sub(self.tracked.len());
        // Silent sources are only counted where room is short: that goes through all of them.
        let room = if free < MAX_FOUND { free + self.silent().len() } else { free };
        let Self { search, at, untracked, .. } = self;
        // Found beyond the room is only counted, unless there are words for those.
        let crowded = untracked.is_crowded();
        let most = if crowded { untracked.pace.much() } else { MAX_FOUND.min(room) };
        let mut is_known = |bucket: &ClusterBucket, matters, found| {
            // One that has a word is found only where there is room.
            at.contains_key(&bucket.bucket)
                || untracked.sees((bucket.bucket, bucket.tag), matters) && found >= room
        };
        if search.go_on(plane, now, bounds, most, &mut is_known, &mut found) {
            let (most, tracked) = (self.room.most(), self.tracked.len());
            untracked.finish_pass(now, most, tracked, search.left_out);
        }
        // A bucket may be both reported by the kernel and found by the search.
        found.retain(|bucket| !self.at.contains_key(bucket));
        found.sort_unstable();
        found.dedup();
        let mut lack = found.len().min(room).saturating_sub(free);
        if lack > 0 {
            let mut silent = self.silent();
            // The longest silent first: their buckets are the fullest, so they lose least.
            silent.sort_unstable();
            lack = lack.min(silent.len());
            for (_, key) in silent.drain(..lack) {
                seen.over.extend(self.drop(key));
            }
            // A demand after the end would make the escrow ask for a share that nobody uses.
            seen.demands.retain(|demand| self.tracked.contains_key(&demand.key));
        }
        // Who finds no room is taken all the same where there is a word for it.
        if !self.untracked.is_crowded() {
            found.truncate(room);
        }
        // Whatever the room: they are few, and each stands for many sources.
        let shared = plane.shared_buckets().into_iter();
        found.extend(shared.filter(|bucket| !self.at.contains_key(bucket)));
        let (begun, many) = ((self.worked)(), found.len());
        plane.cluster_members(&mut found.into_iter(), &mut |member| {
            self.take(now, &member, bounds, &mut seen);
        });
        self.untracked.pace.took(many, (self.worked)().saturating_sub(begun));
        seen
    }

    /// Those that have sent little for longer than other sources are tracked, and since when.
    fn silent(&self) -> Vec<(Moment, KeyId)> {
        // As of the last look: under a flood it is seconds old, and says nothing of the time since.
        let silent = self.tracked.iter().filter(|(_, it)| it.looked.since(it.watch.busy) > IDLE);
        silent.map(|(key, it)| (it.watch.busy, *key)).collect()
    }

    /// There is so long between two looks.
    pub(super) fn paused(&mut self, pause: Duration) {
        let looks = self.at.len().div_ceil(self.pace.much());
        self.room.goes_round(pause * u32::try_from(looks).unwrap_or(u32::MAX));
    }

    /// The buckets that are to be looked at next, one after the other and then from the first one on again.
    fn whose_turn(&mut self) -> Vec<usize> {
        let much = self.pace.much().min(self.at.len());
        // By bucket and not by count: sources come and go between turns, and an index would skip
        // some.
        let before = self.at.range(..self.from);
        let all = self.at.range(self.from..).chain(before);
        let turn: Vec<usize> = all.take(much).map(|(bucket, _)| *bucket).collect();
        self.from = turn.last().map_or(0, |last| last + 1);
        turn
    }

    /// Tracks those no more that there is no room for: those that came last.
    fn give_up(&mut self, seen: &mut Observation) {
        let more = self.tracked.len().saturating_sub(self.room.most());
        if more == 0 {
            return;
        }
        let mut all: Vec<(u64, KeyId)> =
            self.tracked.iter().map(|(key, it)| (it.number, *key)).collect();
        all.sort_unstable();
        // The last ones, so that sources with a long history of grants keep them under a flood of
        // new ones.
        for (_, key) in all.split_off(all.len() - more) {
            seen.over.extend(self.drop(key));
        }
    }

    /// Notes what a tracked source sends. Returns whether the bucket is still its own.
    fn know(
        &mut self,
        now: Moment,
        member: &ClusterMember,
        bounds: Bounds,
        seen: &mut Observation,
    ) -> bool {
        let bucket = member.bucket;
        let Some(&key) = self.at.get(&bucket.bucket) else { return false };
        // An evicted bucket may be another source's by now. The tag tells them apart.
        let its = |tracked: &&mut Tracked| tracked.tag == bucket.tag;
        let Some(tracked) = self.tracked.get_mut(&key).filter(its) else { return false };
        (tracked.turn, tracked.looked) = (self.turn, now);
        let part = tracked.watch.look(now, &member.limit, bucket.counts, bucket.limited, bounds);
        if let Some(part) = part {
            let (limited, limit) = (tracked.watch.limited, member.limit.amount.of(whose(member)));
            seen.demands.push(Demand { key, part, limited, limit });
        }
        true
    }

    /// Tracks those of `buckets` no more that are gone, or send little.
    fn clear_up(&mut self, now: Moment, buckets: &[usize], seen: &mut Observation) {
        for bucket in buckets {
            let Some(&key) = self.at.get(bucket) else { continue };
            let Some(tracked) = self.tracked.get(&key) else { continue };
            let there = tracked.turn == self.turn;
            // A bucket without an answer in this turn is gone, whatever its source sent before.
            if there && !tracked.watch.is_over(now) {
                continue;
            }
            match self.drop(key) {
                // A bucket that is there has a grant to be revoked. One that is gone took it
                // along.
                Some(over) if there => seen.over.push(over),
                _ => seen.gone.push(key),
            }
        }
        // The scan above noted demands of sources that have just been given up.
        seen.demands.retain(|demand| self.tracked.contains_key(&demand.key));
        self.twice.retain(|_, since| now.since(*since) <= TWICE);
    }

    /// Tracks a source from now on, if it sends so much that it matters.
    fn take(
        &mut self,
        now: Moment,
        member: &ClusterMember,
        bounds: Bounds,
        seen: &mut Observation,
    ) {
        let bucket = member.bucket;
        let target = whose(member);
        let key = self.keys.key(&target);
        if let Some(since) = self.twice.get_mut(&key) {
            *since = now;
            return;
        }
        let here = (bucket.bucket, bucket.tag);
        let untracked = self.untracked.drop(key).map(|other| (key, other));
        // One that there was no room for is no other.
        let other = self.drop(key).or(untracked.filter(|(_, other)| *other != here));
        if let Some(other) = other {
            // Two sources, or one with two buckets: neither has more than its floor.
            // A share of this number would count for both, and together they would pass twice of
            // it.
            seen.demands.retain(|demand| demand.key != key);
            seen.over.push(other);
            if self.twice.len() < MAX_TWICE {
                self.twice.insert(key, now);
            }
            return;
        }
        let crowded = self.untracked.is_crowded() && self.tracked.len() >= self.room.most();
        if crowded && !target.aggregate {
            if !self.untracked.take(here, key) {
                self.search.leaves_out += 1;
            }
            return;
        }
        let limited = bucket.limited;
        let (watch, part) = Watch::begin(now, &member.limit, bucket.counts, limited, bounds);
        // An old bucket says nothing of the present, so its source is tracked until a second look
        // tells.
        if watch.is_young(now) && !limited && part < bounds.least() {
            return;
        }
        let part = watch.wanted(part, &member.limit, bounds);
        self.number += 1;
        let (at, tag, turn, looked) = (bucket.bucket, bucket.tag, self.turn, now);
        let tracked = Tracked { bucket: at, tag, watch, turn, looked, number: self.number };
        self.tracked.insert(key, tracked);
        self.at.insert(at, key);
        // Without a part there is nothing to ask for yet.
        if !part.is_none() {
            let limit = member.limit.amount.of(target);
            seen.demands.push(Demand { key, part, limited, limit });
        }
    }
}

/// Goes through the table again and again for buckets that count more than a little.
#[derive(Debug)]
struct Search {
    worked: fn() -> Duration,
    /// What buckets had counted, as far as that fits.
    // Four bytes a bucket, so that a table of a million buckets costs 4 MB and not 8 or more.
    counted: Vec<u32>,
    /// Where it goes on.
    at: usize,
    pace: AdaptiveBatch,
    /// When it was at the start.
    began: Moment,
    /// How long it took the last time; nothing while it is there for the first time.
    took: Option<Duration>,
    /// Sources that there was no room for since it was at the start, and in the whole time before that.
    leaves_out: usize,
    left_out: usize,
}

impl Search {
    fn new(worked: fn() -> Duration) -> Self {
        Self {
            worked,
            counted: Vec::new(),
            at: 0,
            // The first round only fills `counted`. From the least, it would take seconds to see
            // the whole table.
            pace: AdaptiveBatch::new(CHUNK, BUDGET).from(16 * CHUNK.start()),
            began: Moment(0),
            took: None,
            leaves_out: 0,
            left_out: 0,
        }
    }

    /// Searches on, for so many that are not known. Who `is_known` is asked with whether it matters, and how many are found.
    /// Returns whether it has come to the end of the table.
    fn go_on(
        &mut self,
        plane: &dyn Shares,
        now: Moment,
        bounds: Bounds,
        most: usize,
        is_known: &mut dyn FnMut(&ClusterBucket, bool, usize) -> bool,
        found: &mut Vec<usize>,
    ) -> bool {
        let buckets = plane.buckets();
        // The table was replaced by one of another size. Old counts belong to other sources.
        if self.counted.len() != buckets {
            *self = Self { counted: vec![0; buckets], ..Self::new(self.worked) };
        }
        if self.at == 0 {
            self.began = now;
        }
        let end = (self.at + self.pace.much()).min(buckets);
        // What a source sends in the time that a round takes, if it matters.
        let seconds = self.took.unwrap_or_default().as_secs_f64();
        let enough = (bounds.slowest * bounds.least().part() * seconds).ceil().max(1.0) as u32;
        let first = self.took.is_none();
        let begun = (self.worked)();
        let (counted, leaves_out) = (&mut self.counted, &mut self.leaves_out);
        plane.cluster_buckets(self.at..end, &mut |bucket| {
            // The cut wraps, and so does the difference below. A round is far too short for 2^32
            // packets of a source.
            let packets = bucket.counts.packets() as u32;
            let Some(before) = counted.get_mut(bucket.bucket) else { return };
            let more = packets.wrapping_sub(std::mem::replace(before, packets));
            // In the first round nothing is known of before: only the kernel's own sign counts.
            let matters = more >= enough && !first || bucket.limited && (more > 0 || first);
            let new = !is_known(&bucket, matters, found.len()) && matters;
            if new && found.len() < most {
                found.push(bucket.bucket);
            } else if new {
                *leaves_out += 1;
            }
        });
        self.pace.took(end - self.at, (self.worked)().saturating_sub(begun));
        self.at = end;
        let ended = end >= buckets;
        if ended {
            self.at = 0;
            self.left_out = std::mem::take(&mut self.leaves_out);
            // Not less: at a round of no time a single packet would look like a high rate.
            self.took = Some(now.since(self.began).max(Duration::from_millis(50)));
        }
        ended
    }
}

#[cfg(test)]
mod tests;
