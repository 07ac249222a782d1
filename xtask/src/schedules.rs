//! `schedules`: every order in which two CPUs can meet in one decision.

use std::process::ExitCode;

use anyhow::Result;

use crate::{
    build::{self, SKIP},
    workspace,
};

/// Runs the tests whose shared words are loom's; neither root nor the kernel program is needed.
pub(crate) fn command() -> Result<ExitCode> {
    let packages = ["test", "--package", "limiter-common", "--package", "decide"];
    let loom = build::cargo(packages, SKIP)
        .args(["--lib", "loom_tests::", "--", "--nocapture"])
        .env("RUSTFLAGS", "--cfg loom")
        // Under other flags everything is built anew, and again without them.
        .env("CARGO_TARGET_DIR", workspace::target_dir()?.join("loom"));
    Err(loom.exec())
}
