//! What build scripts are told to embed.

use std::env;

use crate::{BPF_LINKER, RUSTUP};

/// The variable that tells build scripts what to do about the kernel programs.
pub const EBPF: &str = "LIMITER_EBPF";

/// Whether a build script is to build its kernel program. Unset, [`EBPF`] leaves that to whether the
/// tools are there; `require` builds it in any case, `skip` never. `later` fails at once: with
/// `cargo build --keep-going` only libraries are compiled then, for as long as bpf-linker is not there.
///
/// # Errors
/// If the variable says `later`, or something that is not known.
pub fn wants_kernel_program() -> Result<bool, String> {
    match env::var(EBPF).as_deref() {
        Ok("require") => Ok(true),
        Ok("skip") => Ok(false),
        Ok("later") => Err("only the libraries are built now".to_owned()),
        Ok("") | Err(_) => {
            let nightly = RUSTUP.command().args(["run", "nightly", "rustc", "-V"]).output();
            Ok(BPF_LINKER.find().is_some() && nightly.is_ok_and(|output| output.status.success()))
        }
        Ok(other) => {
            Err(format!("{EBPF} is `{other}`: use `require` or `skip`, or leave it unset"))
        }
    }
}
