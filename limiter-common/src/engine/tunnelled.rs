//! Packets in tunnels that are looked into.

use super::State;
use crate::packet::{Ip, Packet, inner};
use crate::tunnels::MAX_TUNNELS;

/// The IP header inside a tunnel, if the tunnel's sender is one of those that are looked into.
#[inline(always)]
pub fn inner_ip<S: State, P: Packet + ?Sized>(state: &S, packet: &P, outer: &Ip) -> Option<Ip> {
    if outer.malformed {
        return None;
    }
    // The header first: few packets are in tunnels.
    let inner = inner(packet, outer)?;
    let mut index = 0;
    while index < MAX_TUNNELS && (index as u64) < state.tunnels() {
        if state.tunnel(index).contains(outer.source) {
            return Some(inner);
        }
        index += 1;
    }
    None
}
