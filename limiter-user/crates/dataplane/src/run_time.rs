//! What a packet costs, as the kernel measures it where `kernel.bpf_stats_enabled` is set.

use aya::Ebpf;

use limiter_common::abi::LinkKind;

/// How long the kernel program has run and how often, since it was loaded, while that was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTime {
    /// Time, ns.
    pub ns: u64,
    /// Runs: one for each packet.
    pub runs: u64,
}

impl RunTime {
    pub(super) fn from_ebpf(ebpf: &Ebpf) -> Option<Self> {
        let info = ebpf.program(LinkKind::Ethernet.program())?.info().ok()?;
        let ns = u64::try_from(info.run_time().as_nanos()).ok()?;
        Some(Self { ns, runs: info.run_count() })
    }

    /// What a packet has cost on average since `earlier`, ns; `None` if nothing was measured.
    pub fn per_packet_since(self, earlier: Self) -> Option<f64> {
        // The kernel counts per program, so a new one begins at zero.
        let runs = self.runs.checked_sub(earlier.runs).filter(|runs| *runs > 0)?;
        Some(self.ns.saturating_sub(earlier.ns) as f64 / runs as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_needs_runs() {
        let earlier = RunTime { ns: 1000, runs: 10 };
        assert_eq!(RunTime { ns: 1500, runs: 20 }.per_packet_since(earlier), Some(50.0));
        assert_eq!(earlier.per_packet_since(earlier), None);
        // Another program, loaded anew.
        assert_eq!(RunTime { ns: 5, runs: 1 }.per_packet_since(earlier), None);
    }
}
