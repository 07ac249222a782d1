//! The BPF file system, and what a killed run of the tests left there or in namespaces: everything
//! named after a process that no longer exists.

use std::{
    fs::{self, File},
    path::Path,
    sync::Once,
};

use crate::{namespace::PREFIX, process};

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
        for name in stale(Path::new("/run/netns"), PREFIX) {
            eprintln!("removing namespace {name} of a run that has ended");
            delete_namespace(&name);
        }
        let pins = [PIN_PREFIX, INSTANCE_PIN_PREFIX].map(|p| stale(Path::new(BPF_FOLDER), p));
        for name in pins.concat() {
            eprintln!("removing pins {name} of a run that has ended");
            // Another process may be removing the same ones.
            let path = Path::new(BPF_FOLDER).join(name);
            let _removed = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
        }
    });
}

/// Mounts the BPF file system before any daemon runs: two that start at once would each mount one
/// over the other's pins.
///
/// # Panics
/// If it cannot be mounted.
pub fn mount_bpf() {
    let lock = File::open(std::env::temp_dir()).expect("the folder of temporary files");
    lock.lock().expect("a lock can be taken");
    let mounts = fs::read_to_string("/proc/self/mounts").expect("a list of mounts");
    let mounted = mounts.lines().any(|line| line.split(' ').nth(1) == Some(BPF_FOLDER));
    if !mounted {
        process::run(tools::MOUNT.command().args(["-t", "bpf", "bpf", BPF_FOLDER]));
    }
}

/// Names in `folder` that start with `prefix` and the id of a process that does not exist.
fn stale(folder: &Path, prefix: &str) -> Vec<String> {
    // A folder that is missing holds nothing.
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| owner(name, prefix).is_some_and(|pid| !is_alive(pid)))
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
    let deleted = tools::IP.command().args(["netns", "del", name]).output();
    match deleted {
        Ok(output) if output.status.success() => {}
        // Runs while a test unwinds: say it, but do not panic a second time.
        Ok(output) => eprintln!(
            "cannot delete namespace {name}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ),
        Err(error) => eprintln!("cannot delete namespace {name}: cannot start ip: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_dead_processes_are_stale() {
        let folder = tempfile::tempdir().unwrap();
        let own = format!("{PREFIX}{}-0-rx", std::process::id());
        // Above the largest process id that Linux gives out.
        let dead = format!("{PREFIX}4194305-0-rx");
        for name in [own.as_str(), dead.as_str(), "lim-", "other-4194305-0", "lim-x-1"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        assert_eq!(stale(folder.path(), PREFIX), [dead]);
    }
}
