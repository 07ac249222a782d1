//! Looks samples of packets up among this host's TCP connections.

use core::mem::size_of;

use aya_ebpf::bindings::{bpf_sock, bpf_sock_tuple, xdp_md};
use aya_ebpf::helpers::generated::{bpf_sk_release, bpf_skc_lookup_tcp};
use aya_ebpf::programs::XdpContext;
use limiter_common::engine::note_sample;
use limiter_common::packet::{Connection, Network, Version, connection, network};

use crate::frame::Frame;
use crate::state::Kernel;

/// The kernel's `TCP_ESTABLISHED`.
const ESTABLISHED: u32 = 1;

/// The kernel's `BPF_F_CURRENT_NETNS`: the namespace of the interface that the packet came by.
const CURRENT_NETNS: u64 = u64::MAX;

/// Looks the packet in hand up, and counts it as a sample of its source.
#[inline(always)]
pub(crate) fn look_up(frame: &Frame) {
    limiter_evidence(frame.context());
}

/// A function to the verifier, as in [`crate::steps`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn limiter_evidence(ctx: *mut xdp_md) -> u32 {
    sample(ctx).map_or(0, |()| 1)
}

#[inline(always)]
fn sample(ctx: *mut xdp_md) -> Option<()> {
    let kernel = Kernel::new()?;
    let index = kernel.take_sought()?;
    let frame = Frame::new(&XdpContext::new(ctx));
    let is_connected = match network(&frame) {
        Network::Ip(ip) => connection(&frame, &ip).is_some_and(|it| is_established(ctx, &it)),
        Network::NonIp | Network::Unreadable => false,
    };
    note_sample(&kernel, index, is_connected)
}

/// Whether a socket of this host has the connection, and its handshake is done.
#[inline(always)]
fn is_established(ctx: *mut xdp_md, it: &Connection) -> bool {
    // As `bpf_sock_tuple` has it: both addresses, then both ports, all in network byte order.
    let mut tuple = [0u32; size_of::<bpf_sock_tuple>() / 4];
    let ports = u32::from_ne_bytes(it.ports);
    let size = match it.version {
        Version::V4 => {
            tuple[0] = (it.source.low as u32).to_be();
            tuple[1] = (it.destination.low as u32).to_be();
            tuple[2] = ports;
            12
        }
        Version::V6 => {
            let words = |half: u64| [((half >> 32) as u32).to_be(), (half as u32).to_be()];
            [tuple[0], tuple[1]] = words(it.source.high);
            [tuple[2], tuple[3]] = words(it.source.low);
            [tuple[4], tuple[5]] = words(it.destination.high);
            [tuple[6], tuple[7]] = words(it.destination.low);
            tuple[8] = ports;
            36
        }
    };
    let at = (&raw mut tuple).cast::<bpf_sock_tuple>();
    // SAFETY: the context is the program's own; the tuple has the size that is told. What the helper returns is
    // null or a socket, whose state is readable until it is released, also where it is a request or listens.
    unsafe {
        let socket: *mut bpf_sock = bpf_skc_lookup_tcp(ctx.cast(), at, size, CURRENT_NETNS, 0);
        if socket.is_null() {
            return false;
        }
        let state = (&raw const (*socket).state).read_volatile();
        bpf_sk_release(socket.cast());
        state == ESTABLISHED
    }
}
