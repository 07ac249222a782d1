//! Attaches to interfaces as they come: at once where the kernel tells of them, else every few seconds.

use std::collections::BTreeSet;
use std::future::pending;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{MissedTickBehavior, interval};

use crate::handle::CoreHandle;
use crate::services::RETRY_INTERVAL;
use api::error::Failure;
use dataplane::LinkEvents;

/// Attaches to what is wanted as soon as it is there.
pub(super) async fn watch(events: Option<LinkEvents>, shared: &CoreHandle) -> Failure {
    // SAFETY: the descriptor is that of the socket, which the events own: it stays the same and open until they are
    // dropped, which nobody does before their AsyncFd.
    let register = |events| unsafe { AsyncFd::register_with_interest(events, Interest::READABLE) };
    let events = events.and_then(|events| register(events).ok());
    let mut again = interval(RETRY_INTERVAL);
    again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let changed = tokio::select! {
            names = next(events.as_ref()) => names,
            // What another program is on, for instance, may be free by and by.
            // Where the kernel tells nothing of links, one may have gone and come back.
            _ = again.tick() => events.is_some().then(BTreeSet::new),
        };
        let attached = shared.with(move |core| {
            // Of machines with containers many may change, of which none is wanted.
            let concerns = changed.is_none_or(|names| core.interfaces.wants(&names));
            if concerns || core.interfaces.problems().next().is_some() {
                core.interfaces.attach_wanted(&mut core.rules);
            }
            Ok(())
        });
        if let Err(failure) = attached.await {
            return failure;
        }
    }
}

/// The interfaces that something has happened to; nothing if that is not known.
async fn next(events: Option<&AsyncFd<LinkEvents>>) -> Option<BTreeSet<String>> {
    let Some(events) = events else { return pending().await };
    loop {
        let Ok(mut ready) = events.readable().await else { return pending().await };
        match ready.try_io(|events| events.get_ref().read()) {
            Ok(Ok(names)) => return Some(names),
            // More came than there was room for.
            Ok(Err(_)) => return None,
            Err(_) => {}
        }
    }
}
