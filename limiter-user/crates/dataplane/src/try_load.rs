//! Loads the kernel program to see whether this kernel takes it, and lets it go again.

use std::path::PathBuf;

use aya::EbpfLoader;
use limiter_common::abi::LinkKind;
use limiter_common::hash::HashKey;

use super::programs::{OBJECT, verify};
use super::{Error, Options, kernel};

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
    // Of the usual shape: the layout is read-only data, which the verifier takes for constants, so other values
    // would have it walk other branches.
    let usual = Options { max_limits: 1, max_listed: 1, ..Options::usual(PathBuf::new()) };
    let layout = usual.layout(HashKey { words: [1; 10] })?;
    let mut loader = EbpfLoader::new();
    loader.override_global("LAYOUT", &layout, true);
    for name in SMALL {
        loader.map_max_entries(name, 1);
    }
    verify(&mut loader, object, LinkKind::Ethernet).map(|(_, verified)| verified)
}
