//! Where it was measured.

use std::fs;

use serde::Serialize;

/// The machine.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    /// Model of the processor.
    pub(crate) processor: String,
    /// Number of CPUs.
    pub(crate) cpus: usize,
    /// Memory in MiB.
    pub(crate) memory_mib: u64,
    /// Whether the processor says that it is virtual.
    pub(crate) virtual_machine: bool,
    /// Release of the kernel.
    pub(crate) kernel: String,
    /// Load average over the last minute, before the result is printed.
    pub(crate) load: f64,
}

impl Machine {
    /// Reads it from `/proc`; what is not told there is empty.
    pub(crate) fn read() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let (processor, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
        let flags = value(&processor, "flags");
        let kib = value(&memory, "MemTotal").split(' ').next().and_then(|it| it.parse().ok());
        let load = read("/proc/loadavg").split(' ').next().and_then(|it| it.parse().ok());
        Self {
            processor: value(&processor, "model name").to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: kib.unwrap_or(0_u64) / 1024,
            virtual_machine: flags.split(' ').any(|flag| flag == "hypervisor"),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load: load.unwrap_or(0.0),
        }
    }
}

/// The value of the first line `key : value`.
fn value<'text>(text: &'text str, key: &str) -> &'text str {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(k, v)| (k.trim(), v.trim())).find(|(k, _)| *k == key).map_or("", |(_, v)| v)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_of_a_key() {
        let text = "processor\t: 0\nmodel name\t: A: B\nmodel name\t: C\n";
        assert_eq!(value(text, "model name"), "A: B");
        assert_eq!(value(text, "flags"), "");
    }
}
