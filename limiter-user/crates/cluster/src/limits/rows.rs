//! What has to be durable, as rows of a database.

use model::record::Row;

use super::Replica;
use super::clock::{Stamp, WallMs};
use super::entry::{Content, Entry, Item, Value};

/// The key of the row with the latest removal that was forgotten.
const FORGOTTEN: &str = "forgotten";

/// What a row says.
pub(super) enum Read {
    Entry(Item, Entry, Option<WallMs>),
    Forgotten(Stamp),
}

/// Reads a row, if it makes sense.
pub(super) fn read(key: &str, row: &str) -> Option<Read> {
    if key == FORGOTTEN {
        return serde_json::from_str(row).ok().map(Read::Forgotten);
    }
    let item = Item::read(key)?;
    let entry: Entry = serde_json::from_str(row).ok()?;
    let end = match &entry.content {
        Content::Is(content) => item.value(content).ok()?.end(),
        Content::Gone(_) => None,
    };
    Some(Read::Entry(item, entry, end))
}

impl Replica {
    /// The rows that have to be durable before anything is sent, and in one transaction with what follows
    /// from them: all that have changed since [`Replica::saved`].
    pub fn unsaved(&self) -> Vec<Row> {
        // Plain values always make JSON.
        let text = |entry| serde_json::to_string(entry).unwrap_or_default();
        let rows =
            self.unsaved.keys().map(|item| (item.to_string(), self.table.get(item).map(text)));
        let forgotten = (self.forgotten != self.saved_forgotten).then(|| {
            let row = serde_json::to_string(&self.forgotten).unwrap_or_default();
            (FORGOTTEN.to_owned(), Some(row))
        });
        rows.chain(forgotten).collect()
    }

    /// They are durable.
    pub fn saved(&mut self) {
        self.unsaved.clear();
        self.saved_forgotten = self.forgotten;
    }

    /// They could not be: everything is as it was after the last [`Replica::saved`]. What came from others
    /// comes again.
    pub fn undo(&mut self) {
        for (item, former) in std::mem::take(&mut self.unsaved) {
            match former {
                Some(entry) => {
                    let value = match &entry.content {
                        Content::Is(content) => item.value(content).ok(),
                        Content::Gone(_) => None,
                    };
                    let end = value.as_ref().and_then(Value::end);
                    self.table.put(item, entry, end);
                }
                // Without a trace: a removal in its place would reject the same entry when others tell it again.
                None => drop(self.table.remove(&item)),
            }
        }
        self.forgotten = self.saved_forgotten;
    }
}
