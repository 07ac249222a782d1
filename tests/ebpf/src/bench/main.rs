//! Kernel programs of the benchmark: a packet generator that costs little, the textbook limiter, the
//! least that a limiter can do, and hashes by themselves.
#![no_std]
#![no_main]

mod floor;
mod hash;
mod layout;
mod lru;
#[path = "../object.rs"]
mod object;
#[path = "../packet.rs"]
mod packet;
mod traffic;

use aya_ebpf::{
    bindings::xdp_action::{XDP_ABORTED, XDP_DROP, XDP_PASS},
    helpers::bpf_redirect,
    macros::{map, xdp},
    maps::ProgramArray,
    programs::XdpContext,
};

/// One entry: the program that [`caller`] measures.
#[map]
static CALLEE: ProgramArray = ProgramArray::with_max_entries(1, 0);

/// Gives the frame its source address and sends it on. Run with live frames.
#[xdp]
fn generator(ctx: XdpContext) -> u32 {
    match traffic::write(&ctx) {
        // SAFETY: the helper only records the device; it is looked up when the frame is sent.
        Some(ifindex) => unsafe { bpf_redirect(ifindex, 0) as u32 },
        None => XDP_ABORTED,
    }
}

/// Gives the frame its source address and ends in the program that is measured.
#[xdp]
fn caller(ctx: XdpContext) -> u32 {
    if traffic::write(&ctx).is_some() {
        // SAFETY: nothing here has to be dropped.
        unsafe { CALLEE.tail_call(&ctx, 0) };
    }
    XDP_ABORTED
}

/// Drops every frame: what a limiter cannot beat.
#[xdp]
fn drop_all(_ctx: XdpContext) -> u32 {
    XDP_DROP
}

/// Passes every frame.
#[xdp]
fn pass_all(_ctx: XdpContext) -> u32 {
    XDP_PASS
}

/// The least that any limiter with memory of each source does.
#[xdp]
fn floor(ctx: XdpContext) -> u32 {
    match floor::count(&ctx) {
        Some(()) => XDP_DROP,
        None => XDP_PASS,
    }
}

/// The textbook limiter.
#[xdp]
fn lru_hash(ctx: XdpContext) -> u32 {
    match lru::admits(&ctx) {
        Some(false) => XDP_DROP,
        Some(true) | None => XDP_PASS,
    }
}

/// The textbook limiter, but that it drops what it admits, as well as what it does not.
#[xdp]
fn lru_hash_forced(ctx: XdpContext) -> u32 {
    // What it decides is in its map, so none of its work is left out.
    match lru::admits(&ctx) {
        Some(_) => XDP_DROP,
        None => XDP_PASS,
    }
}
