//! The nightly toolchain with the sources of `core`.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result, bail};

use super::item::{Item, Remedy};
use crate::run::Cmd;

/// What is wanted of `rustc -vV`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rustc {
    /// The release, as `1.97.0-nightly`.
    pub(super) release: String,
    /// Major version of the LLVM it was built with.
    pub(super) llvm: u32,
}

/// The nightly toolchain and its rust-src, from which `core` is built for the BPF target.
pub(super) fn items() -> [Item; 2] {
    let add = ["component", "add", "rust-src", "--toolchain", "nightly"];
    // Minimal: documentation and the rest would be most of the download.
    let toolchain = rustup(&["toolchain", "install", "nightly", "--profile", "minimal"]);
    [
        Item::new(
            "nightly",
            Duration::from_secs(30),
            Remedy::command(toolchain.to_string(), move |log| {
                toolchain.log(log)?;
                // Only `lint` uses it, and says so if a nightly lacks it.
                let clippy = rustup(&["component", "add", "clippy", "--toolchain", "nightly"]);
                clippy.log(log).or_else(|error| {
                    log.write(&format!("nightly clippy is left out: {error:#}"));
                    Ok(())
                })
            }),
            || nightly().map(|rustc| format!("rustc {}, LLVM {}", rustc.release, rustc.llvm)),
        ),
        Item::new(
            "nightly rust-src",
            Duration::from_secs(5),
            Remedy::command(rustup(&add).to_string(), move |log| rustup(&add).log(log)),
            rust_src,
        ),
    ]
}

fn rustup(arguments: &[&str]) -> Cmd {
    Cmd::new(&tools::RUSTUP).args(arguments)
}

/// The installed nightly compiler.
pub(super) fn nightly() -> Result<Rustc> {
    let text = Cmd::nightly(["rustc", "-vV"]).capture()?;
    parse_rustc(&text).context("cannot read `rustc -vV` of the nightly toolchain")
}

/// Looks for the files themselves: they may be there without rustup knowing of a component.
fn rust_src() -> Result<String> {
    let sysroot = Cmd::nightly(["rustc", "--print", "sysroot"]).capture()?;
    let core = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/core/Cargo.toml");
    if core.is_file() { Ok(String::new()) } else { bail!("{} is not there", core.display()) }
}

fn parse_rustc(text: &str) -> Result<Rustc> {
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
            .with_context(|| format!("no line `{name}:`"))
    };
    let version = field("LLVM version")?;
    let llvm = version
        .split('.')
        .next()
        .and_then(|major| major.parse().ok())
        .with_context(|| format!("no number in front of LLVM version `{version}`"))?;
    Ok(Rustc { release: field("release")?.to_owned(), llvm })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_release_and_llvm_major() {
        let text = "rustc 1.97.0-nightly (e50aa6fba 2026-05-19)\nbinary: rustc\n\
                    release: 1.97.0-nightly\nLLVM version: 22.1.4\n";
        let rustc = parse_rustc(text).unwrap();
        assert_eq!(rustc, Rustc { release: "1.97.0-nightly".to_owned(), llvm: 22 });
    }

    #[test]
    fn a_compiler_without_llvm_is_an_error() {
        let error = parse_rustc("release: 1.97.0\n").unwrap_err().to_string();
        assert!(error.contains("LLVM version"), "{error}");
        assert!(parse_rustc("release: 1\nLLVM version: rust-dev\n").is_err());
    }
}
