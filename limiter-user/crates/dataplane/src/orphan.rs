//! What dead daemons left in a pin directory.

use model::interface::PinnedOn;
use std::fs::{self, ReadDir};
use std::io;
use std::path::{Path, PathBuf};

use aya::maps::MapInfo;
use aya::programs::links::{FdLink, PinnedLink};

use super::Error;
use super::foreign::ForeignLink;
use super::link::Interface;
use super::object::{ABI_PIN, LAYOUT_PIN, staging_of};
use super::pins::link_of;
use super::programs::MAPS;
use model::interface::Mode;

/// A data plane that is pinned, complete or not.
#[derive(Clone, Debug)]
pub struct Pinned {
    /// Its directory.
    pub path: PathBuf,
    /// Whether it is one that was being built, or has been.
    pub staging: bool,
    /// Where it is attached.
    pub attached: Vec<PinnedOn>,
    /// A process that has its maps open.
    pub holder: Option<u32>,
    links: Vec<PathBuf>,
    rest: Vec<PathBuf>,
}

impl Pinned {
    /// The data planes that are pinned in `pin_dir` and in its staging directory.
    ///
    /// # Errors
    /// [`Error::Foreign`] if a directory holds what is not limiter's, and if something cannot be
    /// read. Nothing is changed.
    pub fn find(pin_dir: &Path) -> Result<Vec<Self>, Error> {
        let mut found = Vec::new();
        // A daemon that died while it built fresh maps left both.
        for (path, staging) in [(pin_dir.to_owned(), false), (staging_of(pin_dir), true)] {
            match fs::read_dir(&path) {
                Ok(entries) => found.push(Self::read(path, staging, entries)?),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(Error::pin("read", &path)(error)),
            }
        }
        Ok(found)
    }

    fn read(path: PathBuf, staging: bool, entries: ReadDir) -> Result<Self, Error> {
        let mut pinned = Self {
            path: path.clone(),
            staging,
            attached: Vec::new(),
            holder: None,
            links: Vec::new(),
            rest: Vec::new(),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(Error::pin("read", &path))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // Refused as a whole: whoever removes this would remove what others have put there.
            if entry.file_type().map_err(Error::pin("read", &path))?.is_dir() {
                return Err(Error::Foreign { path, name });
            }
            match link_of(&name) {
                Some((mode, _)) => {
                    pinned.attached.extend(attached(&entry.path(), mode)?);
                    pinned.links.push(entry.path());
                }
                None => pinned.rest.push(entry.path()),
            }
            names.push(name);
        }
        if let Some(name) = foreign(&names) {
            return Err(Error::Foreign { path, name: name.into() });
        }
        pinned.holder = pinned.rest.iter().find_map(|map| holder(map));
        Ok(pinned)
    }

    /// Removes the pins, which detaches the program wherever it is attached.
    ///
    /// # Errors
    /// If a pin cannot be removed; links go first, so what is left limits nothing.
    pub fn remove(&self) -> Result<(), Error> {
        for path in self.links.iter().chain(&self.rest) {
            fs::remove_file(path).map_err(Error::pin("remove", path))?;
        }
        fs::remove_dir(&self.path).map_err(Error::pin("remove", &self.path))
    }
}

/// A name that a data plane does not have. A complete one of another version, which both layout pins
/// tell, may have maps that this version does not know.
fn foreign(names: &[String]) -> Option<&str> {
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    if has(ABI_PIN) && has(LAYOUT_PIN) {
        return None;
    }
    names.iter().map(String::as_str).find(|name| {
        let map = MAPS.iter().any(|map| map.eq_ignore_ascii_case(name));
        !(map || [ABI_PIN, LAYOUT_PIN].contains(name) || link_of(name).is_some())
    })
}

/// Where the link at `path` is attached; nowhere if its interface is gone.
fn attached(path: &Path, mode: Mode) -> Result<Option<PinnedOn>, Error> {
    let failed = Error::pin("read", path);
    let link = PinnedLink::from_pin(path).map_err(|error| failed(io::Error::other(error)))?;
    let info = FdLink::from(link).info().map_err(|error| failed(io::Error::other(error)))?;
    let ifindex = ForeignLink::open(info.id()).and_then(|it| it.ifindex()).map_err(failed)?;
    // The kernel clears the index of a link when its interface goes.
    if ifindex == 0 {
        return Ok(None);
    }
    let here = Interface::all()?.into_iter().find(|interface| {
        // The same index may be in use in another namespace.
        interface.index == ifindex
            && interface.program.is_some_and(|(_, id)| id == info.program_id())
    });
    Ok(Some(PinnedOn { name: here.map(|interface| interface.name), ifindex, mode }))
}

/// Another process that has the map pinned at `path` open.
fn holder(path: &Path) -> Option<u32> {
    // A pin that is no map has no holder that would matter.
    let id = MapInfo::from_pin(path).ok()?.id();
    let wanted = format!("map_id:\t{id}");
    // The kernel does not tell who holds a map. It does tell, for each descriptor, which map it is
    // of.
    let processes = fs::read_dir("/proc").ok()?.flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&pid| pid != std::process::id())
        .find(|pid| has_open(*pid, &wanted))
}

/// Whether a descriptor of process `pid` has the line `wanted` in its `fdinfo`.
fn has_open(pid: u32, wanted: &str) -> bool {
    // Processes come and go, and so do their descriptors.
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    descriptors.into_iter().any(|descriptor| {
        let name = descriptor.file_name();
        // The link first: of a machine's thousands of descriptors hardly any is a map.
        fs::read_link(descriptor.path()).is_ok_and(|to| to == Path::new("anon_inode:bpf-map"))
            && fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", name.to_string_lossy()))
                .is_ok_and(|text| text.lines().any(|line| line == wanted))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_data_planes_are_ours() {
        assert_eq!(foreign(&names(&[])), None);
        assert_eq!(foreign(&names(&["abi", "config", "link_native_3"])), None);
        assert_eq!(foreign(&names(&["abi", "layout", "map_of_a_later_version"])), None);
        assert_eq!(foreign(&names(&["abi", "cilium"])), Some("cilium"));
        assert_eq!(foreign(&names(&["link_native_x"])), Some("link_native_x"));
    }

    #[test]
    fn a_folder_with_other_things_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let pins = folder.path().join("pins");
        assert!(Pinned::find(&pins).unwrap().is_empty());
        fs::create_dir(&pins).unwrap();
        fs::write(pins.join("precious"), "").unwrap();
        let error = Pinned::find(&pins).unwrap_err();
        assert!(matches!(&error, Error::Foreign { name, .. } if name == "precious"), "{error}");
        fs::remove_file(pins.join("precious")).unwrap();
        fs::create_dir(pins.join("abi")).unwrap();
        assert!(matches!(Pinned::find(&pins), Err(Error::Foreign { .. })));
        fs::remove_dir(pins.join("abi")).unwrap();
        // What is left by a daemon that died before it pinned anything.
        let found = Pinned::find(&pins).unwrap();
        assert!(!found[0].staging && found[0].attached.is_empty() && found[0].holder.is_none());
        found[0].remove().unwrap();
        assert!(!pins.exists());
    }
}
