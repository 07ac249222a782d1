//! What the kernel says of a process's memory.

use std::fs;

use serde::Serialize;

/// Memory of a process, bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Memory {
    /// In RAM at present, with the parts of the kernel's maps that it has looked at.
    pub(crate) resident: u64,
    /// Of that, its own.
    pub(crate) own: u64,
    /// The most that was in RAM.
    pub(crate) peak: u64,
}

impl Memory {
    /// That of process `pid`.
    ///
    /// # Panics
    /// If there is no such process.
    pub(crate) fn new(pid: u32) -> Self {
        let path = format!("/proc/{pid}/status");
        let status = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
            kib.unwrap_or_else(|| panic!("{path} does not tell {name}")) * 1024
        };
        // The daemon maps the kernel's table: pages that it has looked
        // at count as resident, and are nobody's waste.
        Self { resident: field("VmRSS:"), own: field("RssAnon:"), peak: field("VmHWM:") }
    }
}
