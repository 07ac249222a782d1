//! How far long work is, on stderr.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

/// When the bar appears: what ends before needs none.
const BAR_AFTER: Duration = Duration::from_secs(1);

/// How often there is a line of the log where stderr is no terminal.
// The suite takes minutes: a log that says nothing for so long looks hung.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// Shows on stderr how far the runs are: as a bar on a terminal, else in a line of the log now and then.
pub(super) struct ProgressDisplay {
    on_terminal: bool,
    /// The last line of the log, or the start.
    last: Instant,
    has_bar: bool,
}

impl ProgressDisplay {
    pub(super) fn new() -> Self {
        // Both: with --quiet a bar is as unwanted as a line of the log.
        let on_terminal = io::stderr().is_terminal() && tracing::enabled!(tracing::Level::INFO);
        Self { on_terminal, last: Instant::now(), has_bar: false }
    }

    /// Shows that `part` is done, 0 to 1, and says so in a line.
    pub(super) fn show(&mut self, part: f64, line: impl FnOnce() -> String) {
        if self.on_terminal {
            if self.has_bar || self.last.elapsed() >= BAR_AFTER {
                self.has_bar = true;
                let line = format!("{} {}", bar(part), line());
                let line: String = line.chars().take(COLUMNS).collect();
                // Erased to the end of the line, as the one before may have been longer.
                eprint!("\r{line}\x1b[K");
            }
        } else if self.last.elapsed() >= LOG_INTERVAL {
            self.last = Instant::now();
            tracing::info!("{}", line());
        }
    }

    pub(super) fn clear(&self) {
        if self.has_bar {
            eprint!("\r\x1b[K");
        }
    }
}

/// The widest line on a terminal. One that wraps could not be written over.
const COLUMNS: usize = 79;

/// The done part of the work as a bar.
fn bar(part: f64) -> String {
    const LONG: usize = 16;
    let done = (LONG as f64 * part.clamp(0.0, 1.0)) as usize;
    format!("[{}{}]", "#".repeat(done), ".".repeat(LONG - done))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_bar_is_as_long_as_what_is_done() {
        assert_eq!(super::bar(0.5), "[########........]");
        assert_eq!(super::bar(1.0), "[################]");
    }
}
