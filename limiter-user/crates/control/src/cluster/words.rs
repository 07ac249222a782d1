//! What the data plane is to be told of shares, until it is told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::sources::Sources;
use crate::Shares;
use api::error::Failure;
use cluster::escrow::Granted;
use cluster::{KeyId, Moment};
use dataplane::{BucketShare, SharesChanged, wait_for_packets};
use model::Share;

/// How often a bucket is tried that packets are charged to at the same moment.
// Packets of one source rarely meet four writes in a row. What is left waits for the next round.
const TRIES: usize = 4;

/// Changes whose tokens wait to be given back, at most; others lose some.
// Each waiting change holds a list of buckets.
const MAX_WAITING: usize = 64;

/// Shares that are to be told.
#[derive(Debug, Default)]
pub(super) struct PendingShares {
    /// A bucket and its tag, the share and its end.
    // In the order of buckets, so that the kernel's memory is written forwards.
    shares: BTreeMap<(usize, u64), (Share, Moment)>,
}

impl PendingShares {
    /// How much there is.
    pub(super) fn len(&self) -> usize {
        self.shares.len()
    }

    /// Tracked sources may use this. What was to be told of them before is not any more.
    pub(super) fn grant(&mut self, grants: Vec<Granted>, sources: &Sources) {
        for Granted { key, share, until } in grants {
            // A grant may come for a source that was given up meanwhile. It ends by itself.
            if let Some(bucket) = sources.bucket(key) {
                self.shares.insert(bucket, (share, until));
            }
        }
    }

    /// Buckets of sources that are not tracked may use this.
    pub(super) fn grant_untracked(
        &mut self,
        buckets: Vec<(usize, u64)>,
        (share, until): (Share, Moment),
    ) {
        self.shares.extend(buckets.into_iter().map(|bucket| (bucket, (share, until))));
    }

    /// A bucket may use the floor alone.
    pub(super) fn revoke(&mut self, bucket: (usize, u64), now: Moment) {
        // It replaces a grant that was not written yet, which must not come after it.
        self.shares.insert(bucket, (Share::NONE, now));
    }

    /// Tells the data plane. What could not be told remains, and is tried again when it is told the next time. Returns
    /// the sources that have no bucket of the cluster any more.
    pub(super) fn tell(
        &mut self,
        plane: &dyn Shares,
        sources: Option<&Sources>,
        giver: &RefundWorker,
    ) -> Vec<KeyId> {
        let of = |bucket| sources.and_then(|sources| sources.key_at(bucket));
        let mut gone = Vec::new();
        let mut part: Vec<BucketShare> = self.shares.iter().map(bucket_share).collect();
        for _ in 0..TRIES {
            if part.is_empty() {
                break;
            }
            let mut changed = plane.set_shares(&mut part.iter().copied());
            gone.extend(std::mem::take(&mut changed.gone_buckets).into_iter().filter_map(of));
            let mut missed = std::mem::take(&mut changed.missed_buckets);
            // For the binary search below: a walk through it for each share would cost a square.
            missed.sort_unstable();
            part.retain(|share| {
                let again = missed.binary_search(&share.bucket).is_ok();
                if !again {
                    // Also where the bucket is gone: its words belong to another source now.
                    self.shares.remove(&(share.bucket, share.tag));
                }
                again
            });
            giver.give_back(changed);
        }
        gone
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
        super::spawn("share refunds", move || give_back(&changes, &*plane))?;
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
        // One wait, a barrier over all CPUs, serves all changes that came before it.
        while let Ok(more) = changes.try_recv() {
            changed.merge(more);
        }
        // A packet in judgement may still have read the larger share. Tokens given back now could
        // be spent twice.
        wait_for_packets();
        plane.give_back(changed);
    }
}
