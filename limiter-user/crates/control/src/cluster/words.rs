//! What the data plane is to be told of rights, until it is told.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use super::pace::AdaptiveBatch;
use super::sources::Sources;
use crate::core::Core;
use crate::replicated::is_clusters;
use crate::{Plane, Shared};
use api::error::{Failure, exit};
use cluster::escrow::Granted;
use cluster::{KeyId, Moment};
use dataplane::{BucketShare, SharesChanged, wait_for_packets};
use model::Share;

/// How often a bucket is tried that packets are charged to at the same moment.
const TRIES: usize = 4;

/// How long buckets may be given a larger floor at a time, while the core is locked.
const BUDGET: Duration = Duration::from_millis(1);

/// How many of them at a time, at least and at most.
const CHUNK: RangeInclusive<usize> = 1 << 10..=1 << 20;

/// How long shares may be told at a time, while the core is locked, and how many at least and at most.
const TELL: Duration = Duration::from_millis(2);
const PART: RangeInclusive<usize> = 1 << 8..=1 << 14;

/// Changes whose tokens wait to be given back, at most; others lose some.
const MAX_WAITING: usize = 64;

/// What is to be told.
#[derive(Debug)]
pub(super) struct Words {
    /// And how many hosts have home rights.
    floor: Option<(Share, u32)>,
    /// From which bucket on a larger floor is still to be given.
    renew: Option<usize>,
    /// How many buckets are given it at a time.
    pace: AdaptiveBatch,
    /// A bucket and its tag, the share and its end.
    shares: BTreeMap<(usize, u64), (Share, Moment)>,
    /// Where they are told on from.
    from: (usize, u64),
    /// How many are told at a time.
    part: AdaptiveBatch,
}

impl Default for Words {
    fn default() -> Self {
        Self {
            floor: None,
            renew: None,
            pace: AdaptiveBatch::new(CHUNK, BUDGET),
            shares: BTreeMap::new(),
            from: (0, 0),
            part: AdaptiveBatch::new(PART, TELL),
        }
    }
}

/// What became of it.
#[derive(Debug, Default)]
pub(super) struct WriteResult {
    /// Shares that are told.
    pub(super) made: u64,
    /// Changes that were tried again.
    pub(super) again: u64,
    /// Sources that have no bucket of the cluster any more.
    pub(super) gone: Vec<KeyId>,
    /// Whether others are still to be told.
    pub(super) more: bool,
}

impl Words {
    /// How much there is.
    pub(super) fn len(&self) -> usize {
        self.shares.len() + usize::from(self.floor.is_some())
    }

    /// Whether the floor is to be another one.
    pub(super) const fn has_floor(&self) -> bool {
        self.floor.is_some()
    }

    /// The floor is to be this one, of limits that so many hosts share.
    pub(super) fn set_floor(&mut self, floor: Option<Share>, hosts: u32) {
        self.floor = floor.map(|floor| (floor, hosts)).or(self.floor);
    }

    /// Tracked sources may use this. What was to be told of them before is not any more.
    pub(super) fn grant(&mut self, grants: Vec<Granted>, sources: &Sources) {
        for Granted { key, share, until } in grants {
            if let Some(bucket) = sources.bucket(key) {
                self.shares.insert(bucket, (share, until));
            }
        }
    }

    /// A bucket may use the floor alone.
    pub(super) fn revoke(&mut self, bucket: (usize, u64), now: Moment) {
        self.shares.insert(bucket, (Share::NONE, now));
    }

    /// Tells the data plane as much as fits in a moment. What could not be told remains, and is tried again when it
    /// is told the next time that there is no more.
    ///
    /// # Errors
    /// If it refuses the floor.
    pub(super) fn tell(
        &mut self,
        core: &mut Core,
        sources: Option<&Sources>,
        giver: &RefundWorker,
    ) -> Result<WriteResult, Failure> {
        let mut told = WriteResult::default();
        if let Some((floor, hosts)) = self.floor {
            core.plane.change_floor(floor, hosts, is_clusters)?;
            self.floor = None;
            // Buckets that have less meanwhile are no danger to anybody.
            self.renew = Some(0);
        }
        let much = self.part.much();
        let part = self.shares.range(self.from..).take(much);
        let mut part: Vec<BucketShare> = part.map(bucket_share).collect();
        let (count, last) = (part.len(), part.last().map(|last| (last.bucket, last.tag)));
        let begun = Instant::now();
        for round in 0..TRIES {
            if part.is_empty() {
                break;
            }
            told.again += if round > 0 { part.len() as u64 } else { 0 };
            self.tell_shares(&*core.plane, sources, giver, &mut part, &mut told);
        }
        self.part.took(count, begun.elapsed());
        let next = last.filter(|_| count == much).map(|(bucket, tag)| (bucket, tag + 1));
        told.more = next.is_some();
        self.from = next.unwrap_or_default();
        Ok(told)
    }

    /// Gives some more buckets the floor, as many as fit in a moment. Returns whether there are more.
    pub(super) fn renew(&mut self, core: &Core, giver: &RefundWorker) -> bool {
        let Some(from) = self.renew else { return false };
        let buckets = core.plane.buckets();
        let to = (from + self.pace.much()).min(buckets);
        let begun = Instant::now();
        giver.give_back(core.plane.renew_floors(from..to));
        self.pace.took(to - from, begun.elapsed());
        self.renew = Some(to).filter(|to| *to < buckets);
        self.renew.is_some()
    }

    /// Tells these; those that are to be tried again remain.
    fn tell_shares(
        &mut self,
        plane: &dyn Plane,
        sources: Option<&Sources>,
        giver: &RefundWorker,
        part: &mut Vec<BucketShare>,
        told: &mut WriteResult,
    ) {
        let mut changed = plane.set_shares(&mut part.iter().copied());
        told.made += changed.made;
        let gone = std::mem::take(&mut changed.gone_buckets);
        let of = |bucket| sources.and_then(|sources| sources.key_at(bucket));
        told.gone.extend(gone.into_iter().filter_map(of));
        let mut missed = std::mem::take(&mut changed.missed_buckets);
        missed.sort_unstable();
        part.retain(|share| {
            let again = missed.binary_search(&share.bucket).is_ok();
            if !again {
                self.shares.remove(&(share.bucket, share.tag));
            }
            again
        });
        giver.give_back(changed);
    }
}

fn bucket_share((at, to): (&(usize, u64), &(Share, Moment))) -> BucketShare {
    let (&(bucket, tag), &(share, until)) = (at, to);
    BucketShare { bucket, tag, share, until_ns: until.0 }
}

/// Gives back what lowered shares have taken too much, in a thread of its own: that waits for packets.
#[derive(Clone, Debug)]
pub(super) struct RefundWorker(SyncSender<SharesChanged>);

impl RefundWorker {
    /// Starts the thread. It ends with the last of these.
    ///
    /// # Errors
    /// If there can be none.
    pub(super) fn start(shared: Shared) -> Result<Self, Failure> {
        let (give, changes) = sync_channel(MAX_WAITING);
        std::thread::Builder::new()
            .name("rights back".into())
            .spawn(move || give_back(&changes, &shared))
            .map_err(|error| {
                Failure::new(exit::PRIVILEGE, format!("cannot start a thread: {error}"))
            })?;
        Ok(Self(give))
    }

    fn give_back(&self, changed: SharesChanged) {
        if changed.is_lowered() {
            // Where there is no room some tokens are lost, which is safe.
            let _ = self.0.try_send(changed);
        }
    }
}

fn give_back(changes: &Receiver<SharesChanged>, shared: &Shared) {
    while let Ok(mut changed) = changes.recv() {
        while let Ok(more) = changes.try_recv() {
            changed.merge(more);
        }
        wait_for_packets();
        let given = shared.with_now(|core| {
            core.plane.give_back(changed);
            Ok(())
        });
        if given.is_err() {
            return;
        }
    }
}
