//! Whether the kernel measures its programs, which is a matter of the whole machine.

use std::{
    fs::{self, File},
    os::fd::OwnedFd,
    path::Path,
};

use aya::sys::{Stats, enable_stats};

use crate::require_root;

/// Where it is switched for good.
const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// The right to switch it, which one test has at a time. The kernel measures as long as somebody holds a file
/// that says so, or the machine's setting is on: so a test that is killed leaves nothing behind.
#[derive(Debug)]
pub struct Measuring {
    on: Option<OwnedFd>,
    /// The machine's setting, if it was not off.
    before: Option<String>,
    _lock: File,
}

impl Measuring {
    /// Waits until no other test switches it. It is off then.
    ///
    /// # Panics
    /// Without root's privileges, or if the kernel has no such switch.
    #[must_use]
    pub fn hold() -> Self {
        require_root();
        let path = std::env::temp_dir().join("limiter-test-bpf-stats");
        let lock = File::create(Path::new(&path)).expect("a lock in the folder of temporary files");
        lock.lock().expect("a lock can be taken");
        let before = fs::read_to_string(SWITCH).expect("the kernel's switch");
        let before = (before.trim() != "0").then_some(before);
        if before.is_some() {
            fs::write(SWITCH, "0").expect("the kernel's switch");
        }
        Self { on: None, before, _lock: lock }
    }

    /// Switches it.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn switch(&mut self, on: bool) {
        self.on = on.then(|| enable_stats(Stats::RunTime).expect("the kernel measures"));
    }
}

impl Drop for Measuring {
    fn drop(&mut self) {
        let Some(before) = &self.before else { return };
        if let Err(error) = fs::write(SWITCH, before) {
            eprintln!("cannot set {SWITCH} to {} again: {error}", before.trim());
        }
    }
}
