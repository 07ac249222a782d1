//! Writing to frames.

use aya_ebpf::programs::XdpContext;

/// Length of an Ethernet header.
pub(crate) const ETHERNET: usize = 14;

/// Folds and inverts a sum of 16-bit words; the result is in network byte order. UDP has no zero
/// checksum and IPv4 does not produce one with a non-zero version field.
#[inline(always)]
pub(crate) fn checksum(sum: u64) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    let folded = !(((sum & 0xffff) + (sum >> 16)) as u16);
    (if folded == 0 { 0xffff } else { folded }).to_be()
}

/// Writes `value` at `offset`; `None` when the frame ends before.
#[inline(always)]
pub(crate) fn store<T>(ctx: &XdpContext, offset: usize, value: T) -> Option<()> {
    let at = ctx.data() + offset;
    if at + size_of::<T>() > ctx.data_end() {
        return None;
    }
    // SAFETY: the range [at, at + size) is inside the frame, as just checked, and the kernel
    // allows unaligned stores to packet data.
    unsafe { (at as *mut T).write_unaligned(value) };
    Some(())
}
