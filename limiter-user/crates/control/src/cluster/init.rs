//! Founding a cluster: an act of the operator.

use std::time::Duration;

use tokio::time::timeout;

use super::link::Command;
use super::share_loop::Input;
use super::{Cluster, ended, host};

use api::ClusterFounded;
use api::error::{Failure, exit};

/// How long a member of a cluster has to answer: several greetings, as some may be lost.
const TIMEOUT: Duration = Duration::from_millis(1500);

/// How long it may take to keep it.
const KEEPING: Duration = Duration::from_secs(10);

impl Cluster {
    /// Founds a cluster of this host, which has all of its limits then; it is kept when this returns.
    ///
    /// # Errors
    /// If this host belongs to a cluster, or a member of one answers, or it cannot be kept.
    pub async fn init(&self) -> Result<ClusterFounded, Failure> {
        let mut report = self.link.report.clone();
        if let Some(id) = report.borrow().cluster {
            return Err(host::belongs(id));
        }
        // A host that has lost its state meets those here that know better.
        // Otherwise it would found a second cluster, and both would admit the whole limit.
        self.link.order(Command::LookAround);
        let joined = timeout(TIMEOUT, report.wait_for(|report| report.cluster.is_some())).await;
        let joined = joined.ok().and_then(Result::ok).and_then(|report| report.cluster);
        if let Some(id) = joined {
            let message =
                format!("a member of the cluster {id} has answered, and this host has joined it");
            return Err(Failure::new(exit::NEGATIVE, message)
                .hint("there is nothing to do: `limiter peers` shows the hosts of the cluster"));
        }
        let founded = self.order(Input::Init).await?;
        // A write that takes longer may still succeed, and then this host belongs to a cluster.
        let founded = timeout(KEEPING, founded).await.map_err(ended)?;
        let id = founded.map_err(ended)??;
        Ok(ClusterFounded { name: self.name.clone(), cluster: id.to_string() })
    }
}
