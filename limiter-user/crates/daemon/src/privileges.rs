//! What the daemon may do once it has started: little more than what BPF maps and links need.

use caps::{CapSet, Capability, CapsHashSet};
use nix::sys::prctl;

use api::error::{Failure, exit};

/// What the daemon keeps of `permitted`: to use maps, and to attach to interfaces. CAP_SYS_ADMIN stands
/// in for CAP_BPF where that was not given. Loading is done, so CAP_PERFMON has served its purpose.
fn needed(permitted: &CapsHashSet) -> CapsHashSet {
    let bpf = if permitted.contains(&Capability::CAP_BPF) {
        Capability::CAP_BPF
    } else {
        Capability::CAP_SYS_ADMIN
    };
    [bpf, Capability::CAP_NET_ADMIN].into_iter().filter(|c| permitted.contains(c)).collect()
}

/// Gives up all privileges that are no longer needed, for this thread and those that it starts from
/// now on: there must be no others yet, as the kernel has capabilities for each thread.
///
/// # Errors
/// If the kernel refuses; the daemon should not go on with more than it needs.
pub(crate) fn give_up() -> Result<(), Failure> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        Failure::new(exit::PRIVILEGE, format!("cannot give up {what}: {error}"))
            .hint("a security module or a container may forbid it; its log should tell")
    };
    let read = |set| caps::read(None, set).map_err(|error| failed("capabilities", &error));
    // A setuid program or one with file capabilities could give back by exec what is given up here.
    prctl::set_no_new_privs().map_err(|error| failed("the gaining of privileges", &error))?;
    let kept = needed(&read(CapSet::Permitted)?);
    // Only who has this capability may take others out of the bounding set. Without it, whoever started
    // the daemon has seen to that set, and it no longer matters: nothing can be gained by exec.
    if read(CapSet::Effective)?.contains(&Capability::CAP_SETPCAP) {
        for capability in read(CapSet::Bounding)?.difference(&kept) {
            caps::drop(None, CapSet::Bounding, *capability)
                .map_err(|error| failed(&format!("{capability} for good"), &error))?;
        }
    }
    let nothing = CapsHashSet::new();
    // In this order: a capability must be permitted to be effective, and inheritable to be ambient.
    for (set, value) in [
        (CapSet::Ambient, &nothing),
        (CapSet::Inheritable, &nothing),
        (CapSet::Effective, &kept),
        (CapSet::Permitted, &kept),
    ] {
        caps::set(None, set, value).map_err(|error| failed("capabilities", &error))?;
    }
    tracing::info!("privileges given up but for {}", names(&kept).join(", "));
    Ok(())
}

fn names(set: &CapsHashSet) -> Vec<String> {
    let mut names: Vec<_> = set.iter().map(ToString::to_string).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_kept_than_needed() {
        assert_eq!(names(&needed(&caps::all())), ["CAP_BPF", "CAP_NET_ADMIN"]);
        let old = [Capability::CAP_SYS_ADMIN, Capability::CAP_NET_ADMIN, Capability::CAP_CHOWN];
        assert_eq!(names(&needed(&old.into())), ["CAP_NET_ADMIN", "CAP_SYS_ADMIN"]);
        assert!(needed(&CapsHashSet::new()).is_empty());
    }

    #[test]
    fn a_thread_gives_up_what_it_does_not_need() {
        // Capabilities belong to threads: the test's own go with it.
        std::thread::spawn(|| {
            let kept = needed(&caps::read(None, CapSet::Permitted).unwrap());
            give_up().unwrap();
            assert_eq!(caps::read(None, CapSet::Effective).unwrap(), kept);
            assert_eq!(caps::read(None, CapSet::Permitted).unwrap(), kept);
            assert!(prctl::get_no_new_privs().unwrap());
            give_up().unwrap();
        })
        .join()
        .unwrap();
    }
}
