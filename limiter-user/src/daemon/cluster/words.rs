//! What the data plane is to be told of rights, until it is told.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use super::sources::Sources;
use crate::cluster::escrow::Granted;
use crate::cluster::{KeyId, Moment, Share};
use crate::daemon::core::Core;
use crate::daemon::replicated::is_clusters;
use crate::daemon::{Plane, Shared};
use crate::dataplane::{BucketShare, SharesChanged, wait_for_packets};
use crate::error::{Failure, exit};

/// How often a bucket is tried that packets are charged to at the same moment.
const TRIES: usize = 4;

/// How long buckets may be given a larger floor at a time, while the core is locked.
const BUDGET: Duration = Duration::from_millis(1);

/// How many of them at a time, at least and at most.
const CHUNK: [usize; 2] = [1 << 10, 1 << 20];

/// Changes whose tokens wait to be given back, at most; others lose some.
const MOST_WAITING: usize = 64;

/// What is to be told.
#[derive(Debug, Default)]
pub(super) struct Words {
    floor: Option<Share>,
    /// From which bucket on a larger floor is still to be given.
    renew: Option<usize>,
    /// How many buckets are given it at a time.
    chunk: usize,
    /// A bucket and its tag, the share and its end.
    shares: BTreeMap<(usize, u64), (Share, Moment)>,
}

/// What became of it.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Shares that are told.
    pub(super) made: u64,
    /// Changes that were tried again.
    pub(super) again: u64,
    /// Sources that have no bucket of the cluster any more.
    pub(super) gone: Vec<KeyId>,
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

    /// The floor is to be this one.
    pub(super) fn set_floor(&mut self, floor: Option<Share>) {
        self.floor = floor.or(self.floor);
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

    /// Tells the data plane. What could not be told remains.
    ///
    /// # Errors
    /// If it refuses the floor.
    pub(super) fn tell(
        &mut self,
        core: &mut Core,
        sources: Option<&Sources>,
        giver: &Giver,
    ) -> Result<Told, Failure> {
        let mut told = Told::default();
        if let Some(floor) = self.floor {
            core.plane.change_floor(floor, is_clusters)?;
            self.floor = None;
            // Buckets that have less meanwhile are no danger to anybody.
            self.renew = Some(0);
        }
        for round in 0..TRIES {
            if self.shares.is_empty() {
                break;
            }
            told.again += if round > 0 { self.shares.len() as u64 } else { 0 };
            self.tell_shares(&*core.plane, sources, giver, &mut told);
        }
        Ok(told)
    }

    /// Gives some more buckets the floor, as many as fit in a moment. Returns whether there are more.
    pub(super) fn renew(&mut self, core: &Core, giver: &Giver) -> bool {
        let Some(from) = self.renew else { return false };
        let buckets = core.plane.buckets();
        let to = (from + self.chunk.max(CHUNK[0])).min(buckets);
        let begun = Instant::now();
        giver.give_back(core.plane.renew_floors(from..to));
        let ratio = BUDGET.as_secs_f64() / begun.elapsed().as_secs_f64().max(1e-6);
        let next = (to - from) as f64 * ratio.clamp(0.25, 2.0);
        self.chunk = (next as usize).clamp(CHUNK[0], CHUNK[1]);
        self.renew = Some(to).filter(|to| *to < buckets);
        self.renew.is_some()
    }

    fn tell_shares(
        &mut self,
        plane: &dyn Plane,
        sources: Option<&Sources>,
        giver: &Giver,
        told: &mut Told,
    ) {
        let share = |(&(bucket, tag), &(share, until)): (&(usize, u64), &(Share, Moment))| {
            BucketShare { bucket, tag, share, until_ns: until.0 }
        };
        let mut changed = plane.set_shares(&mut self.shares.iter().map(share));
        told.made += changed.made;
        let gone = std::mem::take(&mut changed.gone_buckets);
        let of = |bucket| sources.and_then(|sources| sources.key_at(bucket));
        told.gone.extend(gone.into_iter().filter_map(of));
        let missed = std::mem::take(&mut changed.missed_buckets);
        self.shares.retain(|(bucket, _), _| missed.contains(bucket));
        giver.give_back(changed);
    }
}

/// Gives back what lowered shares have taken too much, in a thread of its own: that waits for packets.
#[derive(Clone, Debug)]
pub(super) struct Giver(SyncSender<SharesChanged>);

impl Giver {
    /// Starts the thread. It ends with the last of these.
    ///
    /// # Errors
    /// If there can be none.
    pub(super) fn start(shared: Shared) -> Result<Self, Failure> {
        let (give, changes) = sync_channel(MOST_WAITING);
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
