//! The file that says how to revert a change.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind};
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Undo;
use super::clock::{Clocks, Deadline};
use api::error::{Failure, exit};
use model::lists::ListChanges;

/// The version of the file's format.
const VERSION: u32 = 1;

/// What is known of an unconfirmed change, beside how to revert it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    version: u32,
    /// What was changed, in a few words.
    pub(super) what: String,
    /// When it is to be reverted.
    pub(super) deadline: Deadline,
}

impl Record {
    /// A change that is made now and reverted after `period`.
    pub(super) fn new(what: String, period: Duration) -> Self {
        Self { version: VERSION, what, deadline: Deadline::new(Clocks::now(), period) }
    }
}

/// The whole file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    record: Record,
    /// Each target and its limit before, as the store writes them.
    undo: Vec<(String, Option<String>)>,
    /// Each listed target and its entry before.
    lists: ListChanges,
}

/// What a file says: a change and how to revert it, or why it makes no sense.
type Found = Result<(Record, Undo), String>;

fn failed(action: &str, path: &Path) -> impl FnOnce(io::Error) -> Failure {
    let what = format!("cannot {action} {}", path.display());
    move |error| {
        Failure::new(exit::NEGATIVE, format!("{what}: {error}"))
            .hint("see to it that the state directory can be written and its disk has room")
    }
}

/// Writes the file durably: all of it, or nothing.
///
/// # Errors
/// If it cannot be written.
pub(super) fn write(path: &Path, record: &Record, undo: &Undo) -> Result<(), Failure> {
    let (rows, lists) = (state::to_rows(&undo.limits), undo.lists.clone());
    write_json(path, &Content { record: record.clone(), undo: rows, lists })
}

/// Writes a file of the state directory durably: all of it, or nothing.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn write_json(path: &Path, content: &impl Serialize) -> Result<(), Failure> {
    let written = state::write_file(path, |file| Ok(serde_json::to_writer(file, content)?));
    written.map_err(failed("write", path))
}

/// Removes the file durably, if it is there.
///
/// # Errors
/// If it cannot be removed.
pub(crate) fn remove(path: &Path) -> Result<(), Failure> {
    state::remove_file(path).map_err(failed("remove", path))
}

/// Reads the file: `None` if there is none, a problem if it makes no sense.
///
/// # Errors
/// If it cannot be read.
pub(super) fn read(path: &Path) -> Result<Option<Found>, Failure> {
    Ok(open(path)?.map(parse))
}

/// Opens a file of the state directory, if it is there.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn open(path: &Path) -> Result<Option<BufReader<File>>, Failure> {
    match File::open(path) {
        Ok(file) => Ok(Some(BufReader::new(file))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path)(error)),
    }
}

fn parse(file: impl io::Read) -> Found {
    let content: Content = serde_json::from_reader(file).map_err(|error| error.to_string())?;
    if content.record.version != VERSION {
        return Err(format!("it has version {}, not {VERSION}", content.record.version));
    }
    let limits = state::from_rows(&content.undo)?;
    Ok((content.record, Undo { limits, lists: content.lists }))
}
