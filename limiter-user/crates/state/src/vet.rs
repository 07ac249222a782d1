//! Whether a database file can be trusted, told without touching it.
//!
//! A damaged file may be repaired into something else, or make the database panic. So the file is
//! read into memory and opened there, in a thread whose panic is a verdict like any other.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;

use redb::{Builder, StorageBackend};

use super::StoreError;
use super::file::{Content, SCHEMA, Unreadable, read};

/// How much larger than the file a repair may make it.
// A bound, as a damaged header may claim any size.
const GROWTH: usize = 64 << 20;

/// What a file was found to be.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Whole, with this content.
    Good(Box<Content>),
    /// Damaged in this way.
    Corrupt(String),
    /// Not there.
    Missing,
}

impl Verdict {
    /// What is wrong with the file, if something is.
    pub(super) fn problem(&self) -> Option<&str> {
        match self {
            Self::Good(_) => None,
            Self::Corrupt(problem) => Some(problem),
            Self::Missing => Some("it is missing"),
        }
    }
}

/// Reads and judges the file at `path`.
///
/// # Errors
/// [`StoreError::Io`] if it cannot be read, [`StoreError::Version`] if another version wrote it.
pub(super) fn vet(path: &Path) -> Result<Verdict, StoreError> {
    let image = match fs::read(path) {
        Ok(image) => image,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Verdict::Missing),
        Err(source) => return Err(StoreError::Io { action: "read", path: path.into(), source }),
    };
    if image.is_empty() {
        // The database would take it for a new one.
        return Ok(Verdict::Corrupt("it is empty".into()));
    }
    let judged = thread::Builder::new()
        .name("store check".into())
        .spawn(move || judge(image))
        .map_err(|source| StoreError::Io { action: "check", path: path.into(), source })?
        .join();
    match judged {
        Ok(Ok(content)) => Ok(Verdict::Good(Box::new(content))),
        Ok(Err(Unreadable::Version(found))) => {
            Err(StoreError::Version { path: path.into(), found, known: SCHEMA })
        }
        Ok(Err(Unreadable::Corrupt(problem))) => Ok(Verdict::Corrupt(problem)),
        Err(_) => Ok(Verdict::Corrupt("the database panicked on it".into())),
    }
}

fn judge(image: Vec<u8>) -> Result<Content, Unreadable> {
    let image = Image { most: image.len() + GROWTH, bytes: Mutex::new(image) };
    let mut database = Builder::new().create_with_backend(image)?;
    // After a crash the opening has repaired it already; what is still wrong now is damage.
    if !database.check_integrity()? {
        return Err(Unreadable::Corrupt("it failed its integrity check".into()));
    }
    read(&database)
}

/// A database file in memory.
#[derive(Debug)]
struct Image {
    bytes: Mutex<Vec<u8>>,
    most: usize,
}

impl Image {
    fn range<T>(
        &self,
        offset: u64,
        length: usize,
        access: impl FnOnce(&mut [u8]) -> T,
    ) -> io::Result<T> {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        usize::try_from(offset)
            .ok()
            .and_then(|from| bytes.get_mut(from..from.checked_add(length)?))
            .map(access)
            // Damaged pages point anywhere. Beyond the end is an error of the file, not a panic.
            .ok_or_else(|| ErrorKind::UnexpectedEof.into())
    }
}

impl StorageBackend for Image {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().unwrap_or_else(PoisonError::into_inner).len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.range(offset, out.len(), |bytes| out.copy_from_slice(bytes))
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        match usize::try_from(length) {
            Ok(length) if length <= self.most => {
                self.bytes.lock().unwrap_or_else(PoisonError::into_inner).resize(length, 0);
                Ok(())
            }
            _ => Err(ErrorKind::FileTooLarge.into()),
        }
    }

    // Nothing to sync: what is repaired here is thrown away, and the file itself is not touched.
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.range(offset, data.len(), |bytes| bytes.copy_from_slice(data))
    }
}
