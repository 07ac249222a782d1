//! The least that a limiter with memory of each source can do: parse, hash, change one cache line, and decide
//! nothing.

use aya_ebpf::{bindings::BPF_F_MMAPABLE, macros::map, maps::Array, programs::XdpContext};
use limiter_common::{atomic, key::SourceKey, table::Slot};

use crate::{hash, layout::FLOOR_LINES, packet::ETHERNET};

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;

/// As many lines as the limiter has slots, in a map of the same kind. The loader gives the size.
#[map]
static LINES: Array<Slot> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Adds one in the line of the frame's source. `None` if it is not IP.
#[inline(always)]
pub(crate) fn count(ctx: &XdpContext) -> Option<()> {
    let source = match u16::from_be_bytes(load(ctx, 12)?) {
        ETHERTYPE_IPV4 => SourceKey::from_ipv4(load(ctx, ETHERNET + 12)?),
        // A source is a /64, as the limiter has it.
        ETHERTYPE_IPV6 => SourceKey { high: u64::from_be_bytes(load(ctx, ETHERNET + 8)?), low: 0 },
        _ => return None,
    };
    let line = LINES.get(hash::key().hash(source).0 as u32 & (FLOOR_LINES - 1))?;
    atomic::add(&line.passed, 1);
    Some(())
}

/// The bytes at `offset`; `None` when the frame ends before.
#[inline(always)]
fn load<const N: usize>(ctx: &XdpContext, offset: usize) -> Option<[u8; N]> {
    let at = ctx.data() + offset;
    if at + N > ctx.data_end() {
        return None;
    }
    // SAFETY: the range [at, at + N) is inside the frame, as just checked; any bytes are valid.
    Some(unsafe { (at as *const [u8; N]).read_unaligned() })
}
