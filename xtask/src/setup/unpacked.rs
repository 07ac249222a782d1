//! Debian packages of another suite, unpacked in a folder of the workspace.
//!
//! apt has lists and a cache of its own for that, so the system's sources stay as they are, and it need not be root.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail};

use super::apt;
use crate::{progress::Log, run::Cmd};

/// Fetches `packages` of `suite`, and unpacks them in `folder`.
pub(super) fn install(suite: &str, packages: &[&str], folder: &str, log: &Log) -> Result<()> {
    if tools::APT_GET.find().is_none() {
        bail!("there is no apt-get to fetch it with");
    }
    let source = source(&apt::repositories()?, suite)?;
    let scratch = tempfile::tempdir().context("cannot make a temporary folder")?;
    let at = |name: &str| scratch.path().join(name);
    for made in ["lists/partial", "cache/archives/partial", "packages"] {
        fs::create_dir_all(at(made)).with_context(|| format!("cannot make {made}"))?;
    }
    fs::write(at("sources.list"), source).context("cannot write the list of sources")?;
    let apt_get = |args: &[&str]| {
        let place = |name: &str, file: &str| format!("{name}={}", at(file).display());
        let options = [
            place("Dir::Etc::sourcelist", "sources.list"),
            "Dir::Etc::sourceparts=-".to_owned(),
            place("Dir::State::lists", "lists"),
            place("Dir::Cache", "cache"),
            // Another user could not write to the temporary folder.
            "APT::Sandbox::User=root".to_owned(),
        ];
        let options = options.iter().flat_map(|option| ["-o", option]);
        Cmd::new(&tools::APT_GET).args(["-q"]).args(options).args(args)
    };
    apt_get(&["update"]).log(log)?;
    // It leaves the files where it runs.
    apt_get(&["download"]).args(packages).within(at("packages")).log(log)?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {folder}"))?;
    for package in fs::read_dir(at("packages")).context("cannot read what was fetched")? {
        let unpack = Cmd::new(&tools::DPKG_DEB).args(["-x".as_ref(), package?.path().as_os_str()]);
        unpack.args([Path::new(folder)]).log(log)?;
    }
    Ok(())
}

/// How that is done by hand.
pub(super) fn advice(suite: &str, packages: &[&str], folder: &str) -> String {
    let packages = packages.join(" ");
    format!("apt-get download {packages}, of Debian's suite {suite}, and dpkg-deb -x to {folder}")
}

/// The line for `suite` on the mirror of Debian that is among `repositories`.
fn source(repositories: &str, suite: &str) -> Result<String> {
    let is_debian = |line: &&str| line.trim_end_matches('/').ends_with("/debian");
    let mirror = repositories.lines().find(is_debian);
    let mirror = mirror.context("apt has no mirror of Debian among its sources")?;
    Ok(format!("deb {mirror} {suite} main\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suite_is_looked_for_where_apt_has_debian_from() {
        let repositories = "http://one.example/node\nhttp://two.example/debian/\n";
        let found = source(repositories, "x-backports").unwrap();
        assert_eq!(found, "deb http://two.example/debian/ x-backports main\n");
        assert!(source("http://one.example/debian-security/\n", "x").is_err());
    }
}
