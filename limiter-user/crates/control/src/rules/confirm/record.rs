//! What is noted of a change in the store, so that the next daemon can revert it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Undo;
use super::clock::{Clocks, Deadline};
use api::error::{Failure, exit};
use model::lists::ListChanges;
use model::overrides::OverrideChanges;
use state::Store;

/// Its name among the notes.
pub(super) const NOTE: &str = "unconfirmed";

/// What is known of an unconfirmed change, beside how to revert it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    /// What was changed, in a few words.
    pub(super) what: String,
    /// When it is to be reverted.
    pub(super) deadline: Deadline,
}

impl Record {
    /// A change that is made now and reverted after `period`.
    pub(super) fn new(what: String, period: Duration) -> Self {
        Self { what, deadline: Deadline::new(Clocks::now(), period) }
    }
}

/// The whole note.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    record: Record,
    /// Each target and its limit before, as the store writes them.
    undo: Vec<(String, Option<String>)>,
    /// Each listed target and its entry before.
    lists: ListChanges,
    /// Each descriptor and its limit before.
    #[serde(default)]
    overrides: OverrideChanges,
}

/// What a note says: a change and how to revert it, or why it makes no sense.
type Found = Result<(Record, Undo), String>;

/// Notes a change durably.
///
/// # Errors
/// If the store cannot be written.
pub(super) fn write(store: &mut Store, record: &Record, undo: &Undo) -> Result<(), Failure> {
    let Undo { limits, lists, overrides } = undo.clone();
    let (record, undo) = (record.clone(), state::to_rows(&limits));
    note(store, NOTE, &Content { record, undo, lists, overrides })
}

/// Notes `content` in the store durably, under `name`.
///
/// # Errors
/// If the store cannot be written.
pub(crate) fn note(store: &mut Store, name: &str, content: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(content)
        .map_err(|error| Failure::new(exit::NEGATIVE, format!("cannot note {name}: {error}")))?;
    Ok(store.set_note(name, Some(&text))?)
}

/// Reads the note: `None` if there is none, a problem if it makes no sense.
///
/// # Errors
/// If the store cannot be read.
pub(super) fn read(store: &mut Store) -> Result<Option<Found>, Failure> {
    Ok(store.note(NOTE)?.map(|text| parse(&text)))
}

fn parse(text: &str) -> Found {
    let content: Content = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let limits = state::from_rows(&content.undo)?;
    Ok((content.record, Undo { limits, lists: content.lists, overrides: content.overrides }))
}
