//! Whether the kernel measures its programs: `kernel.bpf_stats_enabled`, which is the machine's.

use std::{
    fs::{self, File},
    path::Path,
};

use crate::require_root;

const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// The right to switch it, which one test has at a time. It is put back on drop.
#[derive(Debug)]
pub struct Measuring {
    before: String,
    _lock: File,
}

impl Measuring {
    /// Waits until no other test switches it.
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
        Self { before, _lock: lock }
    }

    /// Switches it, as `sysctl` does.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn switch(&self, on: bool) {
        fs::write(SWITCH, if on { "1" } else { "0" }).expect("the kernel's switch");
    }
}

impl Drop for Measuring {
    fn drop(&mut self) {
        if let Err(error) = fs::write(SWITCH, &self.before) {
            eprintln!("cannot set {SWITCH} to {} again: {error}", self.before.trim());
        }
    }
}
