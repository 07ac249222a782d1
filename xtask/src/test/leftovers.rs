//! What end-to-end tests may leave behind: network namespaces, pin directories, processes.
//!
//! Each carries the process id of the test program that made it in its name, so that those of a
//! test run that goes on next to ours are told apart.

use std::{collections::BTreeSet, fs, io, path::Path};

use anyhow::{Context as _, Result};

use crate::run::Cmd;

const NAMESPACES: &str = "/run/netns";
const NAMESPACE_PREFIX: &str = "lim-";
const PINS: &str = "/sys/fs/bpf";
const PIN_PREFIX: &str = "limiter-test-";
const INSTANCE_PIN_PREFIX: &str = "limiter@test-";

/// Descriptions of things whose owner is gone.
#[derive(Debug, Default)]
pub(super) struct Leftovers(BTreeSet<String>);

impl Leftovers {
    pub(super) fn find() -> Result<Self> {
        let mut found = BTreeSet::new();
        for (dir, prefix, what) in [
            (NAMESPACES, NAMESPACE_PREFIX, "network namespace"),
            (PINS, PIN_PREFIX, "pins"),
            (PINS, INSTANCE_PIN_PREFIX, "pins"),
        ] {
            let orphans = list(dir)?.into_iter().filter(|name| is_orphan(name, prefix, is_alive));
            found.extend(orphans.map(|name| format!("{what} {dir}/{name}")));
        }
        found.extend(orphaned_processes()?);
        Ok(Self(found))
    }

    /// What is here and was not `before`.
    pub(super) fn since<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = &'a str> {
        self.0.difference(&before.0).map(String::as_str)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

/// The names in `dir`; none if there is no such directory.
fn list(dir: &str) -> Result<Vec<String>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<io::Result<_>>()
            .with_context(|| format!("cannot read {dir}")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        // bpffs is closed to everyone but root.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let names = Cmd::new(&tools::LS).args(["-1", dir]).into_root()?.capture()?;
            Ok(names.lines().map(str::to_owned).collect())
        }
        Err(error) => Err(error).with_context(|| format!("cannot read {dir}")),
    }
}

/// Processes that work on the pins of a test program that is gone.
fn orphaned_processes() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for name in list("/proc")? {
        if !name.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        // It may end at any time; then it is not left behind.
        let Ok(arguments) = fs::read(Path::new("/proc").join(&name).join("cmdline")) else {
            continue;
        };
        let arguments = String::from_utf8_lossy(&arguments).replace('\0', " ");
        let pin = arguments.find(PIN_PREFIX).map(|at| &arguments[at..]);
        if pin.is_some_and(|pin| is_orphan(pin, PIN_PREFIX, is_alive)) {
            found.push(format!("process {name}: {}", arguments.trim_end()));
        }
    }
    Ok(found)
}

fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// Whether `name` is `prefix`, the id of a process that is not alive, and whatever follows.
fn is_orphan(name: &str, prefix: &str, is_alive: impl Fn(u32) -> bool) -> bool {
    let Some(rest) = name.strip_prefix(prefix) else { return false };
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    // A name without an owner belongs to nobody alive.
    digits.parse().map_or(true, |pid| !is_alive(pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_things_of_dead_owners_are_orphans() {
        let orphan = |name| is_orphan(name, "lim-", |pid| pid == 7);
        assert!(!orphan("lim-7-0"));
        assert!(orphan("lim-8-0"));
        assert!(orphan("lim-70-1"));
        assert!(orphan("lim-"));
        assert!(orphan("lim-x7"));
        assert!(!orphan("other-8-0"));
        assert!(!orphan("slim-8-0"));
    }

    #[test]
    fn an_absent_directory_is_empty() {
        assert!(list("/proc/no-such-directory").unwrap().is_empty());
        assert!(list("/proc/self").unwrap().contains(&"cmdline".to_owned()));
    }

    #[test]
    fn what_was_there_before_is_not_new() {
        let set = |items: &[&str]| Leftovers(items.iter().map(|&item| item.to_owned()).collect());
        let (before, after) = (set(&["a", "c"]), set(&["a", "b"]));
        assert_eq!(after.since(&before).collect::<Vec<_>>(), ["b"]);
    }
}
