//! Events for the daemon.

use super::State;
use super::lookup::Arrival;
use crate::abi::{Config, EVENTS_PER_SECOND, Event, EventKind, Internal};
use crate::atomic;
use crate::gcra::{TICKS_PER_NS, decide, ticks};

/// Sends an event, unless its kind has sent enough lately.
#[inline(always)]
pub(super) fn event<S: State>(
    state: &S,
    config: &Config,
    kind: EventKind,
    packet: &Arrival,
    policy: u32,
    now_ns: u64,
) {
    const SECOND: u64 = 1_000_000_000 * TICKS_PER_NS;
    // One word for all CPUs: the limit is the host's. Each kind has its own, or a full table would
    // silence the other.
    let word = match kind {
        EventKind::Limited | EventKind::DestinationLimited | EventKind::GroupLimited => {
            &config.limited_event_tat
        }
        EventKind::SetFull | EventKind::DestinationSetFull | EventKind::GroupSetFull => {
            &config.set_full_event_tat
        }
    };
    // No branch: the verifier would follow both from here on.
    let kind = kind as u32 + EventKind::KINDS * packet.classified.whose();
    let source = packet.source;
    let tat = atomic::load(word);
    let sent = match decide(tat, ticks(now_ns), SECOND / EVENTS_PER_SECOND, SECOND) {
        // A CPU that loses the race sends nothing: the other one took the token.
        Some(next) => atomic::replace(word, tat, next),
        None => false,
    };
    if !sent {
        state.note(Internal::EventsSuppressed);
    } else if !state.send(Event { time_ns: now_ns, source, kind, policy }) {
        state.note(Internal::EventsLost);
    }
}
