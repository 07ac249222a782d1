//! Limits and denials of the cluster, told to others and taken from them.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};

use super::Cluster;
use super::link::{Command, monotonic};
use crate::core::Core;
use crate::rules::replicated::{self, wall};
use api::error::Failure;
use cluster::HostId;
use cluster::limits::Now;
use cluster::membership::called;
use cluster::wire::{Content, Topic};

/// How often it is looked whether there is something to tell: a change is in force everywhere soon after.
const ROUND: Duration = Duration::from_millis(100);

/// Packets that are taken in one go, while the core is locked.
// A packet has up to 1,100 bytes of changes, each of which may write the store.
const BATCH: usize = 32;

/// What has come.
pub(super) enum Input {
    /// A host has told the digest of its replica.
    Heard(HostId, u64),
    /// A packet of its replica.
    Said(HostId, Vec<u8>),
}

/// A host and what it has said.
struct Packet {
    from: HostId,
    name: String,
    bytes: Vec<u8>,
}

/// Keeps the replica going until nobody is there to hear of it. The digest is told to `digest`.
pub(super) async fn serve(
    cluster: Cluster,
    mut inbox: mpsc::Receiver<Input>,
    digest: watch::Sender<u64>,
) {
    let mut rounds = interval(ROUND);
    // After an import that held the core for seconds, missed rounds have nothing more to say.
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut members = cluster.link.members.clone();
    members.mark_changed();
    // Only the latest digest of each host counts, so a busy core never sees more than one a host.
    let mut heard = BTreeMap::new();
    let mut batch = Vec::with_capacity(BATCH);
    let mut problem: Option<String> = None;
    loop {
        let mut packets = Vec::new();
        tokio::select! {
            count = inbox.recv_many(&mut batch, BATCH) => {
                if count == 0 {
                    return;
                }
                for input in batch.drain(..) {
                    match input {
                        Input::Heard(from, digest) => drop(heard.insert(from, digest)),
                        Input::Said(from, bytes) => {
                            let name = called(&members.borrow(), from);
                            packets.push(Packet { from, name, bytes });
                        }
                    }
                }
                // Digests come with each frame. They wait for the next round, or the core would be
                // locked for each.
                if packets.is_empty() {
                    continue;
                }
            }
            _ = rounds.tick() => {}
        }
        let changed = members.has_changed().unwrap_or_default();
        let hosts: Option<Vec<HostId>> =
            // Only on a change: to hand over a thousand members ten times a second would be for
            // nothing.
            changed.then(|| members.borrow_and_update().keys().copied().collect());
        let heard = std::mem::take(&mut heard);
        let me = cluster.me;
        let done = cluster.shared.with(move |core| Ok(step(core, me, hosts, heard, packets))).await;
        match done {
            Ok(done) => {
                // Before the packets, so that shares which go out at the same time carry the same
                // digest.
                digest.send_replace(done.digest);
                // Kept while nothing fails: what failed is said again until it can be taken, and
                // silence is no success.
                let failed = done.problem.map(|failure| failure.to_string());
                if failed.is_some() && failed != problem {
                    let text = failed.as_deref().unwrap_or_default();
                    tracing::warn!("what other hosts say of limits cannot be taken: {text}");
                    problem = failed;
                }
                for (to, bytes) in done.packets {
                    let content = Content::Other(Topic::Limits, bytes);
                    cluster.link.order(Command::Send { to, digest: Some(done.digest), content });
                }
            }
            // The core's state is in doubt, and the daemon about to end.
            Err(failure) => {
                return tracing::error!("limits are not replicated any more: {failure}");
            }
        }
    }
}

/// What a step on the core has come to.
struct Done {
    packets: Vec<(HostId, Vec<u8>)>,
    digest: u64,
    problem: Option<Failure>,
}

fn step(
    core: &mut Core,
    me: HostId,
    members: Option<Vec<HostId>>,
    heard: BTreeMap<HostId, u64>,
    packets: Vec<Packet>,
) -> Done {
    let now = Now { wall: wall(), moment: monotonic() };
    let mut problem = None;
    if let Some(replica) = core.rules.replicated.replica_mut() {
        if let Some(members) = members {
            replica.set_members(me, members);
        }
        // After the members, so that a new one counts as such when it is heard.
        for (from, digest) in heard {
            replica.heard(now, from, digest);
        }
    }
    for Packet { from, name, bytes } in packets {
        if let Err(failure) = replicated::receive(&mut core.rules, now, from, &name, &bytes) {
            problem = Some(failure);
        }
    }
    let packets = replicated::packets(&mut core.rules, now).unwrap_or_else(|failure| {
        problem = Some(failure);
        Vec::new()
    });
    let digest = core.rules.replicated.replica_mut().map_or(0, |replica| replica.digest());
    Done { packets, digest, problem }
}
