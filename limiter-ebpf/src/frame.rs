//! The frame as the program may read it.

use core::mem::size_of;

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::generated::bpf_xdp_get_buff_len;
use aya_ebpf::programs::XdpContext;
use limiter_common::abi::LinkKind;
use limiter_common::packet::{Behind, Header, Packet, behind_tags};

use crate::maps::LINK_KIND;

/// What frames the program is loaded for.
#[inline(always)]
fn link_kind() -> LinkKind {
    const JUMBO: u8 = LinkKind::Jumbo as u8;
    const IP: u8 = LinkKind::Ip as u8;
    match LINK_KIND.load() {
        JUMBO => LinkKind::Jumbo,
        IP => LinkKind::Ip,
        _ => LinkKind::Ethernet,
    }
}

/// No header that is read starts beyond this. The verifier needs a bound on every offset; a chain
/// of headers that goes farther counts as cut off.
pub(crate) const MAX_OFFSET: usize = 0x3fff;

/// The bytes from `start` to `end`, which the kernel gave with the packet. Of a frame in several buffers they are the first
/// one, in which the headers are.
pub(crate) struct Frame {
    start: usize,
    end: usize,
    context: *mut xdp_md,
    kind: LinkKind,
}

impl Frame {
    /// For a function, which knows by the loader alone what frames there are.
    #[inline(always)]
    pub(crate) fn new(ctx: &XdpContext) -> Self {
        Self::of(link_kind(), ctx)
    }

    /// For an entry of such frames, which keeps no room on the stack for what the compiler knows.
    #[inline(always)]
    pub(crate) fn of(kind: LinkKind, ctx: &XdpContext) -> Self {
        Self { start: ctx.data(), end: ctx.data_end(), context: ctx.ctx, kind }
    }

    /// What the kernel gave with the packet.
    #[inline(always)]
    pub(crate) fn context(&self) -> *mut xdp_md {
        self.context
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> u32 {
        if self.kind == LinkKind::Jumbo {
            // SAFETY: the context is the program's own.
            return unsafe { bpf_xdp_get_buff_len(self.context) } as u32;
        }
        (self.end - self.start) as u32
    }
}

impl Packet for Frame {
    #[inline(always)]
    fn length(&self) -> u32 {
        self.len()
    }

    #[inline(always)]
    fn starts_at_ip(&self) -> bool {
        self.kind == LinkKind::Ip
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

    /// A function of its own: the verifier goes on with one frame that has tags, not with one for each number of them.
    #[inline(always)]
    fn behind_tags(&self) -> Option<Behind> {
        let found = limiter_behind_tags(self.context);
        let behind = Behind { ether_type: (found >> 16) as u16, offset: found as u16 };
        (behind.offset != 0).then_some(behind)
    }
}

/// The EtherType behind the VLAN tags, in the upper half, and where it starts; 0 if they do not end.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn limiter_behind_tags(ctx: *mut xdp_md) -> u32 {
    let behind = behind_tags(&Frame::new(&XdpContext::new(ctx)));
    behind.map_or(0, |behind| u32::from(behind.ether_type) << 16 | u32::from(behind.offset))
}
