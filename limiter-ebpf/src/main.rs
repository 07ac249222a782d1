//! The XDP program: maps, entry and glue. Every decision is made in `limiter-common`.
#![no_std]
#![no_main]

mod evidence;
mod frame;
mod log;
mod maps;
mod marks;
mod sampler;
mod state;
mod steps;

use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS};
use aya_ebpf::macros::xdp;
use aya_ebpf::programs::XdpContext;
use limiter_common::abi::{LinkKind, Reason};
use limiter_common::engine::{Constants as _, judge};
use limiter_common::features::Features;

use crate::frame::Frame;
use crate::state::Kernel;

/// Judges every frame of an interface with Ethernet.
#[xdp]
#[inline(always)]
fn limiter(ctx: XdpContext) -> u32 {
    limit(&Frame::of(LinkKind::Ethernet, &ctx))
}

/// The same where frames may be in several buffers.
#[xdp(frags)]
#[inline(always)]
fn limiter_frags(ctx: XdpContext) -> u32 {
    limit(&Frame::of(LinkKind::Jumbo, &ctx))
}

/// The same of an interface without Ethernet.
#[xdp]
#[inline(always)]
fn limiter_ip(ctx: XdpContext) -> u32 {
    limit(&Frame::of(LinkKind::Ip, &ctx))
}

#[inline(always)]
fn limit(frame: &Frame) -> u32 {
    // Without its maps the program judges nothing, and must not cut the host off.
    let Some(kernel) = Kernel::new().and_then(Kernel::with_config) else {
        return XDP_PASS;
    };
    let reason = judge(&kernel, frame);
    kernel.count(reason, frame.len());
    // The verdict is made: none of these changes it.
    if marks::is_marked() {
        log::write_marked(frame);
    }
    if kernel.features().has(Features::EVIDENCE)
        && reason == Reason::OverLimit
        && kernel.is_sought()
    {
        evidence::look_up(frame);
    }
    if kernel.is_sampled(reason) {
        sampler::take(frame, reason);
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
