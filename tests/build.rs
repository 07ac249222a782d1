//! Builds the packet generator for the kernel.
//!
//! `LIMITER_EBPF` tells whether it is built (`tools::wants_kernel_program`). Without the generator
//! everything still compiles, and a test that needs it panics and says so.

use std::{env, path::PathBuf};

use anyhow::Context as _;
use aya_build::{Package, Toolchain, build_ebpf};

fn main() -> anyhow::Result<()> {
    println!("cargo:rerun-if-env-changed={}", tools::EBPF);
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(generator)");
    let wanted = tools::wants_kernel_program().map_err(anyhow::Error::msg)?;
    if !wanted && env::var_os(tools::EBPF).is_none() {
        println!(
            "cargo:warning=built without the tests' packet generator: `cargo xtask setup` installs \
             what it needs"
        );
    }
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
