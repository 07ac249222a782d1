//! Programs of the Python package index, in an environment of this workspace's own.

use anyhow::{Result, anyhow};
use tools::environment;

use crate::{progress::Log, run::Cmd};

/// Installs `requirement`, as `name==version`.
pub(super) fn install(requirement: &str, log: &Log) -> Result<()> {
    ensure(log)?;
    pip(requirement).log(log)
}

/// Installs it alone in a folder, out of every `PATH`.
pub(super) fn install_into(requirement: &str, folder: &str, log: &Log) -> Result<()> {
    ensure(log)?;
    pip_into(requirement, folder).log(log)
}

/// The command that installs it by hand.
pub(super) fn advice(requirement: &str) -> String {
    format!("{} && {}", make(), pip(requirement))
}

/// The command that does the other by hand.
pub(super) fn advice_into(requirement: &str, folder: &str) -> String {
    format!("{} && {}", make(), pip_into(requirement, folder))
}

fn ensure(log: &Log) -> Result<()> {
    tools::PYTHON.check().map_err(|why| {
        anyhow!("python3 with its module ensurepip {why}: apt-get install python3-venv brings it")
    })?;
    make().log(log)
}

fn make() -> Cmd {
    // PEP 668: since release 12 Debian's Python lets pip install nowhere else.
    Cmd::new(&tools::PYTHON).args(["-m", "venv"]).args([environment()])
}

fn pip(requirement: &str) -> Cmd {
    Cmd::own(environment().join("bin/python")).args(["-m", "pip", "install", requirement])
}

fn pip_into(requirement: &str, folder: &str) -> Cmd {
    // Its programs are all that is wanted, not the libraries that its Python takes.
    pip(requirement).args(["--no-deps", "--upgrade", "--target", folder])
}
