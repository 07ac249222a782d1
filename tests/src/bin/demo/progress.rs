//! Says on stderr what goes on.

use std::{
    io::{self, IsTerminal as _, Write as _},
    sync::mpsc,
    thread::JoinHandle,
    time::Duration,
};

/// Tells steps, one a line. On a terminal, a step that takes longer shows its seconds.
pub(crate) struct Progress {
    /// Ends the thread that shows seconds when it is dropped; what is sent begins a step.
    steps: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        if !io::stderr().is_terminal() {
            return Self { steps: None, thread: None };
        }
        let (steps, begun) = mpsc::channel();
        Self { steps: Some(steps), thread: Some(std::thread::spawn(move || count(&begun))) }
    }

    /// Whether somebody watches.
    pub(crate) fn is_live(&self) -> bool {
        self.steps.is_some()
    }

    /// Begins a step.
    pub(crate) fn step(&self, what: impl std::fmt::Display) {
        if let Some(steps) = &self.steps {
            // The thread lives as long as the sender.
            let _ended = steps.send(());
        }
        say(what);
    }
}

/// Prints a line on stderr, if there still is one.
pub(crate) fn say(what: impl std::fmt::Display) {
    let _unsaid = writeln!(io::stderr(), "{what}");
}

/// Shows the seconds of each step from the second one on. The cursor stays in front, so that whatever comes
/// next is written over them.
fn count(begun: &mpsc::Receiver<()>) {
    let mut seconds = 0;
    loop {
        match begun.recv_timeout(Duration::from_secs(1)) {
            Ok(()) => seconds = 0,
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                seconds += 1;
                if seconds > 1 {
                    let _unsaid = write!(io::stderr(), "  {seconds} s\r");
                }
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.steps = None;
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}
