//! A tun interface: packets without Ethernet, as WireGuard and PPP have them.

use std::{
    fs::{File, OpenOptions},
    io::{Error, Write as _},
    os::fd::AsRawFd as _,
};

use crate::{Namespace, process};

/// The name of the interface.
pub const TUN: &str = "tun0";

/// The other end: what is written there arrives on [`TUN`].
#[derive(Debug)]
pub struct Tun(File);

impl Tun {
    /// Makes the interface in a namespace, and sets it up.
    ///
    /// # Panics
    /// If the kernel has none.
    #[must_use]
    pub fn new(host: &Namespace) -> Self {
        let file = host.run_inside(|| {
            let mut options = OpenOptions::new();
            let file =
                options.read(true).write(true).open("/dev/net/tun").expect("a kernel with tun");
            // SAFETY: all-zero bytes are a valid ifreq.
            let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
            for (to, from) in request.ifr_name.iter_mut().zip(TUN.bytes()) {
                *to = from.cast_signed();
            }
            request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
            // SAFETY: the request outlives the call, which writes the name at most.
            let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
            assert!(made >= 0, "no tun interface: {}", Error::last_os_error());
            file
        });
        host.sysctl(&format!("net/ipv6/conf/{TUN}/addr_gen_mode"), "1");
        process::run(host.ip(&["link", "set", TUN, "up"]));
        Self(file)
    }

    /// Has the interface, which is down, say that its frames are of this kind.
    ///
    /// # Panics
    /// If the kernel does not let it.
    pub fn call_itself(&self, arphrd: i32) {
        // SAFETY: the request takes a number.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TUNSETLINK, arphrd) };
        assert!(done >= 0, "it is what it is: {}", Error::last_os_error());
    }

    /// Sends an IP packet `count` times.
    ///
    /// # Panics
    /// If the kernel does not take it.
    pub fn send(&mut self, packet: &[u8], count: u64) {
        for _ in 0..count {
            self.0.write_all(packet).expect("an interface that is up");
        }
    }
}
