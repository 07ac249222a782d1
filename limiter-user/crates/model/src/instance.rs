//! Instances: several daemons on one machine, each with interfaces, limits and buckets of its own.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What the daemon without an instance is called in places that have a name.
const PLAIN: &str = "limiter";

/// The longest name, bytes.
const MAX_LEN: usize = 32;

// Where instances have a place of their own each.
/// Of the sockets.
pub const SOCKETS: &str = "/run/limiter";
const STATES: &str = "/var/lib/limiter";
/// Of the pins.
pub const PINS: &str = "/sys/fs/bpf";
/// Of the configuration files.
pub const CONFIGS: &str = "/etc/limiter";

/// What the name of a staging directory of pins adds: dots are not allowed on a BPF file system, and pluses not
/// in the name of an instance.
pub const STAGING_SUFFIX: &str = "+new";

/// The name of an instance: 1 to 32 of `a` to `z`, `0` to `9`, `_` and `-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Instance(String);

/// Why something is not the name of an instance.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Too short, too long, or with other characters.
    #[error("the name of an instance has 1 to {MAX_LEN} of the characters a to z, 0 to 9, _ and -")]
    Form,
    /// It means something else.
    #[error("{PLAIN} is what goes without --instance: choose another name")]
    Reserved,
}

impl FromStr for Instance {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        let fits =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
        if name.is_empty() || name.len() > MAX_LEN || !name.bytes().all(fits) {
            return Err(NameError::Form);
        }
        // Its configuration would be that of the daemon without an instance.
        if name == PLAIN { Err(NameError::Reserved) } else { Ok(Self(name.into())) }
    }
}

impl TryFrom<String> for Instance {
    type Error = NameError;

    fn try_from(name: String) -> Result<Self, NameError> {
        name.parse()
    }
}

impl From<Instance> for String {
    fn from(instance: Instance) -> Self {
        instance.0
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a daemon has what is its own, unless flag, environment or file say otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// The socket.
    pub socket: PathBuf,
    /// Limits that were set at run time.
    pub state_dir: PathBuf,
    /// Maps and links.
    pub pin_dir: PathBuf,
    /// The configuration file, which need not be there.
    pub config: PathBuf,
}

impl Paths {
    /// Those of an instance, or of the daemon without one.
    pub fn new(instance: Option<&Instance>) -> Self {
        let (own, name, pins) = match instance {
            // systemd makes and removes directories, so each instance has one. Dots, which names do
            // not have, keep them apart from what the daemon without an instance has beside them.
            Some(Instance(name)) => (name.as_str(), name.as_str(), format!("{PLAIN}@{name}")),
            None => ("", PLAIN, PLAIN.into()),
        };
        Self {
            socket: Path::new(SOCKETS).join(own).join("limiter.sock"),
            // Joining nothing would end the path with a slash.
            state_dir: Path::new(STATES).join(own).components().collect(),
            pin_dir: Path::new(PINS).join(pins),
            config: Path::new(CONFIGS).join(format!("{name}.toml")),
        }
    }
}

/// Whose something is, as far as a directory of pins tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The daemon without an instance.
    Plain,
    /// An instance.
    Instance(Instance),
    /// One with pins in a directory that is no instance's.
    Pins(PathBuf),
}

impl Owner {
    /// Whose pins lie in `pin_dir` by default.
    pub fn new(pin_dir: &Path) -> Self {
        if pin_dir == Paths::new(None).pin_dir {
            return Self::Plain;
        }
        // Elsewhere, the same name may be anybody's: only the usual place tells whose pins they
        // are.
        let name = pin_dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let instance = name.strip_prefix("limiter@").and_then(|name| name.parse().ok());
        instance
            .filter(|_| pin_dir.parent() == Some(Path::new(PINS)))
            .map_or_else(|| Self::Pins(pin_dir.into()), Self::Instance)
    }

    /// How its commands begin.
    pub fn command(&self) -> String {
        match self {
            // Also for whom the environment names an instance.
            Self::Plain => format!("{PLAIN} --socket {}", Paths::new(None).socket.display()),
            Self::Instance(name) => format!("{PLAIN} --instance {name}"),
            Self::Pins(_) => format!("{PLAIN} --socket …"),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("the limiter without an instance"),
            Self::Instance(name) => write!(f, "the instance {name}"),
            Self::Pins(path) => write!(f, "the limiter with pins in {}", path.display()),
        }
    }
}

/// `text`, with the commands in it for `instance`.
pub fn address(text: &str, instance: Option<&Instance>) -> String {
    let Some(name) = instance else { return text.into() };
    let own = format!("`{PLAIN} --instance {name} ");
    // Commands that begin with an option say themselves whom they are for.
    text.replace("`limiter ", &own).replace(&format!("{own}--"), "`limiter --")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn named(name: &str) -> Instance {
        name.parse().unwrap()
    }

    #[test]
    fn names_are_fit_for_every_place() {
        for good in ["edge", "a", "0", "edge_1-b", "a".repeat(MAX_LEN).as_str()] {
            assert_eq!(named(good).to_string(), good);
        }
        for bad in ["", "Edge", "a.b", "a/b", "..", "a b", "é", "a".repeat(MAX_LEN + 1).as_str()] {
            assert_eq!(bad.parse::<Instance>(), Err(NameError::Form), "{bad:?}");
        }
        assert_eq!("limiter".parse::<Instance>(), Err(NameError::Reserved));
    }

    #[test]
    fn no_two_share_a_place() {
        // Names that would meet if what surrounds them were chosen badly.
        let names = ["edge", "edge_new", "new", "limits", "lock", "limiter-test-1"].map(named);
        let all = names.iter().map(Some).chain([None]).map(Paths::new);
        let mut seen = BTreeSet::new();
        for Paths { socket, state_dir, pin_dir, config } in all {
            let mut staging = pin_dir.clone().into_os_string();
            staging.push(STAGING_SUFFIX);
            for path in [socket, state_dir, pin_dir, staging.into(), config] {
                assert!(!path.to_str().unwrap().ends_with('/'), "{path:?}");
                assert!(seen.insert(path.clone()), "{path:?}");
            }
        }
        let plain = Paths::new(None);
        assert_eq!(plain.socket, Path::new("/run/limiter/limiter.sock"));
        assert_eq!(plain.state_dir, Path::new("/var/lib/limiter"));
        assert_eq!(plain.pin_dir, Path::new("/sys/fs/bpf/limiter"));
        assert_eq!(plain.config, Path::new("/etc/limiter/limiter.toml"));
    }

    #[test]
    fn pins_tell_their_owner() {
        for instance in [None, Some(named("edge"))] {
            let owner = Owner::new(&Paths::new(instance.as_ref()).pin_dir);
            assert_eq!(owner, instance.map_or(Owner::Plain, Owner::Instance));
        }
        for other in ["/sys/fs/bpf/limiter@Edge", "/sys/fs/bpf/x/limiter@edge", "/sys/fs/bpf/pins"]
        {
            assert_eq!(Owner::new(Path::new(other)), Owner::Pins(other.into()));
        }
    }

    #[test]
    fn hints_name_the_instance() {
        let edge = named("edge");
        let text = "see `limiter status`, or `limiter --instance dmz detach eth0`";
        assert_eq!(address(text, None), text);
        let wanted =
            "see `limiter --instance edge status`, or `limiter --instance dmz detach eth0`";
        assert_eq!(address(text, Some(&edge)), wanted);
        let plain = format!("`{} detach eth0`", Owner::Plain.command());
        assert_eq!(address(&plain, Some(&edge)), plain);
    }
}
