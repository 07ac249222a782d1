//! The limits that single descriptors have of their own come from the host's daemon, and are in force as they change.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::Followed;
use api::client::Client;
use decide::overrides::Overrides;
use decide::rules::key;
use model::meter::ticks;
use model::overrides::split;
use tokio::sync::watch;

use crate::service::Service;

/// How soon the daemon is asked again after its stream has ended.
const RETRY: Duration = Duration::from_secs(1);

/// How long the first answers wait for the daemon, and for all that it tells: a million take seconds.
const TIMEOUT: Duration = Duration::from_secs(2);
const WHOLE_TIMEOUT: Duration = Duration::from_secs(30);

/// What the daemon has told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Heard {
    Nothing,
    Some,
    All,
}

/// Follows the daemon at `socket`, as long as the runtime lives. Returns when all that there are is in force, or after a
/// moment without the daemon.
pub(crate) async fn start(service: Arc<Service>, socket: PathBuf) {
    let (heard, mut told) = watch::channel(Heard::Nothing);
    tokio::spawn(run(service, socket, heard));
    let some = tokio::time::timeout(TIMEOUT, told.wait_for(|heard| *heard > Heard::Nothing));
    let is_there = some.await.is_ok();
    let all = tokio::time::timeout(WHOLE_TIMEOUT, told.wait_for(|heard| *heard == Heard::All));
    if !is_there || all.await.is_err() {
        tracing::warn!(
            "the daemon does not tell of `limiter rule`: rules in files hold until it does"
        );
    }
}

async fn run(service: Arc<Service>, socket: PathBuf, heard: watch::Sender<Heard>) {
    let daemon = Client::new(&socket);
    let mut warned = false;
    loop {
        // All that there are, until they are whole; from then on changes.
        let mut new = Some(Overrides::default());
        let each = |line: &[u8]| {
            heard.send_if_modified(|heard| {
                let is_first = *heard == Heard::Nothing;
                *heard = Heard::Some.max(*heard);
                is_first
            });
            // A line that a later daemon writes must not end the stream.
            let Ok(followed) = serde_json::from_slice::<Followed>(line) else {
                tracing::warn!("the daemon tells of a limit that makes no sense here");
                return Ok(ControlFlow::Continue(()));
            };
            match (&followed.descriptor, &mut new) {
                (Some(_), Some(new)) => take(&service, new, &followed),
                (Some(_), None) => take(&service, &mut service.overrides_mut(), &followed),
                (None, _) => {
                    let Some(all) = new.take() else { return Ok(ControlFlow::Continue(())) };
                    tracing::info!("{} descriptors have limits of their own", all.len());
                    *service.overrides_mut() = all;
                    heard.send_replace(Heard::All);
                }
            }
            Ok(ControlFlow::Continue(()))
        };
        let ended = daemon.lines("/v1/overrides/follow", each).await;
        if new.is_none() {
            warned = false;
        }
        if let (Err(failure), false) = (ended, warned) {
            warned = true;
            // What was told before holds on: without the daemon nobody can have changed it.
            tracing::warn!("limits of `limiter rule` stay as they are: {failure}");
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Takes what a descriptor has from now on.
fn take(service: &Service, overrides: &mut Overrides, followed: &Followed) {
    let Some(descriptor) = &followed.descriptor else { return };
    let parts = descriptor.parts();
    let (domain, entries) = split(&parts);
    let key = key(service.states().table.secret(), domain, &entries);
    let Some(limit) = followed.limit else { return overrides.unset(key) };
    let end = followed.until.map(|until| {
        let left = until.saturating_sub(model::lists::now());
        service.now().saturating_add(ticks(Duration::from_secs(left.into())))
    });
    if let Err(error) = overrides.set(key, limit, end) {
        tracing::warn!("the limit of {descriptor} cannot be kept: {error}");
    }
}
