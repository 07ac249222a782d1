//! What the data plane estimates at a moment, as bytes that leave the host: the Count-Min Sketch, the HyperLogLog, and
//! a t-digest of rates. Those of several hosts or moments merge.
//!
//! `docs/design/saved-sketches.md` has the format. No address is in it, and not the hash's key: only what that is known
//! by.

use std::time::{Duration, SystemTime};

use limiter_common::hll::{MAX_RANK, REGISTERS, Ranks, WINDOW_SHIFT};
use limiter_common::sketch::{MAX_DEPTH, Shape, Window};
use model::digest::{Digest, Percentiles};
use model::{Distinct, Invalid};
use serde::{Deserialize, Serialize};

/// What each file begins with, before the number of its format.
const MAGIC: &[u8] = b"limiter-sketch ";

/// The format that is written and read.
const VERSION: &str = "1";

/// The longest header, bytes.
const MAX_HEADER: usize = 1024;

/// The most cells: 512 MiB in the kernel.
const MAX_CELLS: u64 = 1 << 26;

/// The year 10000, ms since 1970, which no text of a moment can tell.
const MAX_MS: u64 = 253_402_300_800_000;

/// What follows the last byte of the content: a CRC-32 of all before.
const CHECKSUM: usize = 4;

/// The largest file, bytes: each cell has the largest count. Whatever is larger is none.
pub const MAX_FILE: u64 = 10 * MAX_CELLS + (1 << 20);

/// The name of a key that has this fingerprint.
pub fn key_name(fingerprint: u64) -> String {
    format!("{fingerprint:016x}")
}

/// The size of a sketch, if there can be one of it.
pub fn shape(width: u32, depth: u32) -> Option<Shape> {
    let fits = width.is_power_of_two()
        && (1..=MAX_DEPTH).contains(&depth)
        && u64::from(width) * u64::from(depth) <= MAX_CELLS;
    fits.then(|| Shape { mask: width - 1, depth })
}

/// All that is told in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// What the hash's key is known by, 16 hexadecimal digits.
    pub key: String,
    /// Leading bits of an IPv4 address that make a source.
    pub ipv4_prefix: u8,
    /// The same of an IPv6 address.
    pub ipv6_prefix: u8,
    /// Rows of the Count-Min Sketch.
    pub depth: u32,
    /// Cells in a row, a power of two.
    pub width: u32,
    /// The longest time that one save counts packets for, ns.
    pub window_ns: u64,
    /// Registers of the HyperLogLog.
    pub registers: u32,
    /// The time that it counts sources in, ns.
    pub distinct_window_ns: u64,
    /// How many saves it is made of.
    pub saves: u64,
    /// When the earliest of them begins to count packets, ms since 1970.
    pub from_ms: u64,
    /// When the latest of them ends, likewise.
    pub to_ms: u64,
}

impl Header {
    /// That of one save of a host whose hash has this key and whose sources have so many bits (IPv4, IPv6), which counts
    /// packets between two moments.
    pub fn new(
        key: u64,
        (ipv4_prefix, ipv6_prefix): (u8, u8),
        shape: Shape,
        window: Window,
        moments: [SystemTime; 2],
    ) -> Self {
        let [from_ms, to_ms] = moments.map(|moment| {
            let since = moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        });
        Self {
            key: key_name(key),
            ipv4_prefix,
            ipv6_prefix,
            depth: shape.depth,
            width: shape.width(),
            window_ns: window.ns(),
            registers: REGISTERS as u32,
            distinct_window_ns: 1 << WINDOW_SHIFT,
            saves: 1,
            from_ms,
            to_ms,
        }
    }

    /// The first item that no host can have written.
    fn wrong(&self) -> Option<&'static str> {
        let is_key = self.key.len() == 16 && self.key.bytes().all(|byte| byte.is_ascii_hexdigit());
        let are_registers =
            self.registers as usize == REGISTERS && self.distinct_window_ns == 1 << WINDOW_SHIFT;
        let checks = [
            (is_key, "key"),
            ((1..=32).contains(&self.ipv4_prefix), "IPv4 prefix"),
            ((1..=128).contains(&self.ipv6_prefix), "IPv6 prefix"),
            (shape(self.width, self.depth).is_some(), "size of the Count-Min Sketch"),
            ((1 << 20..=1 << 36).contains(&self.window_ns), "window"),
            (are_registers, "HyperLogLog"),
            (self.saves > 0, "number of saves"),
            (self.from_ms <= self.to_ms && self.to_ms < MAX_MS, "time"),
        ];
        checks.into_iter().find_map(|(good, name)| (!good).then_some(name))
    }

    /// What has to be the same of sketches that are merged, with its name.
    fn facts(&self) -> [(&'static str, String); 4] {
        [
            ("the key of their hash", self.key.clone()),
            ("their source prefixes", format!("/{} and /{}", self.ipv4_prefix, self.ipv6_prefix)),
            ("the size of their sketch", format!("{} × {} cells", self.depth, self.width)),
            ("their window", format!("{:?}", Duration::from_nanos(self.window_ns))),
        ]
    }
}

/// A file that is something else.
fn foreign() -> Invalid {
    Invalid::new("it is no saved sketch")
        .with_hint("name a file that `limiter sketch save` or `limiter sketch merge` has written")
}

/// A file whose content cannot have been written so.
fn damaged(what: &str) -> Invalid {
    Invalid::new(format!("it is damaged: its {what} is wrong"))
        .with_hint("copy it again from where it was saved, or save a new one")
}

/// A sketch that was saved, or the merge of several.
#[derive(Clone, Debug)]
pub struct SavedSketch {
    /// What is told in words.
    pub header: Header,
    /// Packets by cell, row after row.
    cells: Vec<u64>,
    ranks: Ranks,
    rates: Digest,
}

impl SavedSketch {
    /// A sketch with these packets by cell, ranks of the last full window, and rates of sources, packets per second.
    pub fn new(header: Header, cells: Vec<u64>, ranks: Ranks, rates: Digest) -> Self {
        Self { header, cells, ranks, rates }
    }

    /// As it leaves the host.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        // Numbers, texts and lists: none of it can fail.
        let header = serde_json::to_vec(&self.header).unwrap_or_default();
        let bytes = [MAGIC, VERSION.as_bytes(), b"\n", &header, b"\n"].concat();
        let content = (&self.cells, self.ranks.ranks().as_slice(), self.rates.clone().bytes());
        let mut bytes = postcard::to_extend(&content, bytes).unwrap_or_default();
        bytes.extend(crc32fast::hash(&bytes).to_be_bytes());
        bytes
    }

    /// Reads one that anybody may have written. It takes at most sixteen times the memory that `bytes` takes.
    ///
    /// # Errors
    /// If it is none, or not as it was written.
    pub fn read(bytes: &[u8]) -> Result<Self, Invalid> {
        let rest = bytes.strip_prefix(MAGIC).ok_or_else(foreign)?;
        let (version, rest) = line(rest).ok_or_else(foreign)?;
        // Before the checksum: another format may have another one.
        if version != VERSION {
            let version: u32 = version.parse().map_err(|_| foreign())?;
            let problem =
                format!("it has format {version}, and this program reads format {VERSION}");
            return Err(Invalid::new(problem)
                .with_hint("read it with the version of limiter that has written it"));
        }
        let (content, sum) =
            rest.split_last_chunk::<CHECKSUM>().ok_or_else(|| damaged("length"))?;
        if crc32fast::hash(&bytes[..bytes.len() - CHECKSUM]) != u32::from_be_bytes(*sum) {
            return Err(damaged("checksum"));
        }
        let header = line(content).and_then(|(header, content)| {
            Some((serde_json::from_str::<Header>(header).ok()?, content))
        });
        let (header, content) = header.ok_or_else(|| damaged("header"))?;
        if let Some(wrong) = header.wrong() {
            return Err(damaged(wrong));
        }
        let read = postcard::take_from_bytes::<(Vec<u64>, Vec<u8>, Vec<u8>)>(content);
        let ((cells, ranks, rates), rest) = read.map_err(|_| damaged("content"))?;
        if !rest.is_empty()
            || cells.len() as u64 != u64::from(header.depth) * u64::from(header.width)
        {
            return Err(damaged("number of cells"));
        }
        let ranks: Option<[u8; REGISTERS]> = ranks.try_into().ok();
        // A rank that no hash can have would win every merge.
        let ranks = ranks.filter(|ranks| ranks.iter().all(|rank| u32::from(*rank) <= MAX_RANK));
        let ranks = Ranks::new(ranks.ok_or_else(|| damaged("HyperLogLog"))?);
        let rates = Digest::read_coarse(&rates).ok_or_else(|| damaged("t-digest"))?;
        Ok(Self { header, cells, ranks, rates })
    }

    /// Adds packets, unites sources, and joins rates, as if one host had seen all. The order does not matter: not a
    /// byte changes with it.
    ///
    /// # Errors
    /// If they differ in a parameter, or there is none.
    pub fn merge(mut sketches: Vec<Self>) -> Result<Self, Invalid> {
        // What a t-digest says depends on the order within its error, far below what anybody sees.
        sketches.sort_by_cached_key(|sketch| sketch.rates.clone().bytes());
        let mut sketches = sketches.into_iter();
        let mut merged = sketches.next().ok_or_else(foreign)?;
        for sketch in sketches {
            merged.add(&sketch)?;
        }
        Ok(merged)
    }

    fn add(&mut self, other: &Self) -> Result<(), Invalid> {
        let facts = self.header.facts().into_iter().zip(other.header.facts());
        if let Some(((what, one), (_, other))) = facts.into_iter().find(|(one, other)| one != other)
        {
            let problem = format!("sketches differ in {what}: {one} and {other}");
            return Err(Invalid::new(problem).with_hint(
                "merge sketches of hosts with one cluster key and the same --sketch-epsilon, --sketch-delta, \
                 --sketch-window, --ipv4-prefix and --ipv6-prefix; a change of them counts from the next start with \
                 --reset-state on",
            ));
        }
        for (cell, theirs) in self.cells.iter_mut().zip(&other.cells) {
            *cell = cell.saturating_add(*theirs);
        }
        self.ranks.merge(&other.ranks);
        self.rates.merge(&other.rates);
        let (header, theirs) = (&mut self.header, &other.header);
        header.saves = header.saves.saturating_add(theirs.saves);
        header.from_ms = header.from_ms.min(theirs.from_ms);
        header.to_ms = header.to_ms.max(theirs.to_ms);
        Ok(())
    }

    /// All packets that were counted.
    pub fn packets(&self) -> u64 {
        // Each row has all of them, but for those that came while the cells were read one by one.
        let rows = self.cells.chunks(self.header.width.max(1) as usize);
        let sum = |row: &[u64]| row.iter().fold(0_u64, |sum, cell| sum.saturating_add(*cell));
        rows.map(sum).max().unwrap_or_default()
    }

    /// The packets of the source with these cells, one in each row: never too low. `None` if they are not of this
    /// sketch.
    pub fn estimate(&self, cells: &[u32]) -> Option<u64> {
        if cells.len() != self.header.depth as usize {
            return None;
        }
        let counts = cells.iter().map(|at| self.cells.get(*at as usize).copied());
        counts.collect::<Option<Vec<_>>>()?.into_iter().min()
    }

    /// ε and δ: with a probability of 1 − δ an estimate is too high by less than ε times all packets.
    pub fn error(&self) -> (f64, f64) {
        let Header { depth, width, .. } = self.header;
        (std::f64::consts::E / f64::from(width), (-f64::from(depth)).exp())
    }

    /// How many distinct sources have sent.
    pub fn distinct(&self) -> Distinct {
        Distinct {
            sources: self.ranks.estimate(),
            standard_error: Ranks::STANDARD_ERROR,
            window_s: self.header.distinct_window_ns as f64 / 1e9,
        }
    }

    /// How many sources with a bucket have sent, and percentiles of their packets per second.
    pub fn rates(&self) -> (u64, Option<Percentiles>) {
        (self.rates.count(), self.rates.clone().percentiles())
    }
}

/// The first line of some bytes, and what comes after it; `None` if it does not end soon, or is no text.
fn line(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.iter().take(MAX_HEADER).position(|byte| *byte == b'\n')?;
    Some((str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 1..]))
}

#[cfg(test)]
mod tests;
