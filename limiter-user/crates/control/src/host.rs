//! This host, as those see it who serve others: its core, and the cluster that it is in, once that runs.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use super::cluster::{Cluster, LeaseDesk, start_leases};
use super::core::Core;
use super::handle::CoreHandle;
use api::error::Failure;

/// A handle to this host. What the cluster holds itself has only a [`CoreHandle`]: it would never end otherwise.
#[derive(Clone)]
pub struct Host {
    core: CoreHandle,
    cluster: Arc<OnceLock<Cluster>>,
    leases: Arc<OnceLock<LeaseDesk>>,
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
        Self { core: CoreHandle::new(core), cluster: Arc::default(), leases: Arc::default() }
    }

    /// The cluster that this host talks to, if it is to be in one.
    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.get()
    }

    /// Begins to get leases for strict limits.
    ///
    /// # Errors
    /// As [`start_leases`].
    pub fn start_leases(&self) -> Result<(), Failure> {
        // There is one in the life of a daemon.
        let _ = self.leases.set(start_leases(&self.core)?);
        Ok(())
    }

    /// Where leases are brought, once that has begun.
    pub fn leases(&self) -> Option<&LeaseDesk> {
        self.leases.get()
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
