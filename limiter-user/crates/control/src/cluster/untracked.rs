//! Sources that send much, and that there is no room to track. While there are some this host keeps half of its home share,
//! and each of them may use that of its limit, which no message has to be sent for.
//!
//! A word in the kernel says so, for half a second: so each is written anew before that, one after the other.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::pace::AdaptiveBatch;
use cluster::{KeyId, Moment};

/// How often a word is written anew: the kernel takes it for nothing after half a second.
const RENEWS: Duration = Duration::from_millis(300);
/// Of such sources so many, at most: four times as many as can be tracked.
const MAX_UNTRACKED: usize = 1 << 16;
/// For so long sources must find no room: a host that has just begun has little, and more with each half second.
const CROWDED: Duration = Duration::from_secs(3);
/// So many are taken in a look at least and at most, in about so long: those that are tracked wait for it.
const TAKEN: RangeInclusive<usize> = 32..=4096;
const TAKING: Duration = Duration::from_millis(1);

/// One of them.
#[derive(Clone, Copy, Debug)]
struct Untracked {
    tag: u64,
    key: KeyId,
    /// When it was last seen to send much, by the how manyth time that the table was gone through.
    seen: u64,
}

/// All of them, by their buckets.
#[derive(Debug)]
pub(super) struct UntrackedSources {
    all: BTreeMap<usize, Untracked>,
    /// The bucket of each: a key has one word alone.
    buckets: BTreeMap<KeyId, usize>,
    /// How often the table was gone through.
    pass: u64,
    /// Since when some find no room.
    since: Option<Moment>,
    crowded: bool,
    /// How many are taken at a time.
    pub(super) pace: AdaptiveBatch,
    /// Where it goes on to write, and when it wrote last.
    from: usize,
    wrote: Moment,
}

impl Default for UntrackedSources {
    fn default() -> Self {
        Self {
            all: BTreeMap::new(),
            buckets: BTreeMap::new(),
            pass: 0,
            since: None,
            crowded: false,
            pace: AdaptiveBatch::new(TAKEN, TAKING),
            from: 0,
            wrote: Moment(0),
        }
    }
}

impl UntrackedSources {
    /// Whether more sources send much than there is room for.
    pub(super) const fn is_crowded(&self) -> bool {
        self.crowded
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Takes a source that sends much. Whether there is a word for it from now on.
    pub(super) fn take(&mut self, (bucket, tag): (usize, u64), key: KeyId) -> bool {
        if !self.crowded || self.all.len() >= MAX_UNTRACKED {
            return false;
        }
        if let Some(before) = self.all.insert(bucket, Untracked { tag, key, seen: self.pass }) {
            self.buckets.remove(&before.key);
        }
        self.buckets.insert(key, bucket);
        true
    }

    /// Forgets a source. Returns its bucket, which may have a word still.
    pub(super) fn drop(&mut self, key: KeyId) -> Option<(usize, u64)> {
        let bucket = self.buckets.remove(&key)?;
        self.all.remove(&bucket).map(|it| (bucket, it.tag))
    }

    /// A bucket is there, and its source sends much or not. Whether it is one of them.
    pub(super) fn sees(&mut self, (bucket, tag): (usize, u64), much: bool) -> bool {
        let pass = self.pass;
        let Some(it) = self.all.get_mut(&bucket).filter(|it| it.tag == tag) else { return false };
        if much {
            it.seen = pass;
        }
        true
    }

    /// The table was gone through once more: there is `room` to track so many sources, so many are tracked, and so many
    /// find neither room nor a word.
    pub(super) fn finish_pass(&mut self, now: Moment, room: usize, tracked: usize, others: usize) {
        self.pass += 1;
        let pass = self.pass;
        let buckets = &mut self.buckets;
        self.all.retain(|_, it| {
            let stays = it.seen + 2 >= pass;
            if !stays {
                buckets.remove(&it.key);
            }
            stays
        });
        let busy = tracked + self.all.len() + others;
        if !self.crowded {
            self.since = (others > 0).then(|| self.since.unwrap_or(now));
            self.crowded = self.since.is_some_and(|since| now.since(since) >= CROWDED);
        } else if 2 * busy <= room {
            // Not as soon as all have room: for half a second after each change some share is nobody's.
            *self = Self { pass, ..Self::default() };
        }
    }

    /// Those whose words are to be written now: each bucket and its tag.
    pub(super) fn renew(&mut self, now: Moment) -> Vec<(usize, u64)> {
        let all = self.all.len();
        let due = all as u128 * now.since(self.wrote).as_nanos();
        let many = due.div_ceil(RENEWS.as_nanos()).min(all as u128) as usize;
        self.wrote = now;
        let before = self.all.range(..self.from);
        let turn = self.all.range(self.from..).chain(before).take(many);
        let turn: Vec<_> = turn.map(|(bucket, it)| (*bucket, it.tag)).collect();
        self.from = turn.last().map_or(0, |(last, _)| last + 1);
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> KeyId {
        KeyId::from_hash(n as u64)
    }

    fn at(ms: u64) -> Moment {
        Moment(ms * 1_000_000)
    }

    #[test]
    fn crowded_is_who_has_no_room_for_long_until_there_is_much() {
        let mut all = UntrackedSources::default();
        let mut crowded = |ms, tracked, others| {
            all.finish_pass(at(ms), 1000, tracked, others);
            all.is_crowded()
        };
        assert!(!crowded(0, 1000, 5) && !crowded(2000, 1000, 5));
        // There was room in between.
        assert!(!crowded(2900, 1000, 0) && !crowded(3000, 1000, 5));
        assert!(!crowded(5999, 1000, 5) && crowded(6000, 1000, 5));
        assert!(crowded(7000, 900, 0) && crowded(8000, 501, 0) && !crowded(9000, 500, 0));
        assert!(!crowded(10_000, 1000, 5));
    }

    #[test]
    fn each_is_written_in_time_and_forgotten_when_it_sends_no_more() {
        let mut all = UntrackedSources::default();
        assert!(!all.take((0, 7), key(0)));
        all.crowded = true;
        assert!((0..30).all(|bucket| all.take((bucket, 7), key(bucket))));
        assert_eq!(all.renew(at(1000)).len(), 30);
        let turns: Vec<usize> = (1..=3).map(|n| all.renew(at(1000 + 100 * n)).len()).collect();
        assert_eq!(turns, [10, 10, 10]);
        assert_eq!(all.renew(at(1310))[0], (0, 7));
        assert!(all.sees((3, 7), true) && !all.sees((3, 8), true) && !all.sees((30, 7), true));
        for _ in 0..2 {
            all.finish_pass(at(0), 10, 0, 0);
            assert_eq!(all.len(), 30);
            assert!(all.sees((3, 7), true) && all.sees((4, 7), false));
        }
        all.finish_pass(at(0), 10, 9, 0);
        assert_eq!((all.len(), all.buckets.len()), (1, 1));
        assert_eq!((all.drop(key(3)), all.drop(key(3)), all.len()), (Some((3, 7)), None, 0));
        // A bucket that is another source's by now.
        assert!(all.take((1, 7), key(1)) && all.take((1, 8), key(2)));
        assert_eq!((all.drop(key(1)), all.drop(key(2))), (None, Some((1, 8))));
    }
}
