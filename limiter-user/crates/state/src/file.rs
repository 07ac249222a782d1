//! One database file: its tables, and how it is written.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use redb::{
    Builder, Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition,
    TableError, WriteTransaction,
};

use super::StoreError;
use super::atomic::sync_folder;
use super::entry;
use super::rows::Rows;
use model::lists::{ListChanges, Listing, Lists};
use model::overrides::{Descriptor, Override, OverrideChanges, Overrides};
use model::record::Row;
use model::{Change, Changes, Invalid, Limit, Limits, Target};

/// The version of the tables below. Files of another one are refused.
pub(super) const SCHEMA: u64 = 6;

/// `schema` and `revision`. The revision rises with every change.
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
/// The target, and a [`model::record`] as JSON.
const LIMITS: TableDefinition<'_, &str, &str> = TableDefinition::new("limits");

/// A source or prefix, and a [`Listing`], both as [`entry`] writes them.
const ENTRIES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("entries");

/// The text of a descriptor, and an [`Override`] as JSON.
// Since the schema has its number: a file without it is one without overrides.
const OVERRIDES: TableDefinition<'_, &str, &str> = TableDefinition::new("overrides");

/// What is replicated in the cluster: rows as `cluster::limits` makes them.
const REPLICA: TableDefinition<'_, &str, &str> = TableDefinition::new("replica");

/// What is to be known after a crash: a text by its name.
const NOTES: TableDefinition<'_, &str, &str> = TableDefinition::new("notes");

/// What is to be written, in one transaction.
pub(super) struct Batch<'a> {
    limits: Rows<'a>,
    /// Entries of the lists.
    lists: Vec<(&'a IpNet, Option<&'a Listing>)>,
    overrides: Vec<(&'a str, Option<&'a Override>)>,
    /// What is replicated.
    replica: Vec<(&'a str, Option<&'a str>)>,
    notes: Vec<(&'a str, Option<&'a str>)>,
}

impl<'a> Batch<'a> {
    /// Changes.
    pub(super) fn new(limits: &'a Changes, lists: &'a ListChanges, replica: &'a [Row]) -> Self {
        let mut lists: Vec<_> = lists.iter().map(|(net, entry)| (net, entry.as_ref())).collect();
        // A row beside the last one finds its page at hand, and fills it.
        lists.sort_unstable_by_key(|(net, _)| *net);
        Self {
            limits: Rows::new(limits),
            lists,
            overrides: Vec::new(),
            replica: replica.iter().map(|(key, row)| (key.as_str(), row.as_deref())).collect(),
            notes: Vec::new(),
        }
    }

    /// The same with a note.
    pub(super) fn noting(mut self, name: &'a str, text: Option<&'a str>) -> Self {
        self.notes.push((name, text));
        self
    }

    /// The same with changes of overrides.
    pub(super) fn overriding(mut self, changes: &'a OverrideChanges) -> Self {
        let row =
            |(descriptor, to): &'a (Descriptor, Option<Override>)| (descriptor.text(), to.as_ref());
        self.overrides.extend(changes.iter().map(row));
        // As of the lists.
        self.overrides.sort_unstable_by_key(|(descriptor, _)| *descriptor);
        self
    }

    /// All of `content`, whose limits are `limits`.
    fn all(limits: &'a Changes, content: &'a Content) -> Self {
        let texts = |table: &'a BTreeMap<String, String>| {
            table.iter().map(|(key, text)| (key.as_str(), Some(text.as_str()))).collect()
        };
        Self {
            limits: Rows::new(limits),
            lists: content.lists.iter().map(|(net, listing)| (net, Some(listing))).collect(),
            overrides: content.overrides.iter().map(|(it, to)| (it.text(), Some(to))).collect(),
            replica: texts(&content.replica),
            notes: texts(&content.notes),
        }
    }
}

/// Everything in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) revision: u64,
    pub(super) limits: Limits,
    pub(super) lists: Lists,
    pub(super) overrides: Overrides,
    pub(super) replica: BTreeMap<String, String>,
    pub(super) notes: BTreeMap<String, String>,
}

/// Why a file's content could not be had.
#[derive(Debug)]
pub(super) enum Unreadable {
    /// Something is wrong with it.
    Corrupt(String),
    /// It has this version, which is another one.
    Version(u64),
}

impl<E: Into<redb::Error>> From<E> for Unreadable {
    fn from(error: E) -> Self {
        Self::Corrupt(error.into().to_string())
    }
}

/// Reads all of a database.
pub(super) fn read(database: &Database) -> Result<Content, Unreadable> {
    let transaction = database.begin_read()?;
    let meta = transaction.open_table(META)?;
    let number = |key: &str| -> Result<u64, Unreadable> {
        meta.get(key)?
            .map(|value| value.value())
            .ok_or_else(|| Unreadable::Corrupt(format!("it has no {key}")))
    };
    let schema = number("schema")?;
    // Before any row is read: rows of another version may look right and mean something else.
    if schema != SCHEMA {
        return Err(Unreadable::Version(schema));
    }
    let revision = number("revision")?;
    let mut found = Changes::default();
    for row in transaction.open_table(LIMITS)?.iter()? {
        let (target, record) = row?;
        let limit = limit(target.value(), record.value())
            .map_err(|problem| Unreadable::Corrupt(format!("{}: {problem}", target.value())))?;
        found.set(limit);
    }
    // Two texts may be read as one target: a key that another version wrote, or that somebody has
    // edited.
    if let Some(place) = found.repeated() {
        let target = found.at(place).0;
        return Err(Unreadable::Corrupt(format!("{target} is in it twice")));
    }
    let mut limits = Limits::default();
    // All at once, which takes half the memory of one after the other.
    limits.apply(&found);
    let mut lists = Lists::default();
    for row in transaction.open_table(ENTRIES)?.iter()? {
        let (key, value) = row?;
        let wrong = |problem: String| Unreadable::Corrupt(format!("a list: {problem}"));
        let no_prefix = || wrong(format!("{:?} is no prefix", key.value()));
        let net = entry::net(key.value()).ok_or_else(no_prefix)?;
        lists.insert(net, entry::read(value.value()).map_err(wrong)?);
    }
    let [replica, notes] = [REPLICA, NOTES].map(|table| texts(&transaction, table));
    let overrides = overrides(&transaction)?;
    Ok(Content { revision, limits, lists, overrides, replica: replica?, notes: notes? })
}

fn overrides(transaction: &ReadTransaction) -> Result<Overrides, Unreadable> {
    let mut found = Vec::new();
    let table = match transaction.open_table(OVERRIDES) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(Overrides::default()),
        table => table?,
    };
    for row in table.iter()? {
        let (key, text) = row?;
        let wrong = |problem: String| Unreadable::Corrupt(format!("{}: {problem}", key.value()));
        let descriptor: Descriptor =
            key.value().parse().map_err(|error: Invalid| wrong(error.to_string()))?;
        let limit = serde_json::from_str(text.value()).map_err(|error| wrong(error.to_string()))?;
        found.push((descriptor, Some(limit)));
    }
    let mut overrides = Overrides::default();
    overrides.apply(&found);
    Ok(overrides)
}

fn revision(database: &Database) -> Result<u64, redb::Error> {
    let meta = database.begin_read()?.open_table(META)?;
    Ok(meta.get("revision")?.map_or(0, |value| value.value()))
}

fn texts(
    transaction: &ReadTransaction,
    table: TableDefinition<'_, &str, &str>,
) -> Result<BTreeMap<String, String>, redb::Error> {
    let mut found = BTreeMap::new();
    for row in transaction.open_table(table)?.iter()? {
        let (key, text) = row?;
        found.insert(key.value().to_owned(), text.value().to_owned());
    }
    Ok(found)
}

pub(super) fn limit(target: &str, record: &str) -> Result<Limit, String> {
    let target = target.parse::<Target>().map_err(|error| error.to_string())?;
    model::record::read(target, record)
}

fn put(
    transaction: &WriteTransaction,
    revision: u64,
    batch: &Batch<'_>,
) -> Result<(), redb::Error> {
    let mut meta = transaction.open_table(META)?;
    meta.insert("schema", SCHEMA)?;
    // In the same transaction: a revision without its change would hide that the change is lost.
    meta.insert("revision", revision)?;
    // Every table is there afterwards, as the schema says.
    put_limits(transaction, &batch.limits)?;
    put_lists(transaction, &batch.lists)?;
    put_overrides(transaction, &batch.overrides)?;
    for (table, rows) in [(REPLICA, &batch.replica), (NOTES, &batch.notes)] {
        let mut table = transaction.open_table(table)?;
        for (key, row) in rows {
            match row {
                Some(row) => table.insert(*key, *row)?,
                None => table.remove(*key)?,
            };
        }
    }
    Ok(())
}

fn put_lists(
    transaction: &WriteTransaction,
    rows: &[(&IpNet, Option<&Listing>)],
) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(ENTRIES)?;
    let mut value = Vec::new();
    for (net, listing) in rows {
        let (key, length) = entry::key(net);
        let key = &key[..length];
        let Some(listing) = listing else {
            table.remove(key)?;
            continue;
        };
        entry::write(listing, &mut value);
        table.insert(key, value.as_slice())?;
    }
    Ok(())
}

fn put_overrides(
    transaction: &WriteTransaction,
    rows: &[(&str, Option<&Override>)],
) -> Result<(), redb::Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut table = transaction.open_table(OVERRIDES)?;
    for (descriptor, to) in rows {
        match to {
            // Plain values always make JSON.
            Some(to) => {
                table.insert(*descriptor, serde_json::to_string(to).unwrap_or_default().as_str())?
            }
            None => table.remove(*descriptor)?,
        };
    }
    Ok(())
}

fn put_limits(transaction: &WriteTransaction, rows: &Rows<'_>) -> Result<(), redb::Error> {
    let mut limits = transaction.open_table(LIMITS)?;
    rows.visit(|target, record| {
        match record {
            Some(record) => limits.insert(target, record)?,
            None => limits.remove(target)?,
        };
        Ok(())
    })
}

/// Memory that each file may keep of its pages, bytes. Limits are read once, at start, so that more
/// would only hold what is never asked for again.
const CACHE: usize = 16 * 1024 * 1024;

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE);
    builder
}

/// A file and the revision it is at.
pub(super) struct StoreFile {
    path: PathBuf,
    // None after a failure: redb refuses all further work on a handle that has seen an I/O error, so that a disk
    // that was full for a moment would cost every change until a restart.
    database: Option<Database>,
    pub(super) revision: u64,
}

impl StoreFile {
    fn failed(action: &'static str, path: &Path) -> impl FnOnce(redb::Error) -> StoreError {
        move |source| StoreError::Database { action, path: path.into(), source: Box::new(source) }
    }

    /// Opens a file that has been vetted and is at `revision`.
    pub(super) fn open(path: &Path, revision: u64) -> Result<Self, StoreError> {
        let mut file = Self { path: path.into(), database: None, revision };
        file.database = Some(file.reopen()?);
        Ok(file)
    }

    fn reopen(&self) -> Result<Database, StoreError> {
        let path = &self.path;
        let database =
            builder().open(path).map_err(|error| Self::failed("open", path)(error.into()))?;
        let found = revision(&database).map_err(Self::failed("read", path))?;
        // A commit can fail after it has become durable. What is in force is without that change.
        if found != self.revision {
            return Err(StoreError::Ahead { path: path.clone(), found, known: self.revision });
        }
        Ok(database)
    }

    /// Works on the database, which is opened anew if work before has failed.
    fn with<T>(
        &mut self,
        action: &'static str,
        work: impl FnOnce(&Database) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        let database = match self.database.take() {
            Some(database) => database,
            None => self.reopen()?,
        };
        let result = work(&database).map_err(Self::failed(action, &self.path))?;
        self.database = Some(database);
        Ok(result)
    }

    /// Makes a file with `content`, complete or not at all.
    pub(super) fn create(path: &Path, content: &Content) -> Result<Self, StoreError> {
        let mut staging = path.as_os_str().to_owned();
        staging.push(".new");
        let staging = PathBuf::from(staging);
        let io = |action| {
            let path = path.to_path_buf();
            move |source| StoreError::Io { action, path, source }
        };
        // A crash may have left one, which the database would open and add to.
        match fs::remove_file(&staging) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(io("replace what is left of")(error));
            }
            _ => {}
        }
        let failed = Self::failed("create", path);
        let make = || -> Result<(), redb::Error> {
            let database = builder().create(&staging)?;
            let transaction = database.begin_write()?;
            let all: Changes = content.limits.iter().map(Change::Set).collect();
            put(&transaction, content.revision, &Batch::all(&all, content))?;
            transaction.commit()?;
            Ok(())
        };
        make().map_err(failed)?;
        fs::rename(&staging, path).map_err(io("create"))?;
        sync_directory(path)?;
        Self::open(path, content.revision)
    }

    /// All notes. They may be as large as the changes that they are about, so they are not kept in memory.
    pub(super) fn notes(&mut self) -> Result<BTreeMap<String, String>, StoreError> {
        self.with("read", |database| texts(&database.begin_read()?, NOTES))
    }

    /// Writes `batch`, and makes that durable in one transaction if `commit` says so when all is
    /// written. The file is at `revision` then.
    pub(super) fn write(
        &mut self,
        revision: u64,
        batch: &Batch<'_>,
        commit: impl FnOnce() -> bool,
    ) -> Result<(), StoreError> {
        let written = self.with("write to", |database| {
            let transaction = database.begin_write()?;
            put(&transaction, revision, batch)?;
            // Asked when all is written and before it is durable: the mirror must never be ahead of
            // the main file.
            if !commit() {
                transaction.abort()?;
                return Ok(false);
            }
            transaction.commit()?;
            Ok(true)
        })?;
        if written {
            self.revision = revision;
        }
        Ok(())
    }
}

/// Makes renames in the directory of `path` durable.
pub(super) fn sync_directory(path: &Path) -> Result<(), StoreError> {
    sync_folder(path).map_err(|source| {
        let directory = path.parent().unwrap_or(Path::new("."));
        StoreError::Io { action: "sync", path: directory.into(), source }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What redb says once it has seen an I/O error.
    fn fail<T>() -> Result<T, redb::Error> {
        Err(redb::Error::PreviousIo)
    }

    #[test]
    fn work_goes_on_after_a_failure_unless_the_file_holds_what_failed() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = StoreFile::create(&directory.path().join("f"), &Content::default()).unwrap();
        let (limits, lists) = (Changes::default(), ListChanges::new());
        let batch = || Batch::new(&limits, &lists, &[]);
        let failed = file.with::<()>("write to", |_| fail()).unwrap_err();
        assert!(matches!(failed, StoreError::Database { action: "write to", .. }), "{failed}");
        file.write(1, &batch().noting("a", Some("b")), || true).unwrap();
        assert_eq!(file.notes().unwrap()["a"], "b");

        let durable = file.with::<()>("write to", |database| {
            let transaction = database.begin_write()?;
            put(&transaction, 2, &batch())?;
            transaction.commit()?;
            fail()
        });
        durable.unwrap_err();
        for _ in 0..2 {
            let ahead = file.write(2, &batch(), || true).unwrap_err();
            assert!(matches!(ahead, StoreError::Ahead { found: 2, known: 1, .. }), "{ahead}");
        }
    }
}
