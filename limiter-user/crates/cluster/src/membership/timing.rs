//! How often members look after each other.

use std::num::{NonZeroU8, NonZeroUsize};
use std::time::Duration;

use foca::{Config, PeriodicParams};

use crate::wire::MAX_OPAQUE;

/// Bytes of what foca says at once: a frame has room for it and for the byte before it.
const MAX_MESSAGE_LEN: usize = MAX_OPAQUE - 1;

/// How long somebody who went down is remembered, and looked for now and then.
const REMEMBERED: Duration = Duration::from_secs(6 * 3600);

/// For a cluster of about so many members.
///
/// A crash is known everywhere after: until somebody probes it (a period, five with a thousand members if
/// it goes badly: each probes one at random), the period in which neither it nor who was asked to ask it
/// answers, the suspicion, and some rounds of gossip. That is 3 to 5 s for a few members, and some 6 to
/// 9 s for a thousand.
pub(super) fn config(members: usize) -> Config {
    let members = members.max(1);
    let count = |count: usize| NonZeroUsize::new(count).unwrap_or(NonZeroUsize::MIN);
    let decades = (members as f64 + 1.0).log10();
    Config {
        probe_period: Duration::from_millis(700),
        // Between continents, too.
        probe_rtt: Duration::from_millis(300),
        num_indirect_probes: count(3),
        // Of those that an epidemic with so many infections each leaves out there are few enough, one of
        // 20,000, even where every tenth packet is lost.
        max_transmissions: NonZeroU8::new((4.0 * decades).ceil().clamp(11.0, 20.0) as u8)
            .unwrap_or(NonZeroU8::MIN),
        // Whoever is suspected has to hear of it, and all have to hear that it is not so.
        suspect_to_down_after: Duration::from_millis(if members > 100 { 3000 } else { 2000 }),
        remove_down_after: Some(REMEMBERED),
        max_packet_size: count(MAX_MESSAGE_LEN),
        // Who was taken for dead has to hear of it: only then it comes back, under a renewed identity.
        notify_down_members: true,
        // The roster learns who is there page by page, and stops where a hash is the same.
        periodic_announce: None,
        // After a partition each side takes the other for dead: without a word to the dead it stays so.
        periodic_announce_to_down_members: Some(PeriodicParams {
            // All together some ten a second.
            frequency: Duration::from_secs(5) * (members as u32).div_ceil(50),
            num_members: count(1),
        }),
        periodic_gossip: Some(PeriodicParams {
            frequency: Duration::from_millis(200),
            num_members: count(3),
        }),
    }
}
