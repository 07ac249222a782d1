//! Builds the packet generator for the kernel.
//!
//! `LIMITER_EBPF=require` fails where it cannot be built, `skip` never builds it, and without the
//! variable it is built where the tools are present. Without the generator everything still
//! compiles, and a test that needs it panics and says so.

use std::{env, path::PathBuf, process::Command};

use anyhow::{Context as _, bail};
use aya_build::{Package, Toolchain, build_ebpf};

fn main() -> anyhow::Result<()> {
    println!("cargo:rerun-if-env-changed=LIMITER_EBPF");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(generator)");
    let wanted = match env::var("LIMITER_EBPF").as_deref() {
        Ok("require") => true,
        Ok("skip") => false,
        Ok("") | Err(_) => {
            let missing = missing_tool();
            if let Some(tool) = &missing {
                println!(
                    "cargo:warning=the tests' packet generator is left out: {tool} is missing; \
                     `cargo xtask setup` installs it"
                );
            }
            missing.is_none()
        }
        Ok(other) => bail!("LIMITER_EBPF is `{other}`; use `require` or `skip`, or leave it unset"),
    };
    if wanted {
        let manifest = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
        let root = manifest.join("ebpf");
        println!("cargo:rerun-if-changed=../limiter-common/src");
        build_ebpf(
            [Package {
                name: "tests-ebpf",
                root_dir: root.to_str().context("the path of the tree is not UTF-8")?,
                ..Package::default()
            }],
            Toolchain::default(),
        )
        .context("cannot build the packet generator; `cargo xtask setup` installs what it needs")?;
        println!("cargo:rustc-cfg=generator");
    }
    Ok(())
}

/// The first tool that the generator needs and that does not run.
fn missing_tool() -> Option<String> {
    let tools: [&[&str]; 2] =
        [&["rustup", "run", "nightly", "rustc", "--version"], &["bpf-linker", "--version"]];
    tools
        .iter()
        .find(|tool| {
            !Command::new(tool[0]).args(&tool[1..]).output().is_ok_and(|o| o.status.success())
        })
        .map(|tool| format!("`{}`", tool.join(" ")))
}
