//! `setup`: what has to be on the machine, checked item by item and installed where it is missing.
//!
//! Every other command calls the part it needs, which then says nothing of what is there already.

mod assets;
mod bpf_linker;
mod cargo_deny;
mod packages;
mod report;
mod toolchain;

use anyhow::Result;

use report::{Mode, Report};

/// `cargo xtask setup`: everything, one line each; an error naming what is missing at the end.
pub(crate) fn command(check: bool) -> Result<()> {
    let mut report = Report::new(if check { Mode::Check } else { Mode::Install });
    toolchain::bring_stable(&mut report);
    toolchain::bring_nightly(&mut report);
    bpf_linker::bring(&mut report);
    cargo_deny::bring(&mut report);
    packages::bring(&mut report, &packages::names());
    assets::bring(&mut report);
    report.finish()
}

/// What compiling the kernel program takes, and what is embedded beside it.
pub(crate) fn ensure_build_tools() -> Result<()> {
    let mut report = Report::new(Mode::Ensure);
    toolchain::bring_nightly(&mut report);
    bpf_linker::bring(&mut report);
    assets::bring(&mut report);
    report.finish()
}

/// What `lint` takes, less the nightly parts (see [`ensure_nightly`]).
pub(crate) fn ensure_lint_tools() -> Result<()> {
    let mut report = Report::new(Mode::Ensure);
    toolchain::bring_stable(&mut report);
    cargo_deny::bring(&mut report);
    report.finish()
}

/// The nightly toolchain with the sources of `core`, without a linker.
pub(crate) fn ensure_nightly() -> Result<()> {
    let mut report = Report::new(Mode::Ensure);
    toolchain::bring_nightly(&mut report);
    report.finish()
}

/// All Debian packages, for the end-to-end tests.
pub(crate) fn ensure_packages() -> Result<()> {
    ensure_packages_named(&packages::names())
}

/// Some of the Debian packages, by name.
pub(crate) fn ensure_packages_named(names: &[&str]) -> Result<()> {
    let mut report = Report::new(Mode::Ensure);
    packages::bring(&mut report, names);
    report.finish()
}
