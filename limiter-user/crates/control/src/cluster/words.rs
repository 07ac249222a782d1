//! What the data plane is to be told of shares, until it is told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::sources::Sources;
use crate::Shares;
use api::error::{Failure, exit};
use cluster::escrow::Granted;
use cluster::{KeyId, Moment};
use dataplane::{BucketShare, SharesChanged, wait_for_packets};
use model::Share;

/// How often a bucket is tried that packets are charged to at the same moment.
const TRIES: usize = 4;

/// Changes whose tokens wait to be given back, at most; others lose some.
const MAX_WAITING: usize = 64;

/// Shares that are to be told.
#[derive(Debug, Default)]
pub(super) struct PendingShares {
    /// A bucket and its tag, the share and its end.
    shares: BTreeMap<(usize, u64), (Share, Moment)>,
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
}

impl PendingShares {
    /// How much there is.
    pub(super) fn len(&self) -> usize {
        self.shares.len()
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

    /// Tells the data plane. What could not be told remains, and is tried again when it is told the next time.
    pub(super) fn tell(
        &mut self,
        plane: &dyn Shares,
        sources: Option<&Sources>,
        giver: &RefundWorker,
    ) -> WriteResult {
        let mut told = WriteResult::default();
        let mut part: Vec<BucketShare> = self.shares.iter().map(bucket_share).collect();
        for round in 0..TRIES {
            if part.is_empty() {
                break;
            }
            told.again += if round > 0 { part.len() as u64 } else { 0 };
            self.tell_shares(plane, sources, giver, &mut part, &mut told);
        }
        told
    }

    /// Tells these; those that are to be tried again remain.
    fn tell_shares(
        &mut self,
        plane: &dyn Shares,
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
    pub(super) fn start(plane: Arc<dyn Shares>) -> Result<Self, Failure> {
        let (give, changes) = sync_channel(MAX_WAITING);
        std::thread::Builder::new()
            .name("share refunds".into())
            .spawn(move || give_back(&changes, &*plane))
            .map_err(|error| {
                Failure::new(exit::PRIVILEGE, format!("cannot start a thread: {error}"))
            })?;
        Ok(Self(give))
    }

    pub(super) fn give_back(&self, changed: SharesChanged) {
        if changed.is_lowered() {
            // Where there is no room some tokens are lost, which is safe.
            let _ = self.0.try_send(changed);
        }
    }
}

fn give_back(changes: &Receiver<SharesChanged>, plane: &dyn Shares) {
    while let Ok(mut changed) = changes.recv() {
        while let Ok(more) = changes.try_recv() {
            changed.merge(more);
        }
        wait_for_packets();
        plane.give_back(changed);
    }
}
