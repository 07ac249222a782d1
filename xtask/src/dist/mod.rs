//! `dist`: a Debian package of the release build, with what the binary generates about itself.

mod glibc;
mod tree;
mod verify;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use tools::Need;

use crate::{
    build::{REQUIRE, cargo},
    progress::say,
    run::Cmd,
    setup, workspace,
};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Options of `dist`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Install the package in two emulated machines with Debian 12, protect an interface, form a
    /// cluster, reboot, upgrade, remove and purge, and count unprotected packets: 5 minutes
    #[arg(long)]
    verify: bool,
}

/// Builds the package; its path is told on stderr.
pub(crate) fn command(args: &Args) -> Result<()> {
    let needs = [Need::Kernel, Need::Charts, Need::Dist, Need::Guest];
    setup::ensure(if args.verify { &needs } else { &needs[..3] })?;
    cargo(["build", "--release", "--package", "limiter-user"], REQUIRE).run()?;
    let target = workspace::target_dir()?;
    let binary = target.join("release/limiter");
    // Before the package is made: otherwise the first to refuse it would be apt on somebody's Debian 12.
    glibc::check(&binary)?;
    let dist = target.join("dist");
    let package = build(&dist, &binary, VERSION)?;
    say(format_args!("built {}", package.display()));
    if args.verify {
        // Packages upgrade only to a higher version: the same files, as one, will do.
        let newer = build(&dist.join("newer"), &binary, &format!("{VERSION}+newer"))?;
        verify::run(&package, &newer)?;
    }
    Ok(())
}

/// Lays out the package in `dist` and packs it.
fn build(dist: &Path, binary: &Path, version: &str) -> Result<PathBuf> {
    let (root, generated) = (dist.join("root"), dist.join("generated"));
    // What an earlier build left would be packed with the rest.
    for directory in [&root, &generated].into_iter().filter(|directory| directory.exists()) {
        fs::remove_dir_all(directory)
            .with_context(|| format!("cannot empty {}", directory.display()))?;
    }
    Cmd::own(binary).args(["documents"]).args([&generated]).run()?;
    // From the binary, as are its pages: the package cannot differ from the program in it.
    let config = Cmd::own(binary).args(["config", "default"]).capture()?;
    tree::lay_out(&root, &generated, &config)?;
    let installed = root.join("usr/bin/limiter");
    Cmd::new(&tools::STRIP).args(["--strip-unneeded", "-o"]).args([&installed, binary]).run()?;
    let architecture = Cmd::new(&tools::DPKG).args(["--print-architecture"]).capture()?;
    let control = tree::Control {
        version,
        architecture: architecture.trim(),
        depends: &depends(dist, &installed)?,
    };
    tree::describe(&root, &control)?;
    let name = format!("limiter_{}_{}.deb", control.version, control.architecture);
    let package = dist.join(name);
    Cmd::new(&tools::DPKG_DEB)
        // The files are of whoever builds: as root's they need neither root nor fakeroot here.
        .args(["--root-owner-group", "--build"])
        .args([&root, &package])
        .run()?;
    Ok(package)
}

/// The packages whose libraries the binary needs.
fn depends(dist: &Path, binary: &Path) -> Result<String> {
    // dpkg-shlibdeps wants to be in the source tree of a package.
    let source = dist.join("source");
    fs::create_dir_all(source.join("debian")).context("cannot make the source tree")?;
    fs::write(
        source.join("debian/control"),
        "Source: limiter\n\nPackage: limiter\nArchitecture: any\n",
    )
    .context("cannot write the source tree")?;
    let text = Cmd::new(&tools::ENV)
        .args(["-C"])
        .args([&source])
        .args([&tools::DPKG_SHLIBDEPS])
        .args(["-O", "-e"])
        .args([binary])
        .capture()?;
    let list = text.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    Ok(list.context("dpkg-shlibdeps names no dependencies")?.to_owned())
}
