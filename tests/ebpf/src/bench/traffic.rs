//! Source addresses, written into frames at little cost.

use aya_ebpf::{
    bindings::BPF_F_MMAPABLE, helpers::bpf_ktime_get_ns, macros::map, maps::Array,
    programs::XdpContext,
};

use crate::{
    layout::{
        PATTERN_ONE, PATTERN_RANDOM, PATTERN_ROUND_ROBIN, PATTERN_SEQUENCE, SEQUENCE_PAIRS, Traffic,
    },
    packet::{ETHERNET, checksum, store},
};

/// The time is taken every so many frames.
const STAMP_EVERY: u64 = 1 << 10;

/// One entry.
#[map]
static TRAFFIC: Array<Traffic> = Array::with_max_entries(1, 0);

/// Two numbers in each entry, the lower half first: entries are a multiple of eight bytes.
#[map]
static SEQUENCE: Array<u64> = Array::with_max_entries(SEQUENCE_PAIRS, BPF_F_MMAPABLE);

/// Writes the next source address; gives the device to send on. `None` if the frame is too short.
#[inline(always)]
pub(crate) fn write(ctx: &XdpContext) -> Option<u32> {
    let traffic = TRAFFIC.get_ptr_mut(0)?;
    // SAFETY: the pointer is to the map's only entry, which nothing but this run touches now.
    let traffic = unsafe { &mut *traffic };
    let number = traffic.frames;
    if number % STAMP_EVERY == 0 {
        // SAFETY: the helper takes no arguments and has no preconditions.
        let now = unsafe { bpf_ktime_get_ns() };
        if number == 0 {
            traffic.first = now;
        }
        traffic.last = now;
        traffic.stamped = number;
    }
    traffic.frames = number + 1;
    let mask = traffic.sources.wrapping_sub(1);
    let offset = match traffic.pattern {
        PATTERN_ONE => 0,
        PATTERN_ROUND_ROBIN => number as u32 & mask,
        PATTERN_RANDOM => random(traffic) & mask,
        PATTERN_SEQUENCE => {
            let pair = *SEQUENCE.get((number >> 1) as u32 % SEQUENCE_PAIRS)?;
            if number % 2 == 0 { pair as u32 } else { (pair >> 32) as u32 }
        }
        _ => return None,
    };
    if traffic.ip_version == 4 {
        let source = (traffic.base_low as u32).wrapping_add(offset);
        let sum = traffic.ip_sum + (source >> 16) + (source & 0xffff);
        store(ctx, ETHERNET + 12, source.to_be())?;
        store(ctx, ETHERNET + 10, checksum(u64::from(sum)))?;
    } else {
        // Each source is a /64 of its own. No frame gets as far as its UDP checksum.
        let high = traffic.base_high.wrapping_add(u64::from(offset));
        store(ctx, ETHERNET + 8, high.to_be())?;
        store(ctx, ETHERNET + 16, traffic.base_low.to_be())?;
    }
    Some(traffic.ifindex)
}

/// The next of Marsaglia's shifted random numbers, a few instructions where the kernel's take 20 ns;
/// its better half.
#[inline(always)]
fn random(traffic: &mut Traffic) -> u32 {
    let mut state = traffic.random;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    traffic.random = state;
    (state >> 32) as u32
}
