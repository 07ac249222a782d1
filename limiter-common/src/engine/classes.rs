//! From a frame to the class whose limit it is charged to.

use super::State;
use crate::atomic;
use crate::class::{
    ANY, BANKS, CHAINS_AT, COVERS_ALL, GROUPS, MAX_NESTING, OTHER_TABLE, TABLES, Table, class_of,
    entry,
};
use crate::key::SourceKey;
use crate::packet::{Ip, Packet, transport};

/// What the classes in force make of a packet: `slot:32 | bucket's class:8 | bank's first table:8 | its class:8`.
/// The slot is that of the policy, if it was looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classified(pub u64);

impl Classified {
    /// No slot.
    const NOTHING: u32 = u32::MAX;
    /// A packet where nobody asks for classes.
    pub(super) const NONE: Self = Self::new(0, ANY, ANY, Self::NOTHING);

    #[inline(always)]
    const fn new(base: u32, class: u32, limited: u32, slot: u32) -> Self {
        Self((slot as u64) << 32 | (limited << 16 | base << 8 | class) as u64)
    }

    /// What stands for a group whose prefix has so many bits, under the policy in a slot.
    #[inline(always)]
    pub(super) const fn group(bits: u32, slot: u32) -> Self {
        Self::new(0, ANY, GROUPS + bits, slot)
    }

    /// 1 if it stands for a group, else 0.
    #[inline(always)]
    pub(super) const fn is_group(self) -> u32 {
        self.limited() / GROUPS
    }

    /// The first table of the bank in force.
    #[inline(always)]
    const fn base(self) -> u32 {
        (self.0 >> 8) as u32 & 0xff
    }

    /// The most specific class that the packet is in.
    #[inline(always)]
    const fn class(self) -> u32 {
        self.0 as u32 & 0xff
    }

    /// The class that its source has a bucket for.
    #[inline(always)]
    pub(super) const fn limited(self) -> u32 {
        (self.0 >> 16) as u32 & 0xff
    }

    /// The slot that was looked up. A limit of a class may go before it is looked up again.
    #[inline(always)]
    pub(super) const fn found(self) -> Option<u32> {
        let slot = (self.0 >> 32) as u32;
        if slot == Self::NOTHING { None } else { Some(slot) }
    }

    /// The class that is asked `step`th for the packet, and whether its limits cover every source.
    #[inline(always)]
    fn asked<S: State>(self, state: &S, step: u32) -> Option<(u32, bool)> {
        let other: &Table = state.class_table(self.base() + OTHER_TABLE)?;
        let asked = entry(other, CHAINS_AT + self.class() * MAX_NESTING + step);
        Some((asked & !COVERS_ALL & 0xff, asked & COVERS_ALL != 0))
    }

    /// The class that the packet's source has a bucket for: its own if limits of that cover the source,
    /// else the next wider one that does. With the slot of the policy, if it had to be looked up.
    #[inline(always)]
    fn covering<S: State>(self, state: &S, source: SourceKey) -> Option<(u32, u32)> {
        let mut step = 0;
        while step < MAX_NESTING {
            let (class, covers_all) = self.asked(state, step)?;
            if class == ANY {
                break;
            }
            let mut slot = Self::NOTHING;
            // Where everyone is limited no map need be asked: the slot is looked up when the bucket
            // needs it.
            if !covers_all && let Some(found) = state.lookup(class, source) {
                slot = found;
            }
            if covers_all || slot != Self::NOTHING {
                return Some((class, slot));
            }
            step += 1;
        }
        Some((ANY, Self::NOTHING))
    }

    /// The shared limit of the packet's class, or of the next wider one that has one for its source.
    #[inline(always)]
    pub(super) fn shared<S: State>(self, state: &S, source: SourceKey) -> Option<Option<u32>> {
        let mut shared = None;
        let mut step = 0;
        while step < MAX_NESTING && self.class() != ANY && shared.is_none() {
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

/// Finds the class of a packet, where `bank` is in force. `None` if `state` lacks something.
#[inline(always)]
pub fn classify<S: State, P: Packet + ?Sized>(
    state: &S,
    packet: &P,
    ip: &Ip,
    source: SourceKey,
) -> Option<Classified> {
    let bank = atomic::load(&state.config()?.classes) as u32;
    // The remainder is for the verifier; the daemon writes nothing else.
    let base = bank.wrapping_sub(1) % BANKS * TABLES;
    let class =
        class_of(transport(packet, ip).as_ref(), |number| state.class_table(base + number))?;
    let mut limited = (ANY, Classified::NOTHING);
    if class != ANY {
        limited = Classified::new(base, class, ANY, 0).covering(state, source)?;
    }
    Some(Classified::new(base, class, limited.0, limited.1))
}
