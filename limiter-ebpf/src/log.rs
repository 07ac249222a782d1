//! Lines about what happens rarely, for a human being, if the daemon was started with `--kernel-log`.
//!
//! Where something happens it is only marked: see [`crate::marks`]. A function of its own writes the lines after the
//! verdict, so that its branches are not added to those on the way there: see [`crate::steps`].

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::bpf_get_smp_processor_id;
use aya_ebpf::programs::XdpContext;
use aya_log_ebpf::info;
use limiter_common::abi::Internal;
use limiter_common::engine::Processor;
use limiter_common::gcra::{TICKS_PER_NS, Ticks, decide, ticks};
use limiter_common::packet::sender_of;

use crate::frame::Frame;
use crate::maps::{MARKED, Marked};
use crate::state::Kernel;

/// What the lines are told from in the daemon's log.
const TARGET: &str = "limiter::kernel";

/// A second, and the time for one packet whose lines are written, on each CPU.
const SECOND: Ticks = 1_000_000_000 * TICKS_PER_NS;
// A line takes some 400 instructions: a flood of promotions must not become a flood of lines.
const INTERVAL: Ticks = SECOND / 20;

/// A line about a source, as its family is written. The macros of aya-log take nothing but literals.
macro_rules! tell {
    ($source:expr, $text:literal) => {
        match $source.ipv4() {
            Some(v4) => info!(&(), target: TARGET, $text, v4, cpu()),
            None => {
                let v6 = $source.octets();
                info!(&(), target: TARGET, $text, v6, cpu())
            }
        }
    };
}

/// The number of this CPU.
#[inline(always)]
fn cpu() -> u32 {
    // SAFETY: the helper takes nothing.
    unsafe { bpf_get_smp_processor_id() }
}

/// Writes what was marked.
#[inline(always)]
pub(crate) fn write_marked(frame: &Frame) {
    // One after the other, not one by the other: the stack is short.
    if limiter_log(frame.context()) != 0 {
        let mut line = 0;
        while line < LINES {
            limiter_line(line);
            line += 1;
        }
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn limiter_log(ctx: *mut xdp_md) -> u32 {
    let ctx = XdpContext::new(ctx);
    // A line that finds no room is lost.
    Kernel::new().and_then(|kernel| write(&ctx, &kernel)).map_or(0, |()| 1)
}

#[inline(always)]
fn write(ctx: &XdpContext, state: &impl Processor) -> Option<()> {
    let marked = MARKED.get_ptr_mut(0)?;
    // SAFETY: as in `marks::mark`.
    let marked = unsafe { &mut *marked };
    // Taken before the rate limit: a packet without a line must not leave its marks to the next
    // one.
    let what = core::mem::take(&mut marked.what);
    match decide(marked.tat, ticks(state.now_coarse()), INTERVAL, SECOND) {
        Some(next) => marked.tat = next,
        None => {
            marked.left_out += 1;
            return None;
        }
    }
    let left_out = core::mem::take(&mut marked.left_out);
    if left_out > 0 {
        info!(ctx, target: TARGET, "kernel: {} packets more of which nothing was written", left_out);
    }
    (marked.told, marked.source) = (what, sender_of(&Frame::new(ctx))?);
    Some(())
}

/// Lines that there may be about one packet.
const LINES: u32 = 5;

/// Writes one of them, if what it tells has happened.
// A function as well: inlined, each line would be verified for each choice of those before it.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn limiter_line(line: u32) -> u32 {
    let Some(marked) = MARKED.get_ptr(0) else { return 0 };
    // SAFETY: as in `marks::mark`.
    let Marked { told, source, .. } = unsafe { &*marked };
    let has = |which: Internal| told & 1 << which as u32 != 0;
    match line {
        0 if has(Internal::Malformed) => {
            tell!(source, "kernel: an invalid header from {:i}, limited as usual (CPU {})");
        }
        1 if has(Internal::Contended) => {
            tell!(source, "kernel: {:i} met another CPU on a bucket and tried again (CPU {})");
        }
        2 if has(Internal::SetFull) => {
            tell!(source, "kernel: no bucket was free for {:i} (CPU {})");
        }
        3 if has(Internal::BusyEvictions) => {
            tell!(source, "kernel: {:i} got the bucket of a source that used it (CPU {})");
        }
        3 if has(Internal::Evictions) => {
            tell!(source, "kernel: {:i} got a bucket that was full again (CPU {})");
        }
        3 if has(Internal::Promotions) => {
            tell!(source, "kernel: {:i} got a bucket (CPU {})");
        }
        4 if has(Internal::EventsLost) => {
            tell!(source, "kernel: the ring buffer had no room for an event of {:i} (CPU {})");
        }
        _ => return 0,
    }
    1
}
