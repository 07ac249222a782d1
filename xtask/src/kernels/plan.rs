//! Which kernel boots with how many CPUs, and what is tried in it.

/// Where a limiter has to work: the beginnings of releases, and whether it is a PREEMPT_RT build.
pub(super) const KERNELS: [Kernel; 5] = [
    Kernel { release: "6.1.", realtime: false },
    Kernel { release: "6.12.", realtime: false },
    Kernel { release: "6.18.", realtime: false },
    Kernel { release: "7.", realtime: false },
    Kernel { release: "6.12.", realtime: true },
];
/// Too old: it has to be refused.
pub(super) const REFUSED: Kernel = Kernel { release: "5.10.", realtime: false };
const CPUS: [u32; 4] = [1, 2, 8, 16];
/// Sources that a table has room for.
const TABLES: [u32; 2] = [1 << 10, 1 << 18];
/// What is tried in each machine, by the names that the program in the guest knows.
pub(super) const SCENARIOS: [&str; 6] =
    ["source", "aggregate", "bytes", "restart", "fixed-window", "sliding-window"];

/// Interfaces that are tried once with each kernel, and one that cloud kernels lack.
const LINKS: [&str; 3] = ["wireguard", "ipip", "bond"];
const LINE: &str = "ppp";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kernel {
    pub(super) release: &'static str,
    pub(super) realtime: bool,
}

impl Kernel {
    /// Whether it is of this release.
    pub(super) fn is(self, release: &str) -> bool {
        release.starts_with(self.release) && release.contains("-rt-") == self.realtime
    }
}

/// A machine to boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Boot {
    pub(super) kernel: Kernel,
    pub(super) cpus: u32,
    pub(super) jit: bool,
    pub(super) table: u32,
}

impl Boot {
    /// The interfaces that are tried in it.
    pub(super) fn links(&self) -> Vec<&'static str> {
        // One machine each, as they take no notice of the number of CPUs.
        if self.cpus != 2 {
            return Vec::new();
        }
        LINKS.into_iter().chain(self.kernel.realtime.then_some(LINE)).collect()
    }
}

/// Every kernel with every number of CPUs, each pair once; of the rest every pair at least once.
pub(super) fn full() -> Vec<Boot> {
    let boot = |(k, c)| Boot {
        kernel: KERNELS[k],
        cpus: CPUS[c],
        // Once a kernel, and with each number of CPUs.
        jit: c != k % CPUS.len(),
        // Not k + c, by which all machines without the JIT would have the same table.
        table: TABLES[(c + k / 2) % 2],
    };
    let kernels = 0..KERNELS.len();
    kernels.flat_map(|k| (0..CPUS.len()).map(move |c| (k, c))).map(boot).collect()
}

/// The oldest and the newest kernel with 8 CPUs.
pub(super) fn reduced() -> Vec<Boot> {
    let boot = |(kernel, table)| Boot { kernel, cpus: 8, jit: true, table };
    [KERNELS[0], KERNELS[3]].into_iter().zip(TABLES).map(boot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_there() {
        let boots = full();
        let any = |is: &dyn Fn(&Boot) -> bool| boots.iter().any(is);
        for kernel in KERNELS {
            assert!(CPUS.iter().all(|&cpus| any(&|it| it.kernel == kernel && it.cpus == cpus)));
            assert!(
                TABLES.iter().all(|&table| any(&|it| it.kernel == kernel && it.table == table))
            );
            let without = boots.iter().filter(|it| it.kernel == kernel && !it.jit);
            assert_eq!(without.count(), 1, "{kernel:?}");
        }
        for table in TABLES {
            assert!(CPUS.iter().all(|&cpus| any(&|it| it.table == table && it.cpus == cpus)));
            assert!(any(&|it| it.table == table && !it.jit));
        }
        assert!(CPUS.iter().all(|&cpus| any(&|it| it.cpus == cpus && !it.jit)));
        assert_eq!(reduced().len(), 2);
    }

    #[test]
    fn kernels_are_known_by_their_release() {
        let found = |release: &str| KERNELS.iter().position(|kernel| kernel.is(release));
        assert_eq!(found("6.1.0-50-cloud-amd64"), Some(0));
        assert_eq!(found("6.12.117+deb13-cloud-amd64"), Some(1));
        assert_eq!(found("6.12.117+deb13-rt-amd64"), Some(4));
        assert_eq!(found("7.3.4+deb13-cloud-amd64"), Some(3));
        assert_eq!(found("5.10.0-32-cloud-amd64"), None);
        assert!(REFUSED.is("5.10.0-32-cloud-amd64"));
    }
}
