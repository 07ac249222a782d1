//! How the cluster and the dashboard fare, which start when the limits are in force.

use std::time::Duration;

use super::core::Core;
use ::cluster::ClusterConfig;
use api::ServiceReport;
use api::error::{Failure, exit};

/// How soon is tried again what could not start.
pub const RETRY_INTERVAL: Duration = Duration::from_secs(3);

impl Core {
    /// `config` with what the configuration says now of keys that take effect without a restart.
    pub fn live_cluster(&self, config: &ClusterConfig) -> ClusterConfig {
        let Ok(taken) = self.taken() else { return config.clone() };
        let ClusterConfig { seeds, weight, .. } = taken.cluster();
        ClusterConfig { seeds, weight, ..config.clone() }
    }

    /// Notes how a service fares, for `status`.
    pub fn note_service(&mut self, report: ServiceReport) {
        self.services.retain(|service| service.name != report.name);
        self.services.push(report);
    }

    /// What keeps the cluster from running that this host is to be in.
    pub(super) fn why_no_cluster(&self) -> Option<Failure> {
        let cluster = self.services.iter().find(|service| service.name == "cluster")?;
        let problem = cluster.problem.as_deref().unwrap_or("it is about to start");
        let failure = Failure::new(exit::NEGATIVE, format!("the cluster is not up: {problem}"));
        Some(Failure { hint: cluster.hint.clone(), ..failure })
    }
}
