//! Links that somebody else made: what aya has no functions for.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

// Commands of bpf(2), linux/bpf.h.
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_LINK_GET_FD_BY_ID: libc::c_long = 30;
const BPF_LINK_DETACH: libc::c_long = 34;

/// The part of `union bpf_attr` for commands that take a descriptor or an id.
#[repr(C)]
struct Single {
    /// A link's descriptor or id.
    which: u32,
    /// Zero: the kernel refuses a command where bytes that it does not use are set.
    padding: [u32; 3],
}

/// The part of `union bpf_attr` for `BPF_OBJ_GET_INFO_BY_FD`.
#[repr(C)]
struct GetInfo {
    fd: u32,
    length: u32,
    info: u64,
}

/// `struct bpf_link_info` of an XDP link. The kernel writes no more than the length that it is given, and newer ones
/// have longer records, so the spare room only keeps this from depending on the version.
#[repr(C)]
#[derive(Default)]
struct LinkInfo {
    kind: u32,
    id: u32,
    program: u32,
    padding: u32,
    ifindex: u32,
    rest: [u32; 27],
}

fn bpf<T>(command: libc::c_long, attribute: &T) -> io::Result<i32> {
    // SAFETY: the attribute is initialised, has the size that is given and outlives the call; it
    // starts with the fields that the command reads. Where it holds a pointer, the caller vouches
    // for what it points to.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attribute), size_of::<T>())
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    i32::try_from(result).map_err(io::Error::other)
}

/// A descriptor of a link.
pub(super) struct ForeignLink(OwnedFd);

impl ForeignLink {
    /// Opens the link with this id.
    pub(super) fn open(id: u32) -> io::Result<Self> {
        let fd = bpf(BPF_LINK_GET_FD_BY_ID, &Single { which: id, padding: [0; 3] })?;
        // SAFETY: the call before returned this descriptor to us and to nobody else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn descriptor(&self) -> u32 {
        // Descriptors are not negative.
        self.0.as_raw_fd().unsigned_abs()
    }

    /// The interface that an XDP link is on; 0 if it is gone.
    pub(super) fn ifindex(&self) -> io::Result<u32> {
        let mut info = LinkInfo::default();
        let length = size_of::<LinkInfo>() as u32;
        let attribute = GetInfo {
            fd: self.descriptor(),
            length,
            // As an address: the kernel writes through it, which the compiler must know to be
            // possible.
            info: (&raw mut info).expose_provenance() as u64,
        };
        bpf(BPF_OBJ_GET_INFO_BY_FD, &attribute)?;
        Ok(info.ifindex)
    }

    /// Detaches the link from its interface; whoever holds it keeps a link to nothing.
    pub(super) fn detach(&self) -> io::Result<()> {
        bpf(BPF_LINK_DETACH, &Single { which: self.descriptor(), padding: [0; 3] }).map(drop)
    }
}
