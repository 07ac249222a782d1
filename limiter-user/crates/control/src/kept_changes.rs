//! The changes that somebody has made, over restarts: a file of lines beside the store, the latest last.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use telemetry::Event;

/// The file's name in the state directory.
pub(super) const FILE: &str = "changes";

/// Bytes that are read of it; one that is longer is not of this daemon.
const MAX_BYTES: u64 = 4 << 20;

/// How many times as many lines as are remembered it may have before it is written anew.
const SPARE: usize = 4;

/// Where changes are kept. Without it, and after an error, they are remembered until the daemon ends.
#[derive(Debug)]
pub(super) struct ChangesFile {
    path: PathBuf,
    file: Option<File>,
    lines: usize,
    most: usize,
}

impl ChangesFile {
    /// Opens it, and returns the latest `most` changes that are in there. Lines that are none, such as one that
    /// a crash has cut off, are left out.
    pub(super) fn open(path: &Path, most: usize) -> (Self, VecDeque<Event>) {
        let mut kept = Self { path: path.to_owned(), file: None, lines: 0, most };
        let found = read(path).and_then(|text| {
            let lines = text.lines().rev().filter_map(|line| serde_json::from_str(line).ok());
            let mut found: VecDeque<Event> = lines.take(most).collect();
            found.make_contiguous().reverse();
            kept.write_anew(&found)?;
            Ok(found)
        });
        let found = found.unwrap_or_else(|error| {
            kept.give_up(&error);
            VecDeque::new()
        });
        (kept, found)
    }

    /// Adds a change, the last one of `remembered`.
    pub(super) fn add(&mut self, event: &Event, remembered: &VecDeque<Event>) {
        let Some(file) = &mut self.file else { return };
        let added = if self.lines >= SPARE * self.most {
            self.write_anew(remembered)
        } else {
            self.lines += 1;
            // At once, so that no line is in the middle of another one.
            line(event).and_then(|line| file.write_all(line.as_bytes()))
        };
        if let Err(error) = added {
            self.give_up(&error);
        }
    }

    /// Puts a file with these in its place.
    fn write_anew(&mut self, events: &VecDeque<Event>) -> io::Result<()> {
        let staging = self.path.with_extension("new");
        let text: String = events.iter().map(line).collect::<io::Result<_>>()?;
        let mut options = OpenOptions::new();
        let mut file =
            options.create(true).write(true).truncate(true).mode(0o600).open(&staging)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&staging, &self.path)?;
        (self.file, self.lines) = (Some(file), events.len());
        Ok(())
    }

    fn give_up(&mut self, error: &io::Error) {
        self.file = None;
        tracing::warn!(
            "cannot keep changes in {}: {error}; they are remembered until the daemon ends",
            self.path.display()
        );
    }
}

fn read(path: &Path) -> io::Result<String> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn line(event: &Event) -> io::Result<String> {
    let mut line = serde_json::to_string(event)?;
    line.push('\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use telemetry::What;
    use telemetry::event::By;

    const MAX: usize = 5;

    fn change(number: usize) -> Event {
        let by = Some(By { uid: Some(7), user: "ann".into() });
        let what = format!("change {number}\nof a \"limit\"");
        let mut event =
            Event::now(What::Policy { what, by, ttl_seconds: Some(9), confirm_seconds: None });
        // Times are told in milliseconds.
        event.time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(number as u64);
        event
    }

    /// Opens the file and adds these; returns what was there.
    fn run(path: &Path, numbers: std::ops::Range<usize>) -> Vec<Event> {
        let (mut kept, found) = ChangesFile::open(path, MAX);
        let mut remembered = found.clone();
        for number in numbers {
            remembered.push_back(change(number));
            if remembered.len() > MAX {
                remembered.pop_front();
            }
            kept.add(&change(number), &remembered);
        }
        found.into()
    }

    fn changes(numbers: std::ops::Range<usize>) -> Vec<Event> {
        numbers.map(change).collect()
    }

    #[test]
    fn the_latest_are_there_again_and_the_file_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        assert_eq!(run(&path, 0..3), []);
        assert_eq!(run(&path, 3..9), changes(0..3));
        assert_eq!(run(&path, 9..9), changes(4..9));
        assert_eq!(run(&path, 9..200), changes(4..9));
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= SPARE * MAX, "{lines}");
        assert_eq!(run(&path, 0..0), changes(195..200));
    }

    #[test]
    fn damage_costs_the_lines_that_it_is_in() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        run(&path, 0..3);
        let mut bytes = fs::read(&path).unwrap();
        bytes.truncate(bytes.len() - 9);
        bytes.splice(0..0, b"\xff\xfe no line\n{}\n".iter().copied());
        fs::write(&path, bytes).unwrap();
        assert_eq!(run(&path, 7..8), changes(0..2));
        assert_eq!(run(&path, 8..8), [change(0), change(1), change(7)]);
    }

    #[test]
    fn where_nothing_can_be_written_the_daemon_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("no folder").join(FILE);
        assert_eq!(run(&path, 0..3), []);
        assert!(!path.exists());
    }
}
