//! cargo-deny, which checks licences and sources of the dependencies.

use anyhow::{Context as _, Result, bail};

use super::report::Report;
use crate::{run::Cmd, workspace};

/// What is installed; any later version does.
const VERSION: &str = "0.20.2";

/// Installs cargo-deny into cargo's home if it is absent or older than [`VERSION`].
pub(super) fn bring(report: &mut Report) {
    report.item(
        "cargo-deny",
        &format!("cargo install cargo-deny@{VERSION} --locked"),
        check,
        || {
            let home = workspace::cargo_home()?;
            Cmd::cargo(["install", "--locked", "--force", "--root"])
                .args([&home])
                .args([format!("cargo-deny@{VERSION}")])
                // Its release profile takes several times as long, for a tool that runs a second.
                .env("CARGO_PROFILE_RELEASE_LTO", "off")
                .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
                .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
                .run()
        },
    );
}

fn check() -> Result<String> {
    if workspace::find_program("cargo-deny").is_none() {
        bail!("not in PATH")
    }
    let text = Cmd::new("cargo-deny").args(["--version"]).capture()?;
    let version = text.trim().rsplit(' ').next().unwrap_or_default();
    let found =
        parse_version(version).with_context(|| format!("cannot read its version `{version}`"))?;
    if Some(found) < parse_version(VERSION) {
        bail!("{version} is older than {VERSION}");
    }
    Ok(version.to_owned())
}

/// Major, minor and patch of `1.2.3`, without what may follow a `-` or `+`.
pub(super) fn parse_version(text: &str) -> Option<(u64, u64, u64)> {
    let mut parts = text.split(['-', '+']).next()?.splitn(3, '.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        assert_eq!(parse_version("0.20.2"), Some((0, 20, 2)));
        assert_eq!(parse_version("0.20.2-rc.1+x"), Some((0, 20, 2)));
        assert!(parse_version("0.9.10") < parse_version("0.20.2"));
        for text in ["", "1", "1.2", "1.2.x", "v1.2.3"] {
            assert_eq!(parse_version(text), None, "{text}");
        }
        assert!(parse_version(VERSION).is_some());
    }
}
