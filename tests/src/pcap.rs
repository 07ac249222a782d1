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

/// Reads the frames of a pcap file in the byte order of this machine, those cut short left out.
///
/// # Panics
/// If it is none.
#[must_use]
pub fn read(path: &Path) -> Vec<Vec<u8>> {
    let file = fs::read(path).expect("a capture can be read");
    let word =
        |at: usize| -> u32 { u32::from_ne_bytes(file[at..at + 4].try_into().expect("four bytes")) };
    assert_eq!(word(0), 0xa1b2_c3d4, "{} is no pcap file", path.display());
    let (mut frames, mut at) = (Vec::new(), 24);
    while at + 16 <= file.len() {
        let (kept, length) = (word(at + 8) as usize, word(at + 12) as usize);
        if kept == length {
            frames.push(file[at + 16..at + 16 + kept].to_vec());
        }
        at += 16 + kept;
    }
    frames
}
