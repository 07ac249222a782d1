//! Layout of the benchmark's maps, shared by the kernel programs and the benchmark, which includes
//! this file by path.

/// Every frame carries the base address.
pub(crate) const PATTERN_ONE: u32 = 0;
/// The base address plus the frame's number modulo [`Traffic::sources`].
pub(crate) const PATTERN_ROUND_ROBIN: u32 = 1;
/// The base address plus a uniform random number below [`Traffic::sources`].
pub(crate) const PATTERN_RANDOM: u32 = 2;
/// The base address plus the next number in the sequence that the benchmark has made.
pub(crate) const PATTERN_SEQUENCE: u32 = 3;

/// Pairs of numbers in the sequence: 32 MiB, read in order, which the processor foresees.
pub(crate) const SEQUENCE_PAIRS: u32 = 1 << 22;

/// Lines of the program that does the least: as many as the limiter has slots by default.
pub(crate) const FLOOR_LINES: u32 = 1 << 19;

/// What the frames carry, and how far they are. One program runs at a time.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Traffic {
    /// Frames made.
    pub(crate) frames: u64,
    /// State of the random numbers, not 0.
    pub(crate) random: u64,
    /// High half of the IPv6 base address; unused for IPv4.
    pub(crate) base_high: u64,
    /// Low half of the IPv6 base address, or the IPv4 base address in the lower 32 bits.
    pub(crate) base_low: u64,
    /// Time of the first frame, ns since boot.
    pub(crate) first: u64,
    /// Time of the last stamped frame.
    pub(crate) last: u64,
    /// Number of the last stamped frame.
    pub(crate) stamped: u64,
    /// Device the frames are sent on.
    pub(crate) ifindex: u32,
    /// One of the `PATTERN_` constants.
    pub(crate) pattern: u32,
    /// Number of different sources, a power of two.
    pub(crate) sources: u32,
    /// 4 or 6.
    pub(crate) ip_version: u32,
    /// Sum of the 16-bit words of the IPv4 header without its source address and checksum.
    pub(crate) ip_sum: u32,
    /// To a multiple of eight bytes.
    pub(crate) padding: u32,
}

/// The limit of the textbook limiter: tokens are ns.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Limit {
    /// What a packet costs.
    pub(crate) cost: u64,
    /// What a bucket holds.
    pub(crate) burst: u64,
}
