//! What a long command shows while it works, and where its children's output goes.

use std::{
    fmt,
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tools::root;

/// Prints one message line to stderr.
pub(crate) fn say(message: impl fmt::Display) {
    eprintln!("xtask: {message}");
}

/// How often the line on the terminal is drawn anew.
const TICK: Duration = Duration::from_millis(250);

/// One step of a command. On a terminal a line with the time and the latest output moves while it
/// lasts; elsewhere there is a line at its start and one at its end.
pub(crate) struct Step {
    name: String,
    started: Instant,
    bar: ProgressBar,
}

impl Step {
    /// Starts a step that takes about as long as `expected`, if that is known.
    pub(crate) fn begin(name: impl Into<String>, expected: Option<Duration>) -> Self {
        let name = name.into();
        let about = expected.map(|time| format!(", about {}", span(time))).unwrap_or_default();
        let bar = ProgressBar::with_draw_target(
            expected.map(|time| time.as_secs()),
            ProgressDrawTarget::stderr(),
        );
        // No terminal, as in CI: there a line must do.
        if bar.is_hidden() {
            say(format_args!("{name}{about}"));
        }
        let line = "{spinner} {prefix}, {elapsed} so far: {wide_msg:.dim}";
        // The template is ours; one that indicatif refuses would leave its plain one.
        let style = ProgressStyle::with_template(line);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_prefix(format!("{name}{about}"));
        // By a thread of its own: a child may be silent for a minute, and the time must be seen to go on.
        bar.enable_steady_tick(TICK);
        Self { name, started: Instant::now(), bar }
    }

    /// A log of this step's children, in a file called `name`.
    pub(crate) fn log(&self, name: &str) -> Result<Log> {
        let mut log = Log::at(root().join(format!("target/xtask/{name}.log")))?;
        log.bar = self.bar.clone();
        Ok(log)
    }

    /// Ends the step and tells how long it took.
    pub(crate) fn done(self) {
        self.bar.finish_and_clear();
        say(format_args!("{}: {}", self.name, span(self.started.elapsed())));
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        // What follows a failed step must not be drawn over.
        self.bar.finish_and_clear();
    }
}

/// A file with the output of children; its latest line is shown on the terminal.
// apt alone prints two thousand lines: what went wrong would be lost among them.
pub(crate) struct Log {
    path: PathBuf,
    file: Mutex<File>,
    bar: ProgressBar,
}

impl Log {
    /// An empty log at `path`.
    pub(crate) fn at(path: PathBuf) -> Result<Self> {
        let made = path.parent().map_or(Ok(()), fs::create_dir_all);
        let file = made.and_then(|()| File::create(&path));
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path, file: Mutex::new(file), bar: ProgressBar::hidden() })
    }

    pub(crate) fn write(&self, line: &str) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // A full disk must not stop what is logged; it will fail by itself.
        let _written = writeln!(file, "{line}");
        self.bar.set_message(line.trim().to_owned());
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// A time for people, to the second.
pub(crate) fn span(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds} s"),
        (minutes, 0) => format!("{minutes} min"),
        (minutes, seconds) => format!("{minutes} min {seconds} s"),
    }
}

/// Reads what [`span`] wrote.
pub(crate) fn read_span(text: &str) -> Option<Duration> {
    let words: Vec<&str> = text.split(' ').collect();
    let seconds = words.chunks(2).map(|pair| match pair {
        [count, "min"] => count.parse::<u64>().ok().map(|count| count * 60),
        [count, "s"] => count.parse().ok(),
        _ => None,
    });
    seconds.sum::<Option<u64>>().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read_to_the_second() {
        for (seconds, text) in [(0.2, "0 s"), (59.6, "1 min"), (90.0, "1 min 30 s"), (8.4, "8 s")] {
            let shown = span(Duration::from_secs_f64(seconds));
            assert_eq!(shown, text);
            assert_eq!(read_span(&shown).unwrap().as_secs_f64(), seconds.round());
        }
        for text in ["", "1", "1 h", "x s"] {
            assert_eq!(read_span(text), None, "{text}");
        }
    }
}
