//! Tries the package in a Debian 12 root that is made for it and goes again.

use std::path::Path;

use anyhow::Result;

use crate::{run::Cmd, workspace};

/// Where the package lies in there.
const INSIDE: &str = "/root/limiter.deb";

/// Installs, checks, upgrades, removes and purges `package`.
pub(super) fn run(package: &Path) -> Result<()> {
    let script = workspace::root().join("packaging/debian/verify");
    let upload =
        |from: &Path, to: &str| format!("--customize-hook=upload '{}' {to}", from.display());
    Cmd::new(&tools::MMDEBSTRAP)
        // What the package needs of every Debian, and what looks at it.
        .args(["--variant=minbase", "--include=systemd,man-db,bash"])
        .args([upload(package, INSIDE), upload(&script, "/root/verify")])
        .args([format!("--customize-hook=chroot \"$1\" sh /root/verify {INSIDE}")])
        .args(["bookworm", "/dev/null"])
        .into_root()?
        .run()
}
