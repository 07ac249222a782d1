//! What the dashboard draws its charts with: a package of the npm registry, pinned by its hash.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result, bail};

use super::{packages, report::Report};
use crate::{
    run::{Cmd, say},
    workspace,
};

#[expect(unreachable_pub, reason = "the build script of limiter-user includes the same file")]
mod pinned {
    include!("../../../limiter-user/assets.rs");
}
use pinned::{FILES, PACKAGE, SHA512, VERSION};

/// Brings the package's files to where the build script looks for them.
pub(super) fn bring(report: &mut Report) {
    let mend = format!("npm pack {PACKAGE}@{VERSION}, and unpack it in {}", folder().display());
    if report.may_install() && check().is_err() {
        packages::bring(report, &["npm"]);
    }
    report.item(PACKAGE, &mend, check, install);
}

/// `target/assets/uplot-1.6.32`, also where another target directory is used: it holds no artefacts.
fn folder() -> PathBuf {
    workspace::root().join("target/assets").join(format!("{PACKAGE}-{VERSION}"))
}

fn check() -> Result<String> {
    for (file, _) in FILES {
        let path = folder().join(file);
        if !path.is_file() {
            bail!("no {}", path.display());
        }
    }
    Ok(VERSION.to_owned())
}

fn install() -> Result<()> {
    if workspace::find_program("npm").is_none() {
        bail!("there is no npm to fetch it with");
    }
    let assets = workspace::root().join("target/assets");
    let parts = assets.join(format!("{PACKAGE}-{VERSION}.part"));
    fs::remove_dir_all(&parts).or_else(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })?;
    fs::create_dir_all(&parts).with_context(|| format!("cannot make {}", parts.display()))?;
    let place = parts.display().to_string();
    Cmd::new("npm")
        .args(["pack", "--silent", "--ignore-scripts", "--pack-destination", &place])
        .args([format!("{PACKAGE}@{VERSION}")])
        .run()?;
    let tarball = format!("{place}/{PACKAGE}-{VERSION}.tgz");
    let sum = Cmd::new("sha512sum").args([&tarball]).capture()?;
    let sum = sum.split_whitespace().next().unwrap_or_default();
    if sum != SHA512 {
        bail!("{tarball} has the SHA-512 {sum}, not {SHA512}: it is not what was pinned");
    }
    let mut tar = Cmd::new("tar").args(["-xzf", &tarball, "-C", &place, "--strip-components=1"]);
    tar = tar.args(FILES.map(|(file, _)| format!("package/{file}")));
    tar.run()?;
    fs::remove_file(&tarball)?;
    // In one step, so that a build never finds half of it.
    if folder().exists() {
        fs::remove_dir_all(folder())?;
    }
    fs::rename(&parts, folder()).context("cannot put the files in their place")?;
    say(format_args!("{PACKAGE} {VERSION} is in {}", folder().display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_one() {
        assert_eq!(SHA512.len(), 128);
        assert!(SHA512.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}
