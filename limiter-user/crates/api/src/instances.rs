//! Which instances a machine has.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use model::instance::{CONFIGS, Instance, PINS, SOCKETS, STAGING_SUFFIX};

/// The instances that have something on this machine: pins, a runtime directory or a configuration.
pub fn known() -> BTreeSet<Instance> {
    let mut known = BTreeSet::new();
    for name in names(PINS) {
        // One that was being built when its daemon died is a trace as well.
        let name = name.strip_prefix("limiter@").map(|name| name.trim_end_matches(STAGING_SUFFIX));
        known.extend(name.and_then(|name| name.parse().ok()));
    }
    for name in names(SOCKETS) {
        let has_socket = Path::new(SOCKETS).join(&name).join("limiter.sock").exists();
        known.extend(name.parse().ok().filter(|_: &Instance| has_socket));
    }
    for name in names(CONFIGS) {
        known.extend(name.strip_suffix(".toml").and_then(|name| name.parse().ok()));
    }
    known
}

/// The names in a directory; none if it cannot be read.
fn names(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}
