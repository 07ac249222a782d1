//! What hosts of a cluster send each other.
//!
//! A frame is a datagram of at most [`MAX_BYTES`]: a header in clear text, a [`Content`] that is
//! encrypted, and a tag that covers both (XChaCha20-Poly1305). Nothing here knows a socket or a clock.

pub mod bytes;
mod content;
mod epoch;
pub mod float;
mod frame;
mod header;
mod key;
mod rejection;
pub mod shares;
mod window;

pub use content::{Content, Packet, TooLong, Topic};
pub use epoch::Epoch;
pub use frame::{Opened, Opener, Recipient, Sealer};
pub use header::{Header, MAX_NUMBER, Versions};
pub use key::{KEY, Key, KeyBytes, KeyRing};
pub use rejection::{Counts, Rejected, Rejection};
pub use window::WIDTH;

/// Bytes of a frame, at most: what every network carries in one piece.
/// Each link with IPv6 carries 1,280 (RFC 8200, section 5), 48 of which are headers of IPv6 and UDP.
pub const MAX_BYTES: usize = 1200;

/// Bytes of the tag that a frame ends with.
pub const TAG: usize = 16;

/// Bytes of a frame that say nothing themselves.
pub const OVERHEAD: usize = Header::LENGTH + TAG;

/// Bytes that a frame has room for.
pub const MAX_CONTENT: usize = MAX_BYTES - OVERHEAD;

/// Bytes of an opaque content, at most: beside it there are its kind and the hash of the configuration.
pub const MAX_OPAQUE: usize = MAX_CONTENT - 9;
