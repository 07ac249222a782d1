//! `lint`: formatting, clippy, documentation, dependencies. All of it runs, whatever fails first.

use anyhow::{Result, bail};
use tools::Need;

use crate::{
    build::{self, SKIP},
    progress::say,
    run::Cmd,
    setup, words,
};

/// The crates compiled for the BPF target.
const BPF_CRATES: [&str; 2] = ["limiter-ebpf", "tests-ebpf"];

type Check = fn() -> Result<()>;

/// Runs every check; an error naming those that failed.
pub(crate) fn command() -> Result<()> {
    setup::ensure(&[Need::Lint])?;
    // All in any case: a wrong format should not hide what clippy has to say.
    let checks: [(&str, Check); 6] = [
        ("format", format),
        ("words", words::check),
        ("clippy", clippy),
        ("clippy of the BPF crates", clippy_bpf),
        ("documentation", documentation),
        ("dependencies", dependencies),
    ];
    let mut failed = Vec::new();
    for (name, check) in checks {
        if let Err(error) = check() {
            say(format_args!("{name}: {error:#}"));
            failed.push(name);
        }
    }
    if !failed.is_empty() {
        bail!("lint failed: {}", failed.join(", "));
    }
    say("lint: all checks passed");
    Ok(())
}

fn format() -> Result<()> {
    Cmd::cargo(["fmt", "--all", "--check"]).run()
}

fn clippy() -> Result<()> {
    // Userspace alone: the kernel programs would be compiled first, and clippy of those has a
    // check of its own.
    build::cargo(["clippy", "--all-targets", "--", "-D", "warnings"], SKIP).run()
}

fn clippy_bpf() -> Result<()> {
    // Skipped and not failed: all else can be worked on with stable alone.
    if let Err(error) = setup::ensure_nightly() {
        say(format_args!(
            "clippy of the BPF crates: skipped, there is no usable nightly: {error:#}"
        ));
        return Ok(());
    }
    if Cmd::nightly(["cargo", "clippy", "--version"]).capture().is_err() {
        say("clippy of the BPF crates: skipped, nightly has no clippy \
             (rustup component add clippy --toolchain nightly)");
        return Ok(());
    }
    let packages = BPF_CRATES.iter().flat_map(|name| ["--package", name]);
    // The BPF target has no compiled `core`, so that is built with the crates.
    Cmd::nightly(["cargo", "clippy", "--target", "bpfel-unknown-none", "-Zbuild-std=core"])
        .args(packages)
        .args(["--", "-D", "warnings"])
        // The bindings to kernel types depend on the machine the program is to run on.
        .env(
            "CARGO_ENCODED_RUSTFLAGS",
            format!("--cfg=bpf_target_arch=\"{}\"", std::env::consts::ARCH),
        )
        .run()
}

fn documentation() -> Result<()> {
    // A link that leads nowhere is only a warning otherwise.
    build::cargo(["doc", "--no-deps"], SKIP).env("RUSTDOCFLAGS", "-D warnings").run()
}

fn dependencies() -> Result<()> {
    let check = |what: &[&str]| Cmd::cargo(["deny", "--log-level=error", "check"]).args(what);
    check(&["bans", "licenses", "sources"]).run()?;
    // Advisories come from a database that cannot be had everywhere; the rest must not wait for it.
    // git would ask for a name and a password where it cannot read the database, and wait.
    let fetch = Cmd::cargo(["deny", "fetch", "db"]).env("GIT_TERMINAL_PROMPT", "0");
    if let Err(error) = fetch.capture() {
        let reason = error.to_string();
        let reason = reason.lines().last().unwrap_or_default().trim();
        say(format_args!("advisories: skipped, their database cannot be fetched: {reason}"));
        return Ok(());
    }
    check(&["--disable-fetch", "advisories"]).run()
}
