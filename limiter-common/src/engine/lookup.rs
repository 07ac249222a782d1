//! Where a packet's source is in the bucket table, and which policy holds for it.

use super::State;
use super::attempt::Attempt;
use super::classes::Classified;
use super::draw::{BucketRef, dearest, deepest};
use super::steps::Steps;
use crate::abi::{PolicyWord, Reason};
use crate::atomic::{self, AtomicU64};
use crate::features::{Features, PolicyRef};
use crate::gcra::{Ticks, clamped, ticks};
use crate::hash::Hash;
use crate::key::SourceKey;
use crate::share::{CostMultiplier, Grant, Held, Lapse};
use crate::table::{
    FILLED, Matches, Slot, WAYS, fingerprint, is_claimed, is_filled, makes_room, slot_index,
};

/// A packet on its way. Plain numbers, so that the kernel program can lay it where each of its functions finds it.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Its address, cut to the prefix of a source.
    pub source: SourceKey,
    /// The class that its source has a bucket for, among others.
    pub(super) classified: Classified,
    /// Of source and class.
    pub(super) hash: Hash,
    /// Monotonic, as of the last clock tick.
    pub(super) coarse_ns: u64,
    /// On the wall, likewise.
    pub(super) wall_ns: u64,
    /// The generation of policies and lists by which it is judged. Read once: a bucket must not be
    /// marked with one in which the lists were not asked.
    pub(super) published: PolicyWord,
    /// Bytes, from the Ethernet header on.
    pub(super) length: u32,
    /// The set of the bucket table that its hash selects.
    pub(super) set: u32,
}

impl Arrival {
    /// The fingerprints of its set: which ways may hold its source.
    #[inline(always)]
    pub(super) fn fingerprints<'a, S: State>(&self, state: &'a S) -> Option<&'a AtomicU64> {
        state.fingerprints(self.set)
    }

    /// A way of its set.
    #[inline(always)]
    pub(super) fn slot_ref<'a, S: State>(&self, state: &'a S, way: u32) -> Option<SlotRef<'a>> {
        SlotRef::new(state, slot_index(self.set, way, state.set_mask()))
    }
}

/// A slot of the table, and where it is.
pub(super) struct SlotRef<'a> {
    pub(super) index: u32,
    pub(super) slot: &'a Slot,
}

impl<'a> SlotRef<'a> {
    /// The slot at `index`.
    #[inline(always)]
    pub(super) fn new<S: State>(state: &'a S, index: u32) -> Option<Self> {
        Some(Self { index, slot: state.slot(index)? })
    }

    /// What its bucket may use, and its floor as of its last packet. To be read before its time: see
    /// [`crate::share`].
    #[inline(always)]
    pub(super) fn held<S: State>(&self, state: &S, policy: PolicyRef<'_>) -> Option<(Held, u32)> {
        if !policy.is_cluster() {
            return Some((Held::LOCAL, 0));
        }
        let share = state.share(self.index)?;
        let before = atomic::load(&share.floor) as u32;
        Some((
            Held::new(Grant(atomic::load(&share.grant)), before, policy.floor(), policy.home),
            before,
        ))
    }

    /// Notes a smaller floor than the one `before`: when the bucket's debt is by that one.
    #[inline(always)]
    pub(super) fn lower<S: State>(
        &self,
        state: &S,
        policy: PolicyRef<'_>,
        before: u32,
    ) -> Option<()> {
        let own = policy.floor().0;
        if policy.is_cluster() && before < own {
            let share = state.share(self.index)?;
            atomic::replace(&share.floor, u64::from(before), u64::from(own));
        }
        Some(())
    }

    /// Whether the slot, whose time was `tat` a moment ago, is that of the packet's source.
    #[inline(always)]
    pub(super) fn is_of(&self, tat: Ticks, packet: &Arrival) -> bool {
        // The tag after the TAT: whoever replaces the source claims the TAT first.
        !is_claimed(tat) && atomic::load(&self.slot.tag) == packet.hash.0
    }

    /// Its time. A slot that is filled for the packet's source opens by it, if the CPU that has filled it has not got so
    /// far: a virtual one may be stopped for milliseconds.
    #[inline(always)]
    pub(super) fn opened(&self, packet: &Arrival) -> Ticks {
        let tat = atomic::load(&self.slot.tat);
        if is_filled(tat) && atomic::load(&self.slot.tag) == packet.hash.0 {
            // If this fails, another CPU has done it, or the slot is another source's by now.
            atomic::replace(&self.slot.tat, tat, tat & !FILLED);
            return atomic::load(&self.slot.tat);
        }
        tat
    }

    /// Its bucket, for a charge.
    #[inline(always)]
    pub(super) fn bucket<S: State>(
        &self,
        state: &'a S,
        policy: PolicyRef<'_>,
        price: CostMultiplier,
        lapse: Lapse,
    ) -> Option<BucketRef<'a>> {
        let first = &self.slot.tat;
        // Without a second tier, that word is in a line that no packet touches.
        let second =
            if policy.has_second() { &state.identity(self.index)?.second_tat } else { first };
        Some(BucketRef { price, lapse, first, second })
    }
}

/// Where the packet's source is; `Some(None)` if nowhere.
#[inline(always)]
pub(super) fn find<'a, S: State>(state: &'a S, packet: &Arrival) -> Option<Option<SlotRef<'a>>> {
    search(state, packet, atomic::load(packet.fingerprints(state)?))
}

/// The slot of the source of the packet in hand, by fingerprints that its set had a moment ago; `Some(None)` if nowhere.
#[inline(always)]
pub fn find_by<S: State>(state: &S, packet: &Arrival, fingerprints: u64) -> Option<Option<u32>> {
    Some(search(state, packet, fingerprints)?.map(|found| found.index))
}

#[inline(always)]
fn search<'a, S: State>(
    state: &'a S,
    packet: &Arrival,
    fingerprints: u64,
) -> Option<Option<SlotRef<'a>>> {
    let mut matches = Matches::new(fingerprints, fingerprint(packet.hash));
    let mut looks = 0;
    // A set has as many matches as ways at the most; the count is the bound that the verifier needs.
    while !matches.is_empty() && looks < WAYS {
        let way = matches.way();
        let found = packet.slot_ref(state, way)?;
        // A fingerprint has eight bits only, so one source in 256 has the same. And a bucket that makes room is none any
        // more: the CPU that takes it may be stopped before it says so, and all packets of its source would pass.
        if atomic::load(&found.slot.tag) == packet.hash.0
            && !makes_room(atomic::load(&found.slot.tat))
        {
            return Some(Some(found));
        }
        matches = matches.rest();
        looks += 1;
    }
    Some(None)
}

/// Charges a packet whose source has a bucket, by a policy of the packet's generation. Contended only if the bucket is
/// another source's now.
#[inline(always)]
pub(super) fn charge_found<S: Steps>(
    state: &S,
    found: &SlotRef<'_>,
    packet: &Arrival,
) -> Option<Attempt<Reason>> {
    let policy = PolicyWord(atomic::load(&found.slot.policy));
    if policy.generation() != packet.published.generation()
        && let Attempt::Contended = state.renew(packet, found.index)?
    {
        return Some(Attempt::Contended);
    }
    // A step of its own, so that a token bucket has none of it on its way.
    if state.features().has(Features::WINDOWS) {
        let policy = PolicyWord(atomic::load(&found.slot.policy));
        if state.active(policy.slot())?.counts_in_windows() {
            return state.charge_windows(packet, found.index);
        }
    }
    state.charge(packet, found.index)
}

/// Looks the policy of the bucket at `index` up again, as policies have changed since. Contended if it went to another
/// source meanwhile.
#[inline(always)]
pub fn renew<S: Steps>(state: &S, packet: &Arrival, index: u32) -> Option<Attempt<()>> {
    let slot = state.slot(index)?;
    let seen = PolicyWord(atomic::load(&slot.policy));
    let resolved = resolve(state, packet);
    // Looking up takes a while. Who gets the slot meanwhile has a policy of its own, which must stay. If another CPU has
    // done it for the same source, it sees to the rest, too.
    if !atomic::replace(&slot.policy, seen.0, resolved.0) {
        return Some(Attempt::Done(()));
    }
    // Before the tag: whoever gets the slot afterwards has another time.
    let tat = atomic::load(&slot.tat);
    if atomic::load(&slot.tag) != packet.hash.0 {
        // Put back what was another source's. If this fails, that one has looked its own policy up.
        atomic::replace(&slot.policy, resolved.0, seen.0);
        return Some(Attempt::Contended);
    }
    let now = ticks(state.now());
    if state.features().has(Features::WINDOWS)
        && state.convert(index, seen.slot(), resolved.slot(), tat, now)?
    {
        return Some(Attempt::Done(()));
    }
    let policy = state.active(resolved.slot())?;
    let mut price = CostMultiplier::LOCAL;
    if policy.is_cluster() {
        let own = atomic::load(&state.share(index)?.floor) as u32;
        price = Held::new(Grant::NOTHING, own, policy.floor(), policy.home).at(0);
    }
    // Of the same slot it is nearly always the same policy: what was overdrawn under it is owed.
    let is_same = u64::from(seen.slot() == resolved.slot());
    // Each CPU may have charged one packet beyond what the bucket held. The mask gives the verifier a bound.
    let packets = u64::from(state.cpus() & 0x1ff) * is_same;
    let owes = |tier| {
        let overdrawn = packets * dearest(price, tier, packet.length);
        deepest(price, tier) + overdrawn
    };
    clamp(&slot.tat, now, owes(&policy.first));
    if policy.has_second() {
        clamp(&state.identity(index)?.second_tat, now, owes(&policy.second));
    }
    Some(Attempt::Done(()))
}

/// Has a bucket owe no more than that. One that goes to another source meanwhile has another time.
#[inline(always)]
fn clamp(word: &AtomicU64, now: Ticks, most: Ticks) {
    let tat = atomic::load(word);
    let next = clamped(tat, now, most);
    if next != tat && !is_claimed(tat) {
        // If this fails, a packet of the former policy has just come, or another CPU has done it.
        atomic::replace(word, tat, next);
    }
}

/// The policy of a packet's source and class.
#[inline(always)]
pub(super) fn resolve<S: State>(state: &S, packet: &Arrival) -> PolicyWord {
    let published = packet.published;
    let slot = match state.lookup(packet.classified.limited(), packet.source) {
        Some(slot) => slot,
        None => packet.classified.found().unwrap_or(published.slot()),
    };
    PolicyWord::new(published.generation(), slot)
}
