//! What is in force on this host: the limits and lists of operators, of the configuration file and of the cluster.
//!
//! [`Rules`] owns store and data plane, and each change is made in both or in neither. What operators ask for is a
//! module of its own: [`limits`], [`lists`], [`overrides`], [`shadows`], [`confirm`], [`reload`], [`replicated`]. Each works on the rules
//! that it is given. It knows neither who watches sources nor who asks.

mod commit;
pub mod confirm;
mod file;
mod leases;
pub mod limits;
pub mod lists;
pub mod overrides;
mod refused;
pub mod reload;
pub mod replicated;
pub mod shadows;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use ipnet::IpNet;
use limiter_common::peers::MAX_PEERS;
use tokio::sync::broadcast;

pub(crate) use self::confirm::Unconfirmed;
pub(crate) use self::file::FileRules;
pub(crate) use self::leases::LeaseView;
pub(crate) use self::refused::at_start;
pub(crate) use self::replicated::Replicated;
use super::access::Access;
use super::events::EventLog;
use super::plane::Plane;
use api::error::Failure;
use api::{ClusterStatus, LimitOrigin, LimitReport, ListEntry};
use model::layers::LimitOf;
use model::lists::{Listing, Lists};
use model::overrides::OverrideChanges;
use model::tables::OnFull;
use model::{Layer, LayeredLimits, Limit, Limits, Management, Target};
use state::Store;

/// Something to tell an operator, and whether limits are not kept as promised.
pub(crate) struct Concern {
    pub(crate) text: String,
    pub(crate) degraded: bool,
}

/// The cluster that runs, as the rules see it. It is started after them, and ends before them.
pub(crate) trait Fleet: Send {
    /// These are the limits now; those for the cluster are to be divided.
    fn limits_changed(&self, limits: &[&Limits]);
    /// This host has another weight: home shares follow it.
    fn set_weight(&self, weight: u32);
    /// Other seeds are to be looked for.
    fn set_seeds(&self, seeds: &[cluster::config::Seed]);
    /// How it fares; frames from `peers` addresses are not limited.
    fn report(&self, peers: usize) -> ClusterStatus;
    /// What the operator should know. `limited` tells whether there are limits of the cluster.
    fn concerns(&self, limited: bool) -> Vec<Concern>;
}

/// Limits and lists, with the store that keeps them and the data plane that enforces them.
pub struct Rules {
    pub(crate) plane: Box<dyn Plane>,
    pub(crate) store: Store,
    /// What is told of changes, and who asks for the present one.
    pub events: EventLog,
    pub(crate) on_full: OnFull,
    /// Why store and data plane may disagree.
    pub(crate) fault: Option<String>,
    pub(crate) management: Management,
    pub(crate) file: FileRules,
    pub(crate) replicated: Replicated,
    pub(crate) unconfirmed: Unconfirmed,
    /// Who follows changes of overrides.
    pub(super) followers: broadcast::Sender<Arc<OverrideChanges>>,
    /// Since when each shadow limit is counted.
    pub(crate) shadows: BTreeMap<Target, SystemTime>,
    /// Who may change something, where there is an API.
    pub(crate) access: Option<Access>,
    pub(crate) cluster: Option<Box<dyn Fleet>>,
    pub(crate) strict: Option<LeaseView>,
}

impl Rules {
    /// Takes both over. Nothing changes until [`Rules::enforce`].
    pub(crate) fn new(plane: Box<dyn Plane>, store: Store, on_full: OnFull) -> Self {
        Self {
            plane,
            store,
            events: EventLog::default(),
            on_full,
            fault: None,
            management: Management::default(),
            file: FileRules::default(),
            replicated: Replicated::default(),
            unconfirmed: Unconfirmed::default(),
            followers: broadcast::Sender::new(overrides::BEHIND),
            shadows: BTreeMap::new(),
            access: None,
            cluster: None,
            strict: None,
        }
    }

    /// Lets no limit apply to the management addresses `listed`, from [`Rules::enforce`] on.
    pub(crate) fn protect(&mut self, listed: &[IpNet]) {
        self.management = Management::new(listed, self.plane.prefixes());
        self.plane.exempt(self.management.nets());
    }

    /// Lets frames of the cluster pass unlimited that come from `present`, the addresses of members and seeds.
    pub(crate) fn set_peers(&mut self, present: &BTreeSet<IpAddr>) -> Result<(), Failure> {
        let left_out = self.plane.set_peers(present)?;
        if left_out > 0 {
            tracing::warn!(
                "frames of {left_out} hosts of the cluster are limited like any packet: there is room for \
                 {MAX_PEERS} addresses"
            );
        }
        Ok(())
    }

    /// Where the store lies, and what is kept beside it.
    pub(crate) fn state_dir(&self) -> &Path {
        self.store.path().parent().unwrap_or(Path::new("."))
    }

    /// Bits of an IPv4 and an IPv6 address that make a source.
    pub fn prefixes(&self) -> (u8, u8) {
        self.plane.prefixes()
    }

    /// The limits in their layers.
    pub(crate) fn layers(&self) -> LayeredLimits<'_> {
        let replica = self.replicated.replica();
        LayeredLimits {
            file: &self.file.limits,
            cluster: replica.map(|replica| replica as &dyn LimitOf),
            runtime: self.store.limits(),
        }
    }

    /// All limits in force.
    pub(crate) fn in_force(&self) -> Cow<'_, Limits> {
        self.layers().effective()
    }

    /// All entries of the lists in force.
    pub(crate) fn listed(&self) -> &Lists {
        self.file.merged.as_ref().unwrap_or(self.store.lists())
    }

    /// The limit in force for this very target.
    pub(crate) fn limit_for(&self, target: &Target) -> Option<Limit> {
        self.layers().get(target)
    }

    fn origin_of(&self, target: &Target) -> LimitOrigin {
        match self.layers().layer(target) {
            Some(Layer::File) => LimitOrigin::File,
            _ => LimitOrigin::Runtime,
        }
    }

    /// A limit as it is told, whether or not it is in force.
    pub(crate) fn report(&self, limit: &Limit) -> LimitReport {
        let mut report = LimitReport::new(limit, self.plane.gate_of(limit));
        if limit.scope.is_cluster()
            && let Some(terms) = self.plane.cluster_terms()
        {
            report.set_hosts(terms.hosts, terms.frame);
        }
        if limit.target.aggregate {
            report.set_held(self.plane.held_of(limit));
        }
        report
    }

    /// A limit in force, with where it comes from.
    pub(crate) fn report_in_force(&self, limit: &Limit) -> LimitReport {
        LimitReport { origin: self.origin_of(&limit.target), ..self.report(limit) }
    }

    /// Adds what the data plane does not know of a limit: where it comes from, where it holds, and the ban.
    pub(crate) fn complete(&self, limit: &mut LimitReport) {
        limit.origin = self.origin_of(&limit.target);
        let whole = self.limit_for(&limit.target);
        limit.ban = whole.and_then(|limit| limit.ban);
        limit.set_scope(whole.map(|limit| limit.scope).unwrap_or_default());
    }

    /// An entry of a list that is in force, with where it comes from.
    pub(crate) fn entry(&self, net: IpNet, listing: &Listing) -> ListEntry {
        let origin = match self.store.lists().contains_key(&net) {
            true => LimitOrigin::Runtime,
            false => LimitOrigin::File,
        };
        ListEntry { origin, ..ListEntry::new(net, listing) }
    }

    /// Tells the cluster, if it runs, and who gets leases that limits have changed.
    pub(crate) fn tell_limits(&self) {
        if let Some(strict) = &self.strict {
            strict.limits_changed(&[self.store.limits(), &self.file.limits]);
        }
        if let Some(cluster) = &self.cluster {
            cluster.limits_changed(&[self.store.limits(), &self.file.limits]);
        }
    }
}
