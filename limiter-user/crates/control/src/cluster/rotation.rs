//! Changes the keys of the cluster: gives [`cluster::rotation`] a disk, the link and a clock.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::key_file;
use super::keys_file::KeysFile;
use super::link::{Command as Link, monotonic};
use super::{Cluster, Inbox};
use api::KeysReport;
use api::error::{Failure, exit};
use cluster::HostId;
use cluster::membership::called;
use cluster::rotation::{KeyState, Refusal, Rotation};
use cluster::wire::KeyBytes as Key;
use cluster::wire::{Content, Rejection, Topic};
use model::rotation::{ACCEPTED, Stage};

/// Orders that wait, at most.
const MAX_ORDERS: usize = 16;

/// How soon it is tried again to keep what could not be kept.
// A full disk stays full for a while, and each attempt writes and syncs a file.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The operator wants another key, and waits for the answer.
type Command = oneshot::Sender<Result<(), Failure>>;

/// What others in the daemon can ask of it.
#[derive(Clone, Debug)]
pub struct Keys {
    orders: mpsc::Sender<Command>,
    report: watch::Receiver<KeysReport>,
}

impl Keys {
    /// What keys are in use, as of a moment ago.
    pub fn report(&self) -> KeysReport {
        self.report.borrow().clone()
    }

    /// Begins to change the key.
    ///
    /// # Errors
    /// If that is not possible now.
    pub async fn rotate(&self) -> Result<(), Failure> {
        let (answer, answered) = oneshot::channel();
        let ended = || Failure::new(exit::NEGATIVE, "the daemon is about to end");
        // It fails only if the task has ended: orders are rare and taken at once.
        self.orders.try_send(answer).map_err(|_| ended())?;
        answered.await.map_err(|_| ended())?
    }
}

/// The handle, and what the task needs for it.
pub(super) fn handle() -> (Keys, mpsc::Receiver<Command>, watch::Sender<KeysReport>) {
    let (orders, ordered) = mpsc::channel(MAX_ORDERS);
    let (tell, report) = watch::channel(KeysReport::default());
    (Keys { orders, report }, ordered, tell)
}

fn refused(refusal: Refusal) -> Failure {
    let hint = match refusal {
        Refusal::Underway => format!(
            "see `limiter cluster key status`: it ends {} seconds after all members use the new key",
            ACCEPTED.as_secs()
        ),
        Refusal::TwoKeys => {
            "leave only the key in the key file that all hosts seal with, and restart \
                             the daemon"
                .to_owned()
        }
    };
    Failure::new(exit::NEGATIVE, refusal.to_string()).hint(hint)
}

/// Takes part in changes of keys as long as the daemon runs.
pub(super) async fn serve(
    cluster: Cluster,
    mut inbox: Inbox,
    mut orders: mpsc::Receiver<Command>,
    tell: watch::Sender<KeysReport>,
    (file, kept): (KeysFile, KeyState),
) {
    let mut link = cluster.link.report.clone();
    let mut members = cluster.link.members.clone();
    // So that the rotation knows the members before its first step. Alone it would take itself for
    // all.
    members.mark_changed();
    let mut keeper = KeyKeeper {
        rotation: Rotation::new(monotonic(), cluster.me, kept.clone()),
        file: Some(file),
        written: kept.clone(),
        applied: kept,
        problem: None,
        cluster,
    };
    loop {
        if members.has_changed().unwrap_or_default() {
            let members = members.borrow_and_update();
            // With the incarnation: what a member said before a restart need not hold after it.
            let runs = members.iter().map(|(host, member)| (*host, member.epoch.0)).collect();
            keeper.rotation.set_members(monotonic(), runs);
        }
        keeper.step().await;
        // Not `send`, which fails and keeps the old value while nobody listens.
        tell.send_replace(keeper.report());
        let pause = match keeper.problem {
            // The rotation's own time may have passed already: without this the loop would turn
            // without rest.
            Some(_) => RETRY_INTERVAL,
            None => keeper.rotation.next().since(monotonic()).max(Duration::from_millis(5)),
        };
        tokio::select! {
            said = inbox.recv() => match said {
                Some((from, bytes)) => keeper.rotation.receive(monotonic(), from, &bytes),
                None => return,
            },
            order = orders.recv() => match order {
                Some(answer) => {
                    let done = keeper.rotation.ask(monotonic()).map_err(refused);
                    let _ = answer.send(done);
                }
                None => return,
            },
            changed = link.changed() => {
                if changed.is_err() {
                    return;
                }
                let other = link.borrow_and_update().other_key;
                if let Some((key, _)) = other {
                    keeper.rotation.heard(monotonic(), key);
                }
            },
            changed = members.changed() => {
                if changed.is_err() {
                    return;
                }
                members.mark_changed();
            },
            () = sleep(pause) => {}
        }
    }
}

/// The rotation with its file and the link, which follow it in this order.
struct KeyKeeper {
    cluster: Cluster,
    rotation: Rotation,
    /// `None` only while it is being written.
    file: Option<KeysFile>,
    /// What is on the disk.
    written: KeyState,
    /// What the link goes by.
    applied: KeyState,
    problem: Option<String>,
}

impl KeyKeeper {
    /// Does what is due: first on the disk, then in the link; only then is anything told.
    async fn step(&mut self) {
        let now = monotonic();
        if self.rotation.wants_key() {
            match fresh() {
                Ok((key, tag)) => self.rotation.begin(now, key, tag),
                // The rotation asks again at its next step.
                Err(failure) => tracing::error!("there is no new key: {failure}"),
            }
        }
        // Taken before the write and sent after it: they announce what has to be durable first.
        let messages = self.rotation.poll(now);
        self.problem = self.keep().await.err().map(|failure| failure.to_string());
        if self.problem.is_some() || !self.apply() {
            // What is not said now is said again.
            return;
        }
        for (to, bytes) in messages {
            let content = Content::Other(Topic::Keys, bytes);
            self.cluster.link.order(Link::Send { to, digest: None, content });
        }
    }

    async fn keep(&mut self) -> Result<(), Failure> {
        let kept = self.rotation.kept().clone();
        // Most steps change nothing, and a sync costs milliseconds.
        if kept == self.written {
            return Ok(());
        }
        // It is gone only if a write panicked. Then nothing more is announced from it.
        let Some(mut file) = self.file.take() else { return Ok(()) };
        let wanted = kept.clone();
        // A sync may take seconds on a busy disk, in which messages of other tasks must go on.
        let written = spawn_blocking(move || {
            let result = file.write(&wanted);
            (file, result)
        });
        let (file, result) = written.await.map_err(|_| {
            Failure::new(exit::NEGATIVE, "an internal error has left the keys in doubt")
        })?;
        self.file = Some(file);
        if let Err(failure) = &result
            // Once for each trouble, and not at each attempt.
            && self.problem.is_none()
        {
            tracing::error!("{failure}");
        }
        result?;
        self.written = kept;
        Ok(())
    }

    /// Gives the link its keys. Returns whether it has them: orders are obeyed one after the other.
    fn apply(&mut self) -> bool {
        if self.applied != self.written {
            // Never what is only in memory: after a crash this host could not open what it had
            // sealed.
            if !self.cluster.link.order(Link::Ring(self.written.ring())) {
                return false;
            }
            let status = self.rotation.status(monotonic());
            let (number, sealing) = (status.number, status.sealing);
            match (status.stage, status.accepted) {
                (Stage::Accepted, Some(key)) => tracing::info!(
                    "rotation {number}: the new key {key:04x} is accepted, key {sealing:04x} still used"
                ),
                (Stage::Using, Some(key)) => tracing::info!(
                    "rotation {number}: key {sealing:04x} is used, the old key {key:04x} still accepted"
                ),
                _ => tracing::info!("rotation {number}: only key {sealing:04x} is left"),
            }
            self.applied = self.written.clone();
        }
        true
    }

    fn report(&self) -> KeysReport {
        let status = self.rotation.status(monotonic());
        let members = self.cluster.link.members.borrow();
        let name = |host: &HostId| called(&members, *host);
        let link = self.cluster.link.report.borrow();
        let refused = |why| link.counts.rejected(why).packets;
        KeysReport {
            number: status.number,
            stage: status.stage,
            sealing: format!("{:04x}", status.sealing),
            accepted: status.accepted.map(|key| format!("{key:04x}")),
            members: members.len(),
            leader: name(&status.leader),
            waiting: status.waiting.iter().map(name).collect(),
            lost: status.lost,
            refused: refused(Rejection::Key) + refused(Rejection::Forged),
            file: self.file.as_ref().map(|file| file.path().display().to_string()),
            problem: self.problem.clone(),
        }
    }
}

/// A random key, and a random number.
fn fresh() -> Result<(Key, u64), Failure> {
    let key = key_file::random_key()?;
    // The number tells two rotations apart that two leaders began under the same count.
    Ok((key, super::random()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_what_to_do() {
        for refusal in [Refusal::Underway, Refusal::TwoKeys] {
            let failure = refused(refusal);
            assert!(failure.code == exit::NEGATIVE && failure.hint.is_some(), "{failure}");
        }
        let (one, other) = (fresh().unwrap(), fresh().unwrap());
        assert_ne!(one, other);
    }
}
