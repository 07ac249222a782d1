//! Events of the kernel program, for those who ask at their own pace: who tells of them, and who gives shares.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::maps::{MapData, RingBuf};
use limiter_common::abi::{Event, EventKind};
use limiter_common::key::SourceKey;

use super::kind::Kind;

/// Events that are read and not told yet, at most. Others stay in the ring, where the kernel counts those that it has
/// no room for.
const MAX_WAITING: usize = 4096;
/// Sources that began to be limited and wait to be noticed; others are found a little later.
const MAX_LIMITED: usize = 256;

/// The ring buffer, and what was read of it.
pub(super) struct EventQueue(Mutex<Queue>);

struct Queue {
    ring: RingBuf<MapData>,
    waiting: VecDeque<Event>,
    /// Those that have begun to be limited, and whether they are whole addresses: destinations. By [`Kind`].
    limited: [Vec<(SourceKey, bool)>; 2],
}

impl EventQueue {
    pub(super) const fn new(ring: RingBuf<MapData>) -> Self {
        Self(Mutex::new(Queue {
            ring,
            waiting: VecDeque::new(),
            limited: [const { Vec::new() }; 2],
        }))
    }

    fn read(&self) -> MutexGuard<'_, Queue> {
        // What a panic has left is whole: each event is added at once.
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Queue { ring, waiting, limited } = &mut *guard;
        while waiting.len() < MAX_WAITING
            && let Some(event) = ring.next().map(|item| parse(&item))
        {
            let Some(event) = event else { continue };
            // Each of them gets all: who gives shares must not wait for the log, nor the
            // log for shares.
            let is_whole = event.kind == EventKind::DestinationLimited as u32;
            if is_whole || event.kind == EventKind::Limited as u32 {
                let room = limited.iter_mut().filter(|limited| limited.len() < MAX_LIMITED);
                room.for_each(|limited| limited.push((event.source, is_whole)));
            }
            waiting.push_back(event);
        }
        guard
    }

    /// The events that have come since the last call.
    pub(super) fn take(&self) -> VecDeque<Event> {
        std::mem::take(&mut self.read().waiting)
    }

    /// The sources that have begun to be limited since the last call, and whether they are destinations.
    pub(super) fn begun_to_be_limited(&self, kind: Kind) -> Vec<(SourceKey, bool)> {
        std::mem::take(&mut self.read().limited[kind as usize])
    }
}

/// Reads a record of the ring buffer.
fn parse(bytes: &[u8]) -> Option<Event> {
    let word = |at: usize| -> Option<u64> {
        Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
    };
    let half = |at: usize| -> Option<u32> {
        Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
    };
    Some(Event {
        time_ns: word(0)?,
        source: SourceKey { high: word(8)?, low: word(16)? },
        kind: half(24)?,
        policy: half(28)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_read_as_the_kernel_writes_it() {
        let mut bytes = Vec::new();
        for word in [7u64, 1, 2] {
            bytes.extend(word.to_ne_bytes());
        }
        for half in [EventKind::SetFull as u32, 9] {
            bytes.extend(half.to_ne_bytes());
        }
        let event = parse(&bytes).unwrap();
        assert_eq!((event.time_ns, event.source.low, event.kind, event.policy), (7, 2, 1, 9));
        assert!(parse(&bytes[..31]).is_none());
    }
}
