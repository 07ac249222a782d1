//! A running `limiter monitor`.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Stdio},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{cli::limiter_binary, process::wait_for};

/// A running `limiter monitor`, ended on drop.
#[derive(Debug)]
pub struct Monitor {
    child: Child,
    lines: Receiver<String>,
}

impl Monitor {
    /// Starts it for the daemon at `socket`. It may not listen yet when this returns.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(socket: &Path, arguments: &[&str]) -> Self {
        let mut child = tools::own(limiter_binary())
            .arg("--socket")
            .arg(socket)
            .arg("monitor")
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("monitor starts");
        let (sender, lines) = channel();
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        std::thread::spawn(move || {
            out.lines().map_while(Result::ok).try_for_each(|l| sender.send(l))
        });
        Self { child, lines }
    }

    /// The next line, if there is one within `limit`.
    #[must_use]
    pub fn line(&self, limit: Duration) -> Option<String> {
        self.lines.recv_timeout(limit).ok()
    }

    /// The next event that `wanted` wants, within `limit`. Others before it are lost.
    ///
    /// # Panics
    /// If there is none, or a line is no JSON document.
    pub fn event(&self, limit: Duration, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.line(left).unwrap_or_else(|| panic!("no such event in {limit:?}"));
            let event = serde_json::from_str(&line).expect("a line is a JSON document");
            if wanted(&event) {
                return event;
            }
        }
    }

    /// All events of the next `length`.
    ///
    /// # Panics
    /// If a line is no JSON document.
    #[must_use]
    pub fn events(&self, length: Duration) -> Vec<Value> {
        let deadline = Instant::now() + length;
        let lines =
            std::iter::from_fn(|| self.line(deadline.saturating_duration_since(Instant::now())));
        lines.map(|line| serde_json::from_str(&line).expect("a line is a JSON document")).collect()
    }

    /// Waits for its end and returns its exit code.
    ///
    /// # Panics
    /// If it goes on for longer than `limit`.
    pub fn ended(mut self, limit: Duration) -> Option<i32> {
        let child = &mut self.child;
        wait_for("the end of monitor", limit, || child.try_wait().expect("a child")).code()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Whether an event is of a kind.
pub fn is<'a>(kind: &'a str) -> impl Fn(&Value) -> bool + 'a {
    move |event| event["event"] == kind
}
