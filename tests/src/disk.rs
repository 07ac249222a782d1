//! A small disk that a test can fill to its last byte.

use std::{
    ffi::{CStr, CString},
    fs::{self, File},
    io::{self, Write as _},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::{cli::limiter_binary, require_root};

/// A file system in memory that only the calling thread, and what it starts from then on, can see. It ends
/// with them, also if they are killed.
#[derive(Debug)]
pub struct SmallDisk {
    folder: TempDir,
}

fn check(what: &str, result: libc::c_int) {
    assert!(result == 0, "cannot {what}: {}", io::Error::last_os_error());
}

fn mount(kind: &CStr, at: &CStr, flags: libc::c_ulong, options: &CStr) -> libc::c_int {
    // SAFETY: all strings are live for the length of the call.
    unsafe {
        libc::mount(kind.as_ptr(), at.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast())
    }
}

impl SmallDisk {
    /// A disk of `bytes`. Make it after what others must see, such as namespaces.
    ///
    /// # Panics
    /// Without root's privileges, or if it cannot be mounted.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        require_root();
        let _known = limiter_binary();
        // SAFETY: takes a number; the calling thread gets mounts of its own.
        check("have own mounts", unsafe { libc::unshare(libc::CLONE_NEWNS) });
        check("keep mounts apart", mount(c"none", c"/", libc::MS_REC | libc::MS_SLAVE, c""));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = CString::new(folder.path().as_os_str().as_bytes()).expect("a path");
        let options = CString::new(format!("size={bytes},mode=0755")).expect("options");
        check("mount a small disk", mount(c"tmpfs", &at, libc::MS_NOSUID, &options));
        Self { folder }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    fn ballast(&self) -> PathBuf {
        self.path().join("ballast")
    }

    /// Fills it, so that not one more byte finds room. Returns how many there was room for.
    ///
    /// # Panics
    /// If it fails for another reason than that it is full.
    pub fn fill(&self) -> u64 {
        let mut file = File::options().create(true).append(true).open(self.ballast());
        let file = file.as_mut().expect("a file on the small disk");
        // Smaller and smaller pieces, until not even a byte fits.
        for size in [1 << 16, 1 << 12, 1] {
            let piece = vec![1; size];
            let full = loop {
                if let Err(error) = file.write_all(&piece) {
                    break error;
                }
            };
            assert_eq!(full.kind(), io::ErrorKind::StorageFull, "{full}");
        }
        file.metadata().expect("its size").len()
    }

    /// Makes room again.
    ///
    /// # Panics
    /// If it was not filled.
    pub fn make_room(&self) {
        fs::remove_file(self.ballast()).expect("the disk was filled");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let at = CString::new(self.path().as_os_str().as_bytes()).unwrap_or_default();
        // SAFETY: the path is live for the length of the call. Whoever still uses the disk keeps it.
        let _unmounted = unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) };
    }
}
