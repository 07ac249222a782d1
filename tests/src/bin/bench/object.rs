//! The benchmark's own kernel programs.

use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, MapData},
    programs::{ProgramError, ProgramFd, Xdp, XdpMode},
};
use tests::{Lab, lab::RX, model::traffic::Random};

use crate::{cell::Limit, layout};

#[cfg(generator)]
const OBJECT: Option<&[u8]> =
    Some(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/bench-ebpf")));
#[cfg(not(generator))]
const OBJECT: Option<&[u8]> = None;

/// Sources that each contender has room for.
// Room for every pattern but the random one, which overflows all contenders alike.
pub(crate) const CAPACITY: u32 = 1 << 20;

/// Reads the programs and makes their maps, of which the one that is named has `entries`.
///
/// # Panics
/// If they were left out of this build.
pub(crate) fn load(map: &str, entries: u32) -> Ebpf {
    let object = OBJECT.expect(
        "this build lacks the benchmark's kernel programs: `cargo xtask bench` builds them, \
         `cargo xtask setup` installs what that needs",
    );
    let mut random = Random(7);
    let key: [u64; 10] = std::array::from_fn(|_| random.number());
    let mut loader = EbpfLoader::new();
    loader.override_global("HASH_KEY", &key[..], true);
    let loaded = loader.map_max_entries(map, entries).load(object);
    loaded.expect("an object file of the benchmark's kernel programs")
}

/// Hands the XDP program `name` to the kernel, if it has not been yet.
///
/// # Panics
/// If the kernel refuses it.
pub(crate) fn program<'object>(object: &'object mut Ebpf, name: &str) -> &'object mut Xdp {
    let program = object.program_mut(name).unwrap_or_else(|| panic!("no program {name}"));
    let program: &mut Xdp = program.try_into().expect("an XDP program");
    match program.load() {
        Ok(()) | Err(ProgramError::AlreadyLoaded) => program,
        Err(error) => panic!("the kernel refuses {name}: {error}"),
    }
}

/// The loaded program `name`, for other programs to call.
///
/// # Panics
/// If the kernel refuses it.
pub(crate) fn handle(object: &mut Ebpf, name: &str) -> ProgramFd {
    let fd = program(object, name).fd().expect("a loaded program");
    fd.try_clone().expect("another descriptor")
}

/// Attaches the program `name` to the receiver of `lab` in native mode.
///
/// # Panics
/// If the kernel refuses.
pub(crate) fn attach(mut object: Ebpf, name: &'static str, lab: &Lab) -> Ebpf {
    lab.receiver.run_inside(move || {
        program(&mut object, name).attach(RX, XdpMode::Driver).expect("a free interface");
        object
    })
}

/// Sets the limit of the textbook limiter in `object`.
///
/// # Panics
/// If it cannot be stored.
pub(crate) fn set_limit(object: &mut Ebpf, limit: Limit) {
    let cost = 1_000_000_000 / u64::from(limit.rate);
    let words = layout::Limit { cost, burst: cost * u64::from(limit.burst) };
    let map = object.map_mut("LIMIT").expect("a map for the limit");
    let mut map: Array<&mut MapData, layout::Limit> = map.try_into().expect("an array");
    map.set(0, words, 0).expect("a limit can be stored");
}
