//! `build`: the default members, with the kernel program compiled and embedded.

use std::ffi::OsStr;

use anyhow::Result;

use tools::Need;

use crate::{run::Cmd, setup};

/// Tells the build scripts what to do, as [`tools::EBPF`] does, about what the dashboard draws its charts with.
const ASSETS: &str = "LIMITER_ASSETS";
/// Fail if the kernel programs cannot be built.
pub(crate) const REQUIRE: &str = "require";
/// Fail at once where the kernel programs belong, which leaves the libraries to `--keep-going`.
pub(crate) const LATER: &str = "later";
/// Do not build the kernel programs.
pub(crate) const SKIP: &str = "skip";

/// Sets up the BPF tools and the dashboard's assets where they are missing, and builds.
pub(crate) fn command(release: bool) -> Result<()> {
    setup::ensure(&[Need::Kernel, Need::Charts])?;
    let profile: &[&str] = if release { &["--release"] } else { &[] };
    cargo(["build"], REQUIRE).args(profile).run()
}

/// Cargo with `args`, told by `ebpf` what to do about the kernel programs. With them go the charts,
/// if they are there: a build that differed in them would compile the daemon anew.
pub(crate) fn cargo<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>, ebpf: &str) -> Cmd {
    // The build scripts turn each line that their own cargo prints into a warning, which ours
    // repeats in every run. So that one is quiet, by a variable it inherits, and ours is not.
    let assets = if setup::has_charts() { ebpf } else { SKIP };
    Cmd::cargo(["--config", "term.quiet=false"])
        .args(args)
        .env("CARGO_TERM_QUIET", "true")
        .env(tools::EBPF, ebpf)
        .env(ASSETS, assets)
}
