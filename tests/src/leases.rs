//! Strict limits of packets: a store, and a `limiter-serve` that brings its leases to a daemon.

use std::time::Duration;

use crate::{Daemon, process::wait_for, serve::Serve, store::Store};

/// What `limiter-serve` needs to start.
const RULES: &str = "domain: none
descriptors:
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 1 }
";

/// Starts a store that knows of all that was ever used: nobody has to wait until it does.
#[must_use]
pub fn store() -> Store {
    let store = Store::start();
    store.call(&["SET", "limiter:{packets}:since", "0"]);
    store
}

/// Starts a `limiter-serve` between a daemon and a store.
#[must_use]
pub fn serve(daemon: &Daemon, store: &Store) -> Serve {
    let (socket, url) = (daemon.socket(), format!("unix:{}", store.socket().display()));
    Serve::start(RULES, &["--daemon", &socket.display().to_string(), "--store", &url])
}

/// Waits until a host has a store, or none, and says so.
///
/// # Panics
/// If that takes too long.
pub fn wait(daemon: &Daemon, are_there: bool) {
    let is_so = || {
        let problem = daemon.cli().run(&["status"]).json["leases"]["problem"].clone();
        (problem.is_null() == are_there).then_some(())
    };
    wait_for("leases as they are", Duration::from_secs(20), is_so);
}
