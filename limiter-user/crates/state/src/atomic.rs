//! Small files of the state directory, each of which is there whole or not at all.
//!
//! They wait for no transaction of the database: what the kernel has to write for them is all that they wait for.

use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

/// Writes a file durably: all that `write` writes, or nothing. Two writers must not write the same file at once.
///
/// # Errors
/// If it cannot be written; then what was there before still is.
pub fn write_file(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    let mut staging = path.as_os_str().to_owned();
    staging.push(".new");
    let staging = PathBuf::from(staging);
    let written = || -> io::Result<()> {
        let mut file = BufWriter::new(File::create(&staging)?);
        write(&mut file)?;
        file.flush()?;
        // Before the rename: a crash could else leave the new name with an empty file.
        file.get_ref().sync_all()?;
        // A rename within a folder replaces the name in one step: a reader finds the former file or
        // this one.
        fs::rename(&staging, path)?;
        sync_folder(path)
    };
    written().inspect_err(|_| {
        // Whatever is left of it only takes room.
        let _ = fs::remove_file(&staging);
    })
}

/// Removes a file durably, if it is there.
///
/// # Errors
/// If it cannot be removed.
pub fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        Err(_) => Ok(()),
        Ok(()) => sync_folder(path),
    }
}

/// Makes renames and removals beside `path` durable.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_stays_what_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.json");
        let names = || -> Vec<_> {
            let entries = fs::read_dir(folder.path()).unwrap();
            entries.map(|entry| entry.unwrap().file_name()).collect()
        };
        remove_file(&path).unwrap();
        write_file(&path, |file| file.write_all(b"one")).unwrap();
        let failed = write_file(&path, |file| {
            file.write_all(b"two")?;
            Err(io::Error::other("no room"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "no room");
        assert_eq!(
            (fs::read_to_string(&path).unwrap(), names()),
            ("one".into(), vec!["ledger.json".into()])
        );
        write_file(&path, |file| file.write_all(b"three")).unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap(), names().len()), ("three".into(), 1));
        remove_file(&path).unwrap();
        assert!(names().is_empty());
    }
}
