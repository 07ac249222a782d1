//! The limiter as it is usually written: a token bucket per IPv4 source in an LRU hash map, without
//! a lock. Tokens are ns, so that no remainder is lost.

use aya_ebpf::{
    helpers::bpf_ktime_get_ns,
    macros::map,
    maps::{Array, LruHashMap},
    programs::XdpContext,
};

use crate::{layout::Limit, packet::ETHERNET};

const ETHERTYPE_IPV4: u16 = 0x0800;
const IPV4: usize = 20;

/// A source's tokens at a time.
#[derive(Clone, Copy)]
#[repr(C)]
struct Bucket {
    tokens: u64,
    /// ns since boot.
    last: u64,
}

/// One entry.
#[map]
static LIMIT: Array<Limit> = Array::with_max_entries(1, 0);

/// As many sources as the other limiters have room for. The loader gives the size.
#[map]
static BUCKETS: LruHashMap<u32, Bucket> = LruHashMap::with_max_entries(1, 0);

/// Whether the frame is within the limit of its source; `None` if it is not IPv4.
#[inline(always)]
pub(crate) fn admits(ctx: &XdpContext) -> Option<bool> {
    let start = ctx.data();
    if start + ETHERNET + IPV4 > ctx.data_end() {
        return None;
    }
    // SAFETY: the frame has all of both headers, as just checked.
    let kind = unsafe { ((start + 12) as *const u16).read_unaligned() };
    if kind != ETHERTYPE_IPV4.to_be() {
        return None;
    }
    // SAFETY: as above.
    let source = unsafe { ((start + ETHERNET + 12) as *const u32).read_unaligned() };
    let limit = LIMIT.get(0)?;
    // SAFETY: the helper takes no arguments and has no preconditions.
    let now = unsafe { bpf_ktime_get_ns() };
    let Some(bucket) = BUCKETS.get_ptr_mut(source) else {
        let fresh = Bucket { tokens: limit.burst - limit.cost, last: now };
        // A full map evicts; if that fails, there is nothing to limit by.
        let _inserted = BUCKETS.insert(source, fresh, 0);
        return Some(true);
    };
    // SAFETY: the kernel keeps the entry in place while the program runs. Other CPUs may write it at
    // the same time, which makes the textbook's limiter inexact.
    let bucket = unsafe { &mut *bucket };
    let tokens = (bucket.tokens + now.saturating_sub(bucket.last)).min(limit.burst);
    bucket.last = now;
    if tokens < limit.cost {
        bucket.tokens = tokens;
        return Some(false);
    }
    bucket.tokens = tokens - limit.cost;
    Some(true)
}
