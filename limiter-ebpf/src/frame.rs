//! The frame as the program may read it.

use core::mem::size_of;

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::programs::XdpContext;
use limiter_common::packet::{Header, Packet};

/// No header that is read starts beyond this. The verifier needs a bound on every offset; a chain
/// of headers that goes farther counts as cut off.
const MAX_OFFSET: usize = 0x3fff;

/// The bytes from `start` to `end`, which the kernel gave with the packet.
pub(crate) struct Frame {
    start: usize,
    end: usize,
    context: *mut xdp_md,
}

impl Frame {
    #[inline(always)]
    pub(crate) fn new(ctx: &XdpContext) -> Self {
        Self { start: ctx.data(), end: ctx.data_end(), context: ctx.ctx }
    }

    /// What the kernel gave with the packet.
    #[inline(always)]
    pub(crate) fn context(&self) -> *mut xdp_md {
        self.context
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> u32 {
        (self.end - self.start) as u32
    }
}

impl Packet for Frame {
    #[inline(always)]
    fn length(&self) -> u32 {
        self.len()
    }

    #[inline(always)]
    fn read<H: Header>(&self, offset: usize) -> Option<H> {
        if offset > MAX_OFFSET {
            return None;
        }
        let at = self.start + offset;
        if at + size_of::<H>() > self.end {
            return None;
        }
        // SAFETY: the whole header lies between `start` and `end`, as compared just now; any bytes
        // are a valid `H` by the trait's contract; the read does not assume alignment. The verifier
        // proves the bounds again at load time.
        Some(unsafe { (at as *const H).read_unaligned() })
    }
}
