//! Programs of the Python package index, in an environment of this workspace's own.

use anyhow::{Result, anyhow};
use tools::environment;

use crate::{progress::Log, run::Cmd};

/// Installs `requirement`, as `name==version`.
pub(super) fn install(requirement: &str, log: &Log) -> Result<()> {
    tools::PYTHON.check().map_err(|why| {
        anyhow!("python3 with its module ensurepip {why}: apt-get install python3-venv brings it")
    })?;
    make().log(log)?;
    pip(requirement).log(log)
}

/// The command that installs it by hand.
pub(super) fn advice(requirement: &str) -> String {
    format!("{} && {}", make(), pip(requirement))
}

fn make() -> Cmd {
    // PEP 668: since release 12 Debian's Python lets pip install nowhere else.
    Cmd::new(&tools::PYTHON).args(["-m", "venv"]).args([environment()])
}

fn pip(requirement: &str) -> Cmd {
    Cmd::own(environment().join("bin/python")).args(["-m", "pip", "install", requirement])
}
