//! The limits that many sources share.

use super::State;
use super::Steps;
use super::draw::{Charge, charge, lasts, once};
use super::lookup::{Arrival, find};
use super::windows::Question;
use crate::abi::{PolicyWord, Reason, Tier};
use crate::atomic::{self, AtomicU64};
use crate::batch::{Batch, Holder, Tokens};
use crate::class::ANY;
use crate::drop_cache::{MAX_SHARED_NS, MIN_TOLERANCE};
use crate::features::{PolicyRef, Which};
use crate::gcra::{Ticks, decide, decide_whole, ticks};
use crate::share::CostMultiplier;
use crate::shared::{CLASS, PREFIX, Shared, TOTAL, TOTAL_SLOT};

/// Judges a packet that has `passed` the limit of its source by those that it shares.
#[inline(always)]
pub fn shared_limits<S: Steps>(state: &S, packet: &Arrival, passed: Reason) -> Option<Reason> {
    let kinds = atomic::load(&state.config()?.shared);
    let mut reason = passed;
    if kinds & CLASS != 0
        && let Some(slot) = state.shared_slot(packet, CLASS)?
    {
        reason = state.charge_shared(packet, slot, reason)?;
    }
    if kinds & PREFIX != 0
        && reason.passes()
        && let Some(slot) = state.shared_slot(packet, PREFIX)?
    {
        reason = state.charge_shared(packet, slot, reason)?;
    }
    if kinds & TOTAL != 0 && reason.passes() {
        reason = state.charge_shared(packet, TOTAL_SLOT, reason)?;
    }
    Some(reason)
}

/// The limit of a `kind`, [`CLASS`] or [`PREFIX`], that a packet shares.
#[inline(always)]
pub fn shared_slot<S: State>(state: &S, packet: &Arrival, kind: u64) -> Option<Option<u32>> {
    match kind {
        CLASS => packet.classified.shared(state, packet.source),
        _ => Some(state.shared_by(ANY, packet.source)),
    }
}

/// A tier of a shared limit.
struct SharedTier<'a> {
    tier: &'a Tier,
    /// The bucket's word.
    tat: &'a AtomicU64,
    /// The [`Tokens`] that the CPU holds.
    held: &'a AtomicU64,
    /// What it draws at once.
    batch: Ticks,
    /// The tolerance for sources that are not known.
    common: Ticks,
    holder: Holder,
    /// By what the host's share multiplies what is taken from the bucket. What CPUs hold is of the whole limit: it keeps
    /// its worth when the share changes.
    price: CostMultiplier,
}

impl SharedTier<'_> {
    #[inline(always)]
    fn tokens(&self) -> Tokens {
        Tokens(atomic::load(self.held))
    }

    /// What is held, and what a packet of `length` bytes costs, if the former is of this limit and enough.
    #[inline(always)]
    fn covers(&self, length: u32) -> Option<(Tokens, Ticks)> {
        let (held, cost) = (self.tokens(), self.tier.cost(length));
        (held.holder() == self.holder && held.ticks() >= cost).then_some((held, cost))
    }

    /// How far in debt the bucket may be for a packet that asks so.
    #[inline(always)]
    const fn tolerance(&self, ask: Ask) -> Ticks {
        if matches!(ask, Ask::Reserve) { self.tier.tolerance } else { self.common }
    }

    /// What to draw for a packet of `cost` beside what is held: a batch, if that is more than the packet needs, so that
    /// no more than a batch is left.
    #[inline(always)]
    const fn lot(&self, held: Tokens, cost: Ticks, ask: Ask) -> Ticks {
        let held = held.of(self.holder);
        if held >= cost {
            0
        } else if matches!(ask, Ask::Batch) && self.batch > cost {
            self.batch
        } else {
            cost - held
        }
    }

    /// What the bucket at `tat` comes to by a lot that `costs` so much, if it is there.
    #[inline(always)]
    fn decide(&self, tat: Ticks, now: Ticks, costs: Ticks, ask: Ask) -> Option<Ticks> {
        let tolerance = self.tolerance(ask);
        // At a share of little or nothing any packet is dear.
        if self.price.is_cluster() {
            return decide(tat, now, costs, tolerance);
        }
        decide_whole(tat, now, costs, tolerance)
    }

    /// Whether there is enough for a packet of `length` bytes, if nobody else comes.
    #[inline(always)]
    fn has(&self, length: u32, ask: Ask, now: Ticks) -> bool {
        let lot = self.lot(self.tokens(), self.tier.cost(length), ask);
        let costs = self.price.cost(lot);
        lot == 0 || self.decide(atomic::load(self.tat), now, costs, ask).is_some()
    }

    /// Charges a packet of `length` bytes: whether there was enough.
    #[inline(always)]
    fn charge<S: State>(&self, state: &S, length: u32, ask: Ask, now: Ticks) -> bool {
        let (held, cost) = (self.tokens(), self.tier.cost(length));
        let lot = self.lot(held, cost, ask);
        if lot > 0 {
            let (tat, costs) = (atomic::load(self.tat), self.price.cost(lot));
            let decide = |tat| self.decide(tat, now, costs, ask);
            // No batch where others draw at once: what is owed where CPUs meet must be packets.
            let charged = if ask == Ask::Batch {
                once(self.tat, tat, decide)
            } else {
                charge(state, self.tat, tat, costs, decide, |_| Charge::Admitted, || true)
            };
            if charged != Charge::Admitted {
                return false;
            }
        }
        self.settle(held, cost, lot);
        true
    }

    /// Notes what the CPU holds after a packet of `cost` for which it has `drawn` so much.
    #[inline(always)]
    fn settle(&self, held: Tokens, cost: Ticks, drawn: Ticks) {
        let left = (held.ticks() + drawn).saturating_sub(cost);
        // It fails where the daemon takes tokens back, or a packet on the same CPU came in between, which a kernel with
        // PREEMPT_RT lets happen. Then this one is charged to the bucket: no less (P2) and no more (P1).
        if held.holder() != self.holder
            || !atomic::replace(self.held, held.0, Tokens::new(self.holder, left).0)
        {
            let [cost, drawn] = [cost, drawn].map(|ticks| self.price.cost(ticks));
            atomic::add(self.tat, cost.wrapping_sub(drawn));
        }
    }
}

/// A shared limit as a packet meets it, and what its CPU holds of it.
struct Met<'a> {
    shared: &'a Shared,
    policy: PolicyRef<'a>,
    batch: &'a Batch,
    holder: Holder,
    price: CostMultiplier,
}

impl<'a> Met<'a> {
    #[inline(always)]
    fn new<S: State>(state: &'a S, slot: u32) -> Option<Self> {
        let shared = state.shared(slot)?;
        let word = PolicyWord(atomic::load(&shared.policy));
        let (policy, batch) = (state.active(word.slot())?, state.batch(slot)?);
        let (holder, price) = (Holder::new(slot, word), CostMultiplier::LOCAL);
        Some(Self { shared, policy, batch, holder, price })
    }

    /// To be charged at a moment, ns since boot. Before the bucket is looked at: see [`crate::share_change`].
    #[inline(always)]
    fn at(mut self, now_ns: u64) -> Self {
        if self.policy.is_cluster() {
            self.price = self.shared.share.held(self.policy.floor(), 0).at(now_ns);
        }
        self
    }

    #[inline(always)]
    fn first(&self) -> SharedTier<'_> {
        let sharing = &self.policy.sharing;
        SharedTier {
            tier: &self.policy.first,
            tat: &self.shared.tat,
            held: &self.batch.first,
            batch: Ticks::from(sharing.first_batch),
            common: sharing.first_common,
            holder: self.holder,
            price: self.price,
        }
    }

    /// The second tier; it means nothing if there is none.
    #[inline(always)]
    fn second(&self) -> SharedTier<'_> {
        let sharing = &self.policy.sharing;
        SharedTier {
            tier: &self.policy.second,
            tat: &self.shared.second_tat,
            held: &self.batch.second,
            batch: Ticks::from(sharing.second_batch),
            common: sharing.second_common,
            holder: self.holder,
            price: self.price,
        }
    }

    /// Whether what the CPU holds is of the limit.
    #[inline(always)]
    fn is_own(&self) -> bool {
        self.first().tokens().holder() == self.holder
            && (!self.policy.has_second() || self.second().tokens().holder() == self.holder)
    }

    /// Takes what a packet of `length` bytes costs out of what the CPU holds, if that is enough.
    #[inline(always)]
    fn take(&self, length: u32) -> bool {
        let (first, second) = (self.first(), self.second());
        let Some((held, cost)) = first.covers(length) else { return false };
        if self.policy.has_second() {
            let Some((held, cost)) = second.covers(length) else { return false };
            second.settle(held, cost, 0);
        }
        first.settle(held, cost, 0);
        true
    }

    /// Whether the bucket is known to have nothing yet for sources that are not known.
    #[inline(always)]
    fn denies(&self, coarse_ns: u64) -> bool {
        self.batch.holder() == self.holder && coarse_ns < atomic::load(&self.batch.until_ns)
    }

    /// Charges a packet of `length` bytes to all tiers, or to none: whether there was enough.
    #[inline(always)]
    fn charge<S: State>(&self, state: &S, length: u32, ask: Ask, now: Ticks) -> bool {
        let first = self.first();
        if !self.policy.has_second() {
            return first.charge(state, length, ask, now);
        }
        let second = self.second();
        // Before anything is taken from the second tier, so that nothing has to be given back as a rule.
        if !first.has(length, ask, now) || !second.charge(state, length, ask, now) {
            return false;
        }
        let charged = first.charge(state, length, ask, now);
        if !charged {
            let cost = self.price.cost(second.tier.cost(length));
            atomic::add(second.tat, cost.wrapping_neg());
        }
        charged
    }

    /// How long, in ns from `ns` on, the bucket has nothing for a packet of `length` bytes whose source is not known.
    #[inline(always)]
    fn lasts(&self, length: u32, ns: u64) -> u64 {
        let (policy, sharing) = (self.policy, &self.policy.sharing);
        let lasts = |tier: &Tier, tolerance, word| {
            let tier = Tier { tolerance, ..*tier };
            // As of the whole limit: no share makes it shorter.
            lasts(&tier, CostMultiplier::LOCAL, atomic::load(word), length, ns)
        };
        let first = lasts(&policy.first, sharing.first_common, &self.shared.tat);
        if policy.is_cluster() {
            // What a lower share gives back is not known to those who wait.
            return first.min(MAX_SHARED_NS);
        }
        if !policy.has_second() {
            return first;
        }
        // Neither tier may overflow while the other one is waited for.
        if sharing.first_common < MIN_TOLERANCE || sharing.second_common < MIN_TOLERANCE {
            return 0;
        }
        let second = lasts(&policy.second, sharing.second_common, &self.shared.second_tat);
        first.max(second)
    }
}

/// Charges a packet that has `passed` all limits before to one that it shares; what it meets there.
#[inline(always)]
pub fn charge_shared<S: Steps>(
    state: &S,
    packet: &Arrival,
    slot: u32,
    passed: Reason,
) -> Option<Reason> {
    let met = Met::new(state, slot)?;
    let admitted = met.take(packet.length) || from_bucket(state, packet, slot, &met)?;
    // The place is this limit's now, whichever way it went.
    met.batch.count(admitted, packet.length);
    if admitted {
        return Some(passed);
    }
    Some(match slot {
        _ if met.policy.observes() => Reason::WouldDrop,
        TOTAL_SLOT => Reason::OverTotal,
        _ => Reason::OverShared,
    })
}

/// Charges a packet to the bucket, where its CPU holds too little: whether it is admitted.
#[inline(always)]
fn from_bucket<S: Steps>(state: &S, packet: &Arrival, slot: u32, met: &Met<'_>) -> Option<bool> {
    let sharing = &met.policy.sharing;
    let (denies, has_reserve) = (met.denies(packet.coarse_ns), sharing.reserve != 0);
    if denies && !has_reserve {
        return Some(false);
    }
    // The exact clock: many sources share the bucket, so it is drawn from far more often than the
    // coarse one ticks.
    let now_ns = state.now();
    if !denies {
        let has_batch = sharing.first_batch | sharing.second_batch != 0;
        if has_batch && state.draw(packet, slot, Ask::Batch, now_ns)?
            || state.draw(packet, slot, Ask::Packet, now_ns)?
        {
            return Some(true);
        }
    }
    // Only now: most packets come while there is enough for everybody.
    Some(
        has_reserve
            && state.is_known(packet, now_ns)?
            && state.draw(packet, slot, Ask::Reserve, now_ns)?,
    )
}

/// What a packet asks the bucket of a shared limit for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Ask {
    /// A batch, if there is room for it.
    Batch = 0,
    /// What it costs.
    Packet = 1,
    /// That, and the reserve is for it, too.
    Reserve = 2,
}

impl Ask {
    /// The one with a discriminant.
    #[inline(always)]
    #[must_use]
    pub const fn from_u32(discriminant: u32) -> Self {
        match discriminant {
            0 => Self::Batch,
            1 => Self::Packet,
            _ => Self::Reserve,
        }
    }
}

/// Draws from the bucket of a shared limit for a packet, of which its CPU holds too little: whether there was enough.
#[inline(always)]
pub fn draw<S: State>(
    state: &S,
    packet: &Arrival,
    slot: u32,
    ask: Ask,
    now_ns: u64,
) -> Option<bool> {
    let met = Met::new(state, slot)?.at(now_ns);
    if !met.is_own() {
        let former = met.batch.holder().slot();
        met.batch.make_room(state.shared(former)?, met.holder);
    }
    let admitted = met.charge(state, packet.length, ask, ticks(now_ns));
    if !admitted && ask == Ask::Packet {
        let lasts_ns = met.lasts(packet.length, now_ns);
        if lasts_ns > 0 {
            atomic::store(&met.batch.until_ns, now_ns + lasts_ns);
        }
    }
    Some(admitted)
}

/// What part of its burst a known source may owe, as a shift: an eighth, so that packets of one window may come at once.
const KNOWN_DEBT: u32 = 3;

/// Whether a packet, which was charged to its source's bucket, comes from a source that had the bucket before, and owes
/// next to nothing.
#[inline(always)]
pub fn is_known<S: Steps>(state: &S, packet: &Arrival, now_ns: u64) -> Option<bool> {
    let Some(found) = find(state, packet)? else { return Some(false) };
    let slot = found.slot;
    let policy = state.active(PolicyWord(atomic::load(&slot.policy)).slot())?;
    let owes_little = |which, word| {
        let (tier, word, now) = (policy.tier(which), atomic::load(word), ticks(now_ns));
        let (used, most) = if tier.is_window() {
            (tier.ask(state, Question::Used, word, now, 0), u64::from(tier.limit))
        } else {
            (word.saturating_sub(now), tier.tolerance)
        };
        used <= most >> KNOWN_DEBT || used <= tier.cost(packet.length)
    };
    // The first packet of a bucket may be of anybody: addresses are easily forged.
    if atomic::load(&slot.passed) < 2 || !owes_little(Which::First, &slot.tat) {
        return Some(false);
    }
    if !policy.has_second() {
        return Some(true);
    }
    Some(owes_little(Which::Second, &state.identity(found.index)?.second_tat))
}
