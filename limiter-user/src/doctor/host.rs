//! The machine: kernel, privileges, BPF file system, clock.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};

use super::Check;
use api::error::Failure;
use dataplane::{self, kernel};

/// Clock sources that take a device's or a hypervisor's time, about a microsecond for each reading.
// Each packet of a source with a bucket may ask for the precise time. That
// costs tens of ns by tsc, and the whole budget of a packet by one of these.
const SLOW_CLOCKS: [&str; 5] = ["hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies"];

/// The architecture that is tested.
const TESTED: &str = "x86_64";

/// What was found.
#[derive(Clone, Debug)]
pub(super) struct Host {
    /// Whether this binary has its kernel program.
    has_program: bool,
    /// The kernel's version.
    release: String,
    /// The processor's architecture, as Rust names it.
    arch: &'static str,
    /// Whether it is a kernel with `PREEMPT_RT`.
    is_realtime: bool,
    /// A feature it lacks, and since when Linux has it.
    lacks: Option<(&'static str, &'static str)>,
    /// Capabilities that are needed and missing.
    missing: Vec<String>,
    /// How loading went: instructions that the verifier processed, or why not. `None` if it could
    /// not be tried.
    trial: Option<Result<Option<u32>, Failure>>,
    pin_dir: PathBuf,
    /// Whether that is on a BPF file system.
    has_bpffs: bool,
    has_btf: bool,
    /// `kernel.unprivileged_bpf_disabled`
    unprivileged_disabled: Option<u32>,
    /// `net.core.bpf_jit_enable`; readable for root, outside other network namespaces.
    jit: Option<u32>,
    /// `kernel.bpf_stats_enabled`
    stats: Option<u32>,
    clock: Option<String>,
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn number(path: &str) -> Option<u32> {
    read(path)?.parse().ok()
}

impl Host {
    pub(super) fn find(pin_dir: &Path) -> Self {
        let (has_program, lacks) = (dataplane::has_program(), kernel::running_lacks());
        let missing = kernel::missing_capabilities();
        // With something missing the kernel would refuse for that, and say less clearly what it is.
        let can_try = has_program && lacks.is_none() && missing.is_empty();
        Self {
            has_program,
            release: kernel::release(),
            arch: ARCH,
            // Kernels without it have no such file.
            is_realtime: number("/sys/kernel/realtime") == Some(1),
            lacks,
            missing,
            trial: can_try.then(|| dataplane::try_load().map_err(Into::into)),
            pin_dir: pin_dir.into(),
            // Of the parent: the directory itself is made by the daemon's first start.
            has_bpffs: kernel::is_bpf_fs(pin_dir.parent().unwrap_or(pin_dir)),
            has_btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
            unprivileged_disabled: number("/proc/sys/kernel/unprivileged_bpf_disabled"),
            jit: number("/proc/sys/net/core/bpf_jit_enable"),
            stats: number("/proc/sys/kernel/bpf_stats_enabled"),
            clock: read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        }
    }

    /// Judges what was found.
    pub(super) fn checks(&self) -> Vec<Check> {
        let btf = if self.has_btf { "present" } else { "absent; limiter does without" };
        // Causes before what they prevent: where the verifier could not be asked, its remedy points "above".
        let mut checks = vec![self.kernel(), self.capabilities(), self.verifier(), self.bpffs()];
        // Never a fault: the object has no relocations by BTF. Other tools do, so operators ask for it.
        checks.push(Check::ok("btf", btf));
        checks.extend(self.switches());
        checks.extend(self.clock());
        checks
    }

    fn kernel(&self) -> Check {
        let (name, release) = ("kernel", &self.release);
        if let Some((feature, since)) = self.lacks {
            return Check::fail(
                name,
                format!("Linux {release} lacks {feature}"),
                format!("boot Linux {since} or later"),
            );
        }
        if self.arch != TESTED {
            // Its loads may pass one another, which the charges do not expect.
            return Check::warn(
                name,
                format!("Linux {release} on {}, which nobody has tested", self.arch),
                "use x86-64: elsewhere a limit may let too much pass where CPUs meet",
            );
        }
        if self.is_realtime {
            // What a packet leaves in maps of its CPU for a moment would be another one's.
            return Check::warn(
                name,
                format!("Linux {release} with PREEMPT_RT: one packet may interrupt another"),
                "boot a kernel without PREEMPT_RT: verdicts and counters may be wrong on this one",
            );
        }
        Check::ok(name, format!("Linux {release}"))
    }

    fn capabilities(&self) -> Check {
        if self.missing.is_empty() {
            return Check::ok("capabilities", "CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON");
        }
        Check::fail(
            "capabilities",
            format!("missing: {}", self.missing.join(", ")),
            "run as root, or give the process CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON",
        )
    }

    fn verifier(&self) -> Check {
        let name = "verifier";
        match &self.trial {
            // First, as everything else about the trial follows from it.
            _ if !self.has_program => Check::fail(
                name,
                "this binary was built without its kernel program",
                "build it with `cargo xtask build`",
            ),
            // No failure of its own: the one above would be counted twice.
            None => Check::warn(
                name,
                "not asked whether it takes the kernel program",
                "mend what is wrong above, and run this again",
            ),
            Some(Ok(None)) => Check::ok(name, "takes the kernel program"),
            Some(Ok(Some(count))) => {
                Check::ok(name, format!("takes the kernel program ({count} instructions verified)"))
            }
            Some(Err(Failure { message, hint, .. })) => {
                let remedy = hint.as_deref().unwrap_or("report this, with the kernel's version");
                Check::fail(name, message, remedy)
            }
        }
    }

    fn bpffs(&self) -> Check {
        let (name, pins) = ("bpffs", self.pin_dir.display());
        let mount = "mount -t bpf bpf /sys/fs/bpf";
        if self.has_bpffs {
            Check::ok(name, format!("{pins} is on a BPF file system"))
        // Only a warning, as the daemon mounts this one by itself. It
        // mounts none elsewhere: that would be gone at the next boot.
        } else if self.pin_dir.starts_with("/sys/fs/bpf") {
            Check::warn(
                name,
                "no BPF file system is mounted at /sys/fs/bpf",
                format!("`limiter run` mounts it if it may; or: {mount}"),
            )
        } else {
            Check::fail(
                name,
                format!("{pins} is not on a BPF file system"),
                format!("give a --pin-dir below /sys/fs/bpf, and mount that: {mount}"),
            )
        }
    }

    /// Settings of the kernel that are on or off. What cannot be read is no fault: some show only to
    /// root, or only in the first network namespace.
    fn switches(&self) -> impl Iterator<Item = Check> {
        let switches = [
            (
                ("unprivileged-bpf", self.unprivileged_disabled.map(|value| value != 0), "off"),
                "every user may load BPF programs, which has served attacks on CPUs",
                // 2 and not 1: the kernel takes a 1 back only at the next boot.
                "sysctl kernel.unprivileged_bpf_disabled=2",
            ),
            (
                ("bpf-jit", self.jit.map(|value| value != 0), "on"),
                "off: programs are interpreted, several times slower",
                "sysctl net.core.bpf_jit_enable=1",
            ),
            (
                ("bpf-stats", self.stats.map(|value| value == 0), "off"),
                "on: the kernel reads its clock twice for each packet, which takes longer than a verdict",
                // Measured: 83 to 101 ns a packet. A profiler that was killed leaves it on for the
                // whole machine.
                "sysctl kernel.bpf_stats_enabled=0",
            ),
        ];
        switches.into_iter().filter_map(|((name, is_well, good), bad, remedy)| {
            Some(if is_well? { Check::ok(name, good) } else { Check::warn(name, bad, remedy) })
        })
    }

    fn clock(&self) -> Option<Check> {
        let (name, clock) = ("clock", self.clock.as_deref()?);
        Some(if SLOW_CLOCKS.contains(&clock) {
            Check::warn(
                name,
                format!("clock source {clock}: reading it takes about a microsecond"),
                "/sys/devices/system/clocksource/clocksource0/available_clocksource lists others; \
                 `dmesg` tells why tsc is not among them",
            )
        } else {
            Check::ok(name, format!("clock source {clock}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Grade;

    fn good() -> Host {
        Host {
            has_program: true,
            release: "6.1.0".into(),
            arch: TESTED,
            is_realtime: false,
            lacks: None,
            missing: Vec::new(),
            trial: Some(Ok(Some(54_000))),
            pin_dir: "/sys/fs/bpf/limiter".into(),
            has_bpffs: true,
            has_btf: true,
            unprivileged_disabled: Some(2),
            jit: Some(1),
            stats: Some(0),
            clock: Some("tsc".into()),
        }
    }

    /// The checks that are not ok, each with a remedy.
    fn bad(host: &Host) -> Vec<(&'static str, Grade)> {
        let checks = host.checks().into_iter();
        let bad = checks.filter(|check| {
            assert_eq!(check.remedy.is_some(), check.state != Grade::Ok, "{check:?}");
            check.state != Grade::Ok
        });
        bad.map(|check| (check.name, check.state)).collect()
    }

    #[test]
    fn a_good_host_has_nothing_to_mend() {
        assert_eq!(bad(&good()), []);
        assert_eq!(good().checks().len(), 9);
        // What cannot be told is no fault.
        let quiet = Host {
            jit: None,
            stats: None,
            unprivileged_disabled: None,
            clock: None,
            has_btf: false,
            ..good()
        };
        assert_eq!(bad(&quiet), []);
        assert_eq!(quiet.checks().len(), 5);
    }

    #[test]
    fn each_fault_is_found() {
        use Grade::{Fail, Warn};
        let refused = Failure::new(4, "cannot load the kernel program").hint("see dmesg");
        let other = PathBuf::from("/run/pins");
        for (host, expected) in [
            (Host { arch: "aarch64", ..good() }, ("kernel", Warn)),
            (Host { is_realtime: true, ..good() }, ("kernel", Warn)),
            (Host { trial: Some(Err(refused)), ..good() }, ("verifier", Fail)),
            (Host { has_program: false, trial: None, ..good() }, ("verifier", Fail)),
            (Host { has_bpffs: false, ..good() }, ("bpffs", Warn)),
            (Host { has_bpffs: false, pin_dir: other, ..good() }, ("bpffs", Fail)),
            (Host { unprivileged_disabled: Some(0), ..good() }, ("unprivileged-bpf", Warn)),
            (Host { jit: Some(0), ..good() }, ("bpf-jit", Warn)),
            (Host { stats: Some(1), ..good() }, ("bpf-stats", Warn)),
            (Host { clock: Some("hpet".into()), ..good() }, ("clock", Warn)),
        ] {
            assert_eq!(bad(&host), [expected], "{host:?}");
        }
        let lacks = Some(("compare-and-swap in BPF programs", "5.12"));
        let old = Host { lacks, trial: None, ..good() };
        assert_eq!(bad(&old), [("kernel", Fail), ("verifier", Warn)]);
        let poor = Host { missing: vec!["CAP_BPF".into()], trial: None, ..good() };
        assert_eq!(bad(&poor), [("capabilities", Fail), ("verifier", Warn)]);
        assert!(poor.checks()[1].found.contains("CAP_BPF"));
    }
}
