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
use limiter_common::abi::Reason;
use limiter_common::engine::{Constants as _, judge};
use limiter_common::features::Features;

use crate::frame::Frame;
use crate::state::Kernel;

/// Judges every frame that the interface receives.
#[xdp]
#[inline(always)]
fn limiter(ctx: XdpContext) -> u32 {
    let frame = Frame::new(&ctx);
    // Without its maps the program judges nothing, and must not cut the host off.
    let Some(kernel) = Kernel::new().and_then(Kernel::with_config) else {
        return XDP_PASS;
    };
    let reason = judge(&kernel, &frame);
    kernel.count(reason, frame.len());
    // The verdict is made: none of these changes it.
    if marks::is_marked() {
        log::write_marked(&frame);
    }
    if kernel.features().has(Features::EVIDENCE)
        && reason == Reason::OverLimit
        && kernel.is_sought()
    {
        evidence::look_up(&frame);
    }
    if kernel.is_sampled(reason) {
        sampler::take(&frame, reason);
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
