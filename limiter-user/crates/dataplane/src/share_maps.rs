//! The way of shares into the kernel, beside that of limits.
//!
//! Limits change one after the other, and a million of them take seconds; a grant of a share ends within half a
//! second. So who gives shares has a handle of its own, which waits for no change of limits. It reads what the kernel
//! program reads: the table of buckets, which is shared memory, and the maps that lead to policies.
//!
//! **Limits may change at any moment.** A change of a share goes by the policy that its bucket's next packet meets, as
//! of one generation of policies. Packets may meet another one before the share is written. That is as if the share
//! had been changed first:
//!
//! * A share is of whatever limit of the cluster applies to its source and class. What a change writes depends on the
//!   bucket's words and that policy alone, and each word is replaced only where it is what was read. So a packet in
//!   between, whatever its policy, leaves the words that it would leave before or after (P2).
//! * Where another source or class has the bucket by then, its tag or its grant's word is another one, and nothing is
//!   written: see [`limiter_common::share_change`].
//! * Under a limit of this host alone packets do not look at the words (P1). A grant that is left in them ends.
//! * A slot that a generation leads to is not written again before the generation is over, and has rested.
//!
//! **One writes at a time**, whoever it is: floors are raised by who changes limits ([`ShareMaps::renew_floors`]), and
//! shares are given by another. Each takes [`ShareMaps::writing`], for some ms at the most, in which nothing blocks.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::{IpNet, Ipv6Net};
use limiter_common::abi::{Policy, PolicyWord};
use limiter_common::atomic;
use limiter_common::class::ANY;
use limiter_common::key::SourceKey;
use limiter_common::share::Grant;
use limiter_common::share_change::{Bucket, Outcome};
use limiter_common::shared::Shared;

use super::kernel::monotonic_ns;
use super::kind::Kind;
use super::publish::{ClassTables, InForce, PolicyLookup, published};
use super::shared_buckets::{SharedBuckets, is_empty};
use super::shares::{BucketShare, ClusterBucket, ClusterMember, SharesChanged, multiplier};
use super::table::BucketTable;
use super::view::{Now, Tracked, held_share};
use model::compile::decompile;
use model::{Selector, Target};

/// How often floors are renewed of buckets that packets are charged to at the same moment.
const ROUNDS: u32 = 4;
/// How often a policy is looked up while policies change.
const TRIES: u32 = 8;

/// A handle on the buckets and shares of a data plane, of which there may be more than one.
pub struct ShareMaps {
    table: Arc<BucketTable>,
    /// Buckets of limits that sources share: their numbers follow those of the table's.
    shared: Arc<SharedBuckets>,
    classes: Arc<ClassTables>,
    policies: Arc<PolicyLookup>,
    writing: Arc<Mutex<()>>,
    kind: Kind,
}

impl ShareMaps {
    pub(super) fn new(
        table: Arc<BucketTable>,
        shared: Arc<SharedBuckets>,
        classes: Arc<ClassTables>,
        policies: PolicyLookup,
    ) -> Self {
        let (policies, writing) = (Arc::new(policies), Arc::default());
        Self { table, shared, classes, policies, writing, kind: Kind::Cluster }
    }

    /// The same for limits of a kind.
    pub fn of(&self, kind: Kind) -> Self {
        let Self { table, shared, classes, policies, writing, .. } = self;
        Self {
            table: Arc::clone(table),
            shared: Arc::clone(shared),
            classes: Arc::clone(classes),
            policies: Arc::clone(policies),
            writing: Arc::clone(writing),
            kind,
        }
    }

    /// Whoever holds it changes words of buckets alone.
    fn writing(&self) -> MutexGuard<'_, ()> {
        // A change that a panic has cut off is like that of a daemon that has died: see `limiter_common`.
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The generation in force, and the slot of the default.
    fn published(&self) -> PolicyWord {
        published(self.table.memory.config())
    }

    /// How many buckets there are for single sources.
    pub fn buckets(&self) -> usize {
        self.table.buckets()
    }

    /// The buckets of limits of the cluster that sources share.
    pub fn shared_buckets(&self) -> Vec<usize> {
        self.shared.cluster().into_iter().map(|(number, _)| self.bucket_of(number)).collect()
    }

    fn bucket_of(&self, number: u32) -> usize {
        self.buckets() + number as usize
    }

    /// The number of a shared limit that has this bucket.
    fn number_of(&self, bucket: usize) -> Option<u32> {
        bucket.checked_sub(self.buckets()).and_then(|number| u32::try_from(number).ok())
    }

    /// The bucket with a number, what tells whose it is, and its policy if that is the cluster's.
    fn shared(&self, number: u32) -> Option<(&Shared, u64, Policy)> {
        let shared = self.shared.get(number)?;
        let word = atomic::load(&shared.policy);
        let policy = self.policies.policy(PolicyWord(word).slot())?;
        // Then the slot had this content all the time, as with the table's.
        let same = atomic::load(&shared.policy) == word;
        (same && policy.whole().is_cluster()).then_some((shared, word, policy))
    }

    /// The sources and destinations that have begun to be limited since the last call, as far as there was room to note them.
    pub fn begun_to_be_limited(&self) -> Vec<IpNet> {
        let sources = self.table.events.begun_to_be_limited(self.kind);
        let network = |(source, is_whole): (SourceKey, bool)| match is_whole {
            true => source.address().into(),
            false => self.table.memory.network(source),
        };
        sources.into_iter().map(network).collect()
    }

    /// Gives buckets shares, without a lock that a packet waits for and without tokens: a larger share brings none, a
    /// smaller one keeps those that it has room for, from [`ShareMaps::give_back`] on.
    pub fn set_shares(&self, shares: &mut dyn Iterator<Item = BucketShare>) -> SharesChanged {
        let _alone = self.writing();
        let mut changed = SharesChanged::default();
        let mut policies = PolicyCache::new(self);
        for BucketShare { bucket, tag, share, until_ns } in shares {
            // A share has an end in any case: whoever gives it may die at any moment, and packets
            // go by it until then.
            let grant = Some(Grant::new(multiplier(share), until_ns));
            let outcome = policies.under(bucket, |its| its.change(tag, grant, monotonic_ns));
            let outcome = outcome.unwrap_or(Outcome::Gone);
            match outcome {
                Outcome::Gone => changed.gone_buckets.push(bucket),
                Outcome::Missed => changed.missed_buckets.push(bucket),
                Outcome::Done | Outcome::Lowered(_) => {}
            }
            changed.count(bucket, outcome);
        }
        changed
    }

    /// Lets these buckets have the floor of their policy, by whoever changes limits, which stay as they are: so the
    /// maps need not be asked. Keeps who gives shares waiting meanwhile.
    pub(super) fn renew_floors(&self, in_force: &InForce, buckets: Range<usize>) -> SharesChanged {
        // A share that is given meanwhile would be converted from a floor that is about to change.
        let _alone = self.writing();
        let mut changed = SharesChanged::default();
        let mut slots = ClusterSlots::new(self, in_force);
        let all_end = buckets.end;
        let mut missed: Vec<usize> = Vec::new();
        for round in 0..ROUNDS {
            let mut again = std::mem::take(&mut missed).into_iter();
            let mut all = if round == 0 { buckets.clone() } else { 0..0 };
            let buckets = std::iter::from_fn(|| all.next().or_else(|| again.next()));
            self.table.memory.part(buckets, |bucket, tracked| {
                let Some(policy) = slots.policy(tracked) else { return };
                let outcome = tracked.under(&policy).change(tracked.tag(), None, monotonic_ns);
                // Tried again after all the others, when the flood on this bucket may have paused;
                // at once it would only be met again.
                if matches!(outcome, Outcome::Missed) && round + 1 < ROUNDS {
                    missed.push(bucket);
                } else {
                    changed.count(bucket, outcome);
                }
            });
        }
        if all_end == self.buckets() {
            for (number, _) in self.shared.cluster() {
                let Some((shared, tag, policy)) = self.shared(number) else { continue };
                let bucket = Bucket::of_shared(shared, &policy);
                let mut tries = (0..ROUNDS).map(|_| bucket.change(tag, None, monotonic_ns));
                let outcome = tries.find(|outcome| !matches!(outcome, Outcome::Missed));
                changed.count(self.bucket_of(number), outcome.unwrap_or(Outcome::Missed));
            }
        }
        changed
    }

    /// Gives buckets back what lowering their shares has taken too much, when [`super::wait_for_packets`] was called
    /// since.
    pub fn give_back(&self, changed: SharesChanged) {
        let _alone = self.writing();
        let mut policies = PolicyCache::new(self);
        for (bucket, lowered) in changed.into_lowered() {
            policies.under(bucket, |its| lowered.give_back(its));
        }
    }

    /// Visits the buckets of these numbers that are under a limit of the cluster, and that a packet has come to since
    /// policies have changed: of others nothing new is to be told.
    pub fn cluster_buckets(&self, buckets: Range<usize>, visit: &mut dyn FnMut(ClusterBucket)) {
        let pending = self.table.pending();
        let mut policies = PolicyCache::new(self);
        self.table.memory.part(buckets, |_, tracked| {
            // Not `of`: a bucket that no packet has come to needs no look into the maps, which
            // takes a system call.
            if policies.of_busy(tracked).is_some() {
                visit(ClusterBucket::new(tracked, &pending));
            }
        });
    }

    /// Visits those of these buckets that are under a limit of the cluster, with all that is known of them.
    pub fn cluster_members(
        &self,
        buckets: &mut dyn Iterator<Item = usize>,
        visit: &mut dyn FnMut(ClusterMember),
    ) {
        let (pending, now) = (self.table.pending(), Now::take());
        // Of classes that come and go meanwhile each number is read as it was or as it is.
        let classes = self.classes.present(self.table.memory.config());
        let mut policies = PolicyCache::new(self);
        let mut shared = Vec::new();
        let of_sources = buckets.filter(|bucket| match self.number_of(*bucket) {
            Some(number) => {
                shared.push(number);
                false
            }
            None => true,
        });
        self.table.memory.part(of_sources, |_, tracked| {
            let Some(policy) = policies.of(tracked) else { return };
            let Some(class) = classes.class(tracked.class()) else { return };
            let source = self.table.memory.network_of(tracked);
            let target = Target { whom: Selector::Prefix(source), class, aggregate: false };
            let Some(limit) = decompile(target, &policy) else { return };
            visit(ClusterMember {
                bucket: ClusterBucket::new(tracked, &pending),
                source,
                class,
                limit,
                share: tracked.share(&policy, now),
            });
        });
        if !shared.is_empty() {
            let all = self.shared.cluster();
            let asked = all.into_iter().filter(|(number, _)| shared.contains(number));
            asked
                .filter_map(|(number, target)| self.shared_member(number, target, now))
                .for_each(visit);
        }
    }

    /// All that is known of the bucket of a shared limit.
    fn shared_member(&self, number: u32, target: Target, now: Now) -> Option<ClusterMember> {
        let (shared, tag, policy) = self.shared(number)?;
        let bucket = ClusterBucket {
            bucket: self.bucket_of(number),
            tag,
            counts: self.shared.counts(number)?,
            limited: is_empty(shared, &policy, monotonic_ns()),
        };
        // All sources, where no prefix is named.
        let source = target.prefix().unwrap_or(IpNet::V6(Ipv6Net::default()));
        let share = held_share(Bucket::of_shared(shared, &policy).held(), now);
        let limit = decompile(target, &policy)?;
        Some(ClusterMember { bucket, source, class: target.class, limit, share })
    }

    /// The buckets that an address has, as a source and as a destination, whether a limit of the cluster applies to them or not.
    pub fn buckets_of(&self, source: IpNet) -> Vec<usize> {
        let memory = &self.table.memory;
        let classes = self.classes.present(memory.config());
        let classes = std::iter::once(ANY as u8).chain(classes.ids());
        let found =
            |class| Some(memory.find(memory.key_for(source.addr(), class), class)?.bucket());
        classes.filter_map(found).collect()
    }

    /// The bucket that a source has for packets of no class.
    pub fn cluster_bucket(&self, address: IpAddr) -> Option<ClusterBucket> {
        let tracked = self.table.memory.find(self.table.memory.key_of(address), ANY as u8)?;
        PolicyCache::new(self).of(&tracked)?;
        Some(ClusterBucket::new(&tracked, &self.table.pending()))
    }
}

/// The policies of a generation that were asked for: nearly all buckets have the same few.
struct PolicyCache<'a> {
    maps: &'a ShareMaps,
    generation: u32,
    last: Option<(u32, Option<Policy>)>,
    known: HashMap<u32, Option<Policy>>,
}

impl<'a> PolicyCache<'a> {
    /// What is done to a bucket, under the policy that its next packet meets, if that is the cluster's.
    fn under<T>(&mut self, bucket: usize, act: impl FnOnce(&Bucket<'_>) -> T) -> Option<T> {
        if let Some(number) = self.maps.number_of(bucket) {
            let (shared, _, policy) = self.maps.shared(number)?;
            return Some(act(&Bucket::of_shared(shared, &policy)));
        }
        let tracked = self.maps.table.memory.at(bucket)?;
        let policy = self.of(&tracked)?;
        Some(act(&tracked.under(&policy)))
    }

    fn new(maps: &'a ShareMaps) -> Self {
        let generation = maps.published().generation();
        Self { maps, generation, last: None, known: HashMap::new() }
    }

    /// The policy that the next packet of a bucket's source meets, if it is the cluster's.
    fn of(&mut self, tracked: &Tracked<'_>) -> Option<Policy> {
        self.look_up(tracked, |maps, published| {
            let class = tracked.class();
            let slot = maps.policies.slot(tracked.key(), class);
            // The default is for packets of no class.
            slot.or_else(|| (u32::from(class) == ANY).then(|| published.slot()))
        })
    }

    /// The same, if a packet has come since policies have changed: the maps need not be asked then.
    fn of_busy(&mut self, tracked: &Tracked<'_>) -> Option<Policy> {
        self.look_up(tracked, |_, _| None)
    }

    /// As [`PolicyCache::of`]; `idle` says to which slot a packet is led that has to look.
    fn look_up(
        &mut self,
        tracked: &Tracked<'_>,
        idle: impl Fn(&ShareMaps, PolicyWord) -> Option<u32>,
    ) -> Option<Policy> {
        for _ in 0..TRIES {
            let published = self.maps.published();
            fence(Ordering::Acquire);
            // What was known of slots is of the former generation, in which they may have had other
            // contents.
            if published.generation() != self.generation {
                self.forget(published.generation());
            }
            let word = tracked.policy_word();
            let slot = if word.generation() == self.generation {
                word.slot()
            } else {
                idle(self.maps, published)?
            };
            let policy = self.policy(slot);
            fence(Ordering::Acquire);
            // Then the slot had this content all the time: it is not written while a generation leads to it.
            let now = self.maps.published().generation();
            if now == self.generation {
                return policy.filter(|policy| self.maps.kind.has(policy));
            }
            self.forget(now);
        }
        None
    }

    fn policy(&mut self, slot: u32) -> Option<Policy> {
        if let Some((last, policy)) = self.last
            && last == slot
        {
            return policy;
        }
        let maps = self.maps;
        let policy = *self.known.entry(slot).or_insert_with(|| maps.policies.policy(slot));
        self.last = Some((slot, policy));
        policy
    }

    fn forget(&mut self, generation: u32) {
        (self.generation, self.last) = (generation, None);
        self.known.clear();
    }
}

/// The policy that was asked for last, while limits stay as they are: that of nearly all buckets, one after the other.
struct ClusterSlots<'a> {
    maps: &'a ShareMaps,
    in_force: &'a InForce,
    generation: u32,
    last: Option<(u32, Option<Policy>)>,
}

impl<'a> ClusterSlots<'a> {
    fn new(maps: &'a ShareMaps, in_force: &'a InForce) -> Self {
        Self { maps, in_force, generation: maps.published().generation(), last: None }
    }

    /// The policy that the next packet of a bucket's source meets, if it is the cluster's.
    fn policy(&mut self, tracked: &Tracked<'_>) -> Option<Policy> {
        let resolved = tracked.policy_word();
        if resolved.generation() != self.generation {
            // No packet has come since policies have changed.
            let network = self.maps.table.memory.network_of(tracked);
            let (_, policy) = self.in_force.policy_for(network.addr(), tracked.class());
            return policy.filter(|policy| Kind::Cluster.has(policy));
        }
        let slot = resolved.slot();
        if let Some((last, policy)) = self.last
            && last == slot
        {
            return policy;
        }
        let policy = self.in_force.policy(slot).filter(|policy| Kind::Cluster.has(policy));
        self.last = Some((slot, policy));
        policy
    }
}
