//! A program that a command of `cargo xtask` needs and that is not there is named by it, with the
//! command that installs it, before anything is built.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Output,
};

use tempfile::TempDir;
use tests::{
    cli::limiter_binary,
    cover::{NO_PROGRAM, cover},
    process, require_root,
};
use tools::{Need, Source, TABLE, Tool};

/// The command that needs tools for `need`.
fn command(need: Need) -> &'static [&'static str] {
    match need {
        Need::Start => &["setup", "--check"],
        Need::Kernel | Need::Charts => &["build"],
        Need::Demo => &["demo"],
        Need::Test => &["test", "--e2e"],
        Need::Lint => &["lint"],
        Need::Bench => &["bench", "hash"],
        Need::Decide => &["bench", "decide"],
        Need::Stores => &["stores"],
        Need::Dist => &["dist"],
        Need::Guest => &["dist", "--verify"],
        Need::Fresh => &["fresh"],
    }
}

/// Lets `arguments` of xtask run where `hidden` is not there, nothing can be installed, and all other
/// tools are as they are here.
fn without(hidden: &Tool, arguments: &[&str]) -> Output {
    let home = tempfile::tempdir().expect("a temporary folder");
    let mut covers = Vec::new();
    if tools::APT_GET.program != hidden.program {
        covers.extend(tools::APT_GET.find().map(|path| ("/bin/false", path)));
    }
    // These are not there either unless somebody has asked for them, and then Python would fetch them.
    let is_apart = matches!(hidden.source, Source::Wheel { .. } | Source::Unpacked { .. });
    if is_apart || hidden.program == tools::NPM.program {
        covers.extend(tools::PYTHON.find().map(|path| ("/bin/false", path)));
    }
    let own = tools::cargo_home().expect("cargo has a home").join("bin");
    let is_own = hidden.find().is_some_and(|path| path.starts_with(&own));
    let path = tools::search_path();
    if !is_own {
        // There may be several of a name. A file's own path is absolute, and so the same in each folder.
        let all = std::env::split_paths(&path).map(|dir| dir.join(hidden.program));
        covers.extend(all.filter(|path| path.exists()).map(|path| (NO_PROGRAM, path)));
    }
    let bin = farm(&home, &own, is_own.then_some(hidden.program));
    let path = std::env::split_paths(&path).map(|dir| if dir == own { bin.clone() } else { dir });
    let mut xtask = tools::own(limiter_binary().with_file_name("xtask"));
    xtask
        .args(arguments)
        .env("PATH", std::env::join_paths(path).expect("a PATH"))
        .env("CARGO", cargo(&home, hidden))
        .env("CARGO_HOME", home.path())
        .env("RUSTUP_HOME", rustup_home());
    cover(&mut xtask, &covers);
    process::output(&mut xtask)
}

/// A folder with links to what is in `bin`, but for `left_out`.
fn farm(home: &TempDir, bin: &Path, left_out: Option<&str>) -> PathBuf {
    let farm = home.path().join("bin");
    fs::create_dir(&farm).expect("a folder");
    for entry in fs::read_dir(bin).into_iter().flatten().flatten() {
        if left_out.is_none_or(|name| entry.file_name() != name) {
            symlink(entry.path(), farm.join(entry.file_name())).expect("a link");
        }
    }
    farm
}

/// A cargo that installs nothing. It is a shell's script, so without a shell it is the real one.
fn cargo(home: &TempDir, hidden: &Tool) -> PathBuf {
    let real = PathBuf::from(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    if hidden.program == tools::SH.program {
        return real;
    }
    let script = home.path().join("cargo");
    let text =
        format!("#!/bin/sh\n[ \"$1\" = install ] && exit 9\nexec {} \"$@\"\n", real.display());
    fs::write(&script, text).expect("a script");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("a mode");
    script
}

fn rustup_home() -> PathBuf {
    let home = std::env::var_os("RUSTUP_HOME").map(PathBuf::from);
    home.unwrap_or_else(|| std::env::home_dir().expect("a home").join(".rustup"))
}

/// What xtask must name for `tool`: the package, or what else brings it.
fn remedy(tool: &Tool) -> &'static str {
    match tool.source {
        Source::Debian(package) => package,
        Source::Rustup => "install rustup",
        Source::Component(name) | Source::Cargo(name) => name,
        Source::Python(requirement) | Source::Wheel { requirement, .. } => requirement,
        Source::Unpacked { packages, .. } => packages[0],
    }
}

#[test]
fn a_missing_tool_is_named_with_its_remedy() {
    require_root();
    let mut wrong = Vec::new();
    for tool in TABLE {
        // The first command that needs it, and the one that newcomers try first.
        let demo = tool.needs.iter().skip(1).filter(|need| **need == Need::Demo);
        for need in tool.needs.iter().take(1).chain(demo) {
            let output = without(tool, command(*need));
            let text = String::from_utf8_lossy(&output.stderr);
            let installs: Vec<_> = text
                .lines()
                .filter(|line| line.trim_start().starts_with("apt-get install"))
                .collect();
            let is_named = match tool.package() {
                Some(package) => {
                    installs.len() == 1 && installs[0].split(' ').any(|word| word == package)
                }
                None => text.contains(remedy(tool)),
            };
            if output.status.success() || !is_named || text.contains("panicked") {
                wrong.push(format!("{need:?} without {}: {}\n{text}", tool.program, output.status));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
