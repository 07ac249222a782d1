//! The file with the key of a cluster: a key in a line, 64 hexadecimal digits each. The first one seals,
//! all of them open.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Failure, exit};

/// A key.
pub type Key = [u8; 32];

/// Keys in a file: while one is replaced there are two.
const MOST_KEYS: usize = 2;

/// Bytes of a file.
const LARGEST: u64 = 4096;

/// Reads the keys in a file, the one to seal with first.
///
/// # Errors
/// If it cannot be read, is open to everyone, or has no keys in it.
pub fn read(path: &Path) -> Result<Vec<Key>, Failure> {
    let name = path.display();
    let refuse = |message: String| Failure::new(exit::USAGE, message);
    let make = format!(
        "copy the file of another host of the cluster, or make a key with `limiter cluster key generate \
         {name}`"
    );
    let failed =
        |error: io::Error| refuse(format!("cannot read {name}: {error}")).hint(make.clone());
    let file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode();
    if mode & 0o007 != 0 {
        let hint = format!("run `chmod 600 {name}`, and better make another key");
        return Err(refuse(format!("everyone may read or change {name}")).hint(hint));
    }
    let mut text = String::new();
    file.take(LARGEST).read_to_string(&mut text).map_err(failed)?;
    let lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let keys: Option<Vec<_>> = lines.map(decode).collect();
    match keys {
        Some(keys) if (1..=MOST_KEYS).contains(&keys.len()) => Ok(keys),
        _ => {
            let message =
                format!("{name} has no key in it: that is a line of 64 hexadecimal digits");
            Err(refuse(message).hint(make))
        }
    }
}

fn decode(line: &str) -> Option<Key> {
    let mut key = [0; 32];
    if line.len() != 64 || !line.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (place, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(line.get(2 * place..2 * place + 2)?, 16).ok()?;
    }
    Some(key)
}

/// Writes a new key to `path`, all of it or nothing, for its owner alone. Another file there is only
/// replaced with `force`. Returns whether there was one.
///
/// # Errors
/// If there is a file already, or it cannot be written.
pub fn generate(path: &Path, force: bool) -> Result<bool, Failure> {
    let name = path.display();
    let mut key: Key = [0; 32];
    getrandom::fill(&mut key).map_err(|error| {
        Failure::new(exit::PRIVILEGE, format!("the kernel has no random numbers: {error}"))
    })?;
    let text: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    let existed = path.symlink_metadata().is_ok();
    put(path, &format!("{text}\n"), force).map_err(|error| {
        if error.kind() == ErrorKind::AlreadyExists {
            return Failure::new(exit::NEGATIVE, format!("{name} is there already")).hint(
                "hosts that have its key could not talk to this one; to replace it give --force",
            );
        }
        let code = match error.kind() {
            ErrorKind::PermissionDenied => exit::PRIVILEGE,
            _ => exit::USAGE,
        };
        Failure::new(code, format!("cannot write {name}: {error}"))
            .hint("name a file in a directory that may be written to")
    })?;
    Ok(existed)
}

/// Writes `text` beside `path` and moves it there.
fn put(path: &Path, text: &str, force: bool) -> io::Result<()> {
    if !force && path.symlink_metadata().is_ok() {
        return Err(ErrorKind::AlreadyExists.into());
    }
    let mut staging = path.as_os_str().to_owned();
    staging.push(format!(".{}.new", std::process::id()));
    let staging = PathBuf::from(staging);
    let written = || {
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&staging)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        // A link is not made where there is something, whoever was faster.
        if force { fs::rename(&staging, path) } else { fs::hard_link(&staging, path) }
    };
    let result = written();
    match fs::remove_file(&staging) {
        Err(error) if error.kind() != ErrorKind::NotFound => return result.and(Err(error)),
        _ => {}
    }
    result?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cluster.key");
        assert!(!generate(&path, false).unwrap());
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let keys = read(&path).unwrap();
        assert_eq!(keys.len(), 1);
        let refused = generate(&path, false).unwrap_err();
        assert_eq!(refused.code, exit::NEGATIVE);
        assert!(refused.hint.unwrap().contains("--force"));
        assert_eq!(read(&path).unwrap(), keys, "what was there is kept");
        assert!(generate(&path, true).unwrap());
        assert_ne!(read(&path).unwrap(), keys);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left over");
        let nowhere = generate(&directory.path().join("a/b"), false).unwrap_err();
        assert!(nowhere.code == exit::USAGE && nowhere.hint.is_some(), "{nowhere}");
    }

    #[test]
    fn a_file_is_checked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let hint = read(&path).unwrap_err().hint.unwrap();
        assert!(hint.contains("limiter cluster key generate"), "{hint}");
        let write = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            read(&path)
        };
        let (one, two) = ("0123456789abcdef".repeat(4), "fedcba9876543210".repeat(4));
        let ring = write(&format!("# new\n{one}\n\n{two}\n"), 0o640).unwrap();
        assert_eq!((ring.len(), ring[0][0], ring[1][0]), (2, 0x01, 0xfe));
        assert!(write(&one, 0o644).unwrap_err().message.contains("everyone may read"));
        let short = &one[1..];
        for wrong in ["", "# none", short, "x", &format!("{one}\n{two}\n{one}"), &"g".repeat(64)] {
            let failure = write(wrong, 0o600).unwrap_err();
            assert!(failure.message.contains("no key in it"), "{failure}");
        }
    }
}
