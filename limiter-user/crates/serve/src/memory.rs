//! The files that the states of keys live in, mapped into memory: a process that is killed loses nothing.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use limiter_common::atomic::AtomicU64;
use memmap2::{Advice, MmapOptions, MmapRaw};
use model::{Explain, Fault};
use nix::fcntl::posix_fallocate;

/// The words of a file.
#[derive(Debug)]
pub(crate) struct Words {
    map: MmapRaw,
    /// Locked for this process as long as it is open.
    _file: File,
}

impl AsRef<[AtomicU64]> for Words {
    fn as_ref(&self) -> &[AtomicU64] {
        let words = self.map.as_ptr().cast::<AtomicU64>();
        // SAFETY: the map is of whole pages, which are aligned for words, and lives as long as `self`. Whoever has a
        // reference to it changes it by atomic operations alone. Another process that uses these files could, too: the lock
        // keeps it away. The file's blocks are reserved, so that no page of it is missing later.
        unsafe { std::slice::from_raw_parts(words, self.map.len() / size_of::<AtomicU64>()) }
    }
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MemoryError {
    /// Another process has it.
    #[error("another limiter-serve uses {}", .0.display())]
    InUse(PathBuf),
    /// The system refuses.
    #[error("cannot use {}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Explain for MemoryError {
    fn fault(&self) -> Fault {
        match self {
            Self::InUse(_) => Fault::Refused,
            Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Fault::Privilege
            }
            Self::Io { .. } => Fault::Input,
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                "give fewer --keys, or another --state-dir".into()
            }
            _ => "give another --state-dir".into(),
        })
    }
}

/// The folder that the files are in.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// That of the kernel's boot.
    boot: String,
}

impl Folder {
    /// Makes it, if it is not there.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn open(path: &Path) -> Result<Self, MemoryError> {
        let failed = |source| MemoryError::Io { path: path.to_owned(), source };
        fs::create_dir_all(path).map_err(failed)?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(failed)?;
        Ok(Self { path: path.to_owned(), boot: boot.trim().to_owned() })
    }

    /// The words of a file; an empty one gets as many `bytes` of 0. Files of earlier boots go: the clock that their times
    /// are of began anew.
    ///
    /// # Errors
    /// If another process has the file, or there is no room for it.
    pub(crate) fn words(&self, name: &str, bytes: usize) -> Result<Words, MemoryError> {
        let path = self.file(name);
        let failed = |source| MemoryError::Io { path: path.clone(), source };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => MemoryError::InUse(path.clone()),
            TryLockError::Error(source) => failed(source),
        })?;
        self.forget_earlier(name, &path);
        let mut found = file.metadata().map_err(failed)?.len() as usize;
        if found == 0 {
            // Reserved at once: a page that is missing later would end the process by a signal.
            posix_fallocate(&file, 0, bytes as i64).map_err(|error| failed(error.into()))?;
            found = bytes;
        }
        let map = MmapOptions::new().len(found).map_raw(&file).map_err(failed)?;
        // Fewer misses of the TLB; a kernel that does not do it for this file system does without.
        let _ = map.advise(Advice::HugePage);
        Ok(Words { map, _file: file })
    }

    /// Puts a file in the place of another.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn replace(&self, name: &str, by: &str) -> Result<(), MemoryError> {
        let path = self.file(name);
        fs::rename(self.file(by), &path).map_err(|source| MemoryError::Io { path, source })
    }

    /// Removes a file, if it is there.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn remove(&self, name: &str) -> Result<(), MemoryError> {
        let path = self.file(name);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(MemoryError::Io { path, source })
            }
            _ => Ok(()),
        }
    }

    /// The kernel's boot.
    pub(crate) fn boot(&self) -> &str {
        &self.boot
    }

    /// Where a file is.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.{}", self.boot))
    }

    fn forget_earlier(&self, name: &str, present: &Path) {
        let Ok(files) = fs::read_dir(&self.path) else { return };
        for path in files.flatten().map(|file| file.path()) {
            let is_its = path.file_stem().is_some_and(|stem| stem == name) && path != present;
            if is_its && fs::remove_file(&path).is_err() {
                tracing::debug!("cannot remove {}", path.display());
            }
        }
    }
}
