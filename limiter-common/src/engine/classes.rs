//! From a frame to the class whose limit it is charged to.

use super::State;
use crate::atomic;
use crate::class::{
    ANY, ASKED_AT, BANKS, Chain, DESTINATION_CHAINS_AT, DESTINATIONS, GROUPS, LIMITED, MAX_NESTING,
    NAMED, OF_DESTINATIONS, OTHER_TABLE, TABLES, chain_at, entry, kind_of,
};
use crate::features::Features;
use crate::key::SourceKey;
use crate::packet::{Ip, Packet, destination, transport};

/// What the classes in force make of a packet:
/// `slot:32 | named prefix:8 | bucket's class:8 | is its destination limited:1, bank:7 | its kind:8`.
/// The slot is that of the policy, if it was looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classified(pub u64);

impl Classified {
    /// No slot.
    const NOTHING: u32 = u32::MAX;
    /// A packet where nobody asks for classes.
    pub(super) const NONE: Self = Self::of(ANY, Self::NOTHING);
    /// Its destination is limited.
    const LIMITED: u64 = 1 << 15;

    /// What has a bucket for a class, under the policy in a slot.
    #[inline(always)]
    const fn of(limited: u32, slot: u32) -> Self {
        Self((slot as u64) << 32 | (limited << 16) as u64)
    }

    /// What stands for a group whose prefix has so many bits, under the policy in a slot.
    #[inline(always)]
    pub(super) const fn group(bits: u32, slot: u32) -> Self {
        Self::of(GROUPS + bits, slot)
    }

    /// 0 if it stands for a source, 1 for a destination, 2 for a group.
    #[inline(always)]
    pub(super) const fn whose(self) -> u32 {
        self.limited() / OF_DESTINATIONS
    }

    /// Whether the packet's destination is limited.
    #[inline(always)]
    pub(super) const fn limits_destination(self) -> bool {
        self.0 & Self::LIMITED != 0
    }

    /// The first table of the bank in force.
    #[inline(always)]
    const fn base(self) -> u32 {
        ((self.0 >> 8) as u32 & 0x7f) % BANKS * TABLES
    }

    /// Its kind.
    #[inline(always)]
    const fn kind(self) -> u32 {
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

    /// The classes that are asked for the packet.
    #[inline(always)]
    fn chain<S: State>(self, state: &S) -> Option<Chain> {
        let named = (self.0 >> 24) as u32 & 0xff;
        Some(Chain::read(
            state.class_table(self.base() + OTHER_TABLE)?,
            chain_at(named, self.kind()),
        ))
    }

    /// What stands for the packet's destination; `None` if that has no limit.
    #[inline(always)]
    pub(super) fn of_destination<S: State>(
        self,
        state: &S,
        destination: SourceKey,
    ) -> Option<Option<Self>> {
        let other = state.class_table(self.base() + OTHER_TABLE)?;
        let chain = Chain::read(other, DESTINATION_CHAINS_AT + self.kind() * MAX_NESTING);
        let found = covering(state, chain, destination);
        Some((found.limited() != ANY).then_some(found))
    }

    /// The shared limit of the packet's class, or of the next wider one that has one for its source.
    #[inline(always)]
    pub(super) fn shared<S: State>(self, state: &S, source: SourceKey) -> Option<Option<u32>> {
        let mut chain = self.chain(state)?;
        let mut shared = None;
        let mut step = 0;
        while step < MAX_NESTING && shared.is_none() {
            let (class, _) = chain.first();
            if class == ANY {
                break;
            }
            shared = state.shared_by(class, source);
            chain = chain.rest();
            step += 1;
        }
        Some(shared)
    }
}

/// The class that a source, or a destination, has a bucket for: the first one of the chain of which limits cover it.
/// With the slot of the policy, if it had to be looked up.
#[inline(always)]
fn covering<S: State>(state: &S, mut chain: Chain, whom: SourceKey) -> Classified {
    let mut step = 0;
    while step < MAX_NESTING {
        let (class, covers_all) = chain.first();
        if class == ANY {
            break;
        }
        let mut slot = Classified::NOTHING;
        // Where everyone is limited no map need be asked: the slot is looked up when the bucket
        // needs it.
        if !covers_all && let Some(found) = state.lookup(class, whom) {
            slot = found;
        }
        if covers_all || slot != Classified::NOTHING {
            return Classified::of(class, slot);
        }
        chain = chain.rest();
        step += 1;
    }
    Classified::NONE
}

/// Finds the class of a packet, and its destination if that is limited. `None` if `state` lacks something.
#[inline(always)]
pub fn classify<S: State, P: Packet + ?Sized>(
    state: &S,
    packet: &P,
    ip: &Ip,
    source: SourceKey,
) -> Option<(Classified, SourceKey)> {
    let number = atomic::load(&state.config()?.classes) as u32;
    // The remainder is for the verifier; the daemon writes nothing else.
    let bank = number.wrapping_sub(1) % BANKS;
    let table = |number| state.class_table(bank * TABLES + number);
    let kind = kind_of(transport(packet, ip).as_ref(), table)?;
    let mut known = u64::from(bank << 8 | kind);
    let mut to = SourceKey::default();
    if state.features().has(Features::DESTINATIONS) {
        let asked = entry(table(OTHER_TABLE)?, ASKED_AT);
        if asked != 0
            && let Some(address) = destination(packet, ip)
        {
            if asked & NAMED != 0 {
                let named = state.lookup(DESTINATIONS + bank, address).unwrap_or(0);
                known |= u64::from(named & 0xff) << 24;
            }
            if asked & LIMITED != 0 {
                (to, known) = (address, known | Classified::LIMITED);
            }
        }
    }
    let covering = covering(state, Classified(known).chain(state)?, source);
    Some((Classified(covering.0 | known), to))
}
