//! What the kernel's memory says of sources.

use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use limiter_common::abi::{Config, Layout, Policy, PolicyWord, Terms, Tier};
use limiter_common::atomic;
use limiter_common::class::{group_prefix, is_of_destinations};
use limiter_common::gcra::{Ticks, credit, ticks};
use limiter_common::hash::Hash;
use limiter_common::hll::Registers;
use limiter_common::key::SourceKey;
use limiter_common::share::{CostMultiplier, Held, Multiplier, ShareSlot};
use limiter_common::share_change::Bucket;
use limiter_common::sketch::{Position, Sketch, Window};
use limiter_common::table::{Identity, LastSeen, Slot, WAYS, is_claimed, set_of, slot_index};

use super::kernel;
use super::memory::Elements;
use super::pending::{Pending, stored_counts, with_drops};
use super::publish::lengths;
use super::sources::{key_of, source_of_key};
use model::group::prefix_of;
use model::source::{Counts, HeldShare, Source, SourceState};
use model::{Class, Limit};

/// Sets that are looked at together: what is found of them stays in the first-level cache.
const BLOCK: usize = 512;

/// The shared memory of the maps.
pub(super) struct Memory {
    pub(super) config: Elements<Config>,
    pub(super) fingerprints: Elements<AtomicU64>,
    pub(super) slots: Elements<Slot>,
    pub(super) identities: Elements<Identity>,
    pub(super) shares: Elements<ShareSlot>,
    pub(super) cells: Elements<AtomicU64>,
    pub(super) registers: Elements<Registers>,
    pub(super) layout: Layout,
}

/// The moment a view is taken.
#[derive(Clone, Copy)]
pub(super) struct Now {
    monotonic_ns: u64,
    offset_ns: u64,
}

impl Now {
    // Both clocks at once, so that all that is told of a view is of one moment.
    pub(super) fn take() -> Self {
        Self { monotonic_ns: kernel::monotonic_ns(), offset_ns: kernel::clock_offset() }
    }

    pub(super) fn ticks(self) -> Ticks {
        ticks(self.monotonic_ns)
    }

    /// A moment in ns since boot as wall-clock time.
    pub(super) fn wall(self, ns: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_nanos(ns.wrapping_add(self.offset_ns))
    }

    /// Whether a bucket has had a packet within the last `time`.
    pub(super) fn is_recent(self, slot: &Slot, time: Duration) -> bool {
        let age_ns = self.monotonic_ns.saturating_sub(LastSeen(atomic::load(&slot.last_seen)).ns());
        Duration::from_nanos(age_ns) < time
    }

    pub(super) fn position(self, window: Window) -> Position {
        window.position(self.monotonic_ns.wrapping_add(self.offset_ns))
    }
}

/// Whether a source has the bucket, which is neither empty nor being filled.
fn is_taken(slot: &Slot) -> bool {
    atomic::load(&slot.tag) != 0 && !is_claimed(atomic::load(&slot.tat))
}

/// A bucket that a source has.
pub(super) struct Tracked<'a> {
    bucket: usize,
    tat: Ticks,
    slot: &'a Slot,
    identity: &'a Identity,
    share: &'a ShareSlot,
}

impl<'a> Tracked<'a> {
    /// The last shadow limit, and what it has counted and would have dropped.
    pub(super) fn shadow_counts(&self) -> (u64, u64, u64) {
        let Identity { shadow_id, shadow_packets, would_drop, .. } = self.identity;
        (atomic::load(shadow_id), atomic::load(shadow_packets), atomic::load(would_drop))
    }

    /// Its last packet.
    fn last(&self) -> LastSeen {
        LastSeen(atomic::load(&self.slot.last_seen))
    }

    /// When that was, ns since boot.
    pub(super) fn last_seen_ns(&self) -> u64 {
        self.last().ns().max(atomic::load(&self.slot.first_seen))
    }

    /// The number of the class that it is for.
    pub(super) fn class(&self) -> u8 {
        self.identity.class().class()
    }

    /// The slot of its policy.
    pub(super) fn policy_slot(&self) -> u32 {
        self.policy_word().slot()
    }

    /// The same, and the generation in which it was looked up.
    pub(super) fn policy_word(&self) -> PolicyWord {
        PolicyWord(atomic::load(&self.slot.policy))
    }

    /// The number of the bucket.
    pub(super) const fn bucket(&self) -> usize {
        self.bucket
    }

    /// What tells its source and class from others.
    pub(super) fn tag(&self) -> u64 {
        atomic::load(&self.slot.tag)
    }

    /// Whether its last packet was over the limit.
    pub(super) fn is_over_limit(&self) -> bool {
        self.last().is_over_limit()
    }

    /// Its words, under the policy in its slot.
    pub(super) const fn under<'b>(&self, policy: &'b Policy) -> Bucket<'b>
    where
        'a: 'b,
    {
        Bucket::new(self.slot, self.identity, self.share, policy)
    }

    /// What it may use under a limit of the cluster.
    pub(super) fn share(&self, policy: &Policy, now: Now) -> HeldShare {
        held_share(self.under(policy).held(), now)
    }

    /// What it counts.
    pub(super) fn counts(&self, pending: &Pending) -> Counts {
        pending.counts(self.bucket, self.slot)
    }

    /// Its source.
    pub(super) fn key(&self) -> SourceKey {
        self.identity.key()
    }
}

/// What a bucket may use, in the terms of an operator.
pub(super) fn held_share(held: Held, now: Now) -> HeldShare {
    let share = held.at(now.monotonic_ns).multiplier();
    HeldShare {
        share: share.part(),
        floor: Multiplier(held.floor).part(),
        // A multiplier is what packets cost: the smaller one is the larger share.
        until: (share.0 < held.floor).then(|| now.wall(held.grant.until_ns())),
    }
}

impl Memory {
    /// The one element of the configuration.
    pub(super) fn config(&self) -> &Config {
        // The map has one element, as `Elements::new` found when it mapped it.
        &self.config.all()[0]
    }

    /// The network that a key stands for.
    pub(super) fn network(&self, key: SourceKey) -> IpNet {
        source_of_key(key, self.layout.masks.lengths())
    }

    /// What a bucket is for: a source, a group of them, or a destination.
    pub(super) fn network_of(&self, tracked: &Tracked<'_>) -> IpNet {
        let (key, class) = (tracked.key(), tracked.class());
        match group_prefix(class) {
            Some(length) => prefix_of(key.address(), length),
            None => source_of_key(key, lengths(class, self.layout.masks.lengths())),
        }
    }

    /// The bucket of a source for a class.
    pub(super) fn find(&self, key: SourceKey, class: u8) -> Option<Tracked<'_>> {
        let hash = self.layout.hash_key.hash(key).of_class(u32::from(class));
        let set = set_of(hash, self.layout.set_mask);
        // Each way is looked at, without the fingerprints: they pay for a packet, not for one
        // question.
        (0..WAYS).find_map(|way| {
            let index = slot_index(set, way, self.layout.set_mask) as usize;
            let slot = self.slots.all().get(index)?;
            let found = atomic::load(&slot.tag) == hash.0;
            if found { self.at(index) } else { None }
        })
    }

    /// The bucket with a number, if a source has it.
    pub(super) fn at(&self, bucket: usize) -> Option<Tracked<'_>> {
        let slot = self.slots.all().get(bucket).filter(|slot| is_taken(slot))?;
        Some(Tracked {
            bucket,
            tat: atomic::load(&slot.tat),
            slot,
            identity: self.identities.all().get(bucket)?,
            share: self.shares.all().get(bucket)?,
        })
    }

    /// Empties the buckets of classes that are not `in_use`. No packet may be charged to one of them any more.
    pub(super) fn retire(&self, in_use: impl Fn(u8) -> bool) {
        let identities = self.identities.all();
        self.occupied(|bucket, slot| {
            let Some(identity) = identities.get(bucket) else { return };
            let tag = atomic::load(&slot.tag);
            // The tag fails to be replaced if another source got the slot meanwhile. It is never claimed here: a
            // daemon that died with it would keep it for ever. So its fingerprint stays, and leads nowhere.
            if !in_use(identity.class().class()) && atomic::replace(&slot.tag, tag, 0) {
                let tat = atomic::load(&slot.tat);
                if !is_claimed(tat) {
                    atomic::replace(&slot.tat, tat, 0);
                }
            }
        });
    }

    /// Visits every bucket that a source has, and its number.
    pub(super) fn occupied(&self, mut visit: impl FnMut(usize, &Slot)) {
        for ways in self.occupied_sets() {
            ways.for_each(|(bucket, slot)| visit(bucket, slot));
        }
    }

    /// The buckets that sources have, set by set, and their numbers. The fingerprints tell which they
    /// are, so that no other slot is touched: memory is what this takes its time for.
    pub(super) fn occupied_sets(
        &self,
    ) -> impl Iterator<Item = impl Iterator<Item = (usize, &Slot)>> {
        let slots = self.slots.all();
        let mask = self.layout.set_mask;
        let words = (0u32..).zip(self.fingerprints.all());
        let sets = words.map(|(set, word)| (set, atomic::load(word)));
        sets.filter(|(_, fingerprints)| *fingerprints != 0).map(move |(set, fingerprints)| {
            (0..WAYS).filter_map(move |way| {
                if fingerprints >> (8 * way) & 0xff == 0 {
                    return None;
                }
                let bucket = slot_index(set, way, mask) as usize;
                slots.get(bucket).filter(|slot| is_taken(slot)).map(|slot| (bucket, slot))
            })
        })
    }

    /// Visits the counts of every bucket that is taken and `wanted`, in the order of their numbers. That is the order of
    /// memory, which the processor reads ahead, and the one in which pending drops need no search.
    #[inline]
    pub(super) fn counts_in_order(
        &self,
        pending: &Pending,
        wanted: impl Fn(&Identity) -> bool,
        mut visit: impl FnMut(usize, Counts),
    ) {
        let words = self.fingerprints.all();
        let pending = pending.in_order();
        let mut pending = pending.iter().peekable();
        let mut next = pending.peek().map_or(usize::MAX, |drops| drops.0);
        let mut taken = [0; BLOCK];
        for (way, slots) in (0..WAYS).zip(self.slots.all().chunks(words.len().max(1))) {
            let way_start = way as usize * words.len();
            for (block, words) in words.chunks(BLOCK).enumerate() {
                let first = block * BLOCK;
                let slots = slots.get(first..).unwrap_or_default();
                // Which buckets are taken is chance, which a branch on each would have to guess.
                let mut count = 0;
                for (at, word) in words.iter().enumerate() {
                    taken[count % BLOCK] = at;
                    count += usize::from(atomic::load(word) >> (8 * way) & 0xff != 0);
                }
                for &at in &taken[..count] {
                    let Some(slot) = slots.get(at).filter(|slot| is_taken(slot)) else { continue };
                    let bucket = way_start + first + at;
                    if !self.identities.all().get(bucket).is_some_and(&wanted) {
                        continue;
                    }
                    let mut counts = stored_counts(slot);
                    if bucket >= next {
                        let tag = atomic::load(&slot.tag);
                        while let Some((_, owner, packets, bytes)) =
                            pending.next_if(|drops| drops.0 <= bucket)
                        {
                            // A bucket that was passed over has no source any more; nor has its tag.
                            if *owner == tag {
                                counts = with_drops(counts, (*packets, *bytes));
                            }
                        }
                        next = pending.peek().map_or(usize::MAX, |drops| drops.0);
                    }
                    visit(bucket, counts);
                }
            }
        }
    }

    /// Visits the buckets of these numbers that sources have.
    pub(super) fn part(
        &self,
        buckets: impl Iterator<Item = usize>,
        mut visit: impl FnMut(usize, &Tracked<'_>),
    ) {
        let set_mask = self.layout.set_mask as usize;
        let words = self.fingerprints.all();
        for bucket in buckets {
            let shift = bucket / (set_mask + 1) * 8;
            let word = words.get(bucket & set_mask).map_or(0, atomic::load);
            // The number may be of no bucket at all: whoever asks has kept it from an earlier look.
            if shift < 64
                && word >> shift & 0xff != 0
                && let Some(tracked) = self.at(bucket)
            {
                visit(bucket, &tracked);
            }
        }
    }

    /// The sketch's estimate for a source.
    pub(super) fn estimate(&self, key: SourceKey, class: u8, now: Now) -> u32 {
        let sketch = Sketch { cells: self.cells.all(), shape: self.layout.sketch };
        let hash: Hash = self.layout.hash_key.hash(key).of_class(u32::from(class));
        sketch.estimate(hash, now.position(self.window())).window
    }

    pub(super) fn window(&self) -> Window {
        Window { shift: self.layout.window_shift }
    }

    /// A source with a bucket. `policy` is what its slot holds.
    pub(super) fn source(
        &self,
        tracked: &Tracked<'_>,
        class: Class,
        counts: Counts,
        policy: Option<&Policy>,
        limit: Option<Limit>,
        now: Now,
    ) -> Source {
        let last_seen = tracked.last().ns();
        let tiers = policy.map(Policy::tiers);
        let tats = [tracked.tat, atomic::load(&tracked.identity.second_tat)];
        let shared = policy.filter(|policy| policy.whole().is_cluster());
        let price = shared.map(|policy| tracked.under(policy).price(now.monotonic_ns));
        let price = price.unwrap_or(CostMultiplier::LOCAL);
        let [left, also_left] = tiers.map_or([None; 2], |tiers| {
            let mut left = [None; 2];
            for ((tier, tat), left) in tiers.into_iter().zip(tats).zip(&mut left) {
                let limited = tier.filter(|(_, terms)| terms.unit != Terms::NOTHING);
                *left = limited
                    .map(|(tier, terms)| (tier, terms, left_of(tier, tat, price, now.ticks())));
            }
            left
        });
        // A source at its limit has a token now and then: within a sixteenth of its burst it counts
        // as limited.
        let used_up = left.iter().chain(&also_left).any(|(tier, _, left)| {
            let all =
                tier.window().map_or(price.room(tier.tolerance), |window| window.limit.into());
            *left < (all / 16).max(2 * price.cost(tier.cost(1514)))
        });
        // Drops stay counted for as long as the bucket is there: "limited" is who still sends, too.
        let recent = now.monotonic_ns.saturating_sub(last_seen) < 1_000_000_000;
        let state = if counts.dropped > 0 && used_up && recent {
            SourceState::Limited
        } else {
            SourceState::Conforming
        };
        Source {
            source: self.network_of(tracked),
            is_group: group_prefix(tracked.class()).is_some(),
            class,
            state,
            limit,
            tokens: left.map(|(tier, terms, _)| tokens(tier, terms, tats[0], price, now.ticks())),
            also_tokens: also_left
                .map(|(tier, terms, _)| tokens(tier, terms, tats[1], price, now.ticks())),
            shadow: None,
            share: shared.map(|policy| tracked.share(policy, now)),
            estimate: self.estimate(tracked.key(), tracked.class(), now),
            passed: counts.passed,
            dropped: counts.dropped,
            bytes: counts.bytes,
            evidence: policy
                .filter(|policy| policy.whole().seeks_evidence())
                .map(|_| tracked.identity.class().evidence()),
            since_ns: counts.since_ns,
            first_seen: Some(now.wall(counts.since_ns)),
            // By the coarse clock it may be a moment earlier.
            last_seen: Some(now.wall(last_seen.max(counts.since_ns))),
        }
    }

    /// A source without a bucket.
    pub(super) fn light(&self, key: SourceKey, limit: Option<Limit>, now: Now) -> Source {
        Source {
            source: self.network(key),
            is_group: false,
            class: Class::ANY,
            state: SourceState::Light,
            limit,
            tokens: None,
            also_tokens: None,
            shadow: None,
            share: None,
            estimate: self.estimate(key, 0, now),
            passed: 0,
            dropped: 0,
            bytes: 0,
            evidence: None,
            since_ns: 0,
            first_seen: None,
            last_seen: None,
        }
    }

    /// The source that an address belongs to.
    pub(super) fn key_of(&self, address: IpAddr) -> SourceKey {
        self.layout.masks.apply(key_of(address))
    }

    /// What an address has a bucket of a class by.
    pub(super) fn key_for(&self, address: IpAddr, class: u8) -> SourceKey {
        if is_of_destinations(class) {
            return key_of(address).before_nat64();
        }
        self.key_of(address)
    }
}

/// What is left of a tier by its word: ticks of a bucket, units of a window.
fn left_of(tier: &Tier, word: u64, price: CostMultiplier, now: Ticks) -> u64 {
    match tier.window() {
        Some(window) => u64::from(window.limit).saturating_sub(window.used(word, now)),
        None => credit(word, now, price.room(tier.tolerance)),
    }
}

/// What a tier's bucket holds, packets or bytes; of a limit of the cluster a packet more than its credit is worth.
fn tokens(tier: &Tier, terms: &Terms, tat: Ticks, price: CostMultiplier, now: Ticks) -> f64 {
    if tier.window().is_some() {
        return (left_of(tier, tat, price, now) << tier.shift) as f64;
    }
    let per_token = if terms.unit == Terms::BYTES {
        tier.per_byte as f64 / f64::from(tier.shift).exp2()
    } else {
        tier.fixed as f64
    };
    let packet = if price.is_cluster() { price.cost(tier.cost(1514)) } else { 0 };
    let left = credit(tat, now, price.room(tier.tolerance) + packet) as f64;
    // What a byte costs is rounded up, and the bucket has room for it.
    (left * price.multiplier().part() / per_token).min(terms.burst as f64)
}
