//! Lines about what happens rarely, for a human being, if the daemon was started with `--kernel-log`.
//!
//! Where something happens it is only marked. A program of its own writes the lines after the verdict,
//! as samples are taken, so that neither its stack nor its branches are added to those of the first one.

use aya_ebpf::helpers::bpf_get_smp_processor_id;
use aya_ebpf::programs::XdpContext;
use aya_log_ebpf::info;
use limiter_common::abi::Internal;
use limiter_common::engine::Processor;
use limiter_common::gcra::{TICKS_PER_NS, Ticks, decide, ticks};
use limiter_common::key::SourceKey;
use limiter_common::packet::{Network, network};

use crate::frame::Frame;
use crate::maps::{KERNEL_LOG, MARKED};

/// What the lines are told from in the daemon's log.
const TARGET: &str = "limiter::kernel";

/// A second, and the time for one packet whose lines are written, on each CPU.
const SECOND: Ticks = 1_000_000_000 * TICKS_PER_NS;
// A line takes some 400 instructions: a flood of promotions must not become a flood of lines.
const INTERVAL: Ticks = SECOND / 20;

/// Marks what happens to the packet at hand, if there is to be a line about it.
#[inline(always)]
pub(crate) fn mark(what: Internal) {
    let told = match what {
        Internal::Promotions
        | Internal::Evictions
        | Internal::BusyEvictions
        | Internal::SetFull
        | Internal::Malformed
        | Internal::EventsLost
        | Internal::Contended => true,
        // These happen at the rate of packets, and are no news to anybody.
        Internal::EventsSuppressed
        | Internal::SketchAdds
        | Internal::SamplesMatched
        | Internal::SamplesLost => false,
    };
    if told
        && KERNEL_LOG.load() != 0
        && let Some(marked) = MARKED.get_ptr_mut(0)
    {
        // SAFETY: this CPU's element of the map; XDP programs are not preempted by one another on a CPU,
        // and nobody else knows the map.
        unsafe { (*marked).what |= 1 << what as u32 };
    }
}

/// Whether there is something to write about the packet at hand.
#[inline(always)]
pub(crate) fn is_marked() -> bool {
    if KERNEL_LOG.load() == 0 {
        return false;
    }
    match MARKED.get_ptr_mut(0) {
        // SAFETY: as in `mark`.
        Some(marked) => unsafe { (*marked).what != 0 },
        None => false,
    }
}

/// Forgets what was marked.
#[inline(always)]
pub(crate) fn forget() {
    if let Some(marked) = MARKED.get_ptr_mut(0) {
        // SAFETY: as in `mark`.
        unsafe { (*marked).what = 0 };
    }
}

/// A line about a source, as its family is written. The macros of aya-log take nothing but literals.
macro_rules! tell {
    ($ctx:expr, $source:expr, $text:literal) => {
        match $source.ipv4() {
            Some(v4) => info!($ctx, target: TARGET, $text, v4, cpu()),
            None => {
                let v6 = $source.octets();
                info!($ctx, target: TARGET, $text, v6, cpu())
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
pub(crate) fn write(ctx: &XdpContext, state: &impl Processor) -> Option<()> {
    let marked = MARKED.get_ptr_mut(0)?;
    // SAFETY: as in `mark`.
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
    let Network::Ip(ip) = network(&Frame::new(ctx)) else { return None };
    lines(ctx, ip.source, what);
    Some(())
}

/// Whether `what` has the bit of `which`.
#[inline(always)]
fn has(what: u64, which: Internal) -> bool {
    what & 1 << which as u32 != 0
}

#[inline(always)]
fn lines(ctx: &XdpContext, source: SourceKey, what: u64) {
    if has(what, Internal::Malformed) {
        tell!(ctx, source, "kernel: an invalid header from {:i}, limited as usual (CPU {})");
    }
    if has(what, Internal::Contended) {
        tell!(ctx, source, "kernel: {:i} met another CPU on a bucket and tried again (CPU {})");
    }
    if has(what, Internal::SetFull) {
        tell!(ctx, source, "kernel: no bucket was free for {:i} (CPU {})");
    }
    if has(what, Internal::BusyEvictions) {
        tell!(ctx, source, "kernel: {:i} got the bucket of a source that used it (CPU {})");
    } else if has(what, Internal::Evictions) {
        tell!(ctx, source, "kernel: {:i} got a bucket that was full again (CPU {})");
    } else if has(what, Internal::Promotions) {
        tell!(ctx, source, "kernel: {:i} got a bucket (CPU {})");
    }
    if has(what, Internal::EventsLost) {
        tell!(ctx, source, "kernel: the ring buffer had no room for an event of {:i} (CPU {})");
    }
}
