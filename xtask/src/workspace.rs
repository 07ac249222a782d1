//! Where things lie: the workspace, its build output, and cargo's home.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::run::Cmd;

/// System directories with administration tools, which an ordinary user's `PATH` often lacks.
const SBIN: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// The root of the workspace.
pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// The directory cargo builds into, wherever configuration or environment put it.
pub(crate) fn target_dir() -> Result<PathBuf> {
    let metadata = metadata()?;
    let dir = metadata["target_directory"]
        .as_str()
        .context("cargo metadata names no target_directory")?;
    Ok(PathBuf::from(dir))
}

/// The options of `cargo test` that select the tests of `package`, one program after the other:
/// those in the library and the binaries, then each integration test.
pub(crate) fn test_targets(package: &str) -> Result<Vec<Vec<String>>> {
    let tests = integration_tests(&metadata()?, package)
        .with_context(|| format!("the workspace has no package `{package}`"))?;
    let inner = ["--lib", "--bins"].map(str::to_owned).to_vec();
    let outer = tests.into_iter().map(|name| vec!["--test".to_owned(), name]);
    Ok([inner].into_iter().chain(outer).collect())
}

fn integration_tests(metadata: &serde_json::Value, package: &str) -> Option<Vec<String>> {
    let packages = metadata["packages"].as_array()?;
    let targets = packages.iter().find(|it| it["name"] == package)?["targets"].as_array()?;
    let tests = targets.iter().filter(|target| target["kind"][0] == "test");
    Some(tests.filter_map(|target| Some(target["name"].as_str()?.to_owned())).collect())
}

fn metadata() -> Result<serde_json::Value> {
    let text = Cmd::cargo(["metadata", "--no-deps", "--format-version=1"]).capture()?;
    serde_json::from_str(&text).context("cargo metadata printed something that is not JSON")
}

/// `$CARGO_HOME`, or `~/.cargo`.
pub(crate) fn cargo_home() -> Result<PathBuf> {
    if let Some(home) = env::var_os("CARGO_HOME").filter(|home| !home.is_empty()) {
        return std::path::absolute(&home).context("cannot make CARGO_HOME absolute");
    }
    let home = env::home_dir().context("neither CARGO_HOME nor HOME is set: set one of them")?;
    Ok(home.join(".cargo"))
}

/// The `PATH` of every child process: the caller's, with cargo's `bin` in front if it is absent
/// (so that a freshly installed tool is found) and the `sbin` directories behind.
pub(crate) fn search_path() -> OsString {
    let given: Vec<PathBuf> =
        env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default();
    let cargo_bin = cargo_home().ok().map(|home| home.join("bin"));
    let dirs = extend_path(given, cargo_bin);
    // A directory with a colon in its name cannot be in a PATH; then the caller's has to do.
    env::join_paths(dirs).unwrap_or_else(|_| env::var_os("PATH").unwrap_or_default())
}

fn extend_path(mut dirs: Vec<PathBuf>, cargo_bin: Option<PathBuf>) -> Vec<PathBuf> {
    if let Some(bin) = cargo_bin
        && !dirs.contains(&bin)
    {
        dirs.insert(0, bin);
    }
    for sbin in SBIN.map(PathBuf::from) {
        if !dirs.contains(&sbin) {
            dirs.push(sbin);
        }
    }
    dirs
}

/// The full path of `program`, looked up where the children will look it up.
pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    find_in(env::split_paths(&search_path()), program)
}

fn find_in(dirs: impl Iterator<Item = PathBuf>, program: &str) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    dirs.map(|dir| dir.join(program)).find(|path| {
        path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn integration_tests_are_those_of_the_package() {
        let target = |kind, name| serde_json::json!({"kind": [kind], "name": name});
        let metadata = serde_json::json!({"packages": [
            {"name": "other", "targets": [target("test", "a")]},
            {"name": "tests", "targets": [target("lib", "tests"), target("test", "b")]},
        ]});
        assert_eq!(integration_tests(&metadata, "tests"), Some(vec!["b".to_owned()]));
        assert_eq!(integration_tests(&metadata, "absent"), None);
    }

    #[test]
    fn cargo_bin_comes_first_and_only_once() {
        let bin = PathBuf::from("/home/u/.cargo/bin");
        let dirs = extend_path(vec!["/usr/bin".into(), "/sbin".into()], Some(bin.clone()));
        assert_eq!(
            dirs,
            ["/home/u/.cargo/bin", "/usr/bin", "/sbin", "/usr/local/sbin", "/usr/sbin"]
                .map(PathBuf::from)
        );
        assert_eq!(extend_path(dirs.clone(), Some(bin)), dirs);
    }

    #[test]
    fn only_executable_files_are_programs() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = || [dir.path().to_path_buf()].into_iter();
        let tool = dir.path().join("tool");
        fs::write(&tool, "").unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(find_in(dirs(), "tool"), None);
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find_in(dirs(), "tool"), Some(tool));
        fs::create_dir(dir.path().join("folder")).unwrap();
        assert_eq!(find_in(dirs(), "folder"), None);
    }
}
