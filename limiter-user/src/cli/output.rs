//! Where results, errors and logs go.

use std::io::{self, ErrorKind, IsTerminal, Write, stdout};
use std::path::Path;
use std::time::SystemTime;

use ratatui::crossterm::terminal::size;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing_subscriber::EnvFilter;

use super::args::Global;
use api::client::Client;
use api::error::{Failure, exit};
use api::{Print, Terminal};
use settings::LogFormat;

/// stdout, as text or as one JSON document.
pub(super) struct Output<'a> {
    json: bool,
    out: &'a mut dyn Write,
}

/// The terminal that stdout is.
fn terminal() -> Option<Terminal> {
    // Its size is asked of stdout alone: of stderr it would say how wide a pipe's reader is not.
    let (width, _) = stdout().is_terminal().then(|| size().ok()).flatten()?;
    Some(Terminal { width, now: SystemTime::now() })
}

#[derive(Serialize)]
struct ErrorDocument<'a> {
    error: &'a Failure,
}

impl<'a> Output<'a> {
    pub(super) fn new(json: bool, out: &'a mut dyn Write) -> Self {
        Self { json, out }
    }

    /// Whether exactly JSON is to be printed.
    pub(super) const fn is_json(&self) -> bool {
        self.json
    }

    /// Prints bytes as they are. Returns whether anybody still reads.
    pub(super) fn raw(&mut self, bytes: &[u8]) -> Result<bool, Failure> {
        let written = self.out.write_all(bytes);
        self.finish(written)
    }

    /// Prints a report. Returns the exit code of a command that has nothing else to say.
    pub(super) fn print(&mut self, report: &(impl Print + Serialize)) -> Result<u8, Failure> {
        let printed = match self.json {
            // Before the terminal: a document is the same whoever reads it.
            true => self.document(report),
            false => report.print_on(self.out, terminal().as_ref()),
        };
        self.finish(printed).map(|_| exit::OK)
    }

    /// Gets a report from the daemon and prints it.
    pub(super) async fn show<R: Print + Serialize + DeserializeOwned>(
        &mut self,
        client: &Client,
        path: &str,
    ) -> Result<u8, Failure> {
        let report: R = client.get(path).await?;
        self.print(&report)
    }

    /// Ends what was written. Returns whether anybody still reads: a closed pipe is no failure, as whoever read it,
    /// such as `head`, has seen enough.
    fn finish(&mut self, written: io::Result<()>) -> Result<bool, Failure> {
        // Flushed here: what the process's end would flush fails unseen, as on a full disk.
        match written.and_then(|()| self.out.flush()) {
            Ok(()) => Ok(true),
            // Rust ignores SIGPIPE, so it comes as an error.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            Err(error) => {
                Err(Failure::new(exit::NEGATIVE, format!("cannot write to stdout: {error}")))
            }
        }
    }

    fn document(&mut self, report: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, report)?;
        writeln!(self.out)
    }

    /// Tells a failure on stderr, and on stdout if it is to have a document. Returns its code.
    pub(super) fn fail(&mut self, failure: &Failure) -> u8 {
        // stderr even with --json: whoever redirects stdout to a file still sees why there is nothing in it.
        eprintln!("{} {failure}", label("error:", RED));
        if let Some(hint) = &failure.hint {
            eprintln!("{} {hint}", label("hint:", CYAN));
        }
        self.document_of(failure)
    }

    /// Prints a failure's document, if it is to have one. Returns its code.
    pub(super) fn document_of(&mut self, failure: &Failure) -> u8 {
        if self.json
            && let Err(error) = self.document(&ErrorDocument { error: failure })
        {
            eprintln!("error: cannot write to stdout: {error}");
        }
        failure.code
    }
}

/// Writes a file that was asked for; `hint` says how to name another.
pub(super) fn write_file(path: &Path, content: &str, hint: &str) -> Result<(), Failure> {
    std::fs::write(path, content).map_err(|error| {
        let message = format!("cannot write {}: {error}", path.display());
        Failure::new(exit::NEGATIVE, message).hint(hint)
    })
}

/// Colours of the terminal, bold.
const RED: u8 = 31;
const CYAN: u8 = 36;

/// A word before a message on stderr, coloured on a terminal unless `NO_COLOR` is set.
fn label(text: &str, colour: u8) -> String {
    // no-color.org: set, and not empty.
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    // stderr decides, as stdout may be a pipe while somebody reads the errors.
    match io::stderr().is_terminal() && !plain {
        true => format!("\x1b[1;{colour}m{text}\x1b[0m"),
        false => text.to_owned(),
    }
}

/// Starts the log on stderr; `LIMITER_LOG` overrides the flags.
pub(super) fn start_log(global: &Global, format: LogFormat) {
    let level = match (global.quiet, global.verbose) {
        (true, _) => "error",
        (_, 0) => "info",
        (_, 1) => "debug",
        _ => "trace",
    };
    // A filter that cannot be read must not keep a daemon from starting.
    let filter = std::env::var("LIMITER_LOG").ok().and_then(|text| EnvFilter::try_new(text).ok());
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|| EnvFilter::new(level)))
        // Whoever read the log may have gone. To say so on the same stderr would end the daemon.
        .log_internal_errors(false)
        // stdout is for data alone: a line of the log would break the one document that --json promises.
        .with_writer(io::stderr);
    let started = match format {
        LogFormat::Text => {
            log.with_ansi(io::stderr().is_terminal()).with_target(global.verbose > 0).try_init()
        }
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    // Tests run many commands in one process, which can have one log.
    if started.is_err() {
        tracing::debug!("a log has been started already");
    }
}
