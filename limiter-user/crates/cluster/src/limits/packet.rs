//! What replicas tell each other, in packets that fit a frame of the cluster's.

use serde::{Deserialize, Serialize};

use super::clock::Stamp;
use super::entry::{Content, Entry, Item};
use super::table::{PARTS, Part};

/// The longest packet, bytes.
pub const MAX_PACKET_LEN: usize = 1100;

/// What is kept free for what is not entries.
const HEAD: usize = 32;

/// The version of the format.
const VERSION: u8 = 1;

/// One packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    /// The latest change that the sender has forgotten to be a removal.
    pub(super) forgotten: Stamp,
    /// What it tells.
    pub(super) body: Body,
}

/// What a packet tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// The sums of hashes in the parts of a part: the receiver may compare them with its own.
    Sums(Part, Vec<u64>),
    /// The sender lacks something in these parts of a part, a bit for each.
    Want(Part, u64),
    /// Entries.
    Entries(Vec<(Item, Entry)>),
}

/// Why a packet cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// It has another version.
    #[error("version {0} of the replication of limits is another one than this host's ({VERSION})")]
    Version(u8),
    /// It makes no sense.
    #[error("a packet of the replication of limits makes no sense")]
    Malformed,
}

/// As it is written. Hashes are bytes: as numbers of variable length they would take more.
#[derive(Serialize, Deserialize)]
struct Written<'a> {
    forgotten: Stamp,
    #[serde(borrow)]
    body: WrittenBody<'a>,
}

#[derive(Serialize, Deserialize)]
enum WrittenBody<'a> {
    Sums(u8, [u8; 8], Vec<[u8; 8]>),
    Want(u8, [u8; 8], [u8; 8]),
    Entries(#[serde(borrow)] Vec<Row<'a>>),
}

#[derive(Serialize, Deserialize)]
struct Row<'a> {
    item: &'a str,
    stamp: u64,
    host: [u8; 8],
    #[serde(borrow)]
    content: RowContent<'a>,
}

#[derive(Serialize, Deserialize)]
enum RowContent<'a> {
    Is(&'a str),
    Gone(u64),
}

impl Packet {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let items: Vec<_> = match &self.body {
            Body::Entries(entries) => entries.iter().map(|(item, _)| item.to_string()).collect(),
            _ => Vec::new(),
        };
        let body = match &self.body {
            Body::Sums(part, sums) => {
                let (level, first) = part.numbers();
                let sums = sums.iter().map(|sum| sum.to_le_bytes()).collect();
                WrittenBody::Sums(level, first.to_le_bytes(), sums)
            }
            Body::Want(part, bits) => {
                let (level, first) = part.numbers();
                WrittenBody::Want(level, first.to_le_bytes(), bits.to_le_bytes())
            }
            Body::Entries(entries) => {
                let rows = entries.iter().zip(&items).map(|((_, entry), item)| Row {
                    item,
                    stamp: entry.stamp.0,
                    host: entry.host.to_le_bytes(),
                    content: match &entry.content {
                        Content::Is(content) => RowContent::Is(content),
                        Content::Gone(since) => RowContent::Gone(*since),
                    },
                });
                WrittenBody::Entries(rows.collect())
            }
        };
        // Writing plain values to memory cannot fail.
        let written = Written { forgotten: self.forgotten, body };
        postcard::to_extend(&written, vec![VERSION]).unwrap_or_default()
    }

    /// Reads a packet. What it says of entries may make no sense still; those whose item does not are left
    /// out and counted.
    pub(super) fn read(bytes: &[u8]) -> Result<(Self, u64), PacketError> {
        let (version, rest) = bytes.split_first().ok_or(PacketError::Malformed)?;
        if *version != VERSION {
            return Err(PacketError::Version(*version));
        }
        if bytes.len() > MAX_PACKET_LEN {
            return Err(PacketError::Malformed);
        }
        let malformed = |_| PacketError::Malformed;
        let (written, rest) = postcard::take_from_bytes::<Written<'_>>(rest).map_err(malformed)?;
        if !rest.is_empty() {
            return Err(PacketError::Malformed);
        }
        let part = |level, first| {
            Part::new(level, u64::from_le_bytes(first)).ok_or(PacketError::Malformed)
        };
        let mut odd = 0;
        let body = match written.body {
            // All of them: comparing pairs them with this host's, and would pass over parts that are missing.
            WrittenBody::Sums(level, first, sums) if sums.len() == PARTS => {
                let sums = sums.into_iter().map(u64::from_le_bytes).collect();
                Body::Sums(part(level, first)?, sums)
            }
            WrittenBody::Sums(..) => return Err(PacketError::Malformed),
            WrittenBody::Want(level, first, bits) => {
                Body::Want(part(level, first)?, u64::from_le_bytes(bits))
            }
            WrittenBody::Entries(rows) => {
                let mut entries = Vec::with_capacity(rows.len());
                for Row { item, stamp, host, content } in rows {
                    let content = match content {
                        RowContent::Is(content) => Content::Is(content.into()),
                        RowContent::Gone(since) => Content::Gone(since),
                    };
                    let (stamp, host) = (Stamp(stamp), u64::from_le_bytes(host));
                    let entry = Entry { stamp, host, content };
                    // One that fits no packet could be told to nobody, and would hold up all entries after it for
                    // ever.
                    match Item::read(item).filter(|item| entry.fits(item)) {
                        Some(item) => entries.push((item, entry)),
                        // Left out, and the rest taken: a later version may know items that this one does not.
                        None => odd += 1,
                    }
                }
                Body::Entries(entries)
            }
        };
        Ok((Self { forgotten: written.forgotten, body }, odd))
    }
}

/// Entries that fill a packet.
#[derive(Default)]
pub(super) struct Load {
    pub(super) entries: Vec<(Item, Entry)>,
    size: usize,
}

impl Load {
    /// Adds an entry, if it still has room.
    pub(super) fn add(&mut self, item: &Item, entry: &Entry) -> bool {
        let content = match &entry.content {
            Content::Is(content) => content.len(),
            // The most that postcard needs for 64 bits.
            Content::Gone(_) => 10,
        };
        // A host, a stamp, lengths and kinds.
        let size = self.size + item.to_string().len() + content + 8 + 10 + 6;
        if size > MAX_PACKET_LEN - HEAD {
            return false;
        }
        self.size = size;
        self.entries.push((item.clone(), entry.clone()));
        true
    }
}
