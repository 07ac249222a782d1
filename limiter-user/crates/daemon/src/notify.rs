//! Tells the service manager how the daemon fares: `sd_notify(3)`, without effect elsewhere.

use sd_notify::NotifyState;

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        // Limits are in force whatever systemd hears. It will restart the daemon if it waits in
        // vain.
        tracing::warn!("cannot tell the service manager {states:?}: {error}");
    }
}

/// The API is served and the limits are in force.
pub(crate) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// The configuration is being read again; [`ready`] says when that is done.
pub(crate) fn reloading() {
    // By this time systemd tells the end of this reload from that of an earlier one.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!("cannot tell the service manager of a reload: {error}"),
    }
}

/// The daemon is about to end.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}
