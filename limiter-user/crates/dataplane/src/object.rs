//! Loads the kernel program, into fresh maps or into those that are pinned.
//!
//! Everything lies in one directory of a BPF file system: the maps, the links, and beside them the
//! layout they were made with. A fresh data plane is built in a staging directory, which takes the
//! place of the directory when it has its limits ([`settle`]); so no half-made one is ever taken
//! over, and one that is discarded protects until then.

use std::fs;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use aya::maps::{Array, MapData, MapError};
use limiter_common::abi::{ABI_VERSION, Config, Layout};
use limiter_common::features::Features;
use limiter_common::hash::HashKey;
use limiter_common::lists::BITS_PER_SOURCE;
use limiter_common::table::WAYS;

use super::attach::Links;
use super::options::{HashSecret, Options};
use super::pins::{link_of, pin_of};
use super::programs::{OBJECT, Programs, load_programs};
use super::{Error, kernel};

pub(super) const ABI_PIN: &str = "abi";
pub(super) const LAYOUT_PIN: &str = "layout";

/// A loaded program with its maps.
pub(super) struct Loaded {
    pub(super) programs: Programs,
    pub(super) layout: Layout,
    /// Where fresh maps are pinned until [`settle`]; `None` if pinned ones were taken over.
    pub(super) staging: Option<PathBuf>,
}

/// Loads the program for `options`.
pub(super) fn load(options: &Options) -> Result<Loaded, Error> {
    let object = OBJECT.ok_or(Error::NoProgram)?;
    // Before anything is touched: the options must make sense.
    let wanted = options.layout(hash_key(options.hash_secret)?)?;
    kernel::check()?;
    kernel::ensure_bpffs(&options.pin_dir)?;
    // Beside the directory: from within it could not take its place.
    let staging = staging_of(&options.pin_dir);
    // Before anything is built there: building removes what lies in the staging directory, and
    // links that are removed detach.
    if has_links(&staging) {
        // A daemon died within `settle`, when all links ran its program already.
        if options.pin_dir.exists() {
            move_links(&options.pin_dir, &staging)?;
        }
        take_the_place(&staging, &options.pin_dir)?;
    }
    if !options.pin_dir.exists() || options.reset {
        return build(object, wanted, options, staging);
    }
    // The version before the layout: what another version has written there may not even be a
    // layout.
    check_abi(&options.pin_dir)?;
    let layout = pinned_layout(&options.pin_dir, wanted)?;
    let features = pinned_features(&options.pin_dir)?;
    let programs = load_programs(object, &layout, options, &options.pin_dir, features)?;
    Ok(Loaded { programs, layout, staging: None })
}

/// Builds a data plane in `staging`.
fn build(
    object: &[u8],
    layout: Layout,
    options: &Options,
    staging: PathBuf,
) -> Result<Loaded, Error> {
    remove(&staging)?;
    let made = || {
        create(&staging)?;
        pin_layout(&staging, &layout)?;
        load_programs(object, &layout, options, &staging, Features::NONE)
    };
    match made() {
        Ok(programs) => Ok(Loaded { programs, layout, staging: Some(staging) }),
        Err(error) => {
            discard(&staging);
            Err(error)
        }
    }
}

/// Puts a staged data plane in the place of `pin_dir`, links included.
pub(super) fn settle(
    staging: &Path,
    pin_dir: &Path,
    programs: &mut Programs,
) -> Result<Links, Error> {
    let mut links =
        // Links are switched to the new program before their pins move. Whichever directory they
        // are found in after a crash, they run the program whose maps have the limits.
        if pin_dir.exists() { Links::take_over(pin_dir, programs)? } else { Links::default() };
    links.move_to(staging)?;
    take_the_place(staging, pin_dir)?;
    links.moved_to(pin_dir);
    Ok(links)
}

/// Renames a staged data plane that has the links.
fn take_the_place(staging: &Path, pin_dir: &Path) -> Result<(), Error> {
    // Not by RENAME_EXCHANGE, which bpffs has since Linux 5.16 only, and a plain rename needs an empty target. A
    // daemon that dies in between leaves a staging directory with links, which the next start completes.
    remove(pin_dir)?;
    fs::rename(staging, pin_dir).map_err(Error::pin("move the data plane to", pin_dir))
}

/// Moves the pins of links from one directory to another.
fn move_links(from: &Path, to: &Path) -> Result<(), Error> {
    let failed = Error::pin("move the links in", from);
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if link_of(entry.file_name()).is_some() {
            fs::rename(entry.path(), to.join(entry.file_name())).map_err(failed)?;
        }
    }
    Ok(())
}

/// Removes a staged data plane that is not put in place, unless links have come to it already: then the
/// next start completes it.
pub(super) fn discard(staging: &Path) {
    if !has_links(staging)
        && let Err(error) = remove(staging)
    {
        // Whatever led here is what to tell. What is left is replaced at the next start.
        tracing::debug!("{error}");
    }
}

/// Whether links are pinned in `directory`.
fn has_links(directory: &Path) -> bool {
    let names = fs::read_dir(directory).into_iter().flatten().flatten();
    names.into_iter().any(|entry| link_of(entry.file_name()).is_some())
}

/// The staging directory.
pub(super) fn staging_of(pin_dir: &Path) -> PathBuf {
    let mut name = pin_dir.file_name().unwrap_or_default().to_os_string();
    name.push(model::instance::STAGING_SUFFIX);
    pin_dir.with_file_name(name)
}

fn create(directory: &Path) -> Result<(), Error> {
    let failed = Error::pin("create", directory);
    fs::create_dir_all(directory).map_err(failed)?;
    // The hash's secret lies in here.
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).map_err(failed)
}

/// Removes a pin directory, if it is there. Links in it detach.
pub(super) fn remove(directory: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::pin("remove", directory)(error))
        }
        _ => Ok(()),
    }
}

/// The key of the hash: random, or made from a secret.
fn hash_key(secret: Option<HashSecret>) -> Result<HashKey, Error> {
    let bytes = match secret {
        Some(HashSecret(bytes)) => bytes,
        None => {
            let mut bytes = [0; 80];
            getrandom::fill(&mut bytes).map_err(Error::load)?;
            bytes
        }
    };
    let mut words = [0; 10];
    for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        // Hosts of either byte order must make the same hash of one secret, or their distinct sources cannot be
        // counted together.
        *word = u64::from_be_bytes(*chunk);
    }
    Ok(HashKey { words })
}

fn pin_layout(directory: &Path, layout: &Layout) -> Result<(), Error> {
    let failed = Error::map("pin the layout");
    let pin = || -> Result<(), MapError> {
        let mut abi = Array::<MapData, u32>::create(1, 0)?;
        // In a map of its own with a single number, so that a later version can read it without
        // knowing how this one lays anything out.
        abi.set(0, ABI_VERSION, 0)?;
        abi.pin(directory.join(ABI_PIN)).map_err(pin_error)?;
        let mut map = Array::<MapData, Layout>::create(1, 0)?;
        map.set(0, layout, 0)?;
        map.pin(directory.join(LAYOUT_PIN)).map_err(pin_error)
    };
    pin().map_err(failed)
}

fn pin_error(error: aya::pin::PinError) -> MapError {
    MapError::PinError { name: None, error }
}

/// Opens a pinned map as the type it should have.
fn open<T>(path: PathBuf) -> Result<T, MapError>
where
    T: TryFrom<aya::maps::Map, Error = MapError>,
{
    aya::maps::Map::from_map_data(MapData::from_pin(path)?)?.try_into()
}

/// Whether what is pinned in `directory` has this program's layout.
fn check_abi(directory: &Path) -> Result<(), Error> {
    let failed = || Error::map(format!("read the layout version in {}", directory.display()));
    let abi: Array<MapData, u32> = open(directory.join(ABI_PIN)).map_err(failed())?;
    let found = abi.get(&0, 0).map_err(failed())?;
    if found == ABI_VERSION {
        Ok(())
    } else {
        Err(Error::Abi { path: directory.into(), found, expected: ABI_VERSION })
    }
}

/// What a program must be loaded for that works on the maps in `directory`.
fn pinned_features(directory: &Path) -> Result<Features, Error> {
    let failed = || Error::map(format!("read the configuration in {}", directory.display()));
    let config: Array<MapData, [u64; size_of::<Config>() / 8]> =
        open(pin_of(directory, "CONFIG")).map_err(failed())?;
    let words = config.get(&0, 0).map_err(failed())?;
    Ok(Features(words[offset_of!(Config, features) / 8] as u32))
}

/// The options that a layout was made with, and their values as a reader knows them. Layouts with equal values serve
/// for each other.
fn described(layout: &Layout) -> [(&'static str, String); 5] {
    let Layout { sketch, window_shift, set_mask, filter_words, .. } = *layout;
    let (v4, v6) = layout.masks.lengths();
    [
        ("--sketch-epsilon or --sketch-delta", format!("{} × {}", sketch.depth, sketch.width())),
        ("--sketch-window", format!("{} ms", (1u64 << window_shift) / 1_000_000)),
        ("--max-sources", ((set_mask + 1) * WAYS).to_string()),
        ("--max-listed", (filter_words * 64 / BITS_PER_SOURCE).to_string()),
        ("--ipv4-prefix or --ipv6-prefix", format!("/{v4} and /{v6}")),
    ]
}

/// The layout of what is pinned in `directory`, if it serves for what is `wanted`.
fn pinned_layout(directory: &Path, wanted: Layout) -> Result<Layout, Error> {
    let failed = || Error::map(format!("read the layout in {}", directory.display()));
    let map: Array<MapData, Layout> = open(directory.join(LAYOUT_PIN)).map_err(failed())?;
    let pinned = map.get(&0, 0).map_err(failed())?;
    for ((option, found), (_, wanted)) in described(&pinned).into_iter().zip(described(&wanted)) {
        if found != wanted {
            return Err(Error::Layout { path: directory.into(), option, found, wanted });
        }
    }
    // The secret stays, or no bucket would be found again; CPUs may have been added.
    Ok(Layout { abi: wanted.abi, cpus: wanted.cpus, ..pinned })
}
