//! From a source to a verdict.

use core::sync::atomic::AtomicU64;

use super::State;
use super::classes::Limited;
use super::draw::{Charge, Tats, Words, dearest, deepest, judge, lasts, price_at, price_of};
use super::listed::listed;
use super::shadow::{begin, shadow};
use super::sketched::{Added, Sketched, add, estimate, owed};
use crate::abi::{
    Config, EVENTS_PER_SECOND, Event, EventKind, Internal, Policy, PolicyWord, Reason, Tier,
    on_full,
};
use crate::atomic;
use crate::denial::{DENIALS, LISTED, MAX_SHARED_NS, MIN_TOLERANCE};
use crate::gate;
use crate::gcra::{TICKS_PER_NS, Ticks, clamped, decide, ticks};
use crate::hash::Hash;
use crate::hll;
use crate::key::SourceKey;
use crate::share::{CostMultiplier, Grant, Held, Lapse, Multiplier};
use crate::table::{
    CLAIMED, LastSeen, Matches, Slot, WAYS, Ways, fingerprint, is_claimed, set_fingerprint, set_of,
    slot_index,
};

/// Reads of a shared word that pass the time which another CPU needs to fill a way, some tens of ns.
const PAUSE: u32 = 64;

/// A packet on its way.
pub(super) struct Packet<'a> {
    source: SourceKey,
    /// The class that its source has a bucket for.
    limited: Limited,
    /// Of source and class.
    pub(super) hash: Hash,
    pub(super) length: u32,
    set: u32,
    fingerprints: &'a AtomicU64,
    /// Monotonic, as of the last clock tick.
    pub(super) coarse_ns: u64,
    /// The generation of policies and lists by which it is judged. Read once: a bucket must not be
    /// marked with one in which the lists were not asked.
    published: PolicyWord,
}

impl Packet<'_> {
    /// A way of its set.
    #[inline(always)]
    fn place<'a, S: State>(&self, state: &'a S, way: u32) -> Option<SlotRef<'a>> {
        let index = slot_index(self.set, way, state.set_mask());
        Some(SlotRef { index, slot: state.slot(index)? })
    }
}

/// Where a source is in the table.
struct SlotRef<'a> {
    index: u32,
    slot: &'a Slot,
}

impl<'a> SlotRef<'a> {
    /// What its bucket may use, and its floor as of its last packet. To be read before its time: see
    /// [`crate::share`].
    #[inline(always)]
    fn held<S: State>(&self, state: &S, policy: &Policy) -> Option<(Held, u32)> {
        if !policy.is_shared() {
            return Some((Held::LOCAL, 0));
        }
        let rights = state.rights(self.index)?;
        let before = atomic::load(&rights.floor) as u32;
        let floor = Self::floor(policy, before);
        let floor = Multiplier::from_bits(state.opaque(u64::from(floor.0)) as u32).0;
        Some((Held { grant: Grant(atomic::load(&rights.grant)), floor }, before))
    }

    /// What its bucket may use without end, whose floor was `before`.
    #[inline(always)]
    fn floor(policy: &Policy, before: u32) -> Multiplier {
        let own = policy.floor();
        // The floor has become smaller, or the limit the cluster's, since then.
        if before < own.0 { own } else { Multiplier(before) }
    }

    /// Notes a smaller floor than the one `before`: when the bucket's debt is by that one.
    #[inline(always)]
    fn lower<S: State>(&self, state: &S, policy: &Policy, before: u32) -> Option<()> {
        let own = policy.floor().0;
        if policy.is_shared() && before < own {
            let rights = state.rights(self.index)?;
            atomic::replace(&rights.floor, u64::from(before), u64::from(own));
        }
        Some(())
    }

    /// Whether the slot, whose time was `tat` a moment ago, is that of the packet's source.
    #[inline(always)]
    fn is_of(&self, tat: Ticks, packet: &Packet<'_>) -> bool {
        // The tag after the TAT: whoever replaces the source claims the TAT first.
        !is_claimed(tat) && atomic::load(&self.slot.tag) == packet.hash.0
    }

    /// The words of its bucket.
    #[inline(always)]
    fn words<S: State>(
        &self,
        state: &'a S,
        policy: &Policy,
        price: CostMultiplier,
        lapse: Lapse,
    ) -> Option<Words<'a>> {
        let first = &self.slot.tat;
        // Without a second tier, that word is in a line that no packet touches.
        let second =
            if policy.has_second() { &state.identity(self.index)?.second_tat } else { first };
        Some(Words { price, lapse, first, second })
    }
}

/// Judges a packet of `length` bytes from `source`, of a class that the source has a bucket for, by the
/// limit of its source. `None` if `state` lacks something.
#[inline(always)]
pub(super) fn limit<S: State>(
    state: &S,
    config: &Config,
    source: SourceKey,
    limited: Limited,
    length: u32,
) -> Option<Reason> {
    let of_source = state.hash(source);
    let hash = of_source.of_class(limited.class());
    let coarse_ns = state.now_coarse();
    let published = PolicyWord(atomic::load(&config.policy));
    let generation = published.generation();
    let denial = state.denial(hash.0 as u32 % DENIALS as u32)?;
    if denial.holds(hash, coarse_ns, generation) {
        denial.count(length);
        let reason = if denial.index() == LISTED { Reason::Denied } else { Reason::OverLimit };
        return Some(reason);
    }
    // Whoever is remembered was here less than a tenth of a window ago.
    let wall_ns = coarse_ns.wrapping_add(atomic::load(&config.clock_offset));
    hll::add(state.registers()?, of_source, wall_ns);
    let set = set_of(hash, state.set_mask());
    let fingerprints = state.fingerprints(set)?;
    let packet = Packet { source, limited, hash, length, set, fingerprints, coarse_ns, published };
    let place = find(state, &packet, NO_WAY)?;
    // A change of the lists raises the generation: a bucket of this one is no listed source's.
    let asked = match &place {
        Some(place) => PolicyWord(atomic::load(&place.slot.policy)).generation() == generation,
        None => false,
    };
    if !asked
        && let Some(reason) =
            listed(state, config, source, [of_source, hash], coarse_ns, generation)?
    {
        return Some(reason);
    }
    let reason = match place {
        Some(place) => charge(state, config, &place, &packet)?,
        None => {
            let least_gate = atomic::load(&config.min_gate) as u32;
            let Added { below, first } = add(state, config, &packet, wall_ns, least_gate)?;
            if below {
                return Some(Reason::BelowGate);
            }
            let estimate = estimate(state, &packet, wall_ns)?;
            let sketched = Sketched { estimate, first, wall_ns };
            promote(state, config, &packet, &sketched)?
        }
    };
    if reason.is_some() {
        return reason;
    }
    // Another CPU was faster, most likely with a packet of the same source. Never back to the gate:
    // a source with a bucket is charged for every packet.
    state.note(Internal::Contended);
    pause(fingerprints);
    if let Some(place) = find(state, &packet, NO_WAY)?
        && let Some(reason) = force_charge(state, config, &place, &packet)?
    {
        return Some(reason);
    }
    // The way went to another source, or two CPUs made room for each other. The next packet tries
    // again; dropping this one could hit a source that conforms.
    Some(Reason::PassedSetFull)
}

/// Not a way of any set.
const NO_WAY: u32 = WAYS;

/// Where the packet's source is, in another way than `except`; `Some(None)` if nowhere.
#[inline(always)]
fn find<'a, S: State>(
    state: &'a S,
    packet: &Packet<'_>,
    except: u32,
) -> Option<Option<SlotRef<'a>>> {
    let fingerprints = atomic::load(packet.fingerprints);
    let mut matches = Matches::of(fingerprints, fingerprint(packet.hash));
    let mut looks = 0;
    while !matches.is_empty() && looks < WAYS {
        let way = matches.way();
        let place = packet.place(state, way)?;
        if way != except && atomic::load(&place.slot.tag) == packet.hash.0 {
            return Some(Some(place));
        }
        matches = matches.rest();
        looks += 1;
    }
    Some(None)
}

/// Lets another CPU finish what it does to the set. It does not look whether that CPU has: Linux 6.1
/// refuses the loop that the compiler makes of that (a back edge from no jump).
#[inline(always)]
fn pause(shared: &AtomicU64) {
    let mut reads = 0;
    while reads < PAUSE {
        atomic::load(shared);
        reads += 1;
    }
}

/// The policy of a slot, looked up again if policies changed since. `Some(None)`: the slot went to another
/// source meanwhile.
#[inline(always)]
fn policy_of<'a, S: State>(
    state: &'a S,
    place: &SlotRef<'_>,
    packet: &Packet<'_>,
) -> Option<Option<(&'a Policy, PolicyWord)>> {
    let slot = place.slot;
    let seen = PolicyWord(atomic::load(&slot.policy));
    let mut resolved = seen;
    let is_renewed = seen.generation() != packet.published.generation();
    if is_renewed {
        resolved = resolve(state, packet);
        // Looking up takes a while. Who gets the slot meanwhile has a policy of its own, which must stay.
        if !atomic::replace(&slot.policy, seen.0, resolved.0) {
            return Some(None);
        }
    }
    let resolved = PolicyWord(state.opaque(resolved.0));
    let policy = state.policy(resolved.slot())?;
    if state.opaque(u64::from(is_renewed)) != 0 {
        if atomic::load(&slot.tag) != packet.hash.0 {
            atomic::replace(&slot.policy, resolved.0, seen.0);
            return Some(None);
        }
        let now = ticks(state.now());
        let mut price = CostMultiplier::LOCAL;
        if policy.is_shared() {
            let before = atomic::load(&state.rights(place.index)?.floor) as u32;
            price = price_of(state, SlotRef::floor(policy, before));
        }
        // Of the same slot it is nearly always the same policy: what was overdrawn under it is owed.
        let is_same = u64::from(seen.slot() == resolved.slot());
        let packets = u64::from(state.cpus() & 0x1ff) * is_same;
        let owes = |tier| {
            let overdrawn = packets * dearest(state, price, tier, packet.length);
            deepest(state, price, tier) + overdrawn
        };
        clamp(&slot.tat, now, owes(&policy.first));
        if policy.has_second() {
            let second_tat = &state.identity(place.index)?.second_tat;
            clamp(second_tat, now, owes(&policy.second));
        }
    }
    Some(Some((policy, resolved)))
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
fn resolve<S: State>(state: &S, packet: &Packet<'_>) -> PolicyWord {
    let published = packet.published;
    let slot = match state.lookup(packet.limited.class(), packet.source) {
        Some(slot) => slot,
        None => packet.limited.found(state).unwrap_or(published.slot()),
    };
    PolicyWord::new(published.generation(), slot)
}

/// Judges a packet whose source has a bucket. `Some(None)`: another CPU was faster.
#[inline(always)]
fn charge<S: State>(
    state: &S,
    config: &Config,
    place: &SlotRef<'_>,
    packet: &Packet<'_>,
) -> Option<Option<Reason>> {
    let slot = place.slot;
    let last = LastSeen(atomic::load(&slot.last_seen));
    let until_ns = last.denies_until();
    let generation = packet.published.generation();
    if packet.coarse_ns < until_ns
        && PolicyWord(atomic::load(&slot.policy)).generation() == generation
    {
        atomic::add(&slot.dropped, 1);
        atomic::add(&slot.bytes, u64::from(packet.length));
        let longest = packet.coarse_ns + MAX_SHARED_NS;
        let until_ns = if until_ns > longest { longest } else { until_ns };
        remember(state, place.index, packet.hash, until_ns, generation)?;
        return Some(Some(Reason::OverLimit));
    }
    let Some((policy, resolved)) = policy_of(state, place, packet)? else { return Some(None) };
    let policy_slot = resolved.slot();
    let (held, before) = place.held(state, policy)?;
    let tat = atomic::load(&slot.tat);
    // A source that was over its limit may wait for the coarse clock to reach its next token. Not a
    // bucket of two tiers, each of which has a time of its own. It is denied then, as it would be by the exact
    // clock if its share is over by that.
    let mut price = CostMultiplier::LOCAL;
    let mut lapse = Lapse::NONE;
    let mut lasts_ns = 0;
    if last.is_denied() && !policy.has_second() {
        let (tier, coarse_ns) = (&policy.first, packet.coarse_ns);
        price = price_at(state, held, coarse_ns);
        lapse = lapse_of(state, policy, before, held, last, coarse_ns);
        if lapse.spares(tat, tier.tolerance) {
            lasts_ns = state.opaque(lasts(state, tier, price, tat, packet.length, coarse_ns));
        }
    }
    let waits = lasts_ns > 0;
    let mut now_ns = packet.coarse_ns;
    if !waits {
        now_ns = state.now();
        price = price_at(state, held, now_ns);
        lapse = lapse_of(state, policy, before, held, last, now_ns);
    }
    if !place.is_of(tat, packet) {
        return Some(None);
    }
    let mut drawn = Charge::DENIED;
    if !waits {
        let words = place.words(state, policy, price, lapse)?;
        let is_its = || place.is_of(atomic::load(&slot.tat), packet);
        drawn = words.draw(state, policy, tat, packet.length, ticks(now_ns), is_its);
    }
    if drawn == Charge::GONE {
        return Some(None);
    }
    place.lower(state, policy, before)?;
    if policy.has_shadow() {
        let exact_ns = if waits { state.now() } else { now_ns };
        shadow(state, policy, place.index, packet, ticks(exact_ns))?;
    }
    if drawn == Charge::ADMITTED {
        record(slot, &slot.passed, packet, LastSeen::passed(now_ns));
        return Some(Some(Reason::Conforming));
    }
    // A trial has to see each packet.
    if drawn == Charge::DENIED && !policy.observes() && !policy.has_shadow() {
        if !waits {
            lasts_ns = denies_for(state, policy, price, place.index, tat, packet.length, now_ns)?;
        }
        if lasts_ns > 0 {
            let shared = price.is_shared() && lasts_ns > MAX_SHARED_NS;
            let until_ns = now_ns + if shared { MAX_SHARED_NS } else { lasts_ns };
            remember(state, place.index, packet.hash, until_ns, generation)?;
        }
    } else {
        lasts_ns = 0;
    }
    let last = LastSeen::denied(now_ns, lasts_ns);
    Some(Some(over(state, config, slot, packet, policy, policy_slot, last)))
}

/// Judges a packet for which another CPU was faster before. `Some(None)`: the bucket is another
/// source's now.
#[inline(always)]
fn force_charge<S: State>(
    state: &S,
    config: &Config,
    place: &SlotRef<'_>,
    packet: &Packet<'_>,
) -> Option<Option<Reason>> {
    let slot = place.slot;
    let last = LastSeen(atomic::load(&slot.last_seen));
    // The next packet writes it down, where it has changed.
    let resolved = resolve(state, packet);
    let policy = state.policy(resolved.slot())?;
    let (held, before) = place.held(state, policy)?;
    let now_ns = state.now();
    let tat = atomic::load(&slot.tat);
    if !place.is_of(tat, packet) {
        return Some(None);
    }
    let price = price_at(state, held, now_ns);
    let lapse = lapse_of(state, policy, before, held, last, now_ns);
    let words = place.words(state, policy, price, lapse)?;
    let is_its = || place.is_of(atomic::load(&slot.tat), packet);
    let drawn = words.draw(state, policy, tat, packet.length, ticks(now_ns), is_its);
    if drawn == Charge::GONE {
        return Some(None);
    }
    place.lower(state, policy, before)?;
    if drawn == Charge::ADMITTED {
        record(slot, &slot.passed, packet, LastSeen::passed(now_ns));
        return Some(Some(Reason::Conforming));
    }
    let last = LastSeen::denied(now_ns, 0);
    Some(Some(over(state, config, slot, packet, policy, resolved.slot(), last)))
}

/// What has become of a bucket's share since its `last` packet, when its floor was `before`.
#[inline(always)]
fn lapse_of<S: State>(
    state: &S,
    policy: &Policy,
    before: u32,
    held: Held,
    last: LastSeen,
    now_ns: u64,
) -> Lapse {
    if !policy.is_shared() {
        return Lapse::NONE;
    }
    let Lapse { at, from, to } = Lapse::of(before, held, last.ns(), now_ns);
    let [from, to] =
        [from, to].map(|it| Multiplier::from_bits(state.opaque(u64::from(it.0)) as u32));
    Lapse { at: state.opaque(at), from, to }
}

/// How long, in ns from `now_ns` on, a bucket that has just denied a packet will deny every other one.
#[inline(always)]
fn denies_for<S: State>(
    state: &S,
    policy: &Policy,
    price: CostMultiplier,
    index: u32,
    tat: Ticks,
    length: u32,
    now_ns: u64,
) -> Option<u64> {
    let first = lasts(state, &policy.first, price, tat, length, now_ns);
    if !policy.has_second() {
        return Some(first);
    }
    // Neither tier may overflow while its source waits for the other one.
    if policy.first.tolerance < MIN_TOLERANCE || policy.second.tolerance < MIN_TOLERANCE {
        return Some(0);
    }
    let second_tat = atomic::load(&state.identity(index)?.second_tat);
    let second = lasts(state, &policy.second, price, second_tat, length, now_ns);
    Some(if second > first { second } else { first })
}

/// Remembers that the packet's source is over its limit, in the place of another source whose drops go
/// where they belong.
#[inline(always)]
pub(super) fn remember<S: State>(
    state: &S,
    index: u32,
    hash: Hash,
    until_ns: u64,
    generation: u32,
) -> Option<()> {
    let denial = state.denial(hash.0 as u32 % DENIALS as u32)?;
    let (packets, bytes) = denial.pending();
    if packets > 0 && denial.index() != LISTED {
        let slot = state.slot(denial.index())?;
        // A source that has lost its bucket since has lost its counters with it.
        if atomic::load(&slot.tag) == atomic::load(&denial.tag) {
            atomic::add(&slot.dropped, packets);
            atomic::add(&slot.bytes, bytes);
        }
    }
    denial.remember(hash, until_ns, generation, index);
    Some(())
}

/// The way that a packet's source gets, and what is lost by it: the debt of its bucket, with flags above that of any
/// bucket. A number, so that the verifier does not follow each case separately.
struct Victim {
    way: u32,
    lost: u64,
}

impl Victim {
    /// Its bucket denies packets, or it is none that the source may have.
    const KEPT: u64 = 1 << 63;
    /// Its bucket owes more than a packet or two.
    const DEAR: u64 = 1 << 62;
    /// So many packets, at most what every limit lets pass uncounted.
    const CHEAP: u64 = 2;
}

/// Finds a way for the packet's source: an empty one, else one whose bucket is full. Else, of those that have denied
/// nothing, the one that will be full soonest, first of those that have admitted a packet or two since they were
/// made. The search starts somewhere else for each source.
#[inline(always)]
fn victim<S: State>(state: &S, packet: &Packet<'_>, ways: Ways, now: Ticks) -> Option<Victim> {
    let empty = ways.empty(atomic::load(packet.fingerprints));
    if !empty.is_empty() {
        return Some(Victim { way: empty.way(), lost: 0 });
    }
    let start = packet.hash.0 as u32;
    let mut best = Victim { way: start % WAYS, lost: u64::MAX };
    let mut looks = 0;
    while looks < WAYS && best.lost > 0 {
        let way = start.wrapping_add(looks) % WAYS;
        let slot = packet.place(state, way)?.slot;
        let tat = atomic::load(&slot.tat);
        // No branches but one: the verifier would follow each of 2^32 ways through the loop.
        let ahead = tat.wrapping_sub(now);
        let debt = ahead & (ahead >> 63).wrapping_sub(1);
        let dropped = atomic::load(&slot.dropped);
        let denies = (dropped | dropped.wrapping_neg()) & Victim::KEPT;
        let dear = (Victim::CHEAP.wrapping_sub(atomic::load(&slot.passed)) & Victim::KEPT) >> 1;
        let busy = u64::from(debt != 0).wrapping_neg();
        let lost = (debt | (denies | dear) & busy) | tat & Victim::KEPT | ways.not(way);
        if lost < best.lost {
            best = Victim { way, lost };
        }
        looks += 1;
    }
    Some(best)
}

/// Gives the packet's source a bucket and judges the packet. `Some(None)`: another CPU interfered.
#[inline(always)]
fn promote<S: State>(
    state: &S,
    config: &Config,
    packet: &Packet<'_>,
    sketched: &Sketched,
) -> Option<Option<Reason>> {
    let resolved = resolve(state, packet);
    let policy = state.policy(resolved.slot())?;
    if gate::passes(sketched.estimate, sketched.first, policy.first.gate) {
        return Some(Some(Reason::BelowGate));
    }
    let now_ns = state.now();
    let now = ticks(now_ns);
    let ways = Ways::of(resolved.slot(), policy.first.gate);
    let Victim { way, lost } = victim(state, packet, ways, now)?;
    let (way, lost) = (state.opaque(u64::from(way)) as u32 % WAYS, state.opaque(lost));
    let SlotRef { index, slot } = packet.place(state, way)?;
    let identity = state.identity(index)?;
    let before = atomic::load(&slot.tat);
    let occupied = atomic::load(&slot.tag) != 0;
    let busy = before > now;
    if is_claimed(before) {
        return Some(None);
    }
    if lost >= Victim::DEAR
        && let Some(reason) = full(state, config, packet, resolved.slot(), now_ns, lost)
    {
        return Some(Some(reason));
    }
    if !atomic::replace(&slot.tat, before, CLAIMED) {
        return Some(None);
    }

    // The slot is ours until its TAT says otherwise. It is complete before its tag and fingerprint
    // name it.
    let owed = owed(state, config, packet, sketched, now_ns);
    let rights = state.rights(index)?;
    let mut price = CostMultiplier::LOCAL;
    let mut full = [now; 2];
    if policy.is_shared() {
        price = price_of(state, policy.floor());
        full = policy.filled().map(|filled| state.opaque(if filled > now { filled } else { now }));
    }
    if policy.is_shared() || atomic::load(&rights.floor) != 0 {
        atomic::store(&rights.floor, price.word());
        atomic::store(&rights.grant, Grant::nothing_at(now_ns).0);
    }
    let start = |full, tier: &Tier| {
        clamped(full + owed.debt(state, tier, price), now, deepest(state, price, tier))
    };
    let start =
        Tats { first: start(full[0], &policy.first), second: start(full[1], &policy.second) };
    let (admitted, next) = judge(state, policy, price, start, packet.length, now);
    let admitted = state.opaque(u64::from(admitted)) != 0;
    atomic::store(&identity.second_tat, next.second);
    begin(identity, policy, now + owed.debt(state, &policy.shadow, CostMultiplier::LOCAL));
    if policy.has_shadow() {
        shadow(state, policy, index, packet, now)?;
    }
    atomic::store(&identity.high, packet.source.high);
    atomic::store(&identity.low, packet.source.low);
    atomic::store(&identity.class, u64::from(packet.limited.class()));
    atomic::store(&slot.policy, resolved.0);
    atomic::store(&slot.passed, 0);
    atomic::store(&slot.dropped, 0);
    atomic::store(&slot.bytes, 0);
    atomic::store(&slot.first_seen, now_ns);
    atomic::store(&slot.last_seen, LastSeen::passed(now_ns).0);
    atomic::swap(&slot.tag, packet.hash.0);
    set_fingerprint(packet.fingerprints, way, fingerprint(packet.hash));
    atomic::swap(&slot.tat, next.first);

    if find(state, packet, way)?.is_some() {
        // Two CPUs promoted the source at once, into two ways. Both see the other (the swaps are
        // full barriers) or only the later one does; whoever sees yields and charges the other.
        set_fingerprint(packet.fingerprints, way, 0);
        atomic::swap(&slot.tag, 0);
        atomic::swap(&slot.tat, 0);
        return Some(None);
    }
    state.note(Internal::Promotions);
    if busy {
        state.note(Internal::BusyEvictions);
    } else if occupied {
        state.note(Internal::Evictions);
    }
    if admitted {
        record(slot, &slot.passed, packet, LastSeen::passed(now_ns));
        Some(Some(Reason::Conforming))
    } else {
        let last = LastSeen::denied(now_ns, 0);
        Some(Some(over(state, config, slot, packet, policy, resolved.slot(), last)))
    }
}

/// What becomes of a packet whose set is full; `None` if it may evict. A bucket that limits somebody is never
/// thrown out.
#[inline(always)]
fn full<S: State>(
    state: &S,
    config: &Config,
    packet: &Packet<'_>,
    policy: u32,
    now_ns: u64,
    lost: u64,
) -> Option<Reason> {
    state.note(Internal::SetFull);
    event(state, config, EventKind::SetFull, packet.source, policy, now_ns);
    match atomic::load(&config.on_full) {
        on_full::DROP => Some(Reason::DroppedSetFull),
        on_full::EVICT_OLDEST if lost < Victim::KEPT => None,
        _ => Some(Reason::PassedSetFull),
    }
}

/// Counts a packet over its limit.
#[inline(always)]
fn over<S: State>(
    state: &S,
    config: &Config,
    slot: &Slot,
    packet: &Packet<'_>,
    policy: &Policy,
    policy_slot: u32,
    last: LastSeen,
) -> Reason {
    if atomic::load(&slot.dropped) == 0 {
        event(state, config, EventKind::Limited, packet.source, policy_slot, last.ns());
    }
    record(slot, &slot.dropped, packet, last);
    if policy.observes() { Reason::WouldDrop } else { Reason::OverLimit }
}

/// Counts a packet of a tracked source.
#[inline(always)]
fn record(slot: &Slot, outcome: &AtomicU64, packet: &Packet<'_>, last: LastSeen) {
    atomic::add(outcome, 1);
    atomic::add(&slot.bytes, u64::from(packet.length));
    atomic::store(&slot.last_seen, last.0);
}

/// Sends an event, unless its kind has sent enough lately.
#[inline(always)]
fn event<S: State>(
    state: &S,
    config: &Config,
    kind: EventKind,
    source: SourceKey,
    policy: u32,
    now_ns: u64,
) {
    const SECOND: u64 = 1_000_000_000 * TICKS_PER_NS;
    let word = match kind {
        EventKind::Limited => &config.event_tat[0],
        EventKind::SetFull => &config.event_tat[1],
    };
    let tat = atomic::load(word);
    let sent = match decide(tat, ticks(now_ns), SECOND / EVENTS_PER_SECOND, SECOND) {
        Some(next) => atomic::replace(word, tat, next),
        None => false,
    };
    if !sent {
        state.note(Internal::EventsSuppressed);
    } else if !state.send(Event { time_ns: now_ns, source, kind: kind as u32, policy }) {
        state.note(Internal::EventsLost);
    }
}
