//! Writes what a host must not forget, in a thread of its own: a disk that is busy with a million limits may take
//! seconds, and grants go on meanwhile.

use std::sync::mpsc::{Sender, channel};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::state_file::Unwritten;
use api::error::Failure;

/// What was to be written, and whether it is durable.
pub(super) type Written = (Unwritten, Result<(), Failure>);

/// The thread, which ends with this when it has written what it was given.
pub(super) struct LedgerWriter {
    jobs: Sender<Unwritten>,
    done: UnboundedReceiver<Written>,
    writing: bool,
}

impl LedgerWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// If there can be none.
    pub(super) fn start() -> Result<Self, Failure> {
        // The thread ends when the sender is dropped, after all that was given to it.
        let (jobs, inbox) = channel::<Unwritten>();
        let (tell, done) = unbounded_channel();
        super::spawn("share ledger", move || {
            for job in inbox {
                let result = job.write();
                // The job goes back with the result: what was written becomes the state in
                // memory.
                if tell.send((job, result)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { jobs, done, writing: false })
    }

    /// Begins to write. Only one at a time may be on its way: [`LedgerWriter::is_writing`].
    pub(super) fn write(&mut self, job: Unwritten) {
        // If the thread is gone, `written` ends at once and tells so.
        self.writing = self.jobs.send(job).is_ok();
    }

    /// Whether something is not known to be durable or not.
    pub(super) const fn is_writing(&self) -> bool {
        self.writing
    }

    /// Waits for what is being written. Nothing is lost if this is dropped before.
    pub(super) async fn written(&mut self) -> Option<Written> {
        // Only after the await: a caller that stops waiting must still see that a write is open.
        let written = self.done.recv().await;
        self.writing = false;
        written
    }
}

#[cfg(test)]
mod tests {
    use super::super::state_file::StateFile;
    use super::*;
    use cluster::HostId;
    use cluster::escrow::PersistentState;
    use cluster::link::ClusterId;
    use cluster::wire::Epoch;
    use model::Share;

    #[tokio::test]
    async fn what_is_written_is_told_whether_it_is_durable_or_not() {
        let home = tempfile::tempdir().unwrap();
        let mut file = StateFile::open(home.path()).unwrap();
        file.begin(Epoch::starting(None, 5, 7), HostId(3), ClusterId(7)).unwrap();
        file.found(ClusterId(9)).unwrap();
        let half = PersistentState { home: Share::from_part(0.5), ..file.shares() };
        let mut ledger = LedgerWriter::start().unwrap();
        ledger.write(file.with_shares(&half).unwrap());
        assert!(ledger.is_writing());
        let (written, result) = ledger.written().await.unwrap();
        assert!(result.is_ok() && !ledger.is_writing());
        file.written(written);
        assert_eq!(StateFile::open(home.path()).unwrap().shares(), half);
        let nothing = PersistentState { home: Share::NONE, ..half };
        home.close().unwrap();
        ledger.write(file.with_shares(&nothing).unwrap());
        assert!(ledger.written().await.unwrap().1.is_err());
    }
}
