//! This host: to which cluster it belongs, and what it keeps of that.

use tokio::sync::watch;

use super::link::{self, Command};
use super::partitions::LimitFacts;
use super::state_file::StateFile;
use api::error::{Failure, exit};
use cluster::Moment;
use cluster::escrow::{self, Escrow};
use cluster::link::{ClusterId, Step};
use cluster::membership::Identity;

/// Who this is, and how it reaches others. It owns what is kept: whatever becomes of the host is durable before the link
/// tells it.
pub(super) struct Host {
    pub(super) identity: Identity,
    pub(super) kept: StateFile,
    pub(super) link: link::Handle,
    /// The hash of the limits, which rides in every message.
    pub(super) digest: watch::Receiver<u64>,
    /// What limits there are, as the core tells when they change.
    pub(super) limits: watch::Receiver<LimitFacts>,
    /// Another host has this one's ledger, and has run for longer.
    pub(super) refused: bool,
    /// It has handed over all that it had.
    pub(super) left: bool,
}

impl Host {
    /// With the shares that are kept; `alone` as in [`escrow::Settings`].
    pub(super) fn escrow(&self, alone: bool, now: Moment) -> Escrow {
        let settings = escrow::Settings::new(self.identity.host(), self.identity.weight);
        let region = escrow::Region::new(self.identity.region());
        let settings = escrow::Settings { region, alone, ..settings };
        Escrow::new(settings, self.kept.shares(), now)
    }

    /// Joins a cluster, unless it belongs to one. Whether it does so from now on.
    pub(super) fn join(&mut self, id: ClusterId) -> bool {
        // The link may have sent several invitations before it heard of the first decision.
        if self.kept.cluster().is_some() || self.left {
            return false;
        }
        // On the disk before the link says so: other hosts count this one as a member from then
        // on.
        let joined = self.kept.join(id);
        match &joined {
            Ok(()) => tracing::info!(
                "this host has joined the cluster {id}, and has no part of its limits yet"
            ),
            // It is invited again.
            Err(failure) => tracing::error!("cannot join the cluster {id}: {failure}"),
        }
        joined.is_ok()
    }

    /// Does the next step to a cluster that several hosts found together; the one that this host has founded. What fails
    /// is asked for again.
    pub(super) fn bootstrap(&mut self, step: Step, vote: Option<ClusterId>) -> Option<ClusterId> {
        // It may have been decided before this host kept another vote.
        if self.kept.cluster().is_some() || self.left || self.kept.bootstrap(0).vote != vote {
            return None;
        }
        let done = match step {
            Step::Wait => return None,
            Step::Vote(vote) => self.kept.vote(vote).map(|()| {
                // After the vote is on the disk: after a crash this host must not vote for another
                // one.
                self.link.order(Command::Vote(vote));
                None
            }),
            // Its own proposal: the votes that the link has counted are for that.
            Step::Found => self.found(self.kept.proposal()).map(Some),
        };
        done.unwrap_or_else(|failure| {
            tracing::error!("cannot found a cluster with the other hosts: {failure}");
            None
        })
    }

    /// Founds a cluster because the operator says so.
    ///
    /// # Errors
    /// If it belongs to one or has left it, or that cannot be kept.
    pub(super) fn init(&mut self) -> Result<ClusterId, Failure> {
        if self.left {
            let failure = Failure::new(exit::NEGATIVE, "this host has left its cluster");
            return Err(failure.hint("restart the daemon, and ask again"));
        }
        if let Some(id) = self.kept.cluster() {
            return Err(belongs(id));
        }
        // Not what it proposed to others: if they go on with that, it is another cluster.
        self.found(ClusterId(super::random()?.max(1)))
    }

    fn found(&mut self, id: ClusterId) -> Result<ClusterId, Failure> {
        self.kept.found(id)?;
        tracing::info!("this host has founded the cluster {id}, and has all of its limits");
        Ok(id)
    }

    /// Everything is handed over. Returns whether the cluster is no more.
    pub(super) fn leave(&mut self) -> bool {
        let gone = self.kept.leave();
        match &gone {
            Ok(true) => tracing::info!("this host had all of its cluster, which is no more"),
            Ok(false) => tracing::info!("this host has left the cluster"),
            Err(failure) => tracing::error!("cannot keep that this host has left: {failure}"),
        }
        gone.unwrap_or_default()
    }

    /// Looks whether another host has this one's ledger.
    pub(super) fn look_at_members(&mut self) {
        let report = self.link.report.borrow();
        let refused = report.refused.get(&self.identity.host());
        // The report names the later one of two hosts. At another address that is not this one.
        self.refused = refused.is_some_and(|identity| identity.address == self.identity.address);
    }
}

/// That a host belongs to a cluster, and so cannot found one.
pub(super) fn belongs(id: ClusterId) -> Failure {
    let message = format!("this host belongs to the cluster {id}: it cannot found another one");
    Failure::new(exit::NEGATIVE, message).hint(
        "`limiter peers` shows its hosts; to take this one out of it, `limiter cluster leave`, and restart the daemon",
    )
}
