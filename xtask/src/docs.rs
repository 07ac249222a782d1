//! `docs`: the reference pages, which the program writes of its commands and settings.

use std::fs;

use anyhow::{Context as _, Result};

use crate::build::{SKIP, cargo};
use crate::progress::say;
use crate::run::Cmd;
use crate::workspace;

const PAGES: &str = "docs/reference";

/// Builds the program and lets it write them.
pub(crate) fn command() -> Result<()> {
    // Help and pages do not need the kernel program, which would take longer than the rest.
    cargo(["build", "--package", "limiter-user"], SKIP).run()?;
    let target = workspace::target_dir()?;
    let generated = target.join("documents");
    Cmd::own(target.join("debug/limiter")).args(["documents"]).args([&generated]).run()?;
    let (from, to) = (generated.join("reference"), workspace::root().join(PAGES));
    fs::create_dir_all(&to).with_context(|| format!("cannot make {}", to.display()))?;
    let pages = fs::read_dir(&from).with_context(|| format!("cannot read {}", from.display()))?;
    for page in pages {
        let page = page?;
        let to = to.join(page.file_name());
        fs::copy(page.path(), &to).with_context(|| format!("cannot write {}", to.display()))?;
        say(format_args!("wrote {}", to.display()));
    }
    Ok(())
}
