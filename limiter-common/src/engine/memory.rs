//! The kernel's memory as vectors, with a clock that the caller sets: for tests and simulations.

use core::sync::atomic::{AtomicU64 as Counter, Ordering};
use std::boxed::Box;
use std::collections::HashMap;
use std::sync::OnceLock;
use std::vec;
use std::vec::Vec;

use super::{Classified, Constants, Processor, State, Steps, judge, limit::limit, note_sample};
use crate::abi::{
    Config, Event, EventKind, INTERNALS, Internal, Newcomers, Policy, PolicyWord, Reason,
};
use crate::atomic::{self, AtomicU64};
use crate::batch::{BATCHES_PER_CPU, Batch, pending, take_back};
use crate::class::{BANKS, TABLE_WORDS, TABLES, Table};
use crate::drop_cache::{DROP_CACHE_ENTRIES, DropCacheEntry};
use crate::features::Features;
use crate::hash::{Hash, HashKey};
use crate::hll::{self, LANES, REGISTERS, Ranks, Registers};
use crate::key::{PrefixMasks, SourceKey};
use crate::lists::{
    Entry, PREFIX, PREFIX_BITMAP_WORDS, PREFIX_WORDS, SINGLE, Word, in_use, prefix_bits,
    source_bits,
};
use crate::peers::Listen;
use crate::share::ShareSlot;
use crate::share_change::Bucket;
use crate::shared::{self, SHARED_SLOTS, Shared, TOTAL, TOTAL_SLOT};
use crate::sketch::{Shape, Window};
use crate::table::{Identity, Slot, WAYS};
#[cfg(test)]
use crate::table::{fingerprint, is_claimed, slot_index};
use crate::tunnels::Prefix;

/// How far the coarse clock lags, ns: as on a kernel with 250 ticks a second.
// A lag of nothing would hide what the engine must bear on a real kernel.
pub const TICK_NS: u64 = 4_000_000;

/// The slot of the policy that holds for everybody.
pub const DEFAULT_SLOT: u32 = 1;

/// Words of the lists' filter for single sources.
const FILTER_WORDS: u32 = 1024;

/// A limiter without a kernel.
pub struct Memory {
    /// What the daemon may change.
    pub config: Config,
    /// Compiled limits by slot.
    pub policies: Vec<Policy>,
    /// Limits of single sources by class: policy slots.
    pub limits: HashMap<(u32, SourceKey), u32>,
    /// Limits of all sources by class: policy slots. That of [`crate::class::ANY`] is published.
    pub class_defaults: HashMap<u32, u32>,
    /// Shared limits by class and IPv4 prefix, and their places. The longest is to come first.
    pub shared_prefixes: Vec<(u32, [u8; 4], u32, u32)>,
    /// The shared limits themselves.
    pub shared: Vec<Shared>,
    /// Where it listens for frames of its cluster.
    pub listen: Listen,
    /// Whose tunnels are looked into.
    pub tunnels: Vec<Prefix>,
    /// What it is loaded for; at first for everything.
    pub features: Features,
    /// Addresses of members and seeds, and what is left of their budgets.
    pub peers: HashMap<SourceKey, AtomicU64>,
    tables: Vec<Table>,
    fingerprints: Vec<AtomicU64>,
    pub(super) slots: Vec<Slot>,
    identities: Vec<Identity>,
    shares: Vec<ShareSlot>,
    cells: Vec<AtomicU64>,
    // These and the lists' filters are made when they are asked for: most tests and simulated hosts never look
    // at them.
    registers: OnceLock<Box<Registers>>,
    drop_caches: Vec<OnceLock<Vec<DropCacheEntry>>>,
    batches: OnceLock<Vec<Batch>>,
    prefix_bitmap: Vec<AtomicU64>,
    filter: Vec<AtomicU64>,
    listed: HashMap<SourceKey, Entry>,
    listed_prefixes: HashMap<(SourceKey, u32), Entry>,
    shape: Shape,
    window: Window,
    key: HashKey,
    // Not shared words: tests set the one and read the others, and no decision rests on their order.
    now: Counter,
    clock_reads: Counter,
    list_looks: Counter,
    shared_looks: Counter,
    promotions: Vec<AtomicU64>,
    internal: [Counter; INTERNALS],
    events: Counter,
    last_event: Counter,
    random: Counter,
    /// How it charges packets instead, with a bug that the tests are to find.
    #[cfg(test)]
    pub(super) planted: Option<super::planted::Charge>,
    /// The same of how it looks policies up.
    #[cfg(test)]
    pub(super) planted_renewal: Option<super::planted::Renew>,
}

/// One of its CPUs.
#[derive(Clone, Copy)]
pub struct Cpu<'a> {
    memory: &'a Memory,
    number: usize,
}

impl Memory {
    /// An empty table of `sets` sets (a power of two) and an empty sketch, on `cpus` CPUs, with a
    /// limit for everybody. It is five seconds since boot.
    #[must_use]
    pub fn new(
        default: Policy,
        sets: u32,
        shape: Shape,
        window: Window,
        key: HashKey,
        cpus: u32,
    ) -> Self {
        let memory = Self {
            config: Config::default(),
            policies: vec![Policy::unlimited(default.gate), default],
            limits: HashMap::new(),
            class_defaults: HashMap::new(),
            shared_prefixes: Vec::new(),
            shared: Vec::new(),
            listen: Listen::default(),
            tunnels: Vec::new(),
            features: Features::ALL,
            peers: HashMap::new(),
            tables: Vec::new(),
            fingerprints: (0..sets).map(|_| AtomicU64::new(0)).collect(),
            slots: (0..sets * WAYS).map(|_| Slot::default()).collect(),
            identities: (0..sets * WAYS).map(|_| Identity::default()).collect(),
            shares: (0..sets * WAYS).map(|_| ShareSlot::default()).collect(),
            cells: (0..shape.cells()).map(|_| AtomicU64::new(0)).collect(),
            registers: OnceLock::new(),
            drop_caches: (0..cpus).map(|_| OnceLock::new()).collect(),
            batches: OnceLock::new(),
            prefix_bitmap: Vec::new(),
            filter: Vec::new(),
            listed: HashMap::new(),
            listed_prefixes: HashMap::new(),
            shape,
            window,
            key,
            now: Counter::new(5_000_000_000),
            clock_reads: Counter::new(0),
            list_looks: Counter::new(0),
            shared_looks: Counter::new(0),
            promotions: (0..cpus).map(|_| AtomicU64::new(0)).collect(),
            internal: Default::default(),
            events: Counter::new(0),
            last_event: Counter::new(0),
            random: Counter::new(0),
            #[cfg(test)]
            planted: None,
            #[cfg(test)]
            planted_renewal: None,
        };
        memory.publish(1, DEFAULT_SLOT);
        memory
    }

    /// Puts the policies in force, with `slot` for whoever has no limit of its own.
    pub fn publish(&self, generation: u32, slot: u32) {
        // Slot 0 is "no limit". It has a gate, too, but no source under it can exceed anything.
        let least = self.policies[1..].iter().map(|policy| policy.gate).min().unwrap_or(1);
        let word = Newcomers(atomic::load(&self.config.newcomers)).with_least_gate(least);
        atomic::store(&self.config.newcomers, word.0);
        atomic::store(&self.config.policy, PolicyWord::new(generation, slot).0);
    }

    /// Limits groups by the policy in `slot`; those of IPv6 are prefixes of `ipv6` bits.
    pub fn limit_groups(&self, slot: u32, ipv6: u8) {
        let word = Newcomers(atomic::load(&self.config.newcomers)).with_groups(slot, ipv6);
        atomic::store(&self.config.newcomers, word.0);
    }

    /// Puts a source on a list.
    pub fn list(&mut self, source: SourceKey, entry: Entry) {
        self.make_filters();
        let hash = self.key.hash(source);
        source_bits(source, hash, FILTER_WORDS, |word, bits| self.set_bits(word, bits));
        atomic::or(&self.config.listed, in_use(SINGLE, FILTER_WORDS));
        self.listed.insert(source, entry);
    }

    /// Puts an IPv4 prefix on a list.
    pub fn list_prefix(&mut self, network: [u8; 4], length: u32, entry: Entry) {
        self.make_filters();
        let network = SourceKey::from_ipv4(network);
        prefix_bits(network, length, |word, bits| self.set_bits(word, bits));
        atomic::or(&self.config.listed, PREFIX);
        self.listed_prefixes.insert((network, length), entry);
    }

    fn set_bits(&self, word: Word, bits: u64) {
        let word = match word {
            Word::Bitmap(word) => &self.prefix_bitmap[word as usize],
            Word::Filter(word) => &self.filter[word as usize],
        };
        atomic::or(word, bits);
    }

    fn make_filters(&mut self) {
        if self.filter.is_empty() {
            let words = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
            self.prefix_bitmap = words(PREFIX_BITMAP_WORDS);
            self.filter = words(PREFIX_WORDS + FILTER_WORDS);
        }
    }

    /// The tables of a bank, below [`BANKS`], which is in force from now on.
    pub fn class_tables(&mut self, bank: u32) -> &[Table] {
        if self.tables.is_empty() {
            self.tables = (0..TABLES * BANKS).map(|_| atomic::zeros::<TABLE_WORDS>()).collect();
        }
        atomic::store(&self.config.classes, u64::from(bank) + 1);
        &self.tables[(bank * TABLES) as usize..][..TABLES as usize]
    }

    /// Lets the sources of an IPv4 prefix share the limit in a policy slot, of packets of a class.
    /// Returns its place.
    pub fn share(&mut self, class: u32, network: [u8; 4], length: u32, policy: u32) -> u32 {
        let policy = self.shared_policy(policy);
        let slot = self.shared_slot(policy);
        self.shared_prefixes.push((class, network, length, slot));
        let kind = if class == 0 { shared::PREFIX } else { shared::CLASS };
        atomic::or(&self.config.shared, kind);
        slot
    }

    /// Lets all sources together have the limit in a policy slot.
    pub fn share_all(&mut self, policy: u32) {
        let policy = self.shared_policy(policy);
        self.shared_slot(policy);
        atomic::store(&self.shared[TOTAL_SLOT as usize].policy, u64::from(policy));
        atomic::or(&self.config.shared, TOTAL);
    }

    /// The policy, as it is for sources together.
    fn shared_policy(&mut self, slot: u32) -> u32 {
        let policy = self.policies[slot as usize];
        if policy.sharing.first_common > 0 {
            return slot;
        }
        self.policies.push(policy.shared_by_sources(self.drop_caches.len() as u32, 0));
        self.policies.len() as u32 - 1
    }

    fn shared_slot(&mut self, policy: u32) -> u32 {
        if self.shared.is_empty() {
            // Place 0 is the total's in the kernel's map, whether or not there is one.
            self.shared.push(Shared::default());
        }
        let shared = Shared::default();
        atomic::store(&shared.policy, u64::from(policy));
        self.shared.push(shared);
        assert!(self.shared.len() <= SHARED_SLOTS as usize);
        self.shared.len() as u32 - 1
    }

    fn batches(&self) -> &[Batch] {
        let count = self.drop_caches.len() * BATCHES_PER_CPU as usize;
        self.batches.get_or_init(|| (0..count).map(|_| Batch::default()).collect())
    }

    /// Returns what CPUs hold of all shared limits, as the daemon does.
    pub fn take_back(&self) {
        // The first places alone: the others are empty, and scheduled tests would switch at each of them.
        let used = self.shared.len().min(BATCHES_PER_CPU as usize);
        for batches in self.batches().chunks(BATCHES_PER_CPU as usize) {
            take_back(&batches[..used], &self.shared, |_| true);
        }
    }

    /// Packets that a shared limit has passed and dropped, and bytes offered.
    #[must_use]
    pub fn shared_counts(&self, slot: u32) -> [u64; 3] {
        let shared = &self.shared[slot as usize];
        let [passed, dropped, bytes] = pending(self.batches(), slot);
        let total = |word, more| atomic::load(word).wrapping_add(more);
        [
            total(&shared.passed, passed),
            total(&shared.dropped, dropped),
            total(&shared.bytes, bytes),
        ]
    }

    /// A CPU by its number, modulo how many there are.
    #[must_use]
    pub fn cpu(&self, number: usize) -> Cpu<'_> {
        Cpu { memory: self, number: number % self.drop_caches.len() }
    }

    /// Judges a packet of `length` bytes on the first CPU.
    pub fn packet(&self, source: SourceKey, length: u32) -> Reason {
        self.cpu(0).packet(source, length)
    }

    /// The time, ns since boot.
    #[must_use]
    pub fn time(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// The time as of the last clock tick, ns since boot.
    #[must_use]
    pub fn coarse_time(&self) -> u64 {
        // Rounded down, as the kernel's coarse clock is never ahead: the engine's proofs of P1
        // rest on that.
        self.time() - self.time() % TICK_NS
    }

    /// Sets the time.
    pub fn set_time(&self, ns: u64) {
        self.now.store(ns, Ordering::Relaxed);
    }

    /// Lets time pass.
    pub fn advance(&self, ns: u64) {
        self.now.fetch_add(ns, Ordering::Relaxed);
    }

    /// How often the exact clock was read.
    #[cfg(test)]
    pub(super) fn clock_reads(&self) -> u64 {
        self.clock_reads.load(Ordering::Relaxed)
    }

    /// How often packets looked at the lists or at a filter of them.
    #[cfg(test)]
    pub(super) fn list_looks(&self) -> u64 {
        self.list_looks.load(Ordering::Relaxed)
    }

    /// How often packets looked for a limit that their source shares by its address.
    #[cfg(test)]
    pub(super) fn shared_looks(&self) -> u64 {
        self.shared_looks.load(Ordering::Relaxed)
    }

    fn look_at_lists(&self) -> &Self {
        self.list_looks.fetch_add(1, Ordering::Relaxed);
        self
    }

    /// Until when a CPU drops a source's packets without a look at its bucket, ns since boot; 0 if it does not
    /// remember it.
    #[cfg(test)]
    pub(super) fn drops_until(&self, cpu: usize, source: SourceKey) -> u64 {
        let hash = self.key.hash(source);
        match super::charge::drop_cache_entry(&self.cpu(cpu), hash) {
            Some(entry) if atomic::load(&entry.tag) == hash.0 => atomic::load(&entry.until_ns),
            _ => 0,
        }
    }

    /// How often `what` has happened.
    #[must_use]
    pub fn internal(&self, what: Internal) -> u64 {
        self.internal[what as usize].load(Ordering::Relaxed)
    }

    /// Events that a daemon would have got.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    /// The kind of the last one; `None` if there was none.
    #[must_use]
    pub fn last_event(&self) -> Option<EventKind> {
        let kind = EventKind::from_u32(self.last_event.load(Ordering::Relaxed) as u32);
        kind.filter(|_| self.events() > 0)
    }

    fn registers(&self) -> &Registers {
        self.registers.get_or_init(|| Box::new(atomic::zeros::<{ REGISTERS / LANES }>()))
    }

    /// Distinct sources in the last full window, estimated.
    #[must_use]
    pub fn distinct(&self) -> f64 {
        Ranks::full(self.registers(), hll::epoch(self.coarse_time())).estimate()
    }

    /// Every source with a bucket, and its packets passed and dropped since it has one.
    pub fn tracked(&self) -> impl Iterator<Item = (SourceKey, u64, u64)> + '_ {
        let mut pending: HashMap<(u32, u64), u64> = HashMap::new();
        for entry in self.drop_caches.iter().filter_map(OnceLock::get).flatten() {
            let Some(slot) = entry.basis().slot() else { continue };
            // By slot and tag: a slot may have another source by now, and these drops are not its.
            let whose = (slot, atomic::load(&entry.tag));
            *pending.entry(whose).or_default() += entry.pending().0;
        }
        let slots = self.slots.iter().zip(&self.identities).zip(0..);
        slots.filter_map(move |((slot, identity), index)| {
            let tag = atomic::load(&slot.tag);
            let more = pending.get(&(index, tag)).copied().unwrap_or_default();
            let (passed, dropped) = (atomic::load(&slot.passed), atomic::load(&slot.dropped));
            (tag != 0).then(|| (identity.key(), passed, dropped + more))
        })
    }

    /// The bucket of a source for packets of no class, and its tag.
    #[must_use]
    pub fn bucket(&self, source: SourceKey) -> Option<(u64, Bucket<'_>)> {
        let (tag, index) = self.place(source)?;
        let slot = &self.slots[index];
        // That which its next packet meets, as the daemon finds it.
        let published = PolicyWord(atomic::load(&self.config.policy));
        let mut resolved = PolicyWord(atomic::load(&slot.policy));
        // By the old one, the property of shares once summed up what nobody has any more, in one
        // of thousands of cases.
        if resolved.generation() != published.generation() {
            resolved = published;
        }
        let policy = resolved.slot() as usize;
        let (identity, share) = (&self.identities[index], &self.shares[index]);
        Some((tag, Bucket::new(slot, identity, share, self.policies.get(policy)?)))
    }

    /// The tag of a source's bucket for packets of no class, and its place.
    fn place(&self, source: SourceKey) -> Option<(u64, usize)> {
        let tag = self.key.hash(source).0;
        let index = self.slots.iter().position(|slot| atomic::load(&slot.tag) == tag)?;
        Some((tag, index))
    }

    /// The slot of a source's bucket for packets of no class.
    #[cfg(test)]
    pub(super) fn slot_of(&self, source: SourceKey) -> Option<&Slot> {
        self.place(source).map(|(_, index)| &self.slots[index])
    }

    /// What few buckets need of a source's.
    #[cfg(test)]
    pub(super) fn identity_of(&self, source: SourceKey) -> Option<&Identity> {
        self.place(source).map(|(_, index)| &self.identities[index])
    }

    /// Asserts that each bucket is found by its fingerprint and has the address of its source.
    #[cfg(test)]
    pub(super) fn assert_sound(&self) {
        for (set, word) in self.fingerprints.iter().enumerate() {
            let bytes = atomic::load(word).to_le_bytes();
            for (way, byte) in (0..WAYS).zip(bytes) {
                let index =
                    slot_index(set as u32, way, self.fingerprints.len() as u32 - 1) as usize;
                let tag = atomic::load(&self.slots[index].tag);
                let expected = if tag == 0 { 0 } else { fingerprint(Hash(tag)) };
                let class = atomic::load(&self.identities[index].class) as u32;
                assert_eq!(u64::from(byte), expected, "set {set}, way {way}");
                let key = self.identities[index].key();
                assert!(
                    tag == 0 || self.key.hash(key).of_class(class).0 == tag,
                    "set {set}, way {way}: {key:?}"
                );
                assert!(!is_claimed(atomic::load(&self.slots[index].tat)));
            }
        }
    }

    /// Every source with a bucket, and how many packets its shadow would have dropped.
    pub fn shadow_drops(&self) -> impl Iterator<Item = (SourceKey, u64)> + '_ {
        let slots = self.slots.iter().zip(&self.identities);
        let taken = slots.filter(|(slot, _)| atomic::load(&slot.tag) != 0);
        taken.map(|(_, identity)| (identity.key(), atomic::load(&identity.would_drop)))
    }
}

impl Cpu<'_> {
    /// Judges a packet of `length` bytes, of no class.
    pub fn packet(&self, source: SourceKey, length: u32) -> Reason {
        let config = &self.memory.config;
        let classified = (Classified::NONE, SourceKey::default());
        limit(self, config, source, classified, length).unwrap_or(Reason::Internal)
    }

    /// Judges a frame.
    pub fn frame(&self, frame: &[u8]) -> Reason {
        judge(self, frame)
    }
}

impl Constants for Cpu<'_> {
    fn masks(&self) -> PrefixMasks {
        PrefixMasks::default()
    }
    fn hash(&self, key: SourceKey) -> Hash {
        self.memory.key.hash(key)
    }
    fn shape(&self) -> Shape {
        self.memory.shape
    }
    fn window(&self) -> Window {
        self.memory.window
    }
    fn set_mask(&self) -> u32 {
        self.memory.fingerprints.len() as u32 - 1
    }
    fn cpus(&self) -> u32 {
        self.memory.drop_caches.len() as u32
    }
    fn listen(&self) -> Listen {
        self.memory.listen
    }
    fn tunnels(&self) -> u64 {
        self.memory.tunnels.len() as u64
    }
    fn tunnel(&self, index: usize) -> Prefix {
        self.memory.tunnels[index]
    }
    fn features(&self) -> Features {
        self.memory.features
    }
}

impl State for Cpu<'_> {
    fn config(&self) -> Option<&Config> {
        Some(&self.memory.config)
    }
    fn fingerprints(&self, set: u32) -> Option<&AtomicU64> {
        self.memory.fingerprints.get(set as usize)
    }
    fn slot(&self, index: u32) -> Option<&Slot> {
        self.memory.slots.get(index as usize)
    }
    fn identity(&self, index: u32) -> Option<&Identity> {
        self.memory.identities.get(index as usize)
    }
    fn share(&self, index: u32) -> Option<&ShareSlot> {
        self.memory.shares.get(index as usize)
    }
    fn drop_cache_entry(&self, index: u32) -> Option<&DropCacheEntry> {
        let make = || (0..DROP_CACHE_ENTRIES).map(|_| DropCacheEntry::default()).collect();
        self.memory.drop_caches[self.number].get_or_init(make).get(index as usize)
    }
    fn prefix_bitmap(&self, index: u32) -> Option<&AtomicU64> {
        self.memory.look_at_lists().prefix_bitmap.get(index as usize)
    }
    fn filter(&self, index: u32) -> Option<&AtomicU64> {
        self.memory.look_at_lists().filter.get(index as usize)
    }
    fn listed(&self, key: SourceKey) -> Option<Entry> {
        self.memory.look_at_lists().listed.get(&key).copied()
    }
    fn listed_prefix(&self, key: SourceKey) -> Option<Entry> {
        self.memory.look_at_lists();
        let address = key.ipv4()?;
        (0..=32).rev().find_map(|length| {
            let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
            let network = SourceKey::from_ipv4((address & mask).to_be_bytes());
            self.memory.listed_prefixes.get(&(network, length)).copied()
        })
    }
    fn cell(&self, index: u32) -> Option<&AtomicU64> {
        self.memory.cells.get(index as usize)
    }
    fn registers(&self) -> Option<&Registers> {
        Some(self.memory.registers())
    }
    fn policy(&self, slot: u32) -> Option<&Policy> {
        self.memory.policies.get(slot as usize)
    }
    fn lookup(&self, class: u32, key: SourceKey) -> Option<u32> {
        let memory = self.memory;
        memory.limits.get(&(class, key)).or_else(|| memory.class_defaults.get(&class)).copied()
    }
    fn class_table(&self, index: u32) -> Option<&Table> {
        self.memory.tables.get(index as usize)
    }
    fn shared_by(&self, class: u32, key: SourceKey) -> Option<u32> {
        self.memory.shared_looks.fetch_add(1, Ordering::Relaxed);
        let address = key.ipv4()?;
        let mut prefixes = self.memory.shared_prefixes.iter().filter(|entry| entry.0 == class);
        let found = prefixes.find(|(_, network, length, _)| {
            let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
            address & mask == u32::from_be_bytes(*network)
        });
        found.map(|(_, _, _, slot)| *slot)
    }
    fn shared(&self, slot: u32) -> Option<&Shared> {
        self.memory.shared.get(slot as usize)
    }
    fn batch(&self, slot: u32) -> Option<&Batch> {
        let index = self.number as u32 * BATCHES_PER_CPU + slot % BATCHES_PER_CPU;
        self.memory.batches().get(index as usize)
    }
    fn peer(&self, address: SourceKey) -> Option<&AtomicU64> {
        self.memory.peers.get(&address)
    }
}

impl Steps for Cpu<'_> {
    type Frame = [u8];

    #[cfg(test)]
    fn charge(&self, packet: &super::Arrival, index: u32) -> Option<super::Attempt<Reason>> {
        match self.memory.planted {
            Some(charge) => charge(self, packet, index),
            None => super::steps::charge(self, packet, index),
        }
    }

    #[cfg(test)]
    fn renew(&self, packet: &super::Arrival, index: u32) -> Option<super::Attempt<()>> {
        match self.memory.planted_renewal {
            Some(renew) => renew(self, packet, index),
            None => super::steps::renew(self, packet, index),
        }
    }
}

impl Processor for Cpu<'_> {
    fn now(&self) -> u64 {
        self.memory.clock_reads.fetch_add(1, Ordering::Relaxed);
        self.memory.time()
    }
    fn now_coarse(&self) -> u64 {
        self.memory.coarse_time()
    }
    fn promotions(&self) -> Option<&AtomicU64> {
        self.memory.promotions.get(self.number)
    }
    fn note(&self, what: Internal) -> u64 {
        self.memory.internal[what as usize].fetch_add(1, Ordering::Relaxed) + 1
    }
    // Always room: tests ask how many events there were, and a full ring is the kernel's matter.
    fn send(&self, event: Event) -> bool {
        self.memory.last_event.store(event.kind.into(), Ordering::Relaxed);
        self.memory.events.fetch_add(1, Ordering::Relaxed);
        true
    }
    fn random(&self) -> u32 {
        // Any odd step but 1 serves: the same numbers in each run, and each of the lowest bits equally often.
        self.memory.random.fetch_add(0x9e37_79b1, Ordering::Relaxed) as u32
    }
    // A host without connections.
    fn look_up(&self, index: u32) {
        note_sample(self, index, false);
    }
}
