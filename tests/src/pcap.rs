//! Captures: written for tcpreplay, and read.

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

/// The frames of a pcap file of Ethernet frames, of either byte order; `None` if it is something else.
///
/// # Errors
/// If the file cannot be read.
pub fn read(path: &Path) -> io::Result<Option<Vec<Vec<u8>>>> {
    const HEADER: usize = 24;
    const RECORD: usize = 16;
    let file = fs::read(path)?;
    let word = |at: usize, swapped: bool| {
        let bytes: [u8; 4] = file.get(at..at + 4)?.try_into().ok()?;
        Some(if swapped { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    };
    let swapped = match word(0, false) {
        Some(0xa1b2_c3d4 | 0xa1b2_3c4d) => false,
        Some(0xd4c3_b2a1 | 0x4d3c_b2a1) => true,
        _ => return Ok(None),
    };
    if word(20, swapped) != Some(1) {
        return Ok(None);
    }
    let (mut frames, mut at) = (Vec::new(), HEADER);
    while let Some(length) = word(at + 8, swapped) {
        let start = at + RECORD;
        at = start + length as usize;
        // The last one may be cut off.
        frames.extend(file.get(start..at).map(<[u8]>::to_vec));
    }
    Ok(Some(frames))
}
