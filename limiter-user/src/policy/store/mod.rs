//! Where limits survive crash and reboot.
//!
//! A database file and its mirror. Each change is committed durably to the main file first, then to
//! the mirror; a revision in both tells which is ahead. When the main file turns out to be damaged
//! it is set aside and made anew from the mirror, and the other way round.

mod error;
mod file;
mod vet;

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

pub use error::StoreError;
use file::{Content, StoreFile, sync_directory};
use vet::{Verdict, vet};

use super::{LimitSpec, Target};

const MAIN: &str = "limits.redb";
const MIRROR: &str = "limits.redb.mirror";
const LOCK: &str = "limits.lock";

/// A change of the limits.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// Set this limit, in the place of another one for the same target.
    Set(&'a LimitSpec),
    /// Remove the limit for this target.
    Unset(&'a Target),
}

/// The store of one daemon.
pub struct Store {
    main: StoreFile,
    mirror: StoreFile,
    limits: BTreeMap<Target, LimitSpec>,
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
        let lock = lock(directory)?;
        let (main_path, mirror_path) = (directory.join(MAIN), directory.join(MIRROR));
        let (main, mirror) = (vet(&main_path)?, vet(&mirror_path)?);
        let content = choose(&main_path, &main, &mirror)?.clone();
        let mut notes = Vec::new();
        let main = settle(&main_path, main, &content, &mut notes)?;
        let mirror = settle(&mirror_path, mirror, &content, &mut notes)?;
        let recovered = (!notes.is_empty()).then(|| notes.join("; "));
        Ok(Self {
            main,
            mirror,
            limits: content.limits,
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
    pub const fn limits(&self) -> &BTreeMap<Target, LimitSpec> {
        &self.limits
    }

    /// What was damaged and recovered when the store was opened.
    pub fn recovered(&self) -> Option<&str> {
        self.recovered.as_deref()
    }

    /// Why the mirror is behind the main file.
    pub fn mirror_problem(&self) -> Option<&str> {
        self.mirror_problem.as_deref()
    }

    /// Makes `changes` durable: all of them, or none.
    ///
    /// # Errors
    /// [`StoreError::Database`] if the main file could not be written; then nothing has changed. A
    /// mirror that cannot be written is told by [`Store::mirror_problem`] and tried again with the
    /// next change.
    pub fn apply(&mut self, changes: &[Change<'_>]) -> Result<(), StoreError> {
        let before = self.main.revision;
        let revision = before + 1;
        self.main.write(revision, changes)?;
        for change in changes {
            match *change {
                Change::Set(limit) => self.limits.insert(limit.target, limit.clone()),
                Change::Unset(target) => self.limits.remove(target),
            };
        }
        let mirrored = if self.mirror.revision == before {
            self.mirror.write(revision, changes)
        } else {
            // It missed a change: make it anew.
            let content = Content { revision, limits: self.limits.clone() };
            StoreFile::create(&self.path.with_file_name(MIRROR), &content)
                .map(|mirror| self.mirror = mirror)
        };
        self.mirror_problem = mirrored.err().map(|error| error.to_string());
        if let Some(problem) = &self.mirror_problem {
            tracing::warn!("the store's mirror is behind: {problem}");
        }
        Ok(())
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
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::Locked { path: directory.into() }),
        Err(TryLockError::Error(source)) => Err(io("lock", &path)(source)),
    }
}

/// The content to go on with.
fn choose<'a>(
    path: &Path,
    main: &'a Verdict,
    mirror: &'a Verdict,
) -> Result<&'a Content, StoreError> {
    static NOTHING: Content = Content { revision: 0, limits: BTreeMap::new() };
    Ok(match (main, mirror) {
        (Verdict::Missing, Verdict::Missing) => &NOTHING,
        // A main file behind its mirror has lost a change that was durable: it was damaged in a way
        // that looks like an older state of it.
        (Verdict::Good(main), Verdict::Good(mirror)) if main.revision < mirror.revision => mirror,
        (Verdict::Good(content), _) | (_, Verdict::Good(content)) => content,
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
        Verdict::Good(found) if found == *content => {
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
