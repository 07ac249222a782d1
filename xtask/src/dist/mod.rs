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

/// What the package installs to be run.
const PROGRAMS: [&str; 2] = ["limiter", "limiter-serve"];

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
    let packages = ["--package", "limiter-user", "--package", "serve"];
    cargo(["build", "--release"], REQUIRE).args(packages).run()?;
    let target = workspace::target_dir()?;
    let binaries = target.join("release");
    // Before the package is made: otherwise the first to refuse it would be apt on somebody's Debian 12.
    PROGRAMS.iter().try_for_each(|name| glibc::check(&binaries.join(name)))?;
    let dist = target.join("dist");
    let package = build(&dist, &binaries, VERSION)?;
    say(format_args!("built {}", package.display()));
    if args.verify {
        // Packages upgrade only to a higher version: the same files, as one, will do.
        let newer = build(&dist.join("newer"), &binaries, &format!("{VERSION}+newer"))?;
        verify::run(&package, &newer)?;
    }
    Ok(())
}

/// Lays out the package in `dist` and packs it.
fn build(dist: &Path, binaries: &Path, version: &str) -> Result<PathBuf> {
    let (root, generated) = (dist.join("root"), dist.join("generated"));
    // What an earlier build left would be packed with the rest.
    for directory in [&root, &generated].into_iter().filter(|directory| directory.exists()) {
        fs::remove_dir_all(directory)
            .with_context(|| format!("cannot empty {}", directory.display()))?;
    }
    let binary = binaries.join("limiter");
    Cmd::own(&binary).args(["documents"]).args([&generated]).run()?;
    // From the binary, as are its pages: the package cannot differ from the program in it.
    let config = Cmd::own(&binary).args(["config", "default"]).capture()?;
    tree::lay_out(&root, &generated, &config)?;
    let installed = PROGRAMS.map(|name| root.join("usr/bin").join(name));
    for (name, installed) in PROGRAMS.iter().zip(&installed) {
        let strip = Cmd::new(&tools::STRIP).args(["--strip-unneeded", "-o"]);
        strip.args([installed, &binaries.join(name)]).run()?;
    }
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

/// The packages whose libraries the programs need.
fn depends(dist: &Path, binaries: &[PathBuf]) -> Result<String> {
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
        .args(["-O"])
        .args(binaries)
        .capture()?;
    let list = text.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    Ok(list.context("dpkg-shlibdeps names no dependencies")?.to_owned())
}
