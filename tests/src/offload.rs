//! What a device leaves to others when it sends or receives, turned on and off without `ethtool`.

use std::{
    ffi::CString,
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

use crate::Namespace;

/// An offload of a device, by the kernel's `ETHTOOL_S…` command that sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Offload {
    /// Checksums are left out of what is sent.
    TxChecksum = 0x17,
    /// Large TCP segments are sent as one frame.
    Tso = 0x1f,
    /// Large packets of all kinds are sent as one frame.
    Gso = 0x24,
    /// Frames that belong together are received as one.
    Gro = 0x2c,
}

/// `struct ethtool_value` of `linux/ethtool.h`.
#[repr(C)]
struct Value {
    command: u32,
    on: u32,
}

/// Turns `offload` of a device in `host` on or off.
///
/// # Panics
/// If there is no such device, or it refuses.
pub fn set(host: &Namespace, device: &str, offload: Offload, on: bool) {
    let name = device.to_owned();
    let set = host.run_inside(move || request(&name, offload, on));
    set.unwrap_or_else(|error| {
        panic!("cannot set {offload:?} of {device} to {on}: {error}");
    });
}

/// Asks the device in the namespace of the calling thread.
fn request(device: &str, offload: Offload, on: bool) -> io::Result<()> {
    let check =
        |result: libc::c_int| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) };
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes plain numbers.
    let socket = check(unsafe { libc::socket(libc::AF_INET, kind, 0) })?;
    // SAFETY: the descriptor is new and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let name = CString::new(device)?;
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let name = name.as_bytes_with_nul();
    let room = request.ifr_name.get_mut(..name.len()).ok_or(io::ErrorKind::InvalidInput)?;
    for (to, byte) in room.iter_mut().zip(name) {
        *to = *byte as libc::c_char;
    }
    let mut value = Value { command: offload as u32, on: on.into() };
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the request and the value that it points to live for the length of the call, and are what
    // this command reads.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) })?;
    Ok(())
}
