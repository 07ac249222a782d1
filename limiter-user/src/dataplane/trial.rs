//! Loads the kernel program to see whether this kernel takes it, and lets it go again.

use std::path::PathBuf;
use std::time::Duration;

use aya::EbpfLoader;
use limiter_common::hash::HashKey;

use super::object::{OBJECT, program};
use super::{Error, OnFull, Options, kernel};

/// Entries of maps whose size is a choice: they are never used.
const SMALL: [&str; 5] = ["EXACT", "SKETCH", "FINGERPRINTS", "SLOTS", "IDENTITIES"];

/// Hands the program to the kernel's verifier, with maps that vanish with it. Nothing is pinned or
/// attached. Returns how many instructions the verifier processed, where the kernel tells.
///
/// # Errors
/// As [`super::Dataplane::open`] for what has to do with the kernel.
pub fn try_load() -> Result<Option<u32>, Error> {
    let object = OBJECT.ok_or(Error::NoProgram)?;
    kernel::check()?;
    // Of the usual shape, because the verifier knows its constants.
    let usual = Options {
        pin_dir: PathBuf::new(),
        epsilon: 0.000_025,
        delta: 0.14,
        window: Duration::from_millis(134),
        max_sources: 524_288,
        max_limits: 1,
        max_listed: 1,
        ipv4_prefix: 32,
        ipv6_prefix: 64,
        drop_malformed: false,
        on_full: OnFull::Pass,
        kernel_log: false,
        hash_secret: None,
        reset: false,
    };
    let layout = usual.layout(HashKey { words: [1; 10] })?;
    let mut loader = EbpfLoader::new();
    loader.override_global("LAYOUT", &layout, true);
    for name in SMALL {
        loader.map_max_entries(name, 1);
    }
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| Error::Load(error);
    let mut ebpf = loader.load(object).map_err(|e| failed(Box::new(e)))?;
    let program = program(&mut ebpf)?;
    program.load().map_err(|e| failed(Box::new(e)))?;
    Ok(program.info().ok().and_then(|info| info.verified_instruction_count()))
}
