//! Writes captures for tcpreplay.

use std::{fs, io, path::Path};

/// Writes `frames` as a pcap file, `gap` microseconds apart.
///
/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, frames: &[Vec<u8>], gap: u32) -> io::Result<()> {
    const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
    const VERSION: u32 = 2 | (4 << 16);
    const SNAP_LENGTH: u32 = 65_535;
    const ETHERNET: u32 = 1;
    let mut file = Vec::new();
    for word in [MAGIC_MICROSECONDS, VERSION, 0, 0, SNAP_LENGTH, ETHERNET] {
        file.extend(word.to_le_bytes());
    }
    for (index, frame) in (0_u32..).zip(frames) {
        let time = index * gap;
        let length = u32::try_from(frame.len()).map_err(io::Error::other)?;
        for word in [time / 1_000_000, time % 1_000_000, length, length] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    fs::write(path, file)
}
