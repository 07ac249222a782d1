//! The kernel programs: loaded from the object file, verified, one for each kind of link.

use std::fs;
use std::io;
use std::path::Path;
use std::thread::{self, ScopedJoinHandle};

use aya::programs::Xdp;
use aya::{Ebpf, EbpfLoader};
use limiter_common::abi::{Layout, LinkKind};
use limiter_common::batch::BATCHES_PER_CPU;
use limiter_common::features::Features;
use limiter_common::lists::PREFIX_WORDS;
use limiter_common::table::WAYS;

use super::options::Options;
use super::pins::pin_of;
use super::{Error, log};

/// What frames a program is loaded for, among the read-only globals of the object.
const LINK_KIND: &str = "LINK_KIND";

/// The maps of the object that are pinned. Those of its log are made anew with each program.
pub(super) const MAPS: [&str; 27] = [
    "CONFIG",
    "POLICIES",
    "EXACT",
    "PREFIXES4",
    "PREFIXES6",
    "CLASSES",
    "SHARED4",
    "SHARED6",
    "SHARED",
    "BATCHES",
    "SKETCH",
    "DISTINCT",
    "FINGERPRINTS",
    "SLOTS",
    "IDENTITIES",
    "SHARES",
    "COUNTERS",
    "DROP_CACHE",
    "LISTED",
    "LISTED4",
    "LISTED6",
    "PREFIX_BITMAP",
    "FILTER",
    "PEERS",
    "SAMPLING",
    "SAMPLES",
    "EVENTS",
];

/// The object file, if this binary has one.
#[cfg(kernel_program)]
pub(super) const OBJECT: Option<&[u8]> =
    Some(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/limiter-ebpf")));
#[cfg(not(kernel_program))]
pub(super) const OBJECT: Option<&[u8]> = None;

/// Whether this binary contains the kernel program.
pub const fn has_program() -> bool {
    OBJECT.is_some()
}

/// The programs for each kind of link. All are verified at the start: afterwards the daemon has no privilege for it
/// (`CAP_PERFMON`), and neither the first use of a feature nor the first interface of a kind can fail.
pub(super) struct Programs {
    /// For Ethernet, with what is in use.
    pub(super) at_work: Ebpf,
    /// What that one is loaded for.
    pub(super) features: Features,
    /// The one with everything, until it is at work.
    pub(super) full: Option<Ebpf>,
    /// For frames in several buffers, with everything; the kernel has none before Linux 5.18.
    jumbo: Option<Ebpf>,
    /// For packets without Ethernet, with everything.
    ip: Ebpf,
}

impl Programs {
    /// The XDP program for a kind of link; `None` if this kernel has none.
    pub(super) fn of(&mut self, kind: LinkKind) -> Result<Option<&mut Xdp>, Error> {
        let ebpf = match kind {
            LinkKind::Ethernet => Some(&mut self.at_work),
            LinkKind::Jumbo => self.jumbo.as_mut(),
            LinkKind::Ip => Some(&mut self.ip),
        };
        ebpf.map(|ebpf| program(ebpf, kind)).transpose()
    }
}

/// Loads the programs with the maps in `directory`, for `features` and for everything.
pub(super) fn load_programs(
    object: &[u8],
    layout: &Layout,
    options: &Options,
    directory: &Path,
    features: Features,
) -> Result<Programs, Error> {
    // Pinned while they are loaded, so that all have one ring for their lines, and somebody reads of it.
    let ring = pin_of(directory, log::RING);
    remove_file(&ring)?;
    let load = |features, kind| load_object(object, layout, options, directory, features, kind);
    // The first one makes the maps.
    let at_work = load(features, LinkKind::Ethernet)?;
    // Side by side: the verifier takes some tenths of a second for each.
    let (full, jumbo, ip) = thread::scope(|threads| {
        let full = || (features != Features::ALL).then(|| load(Features::ALL, LinkKind::Ethernet));
        let full = threads.spawn(full);
        let jumbo = threads.spawn(|| load(Features::ALL, LinkKind::Jumbo));
        (joined(full).transpose(), joined(jumbo), load(Features::ALL, LinkKind::Ip))
    });
    if let Err(error) = &jumbo {
        tracing::debug!("no program for frames in several buffers: {}", model::chain(error));
    }
    remove_file(&ring)?;
    Ok(Programs { at_work, features, full: full?, jumbo: jumbo.ok(), ip: ip? })
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn remove_file(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::pin("remove", path)(error))
        }
        _ => Ok(()),
    }
}

fn load_object(
    object: &[u8],
    layout: &Layout,
    options: &Options,
    directory: &Path,
    features: Features,
    kind: LinkKind,
) -> Result<Ebpf, Error> {
    let paths = MAPS.map(|name| pin_of(directory, name));
    let ring = pin_of(directory, log::RING);
    let (kernel_log, listen) = (u8::from(options.kernel_log), options.kernel_listen());
    let (kind_number, tunnels) = (kind as u8, options.kernel_tunnels()?);
    let mut loader = EbpfLoader::new();
    loader
        .override_global("LAYOUT", layout, true)
        .override_global("LISTEN", &listen, true)
        .override_global("TUNNELS", &tunnels, true)
        .override_global(log::SWITCH, &kernel_log, true)
        .override_global("FEATURES", &features.0, true)
        .override_global(LINK_KIND, &kind_number, true)
        .map_pin_path(log::RING, &ring)
        .map_max_entries("EXACT", options.max_limits.max(1))
        .map_max_entries("BATCHES", layout.cpus * BATCHES_PER_CPU)
        .map_max_entries("SKETCH", layout.sketch.cells())
        .map_max_entries("FINGERPRINTS", layout.set_mask + 1)
        .map_max_entries("LISTED", options.max_listed)
        .map_max_entries("FILTER", PREFIX_WORDS + layout.filter_words)
        .map_max_entries("SLOTS", (layout.set_mask + 1) * WAYS)
        .map_max_entries("IDENTITIES", (layout.set_mask + 1) * WAYS)
        .map_max_entries("SHARES", (layout.set_mask + 1) * WAYS);
    if !options.kernel_log {
        // A page, the least there is.
        loader.map_max_entries(log::RING, 1);
    }
    // The loader takes a map that is pinned there, and else makes and pins it. So the same call
    // takes over and makes anew.
    for (name, path) in MAPS.iter().zip(&paths) {
        loader.map_pin_path(name, path.as_path());
    }
    let (ebpf, verified) = verify(&mut loader, object, kind)?;
    tracing::debug!("the verifier processed {verified:?} instructions for {kind:?}, {features:?}");
    Ok(ebpf)
}

/// Creates the maps and has the verifier check the program. Returns how many instructions it processed; kernels
/// before 5.16 do not tell.
pub(super) fn verify(
    loader: &mut EbpfLoader<'_>,
    object: &[u8],
    kind: LinkKind,
) -> Result<(Ebpf, Option<u32>), Error> {
    let mut ebpf = loader.load(object).map_err(Error::load)?;
    let program = program(&mut ebpf, kind)?;
    program.load().map_err(Error::load)?;
    let verified = program.info().ok().and_then(|info| info.verified_instruction_count());
    Ok((ebpf, verified))
}

/// An XDP program of a loaded object.
fn program(ebpf: &mut Ebpf, kind: LinkKind) -> Result<&mut Xdp, Error> {
    let name = kind.program();
    let program = ebpf
        .program_mut(name)
        .ok_or_else(|| Error::load(format!("no program {name:?} in the object")))?;
    program.try_into().map_err(Error::load)
}
