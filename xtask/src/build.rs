//! `build`: the default members, with the kernel program compiled and embedded.

use std::ffi::OsStr;

use anyhow::Result;

use crate::{run::Cmd, setup};

/// Tells the build scripts what to do about the kernel programs: [`REQUIRE`] or [`SKIP`]. Unset,
/// they embed them if they can and warn if they cannot.
const EBPF: &str = "LIMITER_EBPF";
/// The same for what the dashboard draws its charts with.
const ASSETS: &str = "LIMITER_ASSETS";
/// Fail if the kernel programs cannot be built.
pub(crate) const REQUIRE: &str = "require";
/// Do not build the kernel programs.
pub(crate) const SKIP: &str = "skip";

/// Sets up the BPF tools and the dashboard's assets where they are missing, and builds.
pub(crate) fn command(release: bool) -> Result<()> {
    setup::ensure_build_tools()?;
    let profile: &[&str] = if release { &["--release"] } else { &[] };
    cargo(["build"], REQUIRE).args(profile).run()
}

/// Cargo with `args`, told by `ebpf` what to do about the kernel programs.
pub(crate) fn cargo<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>, ebpf: &str) -> Cmd {
    // The build scripts turn each line that their own cargo prints into a warning, which ours
    // repeats in every run. So that one is quiet, by a variable it inherits, and ours is not.
    Cmd::cargo(["--config", "term.quiet=false"])
        .args(args)
        .env("CARGO_TERM_QUIET", "true")
        .env(EBPF, ebpf)
        .env(ASSETS, ebpf)
}
