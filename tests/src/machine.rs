//! Where figures were taken, which mean little elsewhere, and what is made of several.

use std::{
    fs,
    io::{self, Write},
};

use serde::Serialize;

/// The machine.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Model of the processor.
    pub processor: String,
    /// Number of CPUs.
    pub cpus: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Whether the processor says that it is virtual.
    pub virtual_machine: bool,
    /// Release of the kernel.
    pub kernel: String,
    /// Load average over the last minute.
    pub load: f64,
    /// Whether this program was built with optimisation.
    pub optimised: bool,
}

impl Machine {
    /// Reads it from `/proc`; what is not told there is empty.
    #[must_use]
    pub fn read() -> Self {
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
            optimised: !cfg!(debug_assertions),
        }
    }

    /// Tells it in a line, or two.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}, {} CPUs, Linux {}", self.processor, self.cpus, self.kernel)?;
        if !self.optimised {
            writeln!(
                out,
                "built without optimisation: times mean nothing, use the release profile"
            )?;
        }
        Ok(())
    }
}

/// The value of the first line `key : value`.
fn value<'text>(text: &'text str, key: &str) -> &'text str {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(k, v)| (k.trim(), v.trim())).find(|(k, _)| *k == key).map_or("", |(_, v)| v)
}

/// The middle one of `values`, the upper one of two; 0 without any.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    percentile(values, 0.5)
}

/// The value that a share `p` (0..=1) of `values` is below; 0 without any.
#[must_use]
pub fn percentile(values: &[f64], p: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let index = (values.len() as f64 * p) as usize;
    sorted.get(index.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
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
