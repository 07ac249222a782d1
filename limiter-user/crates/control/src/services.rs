//! How the cluster and the dashboard fare, which start when the limits are in force.

use std::time::Duration;

use api::ServiceReport;
use api::error::{Failure, exit};

/// How soon is tried again what could not start.
pub const RETRY_INTERVAL: Duration = Duration::from_secs(3);

/// The cluster and the dashboard, if this host is to have them.
#[derive(Default)]
pub struct Services(Vec<ServiceReport>);

impl Services {
    /// Notes how a service fares, for `status`.
    pub fn note(&mut self, report: ServiceReport) {
        self.0.retain(|service| service.name != report.name);
        self.0.push(report);
    }

    /// How they fare.
    pub(super) fn reports(&self) -> &[ServiceReport] {
        &self.0
    }

    /// What keeps the cluster from running that this host is to be in.
    pub(super) fn why_no_cluster(&self) -> Option<Failure> {
        let cluster = self.0.iter().find(|service| service.name == "cluster")?;
        let problem = cluster.problem.as_deref().unwrap_or("it is about to start");
        let failure = Failure::new(exit::NEGATIVE, format!("the cluster is not up: {problem}"));
        Some(Failure { hint: cluster.hint.clone(), ..failure })
    }
}
