//! What has happened lately.

use serde::{Deserialize, Serialize};

use telemetry::Event;

/// `GET /v1/changes`: what was changed lately, by this daemon and those before it, and what happened since it has
/// started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChangesReport {
    /// The last 100 changes of limits, lists, shadow limits, configuration and interfaces, the latest last: what,
    /// by whom, when, and for how long.
    pub changes: Vec<Event>,
    /// The last 200 other events since the daemon has started, the latest last.
    pub events: Vec<Event>,
}
