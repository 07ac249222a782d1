//! The BPF file system, and what a killed run of the tests left there or in namespaces: everything
//! named after a process that no longer exists.

use std::{
    ffi::CString,
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
    sync::Once,
};

/// Namespaces of the tests have names that start with this, followed by the process id.
pub const NAMESPACE_PREFIX: &str = "lim-";
/// Pins of the tests' daemons are in folders that start with this, followed by the process id.
pub const PIN_PREFIX: &str = "limiter-test-";
/// Instances of the tests' daemons have names that start with this, and pins that start with the other.
pub const INSTANCE_PREFIX: &str = "test-";
const INSTANCE_PIN_PREFIX: &str = "limiter@test-";
/// Where the BPF file system is mounted.
pub const BPF_FOLDER: &str = "/sys/fs/bpf";

/// Removes what dead runs left, once per process.
pub fn remove_stale() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for name in remove(|owner| !is_alive(owner)) {
            eprintln!("removed {name} of a run that has ended");
        }
    });
}

/// Removes what is named after a process, which does nothing any more.
pub fn remove_of(pid: u32) {
    remove(|owner| owner == pid);
}

/// Removes what is named after processes that are `gone`. Returns what that was.
fn remove(gone: impl Fn(u32) -> bool) -> Vec<String> {
    let namespaces = owned(Path::new("/run/netns"), NAMESPACE_PREFIX, &gone);
    namespaces.iter().for_each(|name| delete_namespace(name));
    let pins = [PIN_PREFIX, INSTANCE_PIN_PREFIX].map(|p| owned(Path::new(BPF_FOLDER), p, &gone));
    let pins = pins.concat();
    for name in &pins {
        // Another process may be removing the same ones.
        let path = Path::new(BPF_FOLDER).join(name);
        let _removed = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
    }
    [namespaces, pins].concat()
}

/// Mounts the BPF file system before any daemon runs: two that start at once would each mount one
/// over the other's pins.
///
/// # Panics
/// If it cannot be mounted.
pub fn mount_bpf() {
    // Who opens it after the mount locks another folder, and finds the mount.
    let lock = File::open(BPF_FOLDER).expect("a kernel with BPF, and sysfs mounted");
    lock.lock().expect("a lock can be taken");
    let mounts = fs::read_to_string("/proc/self/mounts").expect("a list of mounts");
    let mounted = mounts.lines().any(|line| line.split(' ').nth(1) == Some(BPF_FOLDER));
    if mounted {
        return;
    }
    let folder = CString::new(BPF_FOLDER).expect("a path without zeros");
    // SAFETY: the strings are live and end with a zero; this file system needs no data.
    let done = unsafe {
        libc::mount(c"bpf".as_ptr(), folder.as_ptr(), c"bpf".as_ptr(), 0, std::ptr::null())
    };
    assert!(done == 0, "cannot mount {BPF_FOLDER}: {}", io::Error::last_os_error());
}

/// Names in `folder` that start with `prefix` and the id of a process that is `gone`.
fn owned(folder: &Path, prefix: &str, gone: impl Fn(u32) -> bool) -> Vec<String> {
    // A folder that is missing holds nothing.
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| owner(name, prefix).is_some_and(&gone))
        .collect()
}

/// The process id in `name`.
fn owner(name: &str, prefix: &str) -> Option<u32> {
    name.strip_prefix(prefix)?.split('-').next()?.parse().ok()
}

fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// Deletes a namespace; its devices go with it.
pub fn delete_namespace(name: &str) {
    let reason = match tools::IP.command().args(["netns", "del", name]).output() {
        Ok(output) if output.status.success() => return,
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => format!("cannot start ip: {error}"),
    };
    // Runs while a test unwinds, and where the terminal has gone: do not panic a second time.
    let _unsaid = writeln!(io::stderr(), "cannot delete namespace {name}: {reason}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_after_a_process_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let own = format!("{NAMESPACE_PREFIX}{}-0-rx", std::process::id());
        // Above the largest process id that Linux gives out.
        let dead = format!("{NAMESPACE_PREFIX}4194305-0-rx");
        for name in [own.as_str(), dead.as_str(), "lim-", "other-4194305-0", "lim-x-1"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        assert_eq!(owned(folder.path(), NAMESPACE_PREFIX, |pid| !is_alive(pid)), [dead]);
        assert_eq!(owned(folder.path(), NAMESPACE_PREFIX, |pid| pid == std::process::id()), [own]);
    }
}
