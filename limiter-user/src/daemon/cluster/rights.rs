//! Divides limits: a thread that looks at what sources send, asks and hears other hosts, and tells the data
//! plane what it may let through.

use std::thread::JoinHandle;

use serde::Serialize;
use tokio::sync::{mpsc, oneshot, watch};

use super::kept::KeptFile;
use super::{MOST_WAITING, RightsReport};
use crate::cluster::link::ClusterId;
use crate::cluster::link::task as link;
use crate::cluster::{HostId, Message, Share, escrow};
use crate::daemon::Shared;
use crate::error::{Failure, exit};

/// What comes to it.
pub(super) enum Input {
    /// A member has said something.
    Said(HostId, Box<Message>),
    /// This host belongs to this cluster from now on.
    Joined(ClusterId),
    /// Hand everything over, and tell when that is done.
    Leave(oneshot::Sender<()>),
    /// End.
    End,
}

/// What it has done, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Work {
    /// Shares that were told to the data plane.
    pub shares_told: u64,
}

/// Who this is, and how it reaches others.
pub(super) struct Host {
    pub(super) me: HostId,
    pub(super) weight: u32,
    pub(super) kept: KeptFile,
    pub(super) link: link::Handle,
    /// The hash of the limits, which rides in every message.
    pub(super) digest: watch::Receiver<u64>,
}

/// The thread.
pub(super) struct Thread {
    pub(super) inbox: mpsc::Sender<Input>,
    pub(super) report: watch::Receiver<RightsReport>,
    thread: JoinHandle<()>,
}

impl Thread {
    /// Ends it; all that it has begun is done.
    pub(super) async fn end(self) {
        let _ = self.inbox.send(Input::End).await;
        let _ = tokio::task::spawn_blocking(|| self.thread.join()).await;
    }
}

/// What a host with this home right may use of each source's limit without end.
pub(super) fn floor_of(home: Share) -> Share {
    home.times(escrow::Settings::new(HostId(0), 1).floor.units(), Share::WHOLE.units())
}

/// Starts the thread.
///
/// # Errors
/// If there can be none.
pub(super) fn start(host: Host, shared: Shared) -> Result<Thread, Failure> {
    let (inbox, inputs) = mpsc::channel(MOST_WAITING);
    let (tell, report) = watch::channel(RightsReport::default());
    let failed = |error| Failure::new(exit::PRIVILEGE, format!("cannot start a thread: {error}"));
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(failed)?;
    let thread = std::thread::Builder::new()
        .name("rights".into())
        .spawn(move || runtime.block_on(Task { host, shared, tell }.run(inputs)))
        .map_err(failed)?;
    Ok(Thread { inbox, report, thread })
}

struct Task {
    host: Host,
    shared: Shared,
    tell: watch::Sender<RightsReport>,
}

impl Task {
    async fn run(mut self, mut inputs: mpsc::Receiver<Input>) {
        while let Some(input) = inputs.recv().await {
            match input {
                Input::Joined(id) => drop(self.host.kept.join(id)),
                Input::End => return,
                _ => {}
            }
        }
    }
}
