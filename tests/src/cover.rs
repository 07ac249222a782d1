//! Commands that see other files than are there.

use std::{
    ffi::CString,
    io,
    os::unix::{ffi::OsStrExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
    ptr,
};

/// A file that is no program, for those that are to be missing.
pub const NO_PROGRAM: &str = "/dev/null";

/// Lets `command` and its children see the first file of each pair in the place of the second, by mounts
/// of their own.
///
/// # Panics
/// If a path has a zero in it.
pub fn cover(command: &mut Command, covers: &[(impl AsRef<Path>, PathBuf)]) {
    let c = |path: &Path| CString::new(path.as_os_str().as_bytes()).expect("a path without zeros");
    let covers: Vec<_> = covers
        .iter()
        .filter_map(|(with, path)| Some((c(with.as_ref()), c(&path.canonicalize().ok()?))))
        .collect();
    // SAFETY: the closure makes system calls alone; the strings live as long as it does.
    unsafe { command.pre_exec(move || mount(&covers)) };
}

fn mount(covers: &[(CString, CString)]) -> io::Result<()> {
    let done = |result| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: a plain system call.
    done(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    let private = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: the path is a literal, and the other pointers may be null.
    done(unsafe { libc::mount(ptr::null(), c"/".as_ptr(), ptr::null(), private, ptr::null()) })?;
    covers.iter().try_for_each(|(with, path)| {
        // SAFETY: both strings are alive, and the other pointers may be null.
        done(unsafe {
            libc::mount(with.as_ptr(), path.as_ptr(), ptr::null(), libc::MS_BIND, ptr::null())
        })
    })
}
