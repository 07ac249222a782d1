//! This host, as those see it who serve others: its core, and the cluster that it is in, once that runs.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use super::cluster::Cluster;
use super::core::Core;
use super::handle::CoreHandle;
use api::error::Failure;

/// A handle to this host. What the cluster holds itself has only a [`CoreHandle`]: it would never end otherwise.
#[derive(Clone)]
pub struct Host {
    core: CoreHandle,
    cluster: Arc<OnceLock<Cluster>>,
}

// Most of what is asked of a host is asked of its core.
impl Deref for Host {
    type Target = CoreHandle;

    fn deref(&self) -> &CoreHandle {
        &self.core
    }
}

impl Host {
    /// A host with this core.
    pub fn new(core: Core) -> Self {
        Self { core: CoreHandle::new(core), cluster: Arc::default() }
    }

    /// The cluster that this host talks to, if it is to be in one.
    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.get()
    }

    /// What keeps the cluster from running that this host is to be in; nothing if it is to be in none.
    pub async fn why_no_cluster(&self) -> Option<Failure> {
        self.core.with(|core| Ok(core.services.why_no_cluster())).await.ok().flatten()
    }

    /// Lets all who have the host find the cluster, from now on.
    pub fn set_cluster(&self, cluster: Cluster) {
        // There is one in the life of a daemon.
        let _ = self.cluster.set(cluster);
    }
}
