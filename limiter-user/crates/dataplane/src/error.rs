//! What can go wrong between the daemon and the kernel.

use std::io;
use std::path::{Path, PathBuf};

use model::instance::Owner;
use model::interface::Mode;
use model::target::TargetError;
use model::{Explain, Fault, Invalid};

/// An error of aya, of which nothing but its text is used. So its types, which change with its releases, stay out of
/// this crate's interface.
pub(crate) type Opaque = Box<dyn std::error::Error + Send + Sync>;

/// An error of the data plane.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What the kernel program writes cannot be read.
    #[error("the kernel program cannot write to the log")]
    KernelLog {
        /// Why not.
        source: Opaque,
    },
    /// An option is out of range.
    #[error("{option}: {problem}")]
    Option {
        /// The command-line option.
        option: &'static str,
        /// What is wrong with its value.
        problem: String,
        /// What to give instead.
        hint: String,
    },
    /// The number of CPUs could not be read.
    #[error("cannot tell the number of CPUs from {path}")]
    Cpus {
        /// The file that should say it.
        path: &'static str,
        /// Why it does not.
        source: io::Error,
    },
    /// The binary was built without the kernel program.
    #[error("this binary was built without its kernel program")]
    NoProgram,
    /// Capabilities are missing.
    #[error("missing privileges: {missing}")]
    Privilege {
        /// The capabilities' names.
        missing: String,
    },
    /// The kernel is too old.
    #[error("Linux {running} is too old: {feature} needs {since}")]
    Kernel {
        /// The version that runs.
        running: String,
        /// What it lacks.
        feature: &'static str,
        /// The version that brought it.
        since: &'static str,
    },
    /// The pin directory is not on a BPF file system and none could be mounted.
    #[error("{path} is not on a BPF file system")]
    BpfFs {
        /// The directory.
        path: PathBuf,
        /// Why mounting one failed, if it was tried.
        source: Option<io::Error>,
    },
    /// Something about pins failed.
    #[error("cannot {action} {path}")]
    Pin {
        /// What was tried.
        action: &'static str,
        /// The pin.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A pin directory holds something else, too.
    #[error("{path} holds {name}, which is not limiter's")]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// What is in it.
        name: String,
    },
    /// The pinned maps have another layout version.
    #[error(
        "the maps in {path} have layout version {found}, this program has {expected}: they stay at work"
    )]
    Abi {
        /// The pin directory.
        path: PathBuf,
        /// Their version.
        found: u32,
        /// Ours.
        expected: u32,
    },
    /// The pinned maps were made with other options.
    #[error("the maps in {path} were made with another {option}: {found}, not {wanted}")]
    Layout {
        /// The pin directory.
        path: PathBuf,
        /// The option that differs.
        option: &'static str,
        /// What they were made with.
        found: String,
        /// What was asked for.
        wanted: String,
    },
    /// The program or its maps could not be loaded.
    #[error("cannot load the kernel program")]
    Load(#[source] Opaque),
    /// A map could not be read or written.
    #[error("cannot {action}")]
    Map {
        /// What was tried.
        action: String,
        /// Why it failed.
        source: Opaque,
    },
    /// There is no such interface.
    #[error("no interface is called {name}")]
    UnknownInterface {
        /// The name.
        name: String,
        /// The names that exist.
        known: Vec<String>,
    },
    /// The program can read no frames of such an interface.
    #[error("the frames of {name} are neither Ethernet nor IP, but {layer}")]
    Layer {
        /// The interface.
        name: String,
        /// What they are.
        layer: String,
    },
    /// The interface is not one of ours.
    #[error("limiter is not attached to {name}")]
    NotAttached {
        /// The interface.
        name: String,
    },
    /// We are attached already, in another mode.
    #[error("limiter is attached to {name} in {present} mode already")]
    OtherMode {
        /// The interface.
        name: String,
        /// The mode it is attached in.
        present: &'static str,
    },
    /// Another XDP program is on the interface.
    #[error("{name} already has an XDP program, id {id}")]
    Occupied {
        /// The interface.
        name: String,
        /// The other program's id.
        id: u32,
    },
    /// Another limiter has the interface.
    #[error("{name} belongs to {owner} already, and an interface has one limiter")]
    Taken {
        /// The interface.
        name: String,
        /// Who has it.
        owner: Owner,
    },
    /// The program cannot run on the card.
    #[error("{name} cannot run the program on the card: {problem}")]
    Offload {
        /// The interface.
        name: String,
        /// Why not.
        problem: String,
    },
    /// Another program is on the interface by a link that this process may not touch.
    #[error(
        "XDP program {id} on {name} belongs to somebody else's link, which takes CAP_SYS_ADMIN to remove"
    )]
    ForeignLink {
        /// The interface.
        name: String,
        /// The other program's id.
        id: u32,
    },
    /// The kernel refused to attach.
    #[error("cannot attach to {name} in {} mode", mode.name())]
    Attach {
        /// The interface.
        name: String,
        /// The mode that was asked for.
        mode: Mode,
        /// The interface's MTU.
        mtu: u32,
        /// An offload that is on, which merges frames before a program sees them.
        merging: Option<&'static str>,
        /// Why it was refused.
        source: Opaque,
    },
    /// The kernel did not answer about an interface.
    #[error("cannot query interfaces")]
    Netlink(#[source] io::Error),
    /// A limit cannot be enforced as it is.
    #[error(transparent)]
    Limit(#[from] Invalid),
    /// More limits than there is room for.
    #[error("{wanted} limits for {kind} are more than the {room} there is room for")]
    TooMany {
        /// Which limits.
        kind: &'static str,
        /// How many there would be.
        wanted: usize,
        /// How many fit.
        room: usize,
        /// What to do.
        hint: &'static str,
    },
}

impl From<TargetError> for Error {
    fn from(error: TargetError) -> Self {
        Self::Limit(error.into())
    }
}

impl Explain for Error {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Option { hint, .. } => hint.clone(),
            Self::Limit(error) => return error.hint(),
            Self::TooMany { hint, .. } => (*hint).into(),
            Self::NoProgram => "build it with `cargo xtask build`".into(),
            Self::Privilege { .. } => {
                "run as root, or give the process CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON".into()
            }
            Self::Kernel { since, .. } => format!("boot Linux {since} or later"),
            Self::BpfFs { .. } => {
                "mount one with `mount -t bpf bpf /sys/fs/bpf`, or choose another --pin-dir".into()
            }
            // No hint to remove it: what is not ours may be what another program needs.
            Self::Foreign { .. } => "name the --pin-dir of the daemon".into(),
            Self::Abi { .. } => {
                "run the version that made them, or discard buckets and counters with --reset-state"
                    .into()
            }
            Self::Layout { option, .. } => {
                format!(
                    "keep {option} as it was, or discard buckets and counters with --reset-state"
                )
            }
            Self::UnknownInterface { known, .. } => format!("there are: {}", known.join(", ")),
            Self::NotAttached { .. } => "`limiter status` lists the interfaces".into(),
            // No start changes the mode by itself: from native to generic would cost several times
            // the CPU unseen (P5).
            Self::OtherMode { name, .. } => format!("detach it first: `limiter detach {name}`"),
            Self::Occupied { .. } => "remove that program, or take its place with --replace".into(),
            Self::ForeignLink { name, .. } => format!(
                "run `limiter attach {name} --replace` as root, or restart the daemon with --interface \
                 {name} --replace"
            ),
            Self::Taken { name, owner } => {
                let command = owner.command();
                format!(
                    "use that one, or let go of it first: `{command} detach {name}`, or \
                     `{command} cleanup --yes` if its daemon is gone for good"
                )
            }
            Self::Offload { .. } => {
                "take --mode native, in the driver, or --mode generic, which works everywhere, but slower"
                    .into()
            }
            // The kernel's error number says little: causes that can be seen are offered, the
            // surest first.
            Self::Attach { name, mode: Mode::Native, merging: Some(offload), .. } => format!(
                "{offload} is on, with which most drivers refuse a program: ethtool -K {name} {offload} \
                 off"
            ),
            Self::Attach { mode: Mode::Native, mtu, .. } if *mtu > super::NATIVE_MTU => format!(
                "an MTU of {mtu} is too large for native XDP in most drivers: lower it, or use \
                 --mode generic"
            ),
            // Last of the three, as it says least: drivers refuse with the same few error numbers for many reasons.
            Self::Attach { mode: Mode::Native, .. } => {
                "`limiter doctor IFACE` may tell why: the driver may lack native XDP; --mode generic works everywhere, but slower".into()
            }
            Self::Load(_) => {
                "`dmesg` and LIMITER_LOG=debug may tell more; locked memory limits matter before \
                 Linux 5.11"
                    .into()
            }
            // The others carry their cause, and no one remedy fits all that it can be.
            _ => return None,
        })
    }

    fn fault(&self) -> Fault {
        match self {
            // What other options, or another version of the program, would mend.
            Self::Option { .. }
            | Self::Foreign { .. }
            | Self::Abi { .. }
            | Self::Layout { .. }
            | Self::UnknownInterface { .. }
            | Self::Occupied { .. }
            | Self::Taken { .. }
            | Self::Offload { .. }
            | Self::OtherMode { .. }
            | Self::Limit(_)
            | Self::TooMany { .. } => Fault::Input,
            // A no rather than a mistake: a script that detaches twice has what it wants.
            Self::NotAttached { .. } => Fault::Refused,
            // What the kernel refuses has the exit code of missing privileges: a script can mend neither.
            _ => Fault::Privilege,
        }
    }
}

impl Error {
    /// Wraps an error of a map operation.
    pub(super) fn map(action: impl Into<String>) -> impl FnOnce(aya::maps::MapError) -> Self {
        move |source| Self::Map { action: action.into(), source: Box::new(source) }
    }

    /// Wraps an error of the loader or the verifier.
    pub(super) fn load(source: impl Into<Opaque>) -> Self {
        Self::Load(source.into())
    }

    /// Wraps an error of the BPF file system.
    pub(super) fn pin(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Self + Copy {
        move |source| Self::Pin { action, path: path.into(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attach(mode: Mode, mtu: u32, merging: Option<&'static str>) -> String {
        let source = "the kernel says no".into();
        Error::Attach { name: "eth0".into(), mode, mtu, merging, source }.hint().unwrap_or_default()
    }

    #[test]
    fn what_keeps_a_driver_from_attaching_is_told_with_its_remedy() {
        assert!(attach(Mode::Native, 1500, Some("lro")).contains("ethtool -K eth0 lro off"));
        assert!(attach(Mode::Native, 1500, Some("rx-gro-hw")).contains("eth0 rx-gro-hw off"));
        let mtu = attach(Mode::Native, 9000, None);
        assert!(mtu.contains("9000") && mtu.contains("--mode generic"), "{mtu}");
        let other = attach(Mode::Native, 1500, None);
        assert!(other.contains("doctor") && other.contains("--mode generic"), "{other}");
    }

    #[test]
    fn who_has_an_interface_is_told_with_a_command_that_frees_it() {
        let edge = "edge".parse().unwrap();
        let error = Error::Taken { name: "eth0".into(), owner: Owner::Instance(edge) };
        assert!(error.to_string().contains("the instance edge"), "{error}");
        assert!(
            error.hint().is_some_and(|hint| hint.contains("`limiter --instance edge detach eth0`"))
        );
        assert_eq!(error.fault(), Fault::Input);
    }
}
