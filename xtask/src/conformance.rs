//! `conformance`: what others have written to test a rate limiter, run with `limiter-serve`.

use std::{ffi::OsStr, fs, path::Path, process::ExitCode};

use anyhow::{Context as _, Result};

use crate::{
    build::{self, SKIP},
    run::Cmd,
    setup, workspace,
};

/// What its tests need, beside the package itself.
const NEEDS: [&str; 3] = ["pytest==8.4.2", "pytest-lazy-fixtures==1.4.1", "redis==8.1.0"];

/// Its tests of storages and strategies, with what they share.
const TESTS: [&str; 4] = ["__init__.py", "utils.py", "test_storage.py", "test_strategy.py"];

/// Runs the tests of the Python package `limits`, from its source, through a storage that asks `limiter-serve`. What
/// fails on purpose is told with the reason.
pub(crate) fn command() -> Result<ExitCode> {
    build::cargo(["build", "--package", "serve"], SKIP).run()?;
    let target = workspace::target_dir()?;
    // An environment of its own: what else tests need of Python is to stay as it is.
    let folder = target.join("tools/conformance");
    let python = |args: &[&OsStr]| Cmd::own(folder.join("bin/python")).args(args);
    Cmd::new(&tools::PYTHON).args(["-m", "venv"]).args([&folder]).run()?;
    let pip = |args: &[&str]| {
        let args: Vec<&OsStr> =
            ["-m", "pip", "--quiet"].iter().chain(args).map(OsStr::new).collect();
        python(&args).run()
    };
    pip(&[&["install", setup::LIMITS], &NEEDS[..]].concat())?;
    let source = folder.join("source");
    let suite = folder.join("suite");
    for made in [&source, &suite] {
        fs::create_dir_all(made).with_context(|| format!("cannot make {}", made.display()))?;
    }
    let to = source.display().to_string();
    pip(&["download", "--no-deps", "--no-binary", ":all:", "--dest", &to, setup::LIMITS])?;
    let name = setup::LIMITS.replace("==", "-");
    let archive = source.join(format!("{name}.tar.gz"));
    python(&["-m".as_ref(), "tarfile".as_ref(), "-e".as_ref(), archive.as_ref(), source.as_ref()])
        .run()?;
    let theirs = source.join(&name).join("tests");
    fs::create_dir_all(suite.join("tests")).context("cannot make the folder of tests")?;
    for file in TESTS {
        copy(&theirs.join(file), &suite.join("tests").join(file))?;
    }
    let ours = workspace::root().join("tests/peers/limits");
    for file in ["conftest.py", "storage.py"] {
        copy(&ours.join(file), &suite.join(file))?;
    }
    let tests =
        python(&["-m".as_ref(), "pytest".as_ref(), "-rx".as_ref(), "-q".as_ref(), suite.as_ref()])
            .args(["--rootdir".as_ref(), suite.as_os_str()])
            .env("LIMITER_SERVE", target.join("debug/limiter-serve"));
    Err(tests.exec())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let copied = fs::copy(from, to);
    copied.with_context(|| format!("cannot copy {}", from.display())).map(drop)
}
