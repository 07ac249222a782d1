//! Packet generator: an XDP program that is run with live frames, gives each frame its source
//! address and sends it on through a device.
//!
//! The kernel recycles the pages of the frames without restoring their content, so everything that
//! varies is written into every frame.
#![no_std]
#![no_main]

mod object;
mod packet;
mod settings;

use aya_ebpf::{
    bindings::xdp_action::{XDP_ABORTED, XDP_DROP, XDP_PASS},
    helpers::{bpf_get_prandom_u32, bpf_ktime_get_ns, bpf_redirect},
    macros::{map, xdp},
    maps::Array,
    programs::XdpContext,
};
use packet::{ETHERNET, checksum, store};
use settings::{PATTERN_FIXED, PATTERN_RANDOM, PATTERN_ROUND_ROBIN, Progress, Settings};

/// One entry: what to write.
#[map]
static SETTINGS: Array<Settings> = Array::with_max_entries(1, 0);

/// One entry: what has been sent. A test run is on one CPU at a time, so nothing is counted twice.
#[map]
static PROGRESS: Array<Progress> = Array::with_max_entries(1, 0);

const IPV4: usize = ETHERNET + 20;
const IPV6: usize = ETHERNET + 40;

/// Writes the source address and redirects the frame, or drops it if it is not due yet. A frame that
/// is too short is aborted and not counted.
#[xdp]
fn generator(ctx: XdpContext) -> u32 {
    send(&ctx).unwrap_or(XDP_ABORTED)
}

/// Passes every frame: what a protected interface does where nothing is limited.
#[xdp]
fn pass(_ctx: XdpContext) -> u32 {
    XDP_PASS
}

/// Drops every frame.
#[xdp]
fn discard(_ctx: XdpContext) -> u32 {
    XDP_DROP
}

#[inline(always)]
fn send(ctx: &XdpContext) -> Option<u32> {
    let settings = SETTINGS.get(0)?;
    let progress = PROGRESS.get_ptr_mut(0)?;
    // SAFETY: the pointer is to the map's only entry, which nothing but this run touches now.
    let progress = unsafe { &mut *progress };
    // SAFETY: the helper takes no arguments and has no preconditions.
    let now = unsafe { bpf_ktime_get_ns() };
    if progress.frames == settings.frames {
        return Some(XDP_DROP);
    }
    if progress.frames == 0 {
        progress.first = now;
    } else if now < progress.first + progress.frames * settings.interval {
        return Some(XDP_DROP);
    }
    let offset = match settings.pattern {
        PATTERN_ROUND_ROBIN => progress.frames % u64::from(settings.sources.max(1)),
        // SAFETY: the helper takes no arguments and has no preconditions.
        PATTERN_RANDOM => unsafe { random() & u64::from(settings.sources.wrapping_sub(1)) },
        PATTERN_FIXED => 0,
        _ => return None,
    };
    if settings.ip_version == 4 {
        write_ipv4(ctx, settings, (settings.base_low as u32).wrapping_add(offset as u32))?;
    } else {
        write_ipv6(ctx, settings, offset)?;
    }
    progress.frames += 1;
    progress.last = now;
    // SAFETY: the helper only records the device; it is looked up when the frame is sent.
    Some(unsafe { bpf_redirect(settings.ifindex, 0) } as u32)
}

/// A uniform random number below 2^32.
///
/// # Safety
/// Callable from any BPF program.
#[inline(always)]
unsafe fn random() -> u64 {
    // SAFETY: the helper takes no arguments and has no preconditions.
    u64::from(unsafe { bpf_get_prandom_u32() })
}

#[inline(always)]
fn write_ipv4(ctx: &XdpContext, settings: &Settings, source: u32) -> Option<()> {
    let halves = u64::from(source >> 16) + u64::from(source & 0xffff);
    store(ctx, ETHERNET + 12, source.to_be())?;
    store(ctx, ETHERNET + 10, checksum(u64::from(settings.ip_sum) + halves))?;
    store(ctx, IPV4 + 6, checksum(u64::from(settings.udp_sum) + halves))
}

/// Each source is a /64 of its own: the offset is added to the upper half.
#[inline(always)]
fn write_ipv6(ctx: &XdpContext, settings: &Settings, offset: u64) -> Option<()> {
    let high = settings.base_high.wrapping_add(offset);
    let low = settings.base_low;
    store(ctx, ETHERNET + 8, high.to_be())?;
    store(ctx, ETHERNET + 16, low.to_be())?;
    let sum = u64::from(settings.udp_sum) + words(high) + words(low);
    store(ctx, IPV6 + 6, checksum(sum))
}

#[inline(always)]
fn words(value: u64) -> u64 {
    (value >> 48) + ((value >> 32) & 0xffff) + ((value >> 16) & 0xffff) + (value & 0xffff)
}
