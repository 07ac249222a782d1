//! What the kernel program writes about its rare ways, for the daemon's log.

use std::os::fd::{AsRawFd, RawFd};

use aya::Ebpf;
use aya::maps::{MapData, ProgramArray};
use aya_log::EbpfLogger;

use super::{Error, samples, take};

/// The program that writes lines.
const PROGRAM: &str = "logger";
/// Who writes them, among the read-only globals of the object: 0 nobody, 1 that program.
pub(super) const SWITCH: &str = "KERNEL_LOG";
/// The ring buffer that aya-log makes for its lines.
pub(super) const RING: &str = "AYA_LOGS";

/// Lines that come from the kernel program; readable when there are some. None is written any more once it
/// is dropped.
pub struct KernelLog {
    lines: EbpfLogger<&'static dyn log::Log>,
    /// Not pinned, so that it is emptied when this is dropped: the kernel clears a program array with its last
    /// descriptor of user space, and then no tail call finds the program.
    _programs: ProgramArray<MapData>,
}

impl KernelLog {
    /// Lets the program that judges packets find the one that writes lines.
    pub(super) fn new(ebpf: &mut Ebpf) -> Result<Self, Error> {
        let failed = |source| Error::KernelLog { source };
        // Before its ring buffer is taken out: without it the program cannot be loaded.
        let programs = take(ebpf, "LOGGER")?;
        let programs = samples::install(ebpf, PROGRAM, programs).map_err(failed)?;
        let lines = EbpfLogger::init(ebpf).map_err(|error| failed(Box::new(error)))?;
        Ok(Self { lines, _programs: programs })
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
