//! Where programs are looked for.

use std::{
    env,
    ffi::OsString,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// System directories with administration tools, which an ordinary user's `PATH` often lacks.
const SBIN: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// The root of the workspace.
#[must_use]
pub fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}

/// Where Python's and npm's programs are, installed for this workspace alone.
#[must_use]
pub fn environment() -> PathBuf {
    root().join("target/tools/python")
}

/// `$CARGO_HOME`, or `~/.cargo`; none if neither variable is set.
#[must_use]
pub fn cargo_home() -> Option<PathBuf> {
    match env::var_os("CARGO_HOME").filter(|home| !home.is_empty()) {
        Some(home) => std::path::absolute(home).ok(),
        None => Some(env::home_dir()?.join(".cargo")),
    }
}

/// The `PATH` of every child process: the caller's, with cargo's `bin` in front if it is absent (so
/// that a freshly installed tool is found), and the `sbin` directories and the workspace's own
/// tools behind.
#[must_use]
pub fn search_path() -> OsString {
    let given: Vec<PathBuf> =
        env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default();
    let dirs = extend(given, cargo_home().map(|home| home.join("bin")));
    // A directory with a colon in its name cannot be in a PATH; then the caller's has to do.
    env::join_paths(dirs).unwrap_or_else(|_| env::var_os("PATH").unwrap_or_default())
}

fn extend(mut dirs: Vec<PathBuf>, cargo_bin: Option<PathBuf>) -> Vec<PathBuf> {
    if let Some(bin) = cargo_bin
        && !dirs.contains(&bin)
    {
        dirs.insert(0, bin);
    }
    for dir in SBIN.map(PathBuf::from).into_iter().chain([environment().join("bin")]) {
        if !dirs.contains(&dir) {
            dirs.push(dir);
        }
    }
    dirs
}

/// The full path of `program`, looked up where children look it up.
#[must_use]
pub fn find_program(program: &str) -> Option<PathBuf> {
    find_in(env::split_paths(&search_path()), program)
}

fn find_in(dirs: impl Iterator<Item = PathBuf>, program: &str) -> Option<PathBuf> {
    dirs.map(|dir| dir.join(program)).find(|path| {
        path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn cargo_bin_comes_first_and_only_once() {
        let bin = PathBuf::from("/home/u/.cargo/bin");
        let dirs = extend(vec!["/usr/bin".into(), "/sbin".into()], Some(bin.clone()));
        let wanted = ["/home/u/.cargo/bin", "/usr/bin", "/sbin", "/usr/local/sbin", "/usr/sbin"];
        assert_eq!(dirs[..5], wanted.map(PathBuf::from));
        assert_eq!(dirs[5..], [environment().join("bin")]);
        assert_eq!(extend(dirs.clone(), Some(bin)), dirs);
    }

    #[test]
    fn only_executable_files_are_programs() {
        let dir = env::temp_dir().join(format!("tools-path-{}", std::process::id()));
        fs::create_dir_all(dir.join("folder")).unwrap();
        let dirs = || [dir.clone()].into_iter();
        let tool = dir.join("tool");
        fs::write(&tool, "").unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(find_in(dirs(), "tool"), None);
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find_in(dirs(), "tool"), Some(tool));
        assert_eq!(find_in(dirs(), "folder"), None);
        fs::remove_dir_all(&dir).unwrap();
    }
}
