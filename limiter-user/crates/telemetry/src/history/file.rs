//! History in a file, so that a restart keeps it.
//!
//! The file has its full size from the start, so a disk that fills up later does not hurt it where
//! files are written in place. Each slot
//! has its place and its checksum: what a crash leaves half written is one slot, and is left out. Where
//! counting goes on is written to two places in turn, of which the later valid one counts.

use std::fs::{File, OpenOptions, rename};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::slot::{
    REASONS, Reader, SLOT_BYTES, Slot, TOTALS_BYTES, put, read_totals, totals_to_bytes,
};
use super::{History, Last, MINUTES, SECONDS};
use crate::Sample;

const MAGIC: &[u8; 8] = b"limithst";
/// The version of what follows.
const VERSION: u64 = 1;
const HEADER: usize = 8 + 8 * 4;
const CHECKSUM: usize = 4;
const STATES: u64 = (HEADER + CHECKSUM) as u64;

/// Bytes of a state with its checksum.
const STATE: usize = 8 * 5 + TOTALS_BYTES + CHECKSUM;
/// Where slots begin.
const SLOTS: u64 = STATES + 2 * STATE as u64;
/// Bytes of a slot with its checksum.
const RECORD: u64 = (SLOT_BYTES + CHECKSUM) as u64;
/// Bytes of the file.
const SIZE: u64 = SLOTS + (SECONDS + MINUTES) as u64 * RECORD;

/// What has changed since it was last written: places in the file and what belongs there.
#[derive(Debug, Default)]
pub struct Patch(pub(super) Vec<(u64, Vec<u8>)>);

/// Writes history to its file.
#[derive(Debug)]
pub struct Keeper {
    path: PathBuf,
    boot: u64,
    /// `None` until it can be made.
    file: Option<File>,
    sequence: u64,
}

fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let checksum = crc32fast::hash(&bytes);
    bytes.extend(checksum.to_le_bytes());
    bytes
}

/// The content before a valid checksum.
fn unsealed(bytes: &[u8]) -> Option<Reader<'_>> {
    let (content, checksum) = bytes.split_last_chunk::<CHECKSUM>()?;
    (crc32fast::hash(content) == u32::from_le_bytes(*checksum)).then_some(Reader(content))
}

// With the numbers of reasons and slots: a program that knows more reasons must not misread the
// file.
fn header() -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for number in [VERSION, REASONS as u64, SECONDS as u64, MINUTES as u64] {
        put(&mut bytes, number);
    }
    sealed(bytes)
}

/// This boot, as a number.
fn boot() -> u64 {
    // Where it cannot be read it is 0, which is never taken for the same boot.
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or_default()
}

/// A moment of an earlier daemon, which boot it was in, and how many there were before.
type State = (u64, u64, Last);

fn read_state(bytes: &[u8]) -> Option<State> {
    let mut from = unsealed(bytes)?;
    let (sequence, boot) = (from.u64()?, from.u64()?);
    let last = Last {
        position_ns: from.u64()?,
        monotonic_ns: from.u64()?,
        wall_ms: from.u64()?,
        totals: read_totals(&mut from)?,
    };
    Some((sequence, boot, last))
}

impl History {
    /// What is to be written, and counts as written from now on.
    pub fn patch(&mut self, keeper: &Keeper) -> Patch {
        let mut patch = Vec::new();
        for (ring, before) in [(&mut self.seconds, 0), (&mut self.minutes, SECONDS)] {
            for place in std::mem::take(&mut ring.dirty) {
                let mut bytes = Vec::with_capacity(RECORD as usize);
                ring.slots[place].to_bytes(&mut bytes);
                patch.push((SLOTS + (before + place) as u64 * RECORD, sealed(bytes)));
            }
        }
        if let Some(last) = &self.last {
            let sequence = keeper.sequence + 1;
            let mut bytes = Vec::with_capacity(STATE);
            let Last { position_ns, monotonic_ns, wall_ms, totals } = last;
            for number in [sequence, keeper.boot, *position_ns, *monotonic_ns, *wall_ms] {
                put(&mut bytes, number);
            }
            totals_to_bytes(totals, &mut bytes);
            // Last: what it stands for is there then.
            patch.push((STATES + sequence % 2 * STATE as u64, sealed(bytes)));
        }
        Patch(patch)
    }

    /// Lets everything be written again, because the file may have nothing of it.
    pub fn write_all(&mut self) {
        for ring in [&mut self.seconds, &mut self.minutes] {
            ring.dirty = (0..ring.slots.len()).filter(|i| ring.slots[*i].number > 0).collect();
        }
    }

    /// Takes over what is in a file; `None` if it is none of this version.
    fn read(bytes: &[u8], now: &Sample, own: u64, same_maps: bool) -> Option<(Self, u64)> {
        if bytes.len() as u64 != SIZE || !bytes.starts_with(&header()) {
            return None;
        }
        let (states, slots) = bytes.split_at(SLOTS as usize);
        let states = states[STATES as usize..].chunks_exact(STATE);
        let states = states.filter_map(read_state);
        let latest = states.max_by_key(|(sequence, ..)| *sequence);
        let mut history = Self::default();
        // A file that was just made has no state.
        let Some((sequence, boot, last)) = latest else { return Some((history, 0)) };
        for (i, bytes) in slots.chunks_exact(RECORD as usize).enumerate() {
            let slot = unsealed(bytes).and_then(|mut from| Slot::read(&mut from));
            let Some(slot) = slot else { continue };
            let (ring, place, present) = match i.checked_sub(SECONDS) {
                None => (&mut history.seconds, i, last.second()),
                Some(place) => (&mut history.minutes, place, last.second() / super::MINUTE),
            };
            // What is later than what counting goes on from was written before a crash.
            if (1..=present).contains(&slot.number) && ring.place(slot.number) == place {
                ring.slots[place] = slot;
            }
        }
        history.resume(last, now, boot == own && boot != 0, same_maps);
        Some((history, sequence))
    }
}

impl Keeper {
    /// Opens the file at `path`, or will make it. `now` is the present, `same_maps` whether the counters
    /// may have gone on since the file was written. Returns what was in it, and what is wrong.
    pub fn open(path: &Path, now: &Sample, same_maps: bool) -> (Self, History, Option<String>) {
        let mut keeper = Self { path: path.into(), boot: boot(), file: None, sequence: 0 };
        let mut bytes = Vec::new();
        // No link: the daemon is root, and must not be led to another file.
        let open =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path);
        let file = match open.and_then(|file| {
            // A byte more than there should be tells a longer file from its own without reading it all.
            (&file).take(SIZE + 1).read_to_end(&mut bytes)?;
            Ok(file)
        }) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let problem = keeper.make().err().map(|error| keeper.problem(&error));
                return (keeper, History::default(), problem);
            }
            Err(error) => {
                let problem = keeper.problem(&error);
                return (keeper, History::default(), Some(problem));
            }
        };
        if let Some((history, sequence)) = History::read(&bytes, now, keeper.boot, same_maps) {
            (keeper.file, keeper.sequence) = (Some(file), sequence);
            return (keeper, history, None);
        }
        // Set aside, not deleted: somebody may want to know what was in it.
        let aside = path.with_extension("damaged");
        let kept = rename(path, &aside).is_ok();
        let place = if kept { aside.display() } else { path.display() };
        let mut problem = format!("the history in {place} makes no sense: it begins anew");
        if let Err(error) = keeper.make() {
            problem = format!("{problem}; {}", keeper.problem(&error));
        }
        (keeper, History::default(), Some(problem))
    }

    /// Whether it has a file to write to.
    pub const fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Makes the file, in its full size.
    fn make(&mut self) -> io::Result<()> {
        let staging = self.path.with_extension("new");
        let made = || -> io::Result<File> {
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o640)
                .open(&staging)?;
            file.write_all(&header())?;
            let rest = SIZE - STATES;
            io::copy(&mut io::repeat(0).take(rest), &mut file)?;
            // Durable before it has its name: a crash leaves the old file or a whole new one.
            file.sync_all()?;
            rename(&staging, &self.path)?;
            Ok(file)
        };
        let file = made().inspect_err(|_| {
            // Whatever is left of it only takes room.
            let _ = std::fs::remove_file(&staging);
        })?;
        self.file = Some(file);
        Ok(())
    }

    /// Writes what has changed. Blocks.
    ///
    /// # Errors
    /// If it cannot be written; then all of history has to be, the next time.
    pub fn write(&mut self, patch: &Patch) -> Result<(), String> {
        let written = (|| {
            if self.file.is_none() {
                self.make()?;
            }
            let Some(file) = &self.file else { return Ok(()) };
            for (offset, bytes) in &patch.0 {
                file.write_all_at(bytes, *offset)?;
            }
            file.sync_data()
        })();
        self.sequence += 1;
        written.map_err(|error: io::Error| {
            // Perhaps a new one can be had.
            self.file = None;
            self.problem(&error)
        })
    }

    fn problem(&self, error: &io::Error) -> String {
        format!("history cannot be kept in {}, only in memory: {error}", self.path.display())
    }
}
