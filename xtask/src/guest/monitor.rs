//! The monitor of an emulator: stops its machine, lets it go on, and writes down all of its memory.
//!
//! The protocol is QMP (QEMU Machine Protocol): one JSON object a line.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long a machine's memory may take to be written or read.
const MEMORY: Duration = Duration::from_secs(120);
/// How often it is looked whether that is done.
const POLL: Duration = Duration::from_millis(50);

/// A connection to it.
#[derive(Debug)]
pub(super) struct Monitor {
    stream: BufReader<UnixStream>,
}

impl Monitor {
    /// Connects to an emulator that listens at `path`.
    pub(super) fn connect(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path).context("cannot reach the emulator's monitor")?;
        stream.set_read_timeout(Some(TIMEOUT)).context("cannot set a timeout")?;
        let mut monitor = Self { stream: BufReader::new(stream) };
        // Its greeting, which it sends first.
        monitor.line()?;
        monitor.execute("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// Has it do something; what it answers.
    pub(super) fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let text = format!("{}\n", json!({ "execute": command, "arguments": arguments }));
        self.stream.get_mut().write_all(text.as_bytes()).context("the monitor takes no command")?;
        loop {
            let mut answer = self.line()?;
            if let Some(error) = answer.get("error") {
                bail!("the emulator refuses `{command}`: {}", error["desc"]);
            }
            // Events come in between.
            if let Some(answer) = answer.get_mut("return") {
                return Ok(answer.take());
            }
        }
    }

    /// Writes the memory of a machine that is stopped to a file.
    pub(super) fn save(&mut self, to: &Path) -> Result<()> {
        let uri = format!("exec:cat >'{}'", to.display());
        self.execute("migrate", &json!({ "uri": uri }))?;
        self.wait_for("query-migrate", "completed")
    }

    /// Waits until a machine that starts with such a file has read it.
    pub(super) fn wait_for_memory(&mut self) -> Result<()> {
        self.wait_for("query-status", "paused")
    }

    fn wait_for(&mut self, query: &str, wanted: &str) -> Result<()> {
        let until = Instant::now() + MEMORY;
        loop {
            let answer = self.execute(query, &json!({}))?;
            match answer["status"].as_str() {
                Some(status) if status == wanted => return Ok(()),
                Some("failed") => bail!("the emulator cannot write the memory: {answer}"),
                _ if Instant::now() > until => bail!("`{query}` still says {answer}"),
                _ => std::thread::sleep(POLL),
            }
        }
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.stream.read_line(&mut line).context("cannot read what the monitor says")?;
        serde_json::from_str(&line).with_context(|| format!("the monitor says `{line}`"))
    }
}
