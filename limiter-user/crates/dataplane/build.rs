//! Embeds the kernel program, or leaves it out where its tools are missing.
//!
//! `LIMITER_EBPF` tells whether it is built (`tools::wants_kernel_program`); unset, it is where the tools
//! are there. So `cargo check` works on any machine, and a binary without the program says so when it
//! is asked to load it.

use std::env;
use std::path::Path;

/// Compiles the program for the third version of the BPF instructions: 32-bit registers, atomics that
/// return what they found (Linux 5.12). `aya_build` sets the flags of the compiler itself, so these
/// come through the profile, and not to build scripts and macros, which run on the host.
const COMPILER: [(&str, &str); 4] = [
    ("CARGO_UNSTABLE_PROFILE_RUSTFLAGS", "true"),
    ("CARGO_PROFILE_RELEASE_RUSTFLAGS", "-Ctarget-cpu=v3"),
    ("CARGO_PROFILE_RELEASE_BUILD_OVERRIDE_RUSTFLAGS", "-Cdebuginfo=0"),
    // Whoever sets it for the daemon would get another program: it divides the code, and with it what is inlined.
    ("CARGO_INCREMENTAL", "0"),
];

fn main() -> anyhow::Result<()> {
    println!("cargo::rustc-check-cfg=cfg(kernel_program)");
    println!("cargo::rerun-if-env-changed={}", tools::EBPF);
    let root = env::var("CARGO_MANIFEST_DIR")?;
    let root = Path::new(&root).ancestors().nth(3).unwrap_or(Path::new("."));
    for source in ["limiter-ebpf", "limiter-common/src"] {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    let wanted = tools::wants_kernel_program().map_err(anyhow::Error::msg)?;
    if !wanted && env::var_os(tools::EBPF).is_none() {
        println!(
            "cargo::warning=built without the kernel program: run `cargo xtask setup`, then \
             `cargo xtask build`"
        );
    }
    if wanted {
        for (variable, value) in COMPILER {
            // SAFETY: no other thread runs in this build script.
            unsafe { env::set_var(variable, value) };
        }
        let directory = root.join("limiter-ebpf");
        let package = aya_build::Package {
            name: "limiter-ebpf",
            root_dir: directory.to_str().unwrap_or("limiter-ebpf"),
            ..Default::default()
        };
        aya_build::build_ebpf([package], aya_build::Toolchain::default())?;
        println!("cargo::rustc-cfg=kernel_program");
    }
    Ok(())
}
