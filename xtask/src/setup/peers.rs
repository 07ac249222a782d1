//! Libraries of others, with which tests compare the algorithms.

use std::time::Duration;

use anyhow::{Result, bail};
use tools::environment;

use super::{
    item::{Item, Remedy},
    python,
};
use crate::run::Cmd;

/// Of the Python package index.
pub(crate) const LIMITS: &str = "limits==5.8.0";

/// The strategies in Python that most others are measured by.
pub(super) fn item() -> Item {
    let install = |log: &_| python::install(LIMITS, log);
    let remedy = Remedy::command(python::advice(LIMITS), install);
    Item::new("limits", Duration::from_secs(10), remedy, check).late()
}

fn check() -> Result<String> {
    let python = environment().join("bin/python");
    let version = "import limits; print(limits.__version__)";
    match Cmd::own(python).args(["-c", version]).capture() {
        Ok(version) if LIMITS.ends_with(version.trim()) => Ok(version.trim().to_owned()),
        _ => bail!("is not in {}", environment().display()),
    }
}
