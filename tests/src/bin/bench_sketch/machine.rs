//! Where figures were taken: they mean little elsewhere.

use std::{fs, io, io::Write, thread};

use serde::Serialize;

/// The machine at hand.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    /// The processor, as the kernel names it.
    processor: String,
    /// CPUs that this process may use.
    cpus: usize,
    /// The kernel's release.
    kernel: String,
    /// Whether this program was built with optimisation.
    optimised: bool,
}

impl Machine {
    /// This one.
    pub(crate) fn at_hand() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
        let processor = model.and_then(|rest| rest.split_once(':')).map(|(_, name)| name.trim());
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            processor: processor.unwrap_or("unknown").to_owned(),
            cpus: thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.trim().to_owned(),
            optimised: !cfg!(debug_assertions),
        }
    }

    /// Tells it in a line, or two.
    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
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

/// The middle one of `values`, the upper one of two; 0 without any.
pub(crate) fn median(values: &[f64]) -> f64 {
    percentile(values, 0.5)
}

/// The value that a share `p` (0..=1) of `values` is below; 0 without any.
pub(crate) fn percentile(values: &[f64], p: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let index = (values.len() as f64 * p) as usize;
    sorted.get(index.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}
