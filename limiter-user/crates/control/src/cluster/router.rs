//! Gives what has come to whom it is for.

use std::collections::BTreeMap;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::share_loop::Input;
use super::status::copied;
use super::{Cluster, replica};
use cluster::HostId;
use cluster::link::Delivery;
use cluster::membership::Event;
use cluster::wire::{Content, Topic};

/// Who takes what.
pub(super) struct Inboxes {
    pub(super) shares: mpsc::Sender<Input>,
    pub(super) limits: mpsc::Sender<replica::Input>,
    pub(super) others: BTreeMap<Topic, mpsc::Sender<(HostId, Vec<u8>)>>,
}

/// Takes deliveries until there are no more. What nobody takes in time is dropped: all of it is said again,
/// or asked for.
pub(super) async fn route(
    mut deliveries: mpsc::Receiver<Delivery>,
    inboxes: Inboxes,
    cluster: Cluster,
) {
    let mut dropped = 0_u64;
    while let Some(delivery) = deliveries.recv().await {
        let taken = match delivery {
            Delivery::Said { from, digest, content } => {
                let heard = digest.map(|digest| replica::Input::Heard(from, digest));
                // A single `&` below: the content has to be handed over even if the digest found
                // no room.
                let noted = heard.is_none_or(|heard| put(&inboxes.limits, heard));
                noted & hand_over(&inboxes, from, content)
            }
            // What is kept is the share loop's business, and that has to be told.
            Delivery::Invited(id) => inboxes.shares.send(Input::Invited(id)).await.is_ok(),
            Delivery::Bootstrap(step, vote) => {
                inboxes.shares.send(Input::Bootstrap(step, vote)).await.is_ok()
            }
            Delivery::Member(event) => {
                tell(&cluster, &event);
                true
            }
        };
        if !taken {
            // At powers of two, so that a flood cannot fill the log.
            dropped += 1;
            if dropped.is_power_of_two() {
                tracing::warn!("{dropped} messages of other hosts came faster than they are taken");
            }
        }
    }
}

/// Returns whether somebody took it.
fn hand_over(inboxes: &Inboxes, from: HostId, content: Content) -> bool {
    match content {
        // Never waits: one busy task must not hold up the messages of all others.
        Content::Shares(message) => put(&inboxes.shares, Input::Said(from, message)),
        Content::Other(Topic::Limits, bytes) => {
            put(&inboxes.limits, replica::Input::Said(from, bytes))
        }
        Content::Other(topic, bytes) => {
            // A topic without a task is one of a later version.
            inboxes.others.get(&topic).is_none_or(|inbox| put(inbox, (from, bytes)))
        }
        // The link takes these itself.
        Content::Hello(_) | Content::Membership(_) => true,
    }
}

fn put<T>(inbox: &mpsc::Sender<T>, what: T) -> bool {
    // Who has ended misses nothing.
    !matches!(inbox.try_send(what), Err(TrySendError::Full(_)))
}

fn tell(cluster: &Cluster, event: &Event) {
    match event {
        Event::Up(member) => tracing::info!("member {} joined ({})", member.name(), member.address),
        Event::Down(member) => {
            tracing::warn!("member {} has left, or does not answer", member.name());
        }
        Event::Changed(member) => {
            let name = member.name();
            tracing::info!("member {name} is back, was started again, or has another weight");
        }
        Event::Conflict { kept, refused } => {
            let text = copied(kept, refused);
            // The operator of the other host is told there.
            if refused.host() == cluster.me {
                tracing::error!("{text}");
            } else {
                tracing::warn!("{text}");
            }
        }
    }
}
