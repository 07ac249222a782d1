//! Layout of the generator's settings map, shared by the kernel program and the harness, which
//! includes this file by path.

/// Every frame carries the base address.
pub(crate) const PATTERN_FIXED: u32 = 0;
/// Frame `i` carries the base address plus `i` modulo [`Settings::sources`].
pub(crate) const PATTERN_ROUND_ROBIN: u32 = 1;
/// The base address plus a uniform random number below [`Settings::sources`], a power of two.
pub(crate) const PATTERN_RANDOM: u32 = 2;

/// What the generator writes into each frame. Addresses are in host byte order.
///
/// Sums are ones' complement sums of 16-bit words in network byte order, before folding and
/// inversion, of everything the checksum covers except the source address.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Settings {
    /// Frames to send; runs after that send nothing.
    pub(crate) frames: u64,
    /// Mean time between two frames, in ns; 0 sends at full speed. Runs that come too early send
    /// nothing.
    pub(crate) interval: u64,
    /// High half of the IPv6 base address; unused for IPv4.
    pub(crate) base_high: u64,
    /// Low half of the IPv6 base address, or the IPv4 base address in the lower 32 bits.
    pub(crate) base_low: u64,
    /// Device the frames are sent on, in the network namespace of the thread that runs the program.
    pub(crate) ifindex: u32,
    /// One of the `PATTERN_` constants.
    pub(crate) pattern: u32,
    /// Number of different sources, at least 1.
    pub(crate) sources: u32,
    /// 4 or 6.
    pub(crate) ip_version: u32,
    /// Sum of the IPv4 header without its source address and checksum.
    pub(crate) ip_sum: u32,
    /// Sum of UDP pseudo-header, header and payload without source address and checksum.
    pub(crate) udp_sum: u32,
}

/// What has been sent.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Progress {
    /// Frames handed to the device.
    pub(crate) frames: u64,
    /// Time of the first one, in ns of the monotonic clock.
    pub(crate) first: u64,
    /// Time of the last one.
    pub(crate) last: u64,
}
