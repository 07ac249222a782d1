//! The XDP program: maps, entry and glue. Every decision is made in `limiter-common`.
#![no_std]
#![no_main]

mod frame;
mod log;
mod maps;
mod sampler;
mod state;

use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS};
use aya_ebpf::macros::xdp;
use aya_ebpf::programs::XdpContext;
use limiter_common::abi::Reason;
use limiter_common::engine::judge;

use crate::frame::Frame;
use crate::maps::{LOGGER, SAMPLER};
use crate::sampler::sample;
use crate::state::Kernel;

/// Judges every frame that the interface receives.
#[xdp]
#[inline(always)]
fn limiter(ctx: XdpContext) -> u32 {
    let frame = Frame::new(&ctx);
    // Without its maps the program judges nothing, and must not cut the host off.
    let Some(kernel) = Kernel::new() else {
        return XDP_PASS;
    };
    let reason = judge(&kernel, &frame);
    // Before any tail call: each frame is in exactly one counter, whatever program ends it (P5).
    kernel.count(reason, frame.len());
    if log::is_marked() {
        kernel.hand_over(reason);
        // A tail call does not come back. It fails where no daemon reads: the kernel has emptied the map then,
        // and the marks would go to the next packet.
        // SAFETY: the map holds XDP programs only, which take this very context.
        unsafe { LOGGER.tail_call(&ctx, 0) };
        log::forget();
    }
    finish(&ctx, &kernel, reason)
}

/// Writes lines about a packet that `limiter` has judged.
#[xdp]
#[inline(always)]
fn logger(ctx: XdpContext) -> u32 {
    let Some(kernel) = Kernel::new() else {
        return XDP_PASS;
    };
    let reason = kernel.handed_over();
    // The verdict is made: a line that finds no room must not change it.
    let _ = log::write(&ctx, &kernel);
    finish(&ctx, &kernel, reason)
}

/// Takes a sample of a packet that `limiter` has judged. A program of its own, so that the verifier does not
/// go through it for each way to come to a verdict.
#[xdp]
#[inline(always)]
fn sampler(ctx: XdpContext) -> u32 {
    let Some(kernel) = Kernel::new() else {
        return XDP_PASS;
    };
    let reason = kernel.handed_over();
    // `None` where its turn has not come or nobody asks for its source. The verdict stands either way.
    let _ = sample(&ctx, &kernel, reason);
    action(reason)
}

/// Ends a packet that met `reason`, with a sample of it if somebody wants one.
#[inline(always)]
fn finish(ctx: &XdpContext, kernel: &Kernel, reason: Reason) -> u32 {
    if kernel.is_sampled(reason) {
        kernel.hand_over(reason);
        // It does not come back, unless there is no sampler: then the packet just is not sampled.
        // SAFETY: the map holds XDP programs only, which take this very context.
        unsafe { SAMPLER.tail_call(ctx, 0) };
    }
    action(reason)
}

#[inline(always)]
fn action(reason: Reason) -> u32 {
    if reason.passes() { XDP_PASS } else { XDP_DROP }
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // The verifier would refuse a program that can get here; there is nothing to unwind to.
    loop {}
}

/// The kernel lets only GPL-compatible programs call some helpers.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
