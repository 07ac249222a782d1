//! What the kernel must offer and allow.

use std::io;
use std::path::Path;

use aya::util::KernelVersion;
use caps::{CapSet, Capability};
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{FsType, statfs};
use nix::time::{ClockId, clock_gettime};

use super::Error;

/// What the program uses, newest first, and since when Linux has it.
const FEATURES: [(&str, KernelVersion, &str); 3] = [
    ("compare-and-swap in BPF programs", KernelVersion::new(5, 12, 0), "5.12"),
    ("the coarse clock for BPF programs", KernelVersion::new(5, 11, 0), "5.11"),
    ("BPF links for XDP", KernelVersion::new(5, 9, 0), "5.9"),
];

/// `BPF_FS_MAGIC` of linux/magic.h.
const BPF_FS_MAGIC: FsType = FsType(0xcafe_4a11);

/// Where BPF file systems are mounted by convention.
pub(super) const BPF_FS: &str = "/sys/fs/bpf";

/// The capabilities that are needed and missing.
pub fn missing_capabilities() -> Vec<String> {
    // The verifier lets nobody else compute with addresses, as the length of a packet takes.
    let verified = Capability::CAP_PERFMON;
    [Capability::CAP_BPF, Capability::CAP_NET_ADMIN, verified]
        .into_iter()
        .filter(|&capability| {
            let has = |c| caps::has_cap(None, CapSet::Effective, c).unwrap_or(false);
            // CAP_SYS_ADMIN stood for the others before there were any, and still does.
            let stands_in = capability != Capability::CAP_NET_ADMIN;
            !(has(capability) || stands_in && has(Capability::CAP_SYS_ADMIN))
        })
        .map(|capability| capability.to_string())
        .collect()
}

/// Checks privileges and the kernel's version.
pub fn check() -> Result<(), Error> {
    let missing = missing_capabilities();
    if !missing.is_empty() {
        return Err(Error::Privilege { missing: missing.join(", ") });
    }
    match running_lacks() {
        Some((feature, since)) => Err(too_old(feature, since)),
        None => Ok(()),
    }
}

/// The newest feature that the running kernel lacks, and since when Linux has it.
pub fn running_lacks() -> Option<(&'static str, &'static str)> {
    // A version that cannot be read is no reason to refuse: the verifier has the last word.
    KernelVersion::current().ok().and_then(lacking)
}

/// The newest feature that a kernel lacks, and since when Linux has it.
fn lacking(running: KernelVersion) -> Option<(&'static str, &'static str)> {
    FEATURES
        .into_iter()
        .find(|(_, since, _)| running < *since)
        .map(|(feature, _, since)| (feature, since))
}

fn too_old(feature: &'static str, since: &'static str) -> Error {
    Error::Kernel { running: release(), feature, since }
}

/// What the running kernel calls itself.
pub fn release() -> String {
    nix::sys::utsname::uname()
        .map(|name| name.release().to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Whether `path` is on a BPF file system.
pub fn is_bpf_fs(path: &Path) -> bool {
    statfs(path).is_ok_and(|fs| fs.filesystem_type() == BPF_FS_MAGIC)
}

/// Sees to it that `pin_dir`'s parent is on a BPF file system, mounting one at the usual place if
/// that is where it belongs.
pub fn ensure_bpffs(pin_dir: &Path) -> Result<(), Error> {
    // Only the usual place is mounted: a BPF file system anywhere else is a mistake in the
    // configuration that would come to light with the next boot, when it is gone.
    let parent = pin_dir.parent().unwrap_or(pin_dir);
    let source = if pin_dir.starts_with(BPF_FS) && !is_bpf_fs(Path::new(BPF_FS)) {
        match mount(Some("bpf"), BPF_FS, Some("bpf"), MsFlags::empty(), None::<&str>) {
            Ok(()) => {
                tracing::info!("mounted a BPF file system at {BPF_FS}");
                None
            }
            Err(errno) => Some(io::Error::from(errno)),
        }
    } else {
        None
    };
    if source.is_none() && pin_dir.starts_with(BPF_FS) {
        std::fs::create_dir_all(parent).map_err(Error::pin("create", parent))?;
    }
    if is_bpf_fs(parent) { Ok(()) } else { Err(Error::BpfFs { path: pin_dir.into(), source }) }
}

fn clock_ns(clock: ClockId) -> u64 {
    // Both clocks have been positive since 1970; an impossible failure counts as time zero.
    clock_gettime(clock).map_or(0, |time| {
        let (seconds, ns) = (time.tv_sec(), time.tv_nsec());
        u64::try_from(seconds).unwrap_or(0) * 1_000_000_000 + u64::try_from(ns).unwrap_or(0)
    })
}

/// ns since boot, as `bpf_ktime_get_ns` counts them.
pub fn monotonic_ns() -> u64 {
    clock_ns(ClockId::CLOCK_MONOTONIC)
}

/// `MEMBARRIER_CMD_GLOBAL` of linux/membarrier.h, the one command that is an RCU grace period
/// (`synchronize_rcu`): XDP programs run under the RCU read lock, so none outlasts it. The faster
/// `MEMBARRIER_CMD_PRIVATE_EXPEDITED` waits for threads of this process only.
const MEMBARRIER_GLOBAL: libc::c_long = 1;

/// Returns when no packet is being judged that was so when this was called. Takes some ms up to some tens of them,
/// so not while others wait.
pub fn wait_for_packets() {
    // SAFETY: the command takes no pointers; flags and CPU are unused and zero.
    // A machine with one CPU on line returns at once, and may: a softirq, in which packets are
    // judged, is over before a thread of that CPU goes on.
    let waited = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_GLOBAL, 0, 0) };
    if waited != 0 {
        // A kernel with nohz_full refuses the command, and a seccomp filter may forbid it. A packet takes
        // microseconds, and softirqs do not nest, so none is 50 ms old.
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Wall-clock minus monotonic time in ns, wrapping.
pub fn clock_offset() -> u64 {
    // Read in this order, an interruption makes the offset late, never early: at most by its length.
    let wall = clock_ns(ClockId::CLOCK_REALTIME);
    wall.wrapping_sub(monotonic_ns())
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{Explain as _, Fault};

    #[test]
    fn an_old_kernel_is_told_what_it_lacks_and_since_when() {
        let lacks = |major, minor| lacking(KernelVersion::new(major, minor, 0));
        assert_eq!(lacks(6, 1), None);
        assert_eq!(lacks(5, 12), None);
        // The newest version that is needed, whatever else is missing.
        for minor in [4, 10, 11] {
            assert_eq!(lacks(5, minor), Some(("compare-and-swap in BPF programs", "5.12")));
        }
        let error = too_old("compare-and-swap in BPF programs", "5.12");
        assert_eq!(error.fault(), Fault::Privilege);
        assert!(error.hint().is_some_and(|hint| hint.contains("5.12")), "{error}");
    }

    #[test]
    fn the_clock_offset_is_the_time_of_boot() {
        let boot = clock_offset();
        // After 2020, before 2100, and the same a moment later but for the clocks' resolution.
        assert!((1_577_000_000_000_000_000..4_102_000_000_000_000_000).contains(&boot));
        assert!(clock_offset().abs_diff(boot) < 1_000_000_000);
        assert!(monotonic_ns() > 0);
    }
}
