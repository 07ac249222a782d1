//! What `cleanup` removes.

use std::io::{self, Write};
use std::path::PathBuf;

use serde::Serialize;

use api::Print;
use model::instance::Instance;
use model::interface::PinnedOn;

/// What a dead daemon can leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RemnantKind {
    /// Pinned maps, and links if it is attached.
    DataPlane,
    /// A data plane that was being built.
    Staging,
    /// The file of a socket.
    Socket,
}

/// Something that a dead daemon left.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Remnant {
    pub kind: RemnantKind,
    /// Where it is, or was.
    pub path: PathBuf,
    /// The interfaces that it limits, or limited.
    pub attached: Vec<PinnedOn>,
    /// The instance that left it; `None` for the daemon without one.
    pub instance: Option<Instance>,
}

/// What was removed, or would be.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CleanupReport {
    /// Whether nothing was changed.
    pub dry_run: bool,
    pub remnants: Vec<Remnant>,
    /// Instances that were left alone because their daemons run; `None` is the one without a name.
    pub running: Vec<Option<Instance>>,
}

impl Print for CleanupReport {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        for instance in &self.running {
            match instance {
                Some(name) => writeln!(out, "instance {name} runs: left alone")?,
                None => writeln!(out, "a daemon without an instance runs: left alone")?,
            }
        }
        if self.remnants.is_empty() {
            return writeln!(out, "there is nothing to remove");
        }
        let verb = if self.dry_run { "would remove" } else { "removed" };
        for Remnant { kind, path, attached, .. } in &self.remnants {
            let what = match kind {
                RemnantKind::DataPlane => "the data plane",
                RemnantKind::Staging => "the unfinished data plane",
                RemnantKind::Socket => "the stale socket",
            };
            write!(out, "{verb} {what} {}", path.display())?;
            for (number, on) in attached.iter().enumerate() {
                let before = if number == 0 { ", which limits" } else { "," };
                write!(out, "{before} {on} ({})", on.mode.name())?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::interface::Mode;

    #[test]
    fn what_is_removed_is_told() {
        let on = PinnedOn { name: Some("eth0".into()), ifindex: 2, mode: Mode::Native };
        let remnants = vec![
            Remnant {
                kind: RemnantKind::DataPlane,
                path: "/sys/fs/bpf/limiter".into(),
                attached: vec![on.clone(), PinnedOn { name: None, ..on }],
                instance: None,
            },
            Remnant {
                kind: RemnantKind::Socket,
                path: "/run/l".into(),
                attached: Vec::new(),
                instance: None,
            },
        ];
        let text = |dry_run, remnants, running| {
            let mut text = Vec::new();
            CleanupReport { dry_run, remnants, running }.print(&mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        assert_eq!(
            text(true, remnants, Vec::new()),
            "would remove the data plane /sys/fs/bpf/limiter, which limits eth0 (native), interface 2 \
             of another network namespace (native)\nwould remove the stale socket /run/l\n"
        );
        let running = vec![None, Some("edge".parse().unwrap())];
        assert_eq!(
            text(false, Vec::new(), running),
            "a daemon without an instance runs: left alone\ninstance edge runs: left alone\nthere is \
             nothing to remove\n"
        );
    }
}
