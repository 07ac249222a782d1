//! The tests' own kernel programs.

use aya::{Ebpf, programs::Xdp};

#[cfg(generator)]
const OBJECT: Option<&[u8]> =
    Some(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/tests-ebpf")));
#[cfg(not(generator))]
const OBJECT: Option<&[u8]> = None;

/// Creates the maps and prepares the programs.
///
/// # Panics
/// If they were left out of this build.
pub(crate) fn load() -> Ebpf {
    let object = OBJECT.expect(
        "this build lacks the tests' kernel programs: `cargo xtask test` builds them, \
         `cargo xtask setup` installs what that needs",
    );
    Ebpf::load(object).expect("an object file of the tests' kernel programs")
}

/// Hands the program `name` to the kernel.
///
/// # Panics
/// If the kernel refuses it.
pub(crate) fn program<'object>(object: &'object mut Ebpf, name: &str) -> &'object mut Xdp {
    let program: &mut Xdp = object
        .program_mut(name)
        .unwrap_or_else(|| panic!("no program {name}"))
        .try_into()
        .expect("an XDP program");
    program.load().unwrap_or_else(|error| panic!("the kernel refuses {name}: {error}"));
    program
}
