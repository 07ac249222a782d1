//! Packet sockets: whole frames, from and to one device.

use std::{
    ffi::CString,
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

/// What a socket on a device receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receives {
    /// Nothing: it sends only.
    Nothing,
    /// Frames of all protocols.
    All,
}

/// Opens a packet socket on `device`.
///
/// # Errors
/// If there is no such device, or the caller may not.
pub(crate) fn open(device: &str, receives: Receives) -> io::Result<OwnedFd> {
    let check = |result: libc::c_int| {
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
    };
    let name = CString::new(device)?;
    // SAFETY: the name is a live C string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes plain numbers. Protocol 0 receives nothing until the socket is bound.
    let socket = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
    // SAFETY: the descriptor is new and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: an all-zero sockaddr_ll is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    if receives == Receives::All {
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    }
    address.sll_ifindex = index.cast_signed();
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is live and of the length given.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
    Ok(socket)
}

/// Sends a frame; whether it went out, else the last error of the system says why not.
pub(crate) fn send(socket: &OwnedFd, frame: &[u8]) -> bool {
    // SAFETY: the pointer and the length are those of a live slice.
    let sent = unsafe { libc::send(socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
    sent.cast_unsigned() == frame.len()
}
