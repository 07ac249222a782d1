//! What the escrow has decided and is not done yet.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::core_worker::{CoreWorker, Floor, PendingFloor, Request};
use super::floors::FloorsFile;
use super::host::Host;
use super::ledger::{LedgerWriter, Written};
use super::link::Command;
use super::sources::Sources;
use super::words::{PendingShares, RefundWorker};
use crate::{CoreHandle, Shares};
use api::error::Failure;
use cluster::escrow::{Outputs, PersistentState};
use cluster::wire::Content;
use cluster::{HostId, KeyId, Message};

/// What waits for the disk, the core and the data plane, and the messages that wait for all three. It is apart from what
/// decides, so that one place keeps the order: others hear nothing before what they may rely on is so.
pub(super) struct Pending {
    plane: Arc<dyn Shares>,
    pub(super) core: CoreWorker,
    giver: RefundWorker,
    pub(super) ledger: LedgerWriter,
    pub(super) shares: PendingShares,
    floor: PendingFloor,
    /// What is kept has to be made durable, and is not being written.
    keep: bool,
    // One a host: a later message says all that an earlier one would have said.
    messages: BTreeMap<HostId, Message>,
    /// Messages that were given to the link since the start.
    pub(super) sent: u64,
    /// Messages that were not, as later ones took their place while they waited.
    pub(super) withheld: u64,
    /// Why the floor is not what it is to be, and why what is kept is not.
    refusal: Option<String>,
    pub(super) unkept: Option<String>,
    /// What was told of that.
    pub(super) problem: Option<String>,
}

impl Pending {
    /// Starts the threads that wait for what the share loop does not wait for.
    ///
    /// # Errors
    /// If there can be none.
    pub(super) fn start(
        shared: &CoreHandle,
        plane: Arc<dyn Shares>,
        floors: Arc<FloorsFile>,
    ) -> Result<Self, Failure> {
        let giver = RefundWorker::start(Arc::clone(&plane))?;
        Ok(Self {
            plane,
            core: CoreWorker::start(shared.clone(), giver.clone(), floors)?,
            giver,
            ledger: LedgerWriter::start()?,
            shares: PendingShares::default(),
            floor: PendingFloor::default(),
            keep: false,
            messages: BTreeMap::new(),
            sent: 0,
            withheld: 0,
            refusal: None,
            unkept: None,
            problem: None,
        })
    }

    /// Takes what the escrow says, which has `kept` this, and begins with it. Returns the sources that have no bucket of
    /// the cluster any more.
    pub(super) fn take(
        &mut self,
        out: Outputs,
        kept: &PersistentState,
        host: &Host,
        sources: Option<&Sources>,
    ) -> Vec<KeyId> {
        self.keep |= out.keep;
        if let Some(floor) = out.floor {
            // Noted before `begin`, which asks the core for it.
            self.floor.want((floor, out.hosts));
        }
        if let Some(sources) = sources {
            self.shares.grant(out.grants, sources);
        }
        // Before the messages: they wait for what begins here.
        let gone = self.begin(kept, host, sources);
        // The disk first: what cannot be stored holds back all messages, a refused floor only
        // some.
        self.note(self.unkept.clone().or_else(|| self.refusal.clone()));
        for (to, message) in out.messages {
            let former = self.messages.insert(to, message);
            self.withheld += u64::from(former.is_some());
        }
        gone
    }

    /// Begins to make durable what is kept, asks for the floor, and tells the data plane shares.
    fn begin(
        &mut self,
        kept: &PersistentState,
        host: &Host,
        sources: Option<&Sources>,
    ) -> Vec<KeyId> {
        // One write at a time. What changes meanwhile is written whole with the next one.
        if self.keep && !self.ledger.is_writing() {
            self.keep = false;
            if let Some(unwritten) = host.kept.with_shares(kept) {
                self.ledger.write(unwritten);
            }
        }
        // Who has less than it may have need not wait.
        let may = self.floor.withholds() || !self.keep && !self.ledger.is_writing();
        if may && let Some(floor) = self.floor.ask() {
            self.core.ask(Request::Floor(floor));
        }
        // Most rounds change no share, and the kernel's maps need not be asked.
        if self.shares.len() == 0 {
            return Vec::new();
        }
        self.shares.tell(&*self.plane, sources, &self.giver)
    }

    /// Takes what the core says to the floor that it was asked for.
    pub(super) fn handle_floor(&mut self, answer: Result<Floor, Failure>) {
        match &answer {
            Ok(floor) => self.floor.told(*floor),
            Err(_) => self.floor.refused(),
        }
        self.refusal = answer.err().map(|failure| failure.to_string());
    }

    /// Takes note of what was written. Whether it is durable.
    pub(super) fn handle_written(&mut self, (state, result): Written, host: &mut Host) -> bool {
        match &result {
            Ok(()) => host.kept.written(state),
            // The state in memory is ahead of the disk still, so the next round tries again.
            Err(_) => self.keep = true,
        }
        self.unkept = result.err().map(|failure| failure.to_string());
        self.unkept.is_none()
    }

    /// Sends the messages that wait, if nothing is left to be done before. Whether it is so.
    pub(super) fn send(&mut self, host: &Host) -> bool {
        // A message may announce what is in the write. After a crash this host would not know of
        // it.
        let durable = !self.keep && !self.ledger.is_writing();
        if !durable || self.shares.len() > 0 || self.floor.withholds() {
            return false;
        }
        // Taken in any case: a refused host must not send old ones when it is let in again.
        let messages = std::mem::take(&mut self.messages);
        if !host.refused {
            let digest = Some(*host.digest.borrow());
            for (to, message) in messages {
                let content = Content::Shares(Box::new(message));
                self.sent += 1;
                host.link.order(Command::Send { to, digest, content });
            }
        }
        true
    }

    fn note(&mut self, text: Option<String>) {
        // The loop comes here many times a second, and one line for each trouble is enough.
        if text != self.problem {
            match &text {
                Some(text) => tracing::error!("limits of the cluster cannot be divided: {text}"),
                None => tracing::info!("limits of the cluster are divided again"),
            }
            self.problem = text;
        }
    }
}
