//! What the dashboard draws its charts with: a package of the npm registry, pinned by its hash.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, bail};

use super::item::{Item, Remedy};
use crate::{progress::Log, run::Cmd, workspace};

#[expect(unreachable_pub, reason = "the build script of the daemon includes the same file")]
mod pinned {
    include!("../../../limiter-user/crates/daemon/assets.rs");
}
use pinned::{FILES, PACKAGE, SHA512, VERSION};

/// The package's files, where the build script looks for them.
pub(super) fn item() -> Item {
    let advice = format!("npm pack {PACKAGE}@{VERSION}, and unpack it in {}", folder().display());
    Item::new(PACKAGE, Duration::from_secs(5), Remedy::command(advice, install), check).late()
}

/// `target/assets/uplot-1.6.32`, also where another target directory is used: it holds no artefacts.
fn folder() -> PathBuf {
    workspace::root().join("target/assets").join(format!("{PACKAGE}-{VERSION}"))
}

/// Whether they are there.
pub(super) fn check() -> Result<String> {
    for (file, _) in FILES {
        let path = folder().join(file);
        if !path.is_file() {
            bail!("no {}", path.display());
        }
    }
    Ok(VERSION.to_owned())
}

fn install(log: &Log) -> Result<()> {
    let assets = workspace::root().join("target/assets");
    let parts = assets.join(format!("{PACKAGE}-{VERSION}.part"));
    fs::remove_dir_all(&parts).or_else(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })?;
    fs::create_dir_all(&parts).with_context(|| format!("cannot make {}", parts.display()))?;
    let place = parts.display().to_string();
    Cmd::new(&tools::NPM)
        // The files are all that is wanted: no code of the package runs here.
        .args(["pack", "--ignore-scripts", "--pack-destination", &place])
        .args([format!("{PACKAGE}@{VERSION}")])
        .log(log)?;
    let tarball = format!("{place}/{PACKAGE}-{VERSION}.tgz");
    // The registry is trusted for nothing: what comes of it ends up in every binary.
    let sum = Cmd::new(&tools::SHA512SUM).args([&tarball]).capture()?;
    let sum = sum.split_whitespace().next().unwrap_or_default();
    if sum != SHA512 {
        bail!("{tarball} has the SHA-512 {sum}, not {SHA512}: it is not what was pinned");
    }
    Cmd::new(&tools::TAR)
        // The named files alone: an archive may name paths of its own.
        .args(["-xzf", &tarball, "-C", &place, "--strip-components=1"])
        .args(FILES.map(|(file, _)| format!("package/{file}")))
        .log(log)?;
    fs::remove_file(&tarball)?;
    // In one step, so that a build never finds half of it.
    if folder().exists() {
        fs::remove_dir_all(folder())?;
    }
    fs::rename(&parts, folder()).context("cannot put the files in their place")?;
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
