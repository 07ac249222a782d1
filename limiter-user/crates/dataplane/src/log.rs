//! What the kernel program writes about its rare ways, for the daemon's log.

use std::os::fd::{AsRawFd, RawFd};

use aya::Ebpf;
use aya_log::EbpfLogger;

use super::Error;

/// Whether lines are written, among the read-only globals of the object: 0 or 1.
pub(super) const SWITCH: &str = "KERNEL_LOG";
/// The ring buffer that aya-log makes for its lines.
pub(super) const RING: &str = "AYA_LOGS";

/// Lines that come from the kernel program; readable when there are some. Once it is dropped the kernel program finds
/// no room for more.
pub struct KernelLog {
    lines: EbpfLogger<&'static dyn log::Log>,
}

impl KernelLog {
    /// Takes the ring buffer out of a program that is loaded.
    pub(super) fn new(ebpf: &mut Ebpf) -> Result<Self, Error> {
        let lines = EbpfLogger::init(ebpf);
        Ok(Self { lines: lines.map_err(|error| Error::KernelLog { source: Box::new(error) })? })
    }

    /// Tells the lines that have come since the last call.
    pub fn forward(&mut self) {
        self.lines.flush();
    }
}

impl AsRawFd for KernelLog {
    fn as_raw_fd(&self) -> RawFd {
        self.lines.as_raw_fd()
    }
}
