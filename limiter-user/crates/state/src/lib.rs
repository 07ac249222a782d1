//! Where limits survive crash and reboot.
//!
//! A database file and its mirror. Each change is committed durably to the main file first, then to
//! the mirror; a revision in both tells which is ahead. Both are written at the same time, but the
//! mirror commits only what the main file has. When the main file turns out to be damaged
//! it is set aside and made anew from the mirror, and the other way round.

mod atomic;
mod entry;
mod error;
mod file;
mod rows;
mod vet;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

pub use atomic::{remove_file, write_file};
pub use error::StoreError;
use file::{Batch, Content, StoreFile, sync_directory};
use rows::Rows;
use vet::{Verdict, vet};

use model::lists::{ListChanges, Lists};
use model::overrides::{OverrideChanges, Overrides};
use model::record::Row;
use model::{Changes, Limits, Target};

const MAIN: &str = "limits.redb";
// A second file, not a second table: damage of a disk or of the database takes whole files.
const MIRROR: &str = "limits.redb.mirror";
const LOCK: &str = "limits.lock";

/// The store of one daemon.
pub struct Store {
    main: StoreFile,
    mirror: StoreFile,
    limits: Limits,
    lists: Lists,
    overrides: Overrides,
    replica: BTreeMap<String, String>,
    path: PathBuf,
    recovered: Option<String>,
    mirror_problem: Option<String>,
    // Held for as long as the store is open.
    _lock: File,
}

impl Store {
    /// Opens the store in `directory`, which is made if it is not there.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is changed then.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        // Before anything is read: what another daemon is writing may look damaged.
        let lock = lock(directory)?;
        let (main_path, mirror_path) = (directory.join(MAIN), directory.join(MIRROR));
        // Both are read in full before either is touched: which one is right can only be told from
        // both.
        let (main, mirror) = (vet(&main_path)?, vet(&mirror_path)?);
        let content = choose(&main_path, &main, &mirror)?.cloned().unwrap_or_default();
        let mut notes = Vec::new();
        let main = settle(&main_path, main, &content, &mut notes)?;
        let mirror = settle(&mirror_path, mirror, &content, &mut notes)?;
        let recovered = (!notes.is_empty()).then(|| notes.join("; "));
        Ok(Self {
            main,
            mirror,
            limits: content.limits,
            lists: content.lists,
            overrides: content.overrides,
            replica: content.replica,
            path: main_path,
            recovered,
            mirror_problem: None,
            _lock: lock,
        })
    }

    /// The main file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The limits, by target.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The allow and deny lists.
    pub const fn lists(&self) -> &Lists {
        &self.lists
    }

    /// The limits of single descriptors.
    pub const fn overrides(&self) -> &Overrides {
        &self.overrides
    }

    /// What is replicated in the cluster, by key.
    pub const fn replica(&self) -> &BTreeMap<String, String> {
        &self.replica
    }

    /// What was damaged and recovered when the store was opened.
    pub fn recovered(&self) -> Option<&str> {
        self.recovered.as_deref()
    }

    /// Why the mirror is behind the main file.
    pub fn mirror_problem(&self) -> Option<&str> {
        self.mirror_problem.as_deref()
    }

    /// Makes `changes` durable: all of them, or none. One for each target at the most.
    ///
    /// # Errors
    /// As [`Store::apply_then`].
    pub fn apply(&mut self, changes: &Changes) -> Result<(), StoreError> {
        self.apply_then(changes, || ())
    }

    /// Makes `changes` durable: all of them, or none. Once they are, calls `then`, while the mirror
    /// follows, and returns what it returns.
    ///
    /// # Errors
    /// [`StoreError::Database`] if the main file could not be written; then nothing has changed, and
    /// `then` is not called. A mirror that cannot be written is told by [`Store::mirror_problem`] and
    /// tried again with the next change.
    pub fn apply_then<R>(
        &mut self,
        changes: &Changes,
        then: impl FnOnce() -> R,
    ) -> Result<R, StoreError> {
        self.apply_with(changes, &[], then)
    }

    /// As [`Store::apply_then`], with what is replicated of them in the cluster.
    ///
    /// # Errors
    /// As [`Store::apply_then`].
    pub fn apply_with<R>(
        &mut self,
        changes: &Changes,
        replica: &[Row],
        then: impl FnOnce() -> R,
    ) -> Result<R, StoreError> {
        let none = ListChanges::new();
        self.write(&Batch::new(changes, &none, replica), replica, |limits, _, _| {
            limits.apply(changes);
            then()
        })
    }

    /// Makes changes of the lists durable: all of them, or none. Once they are, calls `then` with the
    /// lists as they are now.
    ///
    /// # Errors
    /// As [`Store::apply_then`].
    pub fn list_then<R>(
        &mut self,
        changes: &ListChanges,
        then: impl FnOnce(&Lists) -> R,
    ) -> Result<R, StoreError> {
        self.list_with(changes, &[], then)
    }

    /// As [`Store::list_then`], with what is replicated of them in the cluster.
    ///
    /// # Errors
    /// As [`Store::apply_then`].
    pub fn list_with<R>(
        &mut self,
        changes: &ListChanges,
        replica: &[Row],
        then: impl FnOnce(&Lists) -> R,
    ) -> Result<R, StoreError> {
        let none = Changes::default();
        self.write(&Batch::new(&none, changes, replica), replica, |_, lists, _| {
            lists.apply(changes);
            then(lists)
        })
    }

    /// Makes changes of overrides durable, with what is replicated of them in the cluster: all of them, or none.
    ///
    /// # Errors
    /// As [`Store::apply_then`].
    pub fn override_with(
        &mut self,
        changes: &OverrideChanges,
        replica: &[Row],
    ) -> Result<(), StoreError> {
        let (limits, lists) = (Changes::default(), ListChanges::new());
        let batch = Batch::new(&limits, &lists, replica).overriding(changes);
        self.write(&batch, replica, |_, _, overrides| overrides.apply(changes))
    }

    /// What was noted under `name`.
    ///
    /// # Errors
    /// [`StoreError::Database`] if it cannot be read.
    pub fn note(&mut self, name: &str) -> Result<Option<String>, StoreError> {
        Ok(self.main.notes()?.remove(name))
    }

    /// Notes `text` under `name` durably, or makes sure that there is no such note.
    ///
    /// # Errors
    /// As [`Store::apply_then`].
    pub fn set_note(&mut self, name: &str, text: Option<&str>) -> Result<(), StoreError> {
        let (limits, lists) = (Changes::default(), ListChanges::new());
        self.write(&Batch::new(&limits, &lists, &[]).noting(name, text), &[], |_, _, _| ())
    }

    fn write<R>(
        &mut self,
        batch: &Batch<'_>,
        rows: &[Row],
        then: impl FnOnce(&mut Limits, &mut Lists, &mut Overrides) -> R,
    ) -> Result<R, StoreError> {
        let before = self.main.revision;
        let revision = before + 1;
        // A mirror that has missed a change is made anew, when it is known of what.
        let follows = self.mirror.revision == before;
        let (main, mirror) = (&mut self.main, &mut self.mirror);
        let (limits, lists, replica) = (&mut self.limits, &mut self.lists, &mut self.replica);
        let overrides = &mut self.overrides;
        let (result, mirrored) = thread::scope(|scope| {
            let (committed, commit) = mpsc::channel();
            let copying = follows.then(|| {
                thread::Builder::new().name("store mirror".into()).spawn_scoped(scope, move || {
                    mirror.write(revision, batch, || commit.recv().is_ok())
                })
            });
            // If this fails, `committed` is dropped, and the mirror's transaction with it.
            main.write(revision, batch, || true)?;
            // Nobody listens to this where there is no thread, or it has failed already.
            let _ = committed.send(());
            for (key, row) in rows {
                match row {
                    Some(row) => drop(replica.insert(key.clone(), row.clone())),
                    None => drop(replica.remove(key)),
                }
            }
            // Limits are put in force while the mirror is still being written, as the change is
            // durable already.
            let result = then(limits, lists, overrides);
            let mirrored = match copying {
                None => None,
                Some(Err(error)) => Some(Err(format!("no thread to write it: {error}"))),
                Some(Ok(copying)) => Some(match copying.join() {
                    Ok(written) => written.map_err(|error| error.to_string()),
                    // A mirror that cannot be written is no reason to lose the daemon: it is made
                    // anew with the next change.
                    Err(_) => Err("the database panicked on it".to_owned()),
                }),
            };
            Ok((result, mirrored))
        })?;
        let mirrored = mirrored.unwrap_or_else(|| {
            let (limits, lists) = (self.limits.clone(), self.lists.clone());
            let (overrides, replica) = (self.overrides.clone(), self.replica.clone());
            self.main
                .notes()
                .map(|notes| Content { revision, limits, lists, overrides, replica, notes })
                .and_then(|all| StoreFile::create(&self.path.with_file_name(MIRROR), &all))
                .map(|mirror| self.mirror = mirror)
                .map_err(|error| error.to_string())
        });
        self.mirror_problem = mirrored.err();
        // No failure of the change: it is durable in the main file, and `status` tells of the
        // mirror.
        if let Some(problem) = &self.mirror_problem {
            tracing::warn!("the store's mirror is behind: {problem}");
        }
        Ok(result)
    }
}

/// `changes` as the database has them: each target, and the record of its limit.
pub fn to_rows(changes: &Changes) -> Vec<Row> {
    let mut all = Vec::with_capacity(changes.len());
    let Ok(()) = Rows::new(changes).visit(|target, record| {
        all.push((target.to_owned(), record.map(str::to_owned)));
        Ok::<_, Infallible>(())
    });
    all
}

/// The changes that [`to_rows`] has written.
///
/// # Errors
/// The first row that makes no sense, or the target that occurs twice.
pub fn from_rows(rows: &[Row]) -> Result<Changes, String> {
    let mut changes = Changes::default();
    for (target, record) in rows {
        let wrong = |problem| format!("{target}: {problem}");
        match record {
            Some(record) => changes.set(file::limit(target, record).map_err(wrong)?),
            None => {
                let target = target.parse::<Target>();
                changes.unset(target.map_err(|error| wrong(error.to_string()))?);
            }
        }
    }
    match changes.repeated() {
        None => Ok(changes),
        Some(place) => Err(format!("{} is in it twice", changes.at(place).0)),
    }
}

/// Makes sure that no other daemon uses `directory`.
fn lock(directory: &Path) -> Result<File, StoreError> {
    let io = |action, path: &Path| {
        let path = path.to_path_buf();
        move |source| StoreError::Io { action, path, source }
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o750)
        .create(directory)
        .map_err(io("create the state directory", directory))?;
    let path = directory.join(LOCK);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(io("open", &path))?;
    // The kernel releases it with the process, however that ends: there is no stale lock to be
    // removed.
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::Locked { path: directory.into() }),
        Err(TryLockError::Error(source)) => Err(io("lock", &path)(source)),
    }
}

/// The content to go on with; `None` if there never was any.
fn choose<'a>(
    path: &Path,
    main: &'a Verdict,
    mirror: &'a Verdict,
) -> Result<Option<&'a Content>, StoreError> {
    Ok(match (main, mirror) {
        (Verdict::Missing, Verdict::Missing) => None,
        // A main file behind its mirror has lost a change that was durable: it was damaged in a way
        // that looks like an older state of it.
        (Verdict::Good(main), Verdict::Good(mirror)) if main.revision < mirror.revision => {
            Some(mirror)
        }
        (Verdict::Good(content), _) | (_, Verdict::Good(content)) => Some(content),
        (main, mirror) => {
            let problem = |verdict: &Verdict| verdict.problem().unwrap_or_default().to_owned();
            let (main, mirror) = (problem(main), problem(mirror));
            return Err(StoreError::Corrupt { path: path.into(), main, mirror });
        }
    })
}

/// Opens the file at `path` as it is, or makes it anew if it is not `content`. What is damaged is
/// kept beside it.
fn settle(
    path: &Path,
    verdict: Verdict,
    content: &Content,
    notes: &mut Vec<String>,
) -> Result<StoreFile, StoreError> {
    let problem = match verdict {
        Verdict::Good(found) if *found == *content => {
            return StoreFile::open(path, content.revision);
        }
        // A crash came between the two files' commits, or this file was removed.
        Verdict::Good(found) if found.revision < content.revision && is_mirror(path) => None,
        Verdict::Good(found) if found.revision < content.revision => {
            Some("it had lost its last changes".to_owned())
        }
        Verdict::Good(_) => Some("it differed".to_owned()),
        Verdict::Missing if content.revision == 0 || is_mirror(path) => None,
        Verdict::Missing => Some("it was missing".to_owned()),
        Verdict::Corrupt(problem) => Some(problem),
    };
    if let Some(problem) = problem {
        let mut note = format!("{} was made anew from its copy: {problem}", path.display());
        // Not removed: what somebody may want to look at or recover is in there.
        if let Some(aside) = set_aside(path)? {
            note.push_str(&format!("; the damaged file is kept as {}", aside.display()));
        }
        tracing::warn!("{note}");
        notes.push(note);
    }
    StoreFile::create(path, content)
}

fn is_mirror(path: &Path) -> bool {
    path.ends_with(MIRROR)
}

/// Renames the file at `path`, if there is one, and says to what.
fn set_aside(path: &Path) -> Result<Option<PathBuf>, StoreError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".corrupt-{now}"));
    let mut aside = PathBuf::from(&name);
    let mut count = 1;
    while aside.exists() {
        count += 1;
        aside = PathBuf::from(&name);
        aside.add_extension(count.to_string());
    }
    match fs::rename(path, &aside) {
        Ok(()) => sync_directory(path).map(|()| Some(aside)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(StoreError::Io { action: "set aside", path: path.into(), source }),
    }
}

#[cfg(test)]
mod tests;
