//! The pins of links: their names, and whose they are.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use aya::programs::links::{FdLink, PinnedLink};

use model::interface::Mode;

use super::kernel::BPF_FS;

/// Where the link lies by which our program runs on an interface.
pub(super) fn path_of_link(directory: &Path, ifindex: u32, mode: Mode) -> PathBuf {
    // By the index: an interface may get another name while its link stays.
    directory.join(format!("link_{}_{ifindex}", mode.name()))
}

/// Where a map is pinned.
pub(super) fn pin_of(directory: &Path, map: &str) -> PathBuf {
    directory.join(map.to_lowercase())
}

/// The mode and the interface of the link with a pin of this name.
pub(super) fn link_of(name: impl AsRef<OsStr>) -> Option<(Mode, u32)> {
    let (mode, ifindex) = name.as_ref().to_str()?.strip_prefix("link_")?.split_once('_')?;
    let mode = [Mode::Native, Mode::Generic].into_iter().find(|it| it.name() == mode)?;
    Some((mode, ifindex.parse().ok()?))
}

/// The directory of pins, in the usual place or beside `near`, whose link runs `program` on the
/// interface with index `ifindex`. Directories that may not be read count as nobody's.
pub fn pins_of(ifindex: u32, program: u32, near: &Path) -> Option<PathBuf> {
    let mut around = vec![Path::new(BPF_FS)];
    around.extend(near.parent().filter(|parent| *parent != Path::new(BPF_FS)));
    around.into_iter().flat_map(entries).find(|directory| {
        entries(directory).any(|path| {
            let link = path.file_name().and_then(link_of);
            let here = link.is_some_and(|(_, index)| index == ifindex);
            // The same index may be in use in another namespace; ids are the whole machine's.
            here && program_of(&path) == Some(program)
        })
    })
}

fn entries(directory: impl AsRef<Path>) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// The program that the link pinned at `path` runs.
fn program_of(path: &Path) -> Option<u32> {
    let link = FdLink::from(PinnedLink::from_pin(path).ok()?);
    link.info().ok().map(|info| info.program_id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_only_look_like_links_own_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let pins = folder.path().join("pins");
        fs::create_dir(&pins).unwrap();
        fs::write(pins.join("link_native_1"), "").unwrap();
        assert_eq!(pins_of(1, 1, &folder.path().join("other")), None);
        assert_eq!(pins_of(1, 1, Path::new("/nonexistent/pins")), None);
    }
}
