//! From a frame to the class whose limit it is charged to.

use super::State;
use crate::abi::Config;
use crate::atomic;
use crate::class::{
    ANY, BANKS, CHAINS_AT, COVERS_ALL, MAX_NESTING, OTHER_TABLE, TABLES, Table, class_of, entry,
};
use crate::key::SourceKey;
use crate::packet::{Ip, Packet, transport};

/// The class that a packet's source has a bucket for, and the slot of the policy if that was looked up:
/// `class:32 | slot:32`.
#[derive(Clone, Copy)]
pub(super) struct Limited(u64);

impl Limited {
    /// No slot.
    const NOTHING: u32 = u32::MAX;

    #[inline(always)]
    const fn new(class: u32, slot: u32) -> Self {
        Self((class as u64) << 32 | slot as u64)
    }

    /// The class.
    #[inline(always)]
    pub(super) const fn class(self) -> u32 {
        (self.0 >> 32) as u32 & 0xff
    }

    /// The slot that was looked up. A limit of a class may go before it is looked up again.
    #[inline(always)]
    pub(super) fn found<S: State>(self, state: &S) -> Option<u32> {
        let slot = state.opaque(self.0) as u32;
        if slot == Self::NOTHING { None } else { Some(slot) }
    }
}

/// The tables in force, and the class of a packet.
#[derive(Clone, Copy)]
pub(super) struct Classified {
    /// The first table of the bank.
    base: u32,
    /// The most specific class that the packet is in.
    pub(super) class: u32,
}

impl Classified {
    /// A packet where nobody asks for classes.
    #[cfg(any(test, feature = "user"))]
    pub(super) const NONE: Self = Self { base: 0, class: ANY };

    /// The class that is asked `step`th for the packet, and whether its limits cover every source.
    #[inline(always)]
    fn asked<S: State>(self, state: &S, step: u32) -> Option<(u32, bool)> {
        let other: &Table = state.class_table(self.base + OTHER_TABLE)?;
        let asked = entry(other, CHAINS_AT + self.class * MAX_NESTING + step);
        let asked = state.opaque(u64::from(asked)) as u32;
        Some((asked & !COVERS_ALL & 0xff, asked & COVERS_ALL != 0))
    }

    /// The class that the packet's source has a bucket for: its own if limits of that cover the source,
    /// else the next wider one that does.
    #[inline(always)]
    pub(super) fn limited<S: State>(self, state: &S, source: SourceKey) -> Option<Limited> {
        let mut limited = Limited::new(ANY, Limited::NOTHING);
        if self.class != ANY {
            limited = self.covering(state, state.copy(source))?;
        }
        // The verifier need not know whether there are classes.
        Some(Limited(state.opaque(limited.0)))
    }

    #[inline(always)]
    fn covering<S: State>(self, state: &S, source: SourceKey) -> Option<Limited> {
        let mut step = 0;
        while step < MAX_NESTING {
            let (class, covers_all) = self.asked(state, step)?;
            if class == ANY {
                break;
            }
            let mut slot = Limited::NOTHING;
            // Where everyone is limited no map need be asked: the slot is looked up when the bucket
            // needs it.
            if !covers_all && let Some(found) = state.lookup(class, source) {
                slot = found;
            }
            let slot = state.opaque(u64::from(slot)) as u32;
            if covers_all || slot != Limited::NOTHING {
                return Some(Limited::new(class, slot));
            }
            step += 1;
        }
        Some(Limited::new(ANY, Limited::NOTHING))
    }

    /// The shared limit of the packet's class, or of the next wider one that has one for its source.
    #[inline(always)]
    pub(super) fn shared<S: State>(self, state: &S, source: SourceKey) -> Option<Option<u32>> {
        let mut shared = None;
        let mut step = 0;
        while step < MAX_NESTING && self.class != ANY && shared.is_none() {
            let (class, _) = self.asked(state, step)?;
            if class == ANY {
                break;
            }
            shared = state.shared_by(class, source);
            step += 1;
        }
        Some(shared)
    }
}

/// Finds the class of a packet.
#[inline(always)]
pub(super) fn classify<S: State, P: Packet + ?Sized>(
    state: &S,
    config: &Config,
    packet: &P,
    ip: &Ip,
) -> Option<Classified> {
    let bank = atomic::load(&config.classes) as u32;
    let mut found = 0;
    if bank != 0 {
        // The remainder is for the verifier; the daemon writes nothing else.
        let base = bank.wrapping_sub(1) % BANKS * TABLES;
        let class = match transport(packet, ip) {
            Some(transport) => class_of(&transport, |number| state.class_table(base + number))?,
            // What cannot be told apart is in no class.
            None => ANY,
        };
        found = base << 8 | class;
    }
    // The verifier need not know whether there are classes.
    let found = state.opaque(u64::from(found)) as u32;
    Some(Classified { base: found >> 8 & 0xff, class: found & 0xff })
}
