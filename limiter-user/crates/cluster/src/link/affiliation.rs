//! To which cluster a host belongs, and who is there that belongs to another one or to none.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::ClusterId;
use super::founding::{self, Bootstrap, Step};
use super::hello::Hello;
use crate::Moment;
use crate::agreement::Agreement;
use crate::membership::Identity;

/// Hosts under the key that are no members: so many are remembered, and for how long after they were heard.
const MAX_OTHERS: usize = 256;
const REMEMBERED: Duration = Duration::from_secs(60);

/// A host that was heard this long ago takes part in founding a cluster.
/// Six greetings of a host that waits: one lost on its way changes nothing.
const LATELY: Duration = Duration::from_secs(3);

/// A host under the key that is no member, as it was heard last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// It.
    pub identity: Identity,
    /// The cluster that it belongs to, if to any.
    pub cluster: Option<ClusterId>,
    /// What it tells of founding one.
    pub bootstrap: Bootstrap,
    /// What it has to agree about with others.
    pub agreement: Agreement,
    /// When it was heard last.
    pub heard: Moment,
}

/// Those hosts, by their addresses.
pub type Others = BTreeMap<SocketAddr, Other>;

/// To which cluster a host belongs. It is apart from the members: a host that belongs to no cluster has none, but hears
/// others and founds a cluster with them.
#[derive(Debug)]
pub struct Affiliation {
    /// The cluster that it belongs to.
    pub cluster: Option<ClusterId>,
    /// What it tells of founding one, if it belongs to none.
    pub bootstrap: Bootstrap,
    /// What it has to agree about with others.
    pub agreement: Agreement,
    /// Hosts under the key that are no members, and were heard in the last minute.
    pub others: Others,
    /// By whom it was invited last while it belonged to no cluster.
    pub(super) invited: Option<Hello>,
}

impl Affiliation {
    pub(super) const fn new(
        cluster: Option<ClusterId>,
        bootstrap: Bootstrap,
        agreement: Agreement,
    ) -> Self {
        Self { cluster, bootstrap, agreement, others: Others::new(), invited: None }
    }

    /// The cluster as frames name it, 0 for none.
    pub(super) fn short(&self) -> u16 {
        self.cluster.map_or(0, ClusterId::short)
    }

    /// What this host, which is `me`, says first.
    pub(super) fn hello(&self, me: &Identity) -> Hello {
        let (cluster, bootstrap, agreement) =
            (self.cluster, self.bootstrap, self.agreement.clone());
        Hello { cluster, bootstrap, agreement, identity: me.clone() }
    }

    /// The host belongs to a cluster from now on. Returns the member of it that has invited it, if one has.
    pub(super) fn belong(&mut self, cluster: ClusterId) -> Option<Identity> {
        self.cluster = Some(cluster);
        // Who belongs to a cluster has no vote: one that is told on could found a second one.
        self.bootstrap = Bootstrap { expect: 0, vote: None, ..self.bootstrap };
        // Those of this cluster become members, those of none are heard again; `status` must go on to name the rest.
        self.others.retain(|_, other| other.cluster.is_some_and(|theirs| theirs != cluster));
        let invited = self.invited.take().filter(|hello| hello.cluster == Some(cluster));
        invited.map(|hello| hello.identity)
    }

    /// Whether this host is to vote or to found.
    pub(super) fn step(&self, now: Moment) -> Option<Step> {
        // Who has heard of a cluster joins it.
        if self.cluster.is_some() || self.invited.is_some() {
            return None;
        }
        // One with other prefixes would be refused as a member: it must not count as a founder.
        let fits =
            |other: &&Other| now.since(other.heard) < LATELY && other.agreement == self.agreement;
        let others: Vec<_> =
            self.others.values().filter(fits).map(|other| other.bootstrap).collect();
        Some(founding::step(self.bootstrap, &others)).filter(|step| *step != Step::Wait)
    }

    /// Remembers a host that is no member.
    pub(super) fn note(&mut self, now: Moment, hello: Hello) {
        let Hello { cluster, bootstrap, agreement, identity } = hello;
        let address = identity.address;
        // Who is known stays: invented names must not push out those that found a cluster with this host.
        if self.others.len() < MAX_OTHERS || self.others.contains_key(&address) {
            let other = Other { identity, cluster, bootstrap, agreement, heard: now };
            self.others.insert(address, other);
        }
    }

    /// Forgets hosts that were not heard for long, and members.
    pub(super) fn forget(&mut self, now: Moment, is_member: impl Fn(SocketAddr) -> bool) {
        self.others.retain(|at, other| now.since(other.heard) < REMEMBERED && !is_member(*at));
    }
}
