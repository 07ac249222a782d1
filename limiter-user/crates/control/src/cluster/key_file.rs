//! The file with the key of a cluster: a key in a line, 64 hexadecimal digits each. The first one seals,
//! all of them open.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use api::error::{Failure, exit};
use cluster::wire::{KEY, KeyBytes};

/// Bytes of a file, at most.
// Two keys and some comments fit. The bound keeps a wrong path, such as a device, from filling the
// memory.
const MAX_LEN: u64 = 4096;

/// Reads the keys in a file: the one to seal with, and one that is accepted too while keys are changed.
/// Lines that begin with `#` say nothing.
///
/// # Errors
/// If it cannot be read, is open to others, or has something else in it.
pub fn read(path: &Path) -> Result<(KeyBytes, Option<KeyBytes>), Failure> {
    read_with_text(path).map(|(keys, _)| keys)
}

/// The same, and all that the file says.
///
/// # Errors
/// As [`read`].
pub(super) fn read_with_text(
    path: &Path,
) -> Result<((KeyBytes, Option<KeyBytes>), String), Failure> {
    let name = path.display();
    let make = format!(
        "copy the file of another host of the cluster, or make a key with `limiter cluster key generate \
         {name}`"
    );
    let refuse = |message: String| Failure::new(exit::USAGE, message).hint(make.clone());
    let failed = |error: io::Error| refuse(format!("cannot read the key file {name}: {error}"));
    let file = File::open(path).map_err(failed)?;
    // Asked of the open file and not of its path, which could be exchanged in between.
    if file.metadata().map_err(failed)?.permissions().mode() & 0o077 != 0 {
        let message = format!("others than its owner may read or change the key file {name}");
        let hint = format!("run `chmod 600 {name}`, and better make another key");
        return Err(Failure::new(exit::USAGE, message).hint(hint));
    }
    let mut text = String::new();
    // One more than allowed, so that a longer file is noticed and not cut.
    file.take(MAX_LEN + 1).read_to_string(&mut text).map_err(failed)?;
    let wrong = |what: String| refuse(format!("the key file {name} {what}"));
    if text.len() as u64 > MAX_LEN {
        return Err(wrong(format!("has more than {MAX_LEN} bytes")));
    }
    let keys = parse(&text).map_err(wrong)?;
    Ok((keys, text))
}

/// Reads the text of a key file; says what is wrong with it otherwise.
fn parse(text: &str) -> Result<(KeyBytes, Option<KeyBytes>), String> {
    let mut keys = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if !line.is_empty() && !line.starts_with('#') {
            keys.push(decode(line).ok_or_else(|| {
                format!("has no key in line {}: that is 64 hexadecimal digits", number + 1)
            })?);
        }
    }
    match *keys {
        [] => Err("has no key in it".to_owned()),
        [one] => Ok((one, None)),
        // Surely a mistake of copying: the operator believes that another key is accepted.
        [one, other] if one == other => Err("has the same key twice".to_owned()),
        [one, other] => Ok((one, Some(other))),
        _ => Err(format!("has {} keys: two at most are in use", keys.len())),
    }
}

fn decode(line: &str) -> Option<KeyBytes> {
    let mut key = [0; KEY];
    // `from_str_radix` takes a sign, and bytes of other characters would split in the middle.
    if line.len() != 2 * KEY || !line.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, digits) in key.iter_mut().zip(line.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(key)
}

/// A key as its line has it.
pub(super) fn encode(key: &KeyBytes) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn random_key() -> Result<KeyBytes, Failure> {
    let mut key = [0; KEY];
    getrandom::fill(&mut key).map_err(super::not_random)?;
    Ok(key)
}

/// Writes a new key to `path`, all of it or nothing, for its owner alone. Another file there is only
/// replaced with `force`. Returns whether there was one.
///
/// # Errors
/// If there is a file already, or it cannot be written.
pub fn generate(path: &Path, force: bool) -> Result<bool, Failure> {
    let name = path.display();
    let text = encode(&random_key()?);
    // Of the link itself: one that points nowhere is replaced as well, and is worth a word.
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
pub(super) fn put(path: &Path, text: &str, force: bool) -> io::Result<()> {
    // An early answer, before a staging file is written. The link below decides.
    if !force && path.symlink_metadata().is_ok() {
        return Err(ErrorKind::AlreadyExists.into());
    }
    let mut staging = path.as_os_str().to_owned();
    // In the same folder, since a rename works only within a file system. The number keeps two
    // processes apart.
    staging.push(format!(".{}.new", std::process::id()));
    let staging = PathBuf::from(staging);
    let written = || {
        let mut file =
            // The rights are set as it is made. Set later, the key would be open to others for a
            // moment.
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&staging)?;
        file.write_all(text.as_bytes())?;
        // Before the rename, or a crash could leave the new name with no content.
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
    // The name is durable only with its folder.
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
        assert_eq!(keys.1, None);
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
        let (seals, accepted) = write(&format!("# new\n{one}\n\n {two}\r\n"), 0o400).unwrap();
        assert_eq!((seals[0], accepted.unwrap()[0]), (0x01, 0xfe));
        for mode in [0o644, 0o640, 0o604, 0o620] {
            fs::remove_file(&path).unwrap();
            let failure = write(&one, mode).unwrap_err();
            assert!(failure.hint.unwrap().contains("chmod 600"));
            assert_eq!(failure.code, exit::USAGE);
        }
        fs::remove_file(&path).unwrap();
        let wrong = [
            ("", "no key in it"),
            ("# none", "no key in it"),
            (&one[1..], "line 1"),
            (&format!("{one}\n{}", "é".repeat(32)), "line 2"),
            (&format!("{one}\n{}", one.to_uppercase()), "same key twice"),
            (&format!("{one}\n{two}\n{one}"), "has 3 keys"),
            (&"#".repeat(5000), "4096"),
        ];
        for (text, what) in wrong {
            let failure = write(text, 0o600).unwrap_err();
            assert!(failure.message.contains(what), "{failure}");
        }
    }
}
