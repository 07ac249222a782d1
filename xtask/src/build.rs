//! `build`: the default members, with the kernel program compiled and embedded.

use std::{ffi::OsStr, fs, path::PathBuf};

use anyhow::{Context as _, Result};

use tools::Need;

use crate::{run::Cmd, setup, workspace};

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

/// Builds programs of this workspace; returns the folder with what of them goes into guests.
pub(crate) fn for_guests(programs: &[&str]) -> Result<PathBuf> {
    cargo(["build"], REQUIRE).args(programs.iter().flat_map(|program| ["--bin", program])).run()?;
    let target = workspace::target_dir()?;
    let folder = target.join("guest/programs");
    fs::create_dir_all(&folder).context("cannot make the folder of programs")?;
    for program in programs {
        let from = target.join("debug").join(program);
        // Symbols are a third, and each guest takes its copy through a slow port.
        let to = folder.join(program);
        Cmd::new(&tools::STRIP).args(["-o".as_ref(), to.as_os_str(), from.as_os_str()]).run()?;
    }
    Ok(folder)
}
