//! Hands packets to whoever captures.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::generated::bpf_xdp_load_bytes;
use aya_ebpf::programs::XdpContext;
use limiter_common::abi::{Internal, Reason};
use limiter_common::atomic;
use limiter_common::engine::Processor;
use limiter_common::packet::sender_of;
use limiter_common::sampling::{MAX_BYTES, Sample};

use crate::frame::Frame;
use crate::maps::{LINK_KIND, SAMPLES, SAMPLING};
use crate::state::Kernel;

/// Takes a sample of a packet that met `reason`, if it is wanted and there is room.
#[inline(always)]
pub(crate) fn take(frame: &Frame, reason: Reason) {
    limiter_sample(frame.context(), reason as u32);
}

/// A function to the verifier, as in [`crate::steps`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn limiter_sample(ctx: *mut xdp_md, reason: u32) -> u32 {
    let Some(kernel) = Kernel::new() else { return 0 };
    // `None` where its turn has not come or nobody asks for its source.
    sample(&XdpContext::new(ctx), &kernel, reason).map_or(0, |()| 1)
}

#[inline(always)]
fn sample(ctx: &XdpContext, kernel: &Kernel, reason: u32) -> Option<()> {
    let frame = Frame::new(ctx);
    let sampling = SAMPLING.get(0)?;
    if !sampling.wants(sender_of(&frame)) {
        return None;
    }
    kernel.note(Internal::SamplesMatched);
    if !sampling.keeps(kernel.random()) || !sampling.takes(kernel.now_coarse()) {
        return None;
    }
    let Some(mut record) = SAMPLES.reserve::<Sample>(0) else {
        kernel.note(Internal::SamplesLost);
        return None;
    };
    let wanted = atomic::load(&sampling.bytes) as u32;
    let length = frame.len();
    let least = if length < wanted { length } else { wanted };
    if least == 0 || least > MAX_BYTES as u32 {
        record.discard(0);
        return None;
    }
    // A number that the compiler knows nothing about, so that it leaves the bounds to the verifier; and
    // bounds that Linux 6.1 sees, which takes none from comparisons of half a register.
    let captured = (kernel.opaque(u64::from(least - 1)) & (MAX_BYTES as u64 - 1)) + 1;
    let at = record.as_mut_ptr();
    // SAFETY: `at` is a reserved record, to which each field is written; the helper writes `captured` bytes
    // at most, for which there is room; the context is the program's own.
    let failed = unsafe {
        (&raw mut (*at).time_ns).write(kernel.now());
        (&raw mut (*at).reason).write(reason);
        (&raw mut (*at).length).write(length);
        (&raw mut (*at).captured).write(captured as u32);
        (&raw mut (*at).ifindex).write((*ctx.ctx).ingress_ifindex);
        (&raw mut (*at).link_kind).write(u32::from(LINK_KIND.load()));
        (&raw mut (*at).padding).write(0);
        bpf_xdp_load_bytes(ctx.ctx, 0, (&raw mut (*at).data).cast(), captured as u32) != 0
    };
    if failed {
        record.discard(0);
    } else {
        record.submit(0);
    }
    Some(())
}
