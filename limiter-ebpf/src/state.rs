//! The engine's state over BPF maps.

use aya_ebpf::helpers::generated::{
    bpf_get_prandom_u32, bpf_get_smp_processor_id, bpf_jiffies64, bpf_ktime_get_coarse_ns,
    bpf_ktime_get_ns,
};
use aya_ebpf::maps::Array;
use aya_ebpf::maps::lpm_trie::{Key, LpmTrie};
use limiter_common::abi::{
    Config, Counters, Event, INTERNALS, Internal, Policy, Reason, Tally, VERDICTS, keys,
};
use limiter_common::atomic::{self, AtomicU64};
use limiter_common::batch::{BATCHES_PER_CPU, Batch};
use limiter_common::class::Table;
use limiter_common::drop_cache::{DROP_CACHE_ENTRIES, DropCacheEntry};
use limiter_common::engine::{Constants, Processor, State};
use limiter_common::evidence::{INTERVAL, TOLERANCE};
use limiter_common::features::Features;
use limiter_common::gcra::{decide, ticks};
use limiter_common::hash::{Hash, HashKey};
use limiter_common::hll::Registers;
use limiter_common::key::{ClassKey, PrefixMasks, SourceKey};
use limiter_common::lists::Entry;
use limiter_common::peers::Listen;
use limiter_common::sampling::asked_for;
use limiter_common::share::ShareSlot;
use limiter_common::shared::Shared;
use limiter_common::sketch::{Shape, Window};
use limiter_common::table::{Identity, Slot};
use limiter_common::tunnels::{MAX_TUNNELS, Prefix};

use crate::maps::{
    BATCHES, CLASSES, CONFIG, COUNTERS, DISTINCT, DROP_CACHE, EVENTS, EXACT, FEATURES, FILTER,
    FINGERPRINTS, IDENTITIES, LAYOUT, LISTED, LISTED4, LISTED6, LISTEN, PEERS, POLICIES,
    PREFIX_BITMAP, PREFIXES4, PREFIXES6, SHARED, SHARED4, SHARED6, SHARES, SKETCH, SLOTS, TUNNELS,
};
use crate::marks;

/// Reads a field of a read-only global as the loader set it.
macro_rules! global {
    ($($field:tt).+) => {
        // SAFETY: a valid, aligned field of a static that nobody writes after loading. Volatile,
        // because the compiler would otherwise use the initial value it can see.
        unsafe { (&raw const $($field).+).read_volatile() }
    };
}

/// Reads a field of [`LAYOUT`].
macro_rules! layout {
    ($($field:tt).+) => { global!(LAYOUT.$($field).+) };
}

/// An element of an array map that is only accessed atomically.
#[inline(always)]
fn element<T>(map: &'static Array<T>, index: u32) -> Option<&'static T> {
    map.get(index)
}

/// The value of the longest prefix of a class that contains a source.
#[inline(always)]
fn longest(
    ipv4: &'static LpmTrie<[u8; 6], u32>,
    ipv6: &'static LpmTrie<[u8; 18], u32>,
    class: u32,
    key: SourceKey,
) -> Option<u32> {
    let class = class as u8;
    match key.ipv4() {
        Some(bits) => {
            let [a, b, c, d] = bits.to_be_bytes();
            // The class first: a trie matches from the front, so one trie serves all classes.
            ipv4.get(Key::new(48, [class, 0, a, b, c, d])).copied()
        }
        None => {
            let mut data = [0; 18];
            data[0] = class;
            data[2..].copy_from_slice(&key.octets());
            ipv6.get(Key::new(144, data)).copied()
        }
    }
}

/// The maps, with this CPU's counters at hand.
pub(crate) struct Kernel {
    counters: *mut Counters,
    /// The configuration, if it is at hand.
    config: Option<&'static Config>,
    /// The element of [`crate::maps::ARRIVAL`] in which the packet lies.
    pub(crate) hand: u32,
}

impl Kernel {
    /// `None` only if the counters' map is missing, which the loader rules out.
    #[inline(always)]
    pub(crate) fn new() -> Option<Self> {
        Some(Self { counters: COUNTERS.get_ptr_mut(0)?, config: None, hand: 0 })
    }

    /// With the configuration at hand: the entry needs it twice for each packet.
    #[inline(always)]
    pub(crate) fn with_config(self) -> Option<Self> {
        Some(Self { config: Some(element(&CONFIG, 0)?), ..self })
    }

    /// With the packet in another element.
    #[inline(always)]
    pub(crate) fn with_hand(self, hand: u32) -> Self {
        Self { hand, ..self }
    }

    /// Counts a frame of `length` bytes under its reason.
    #[inline(always)]
    pub(crate) fn count(&self, reason: Reason, length: u32) {
        // The compiler knows that reasons are few and leaves the mask out, which the verifier needs.
        let index = self.opaque(reason as u64) as usize & (VERDICTS - 1);
        // SAFETY: `counters` is this CPU's element of the map; XDP programs are not preempted by one
        // another on a CPU, and the daemon only reads.
        let tally: &mut Tally = unsafe { &mut (*self.counters).verdicts[index] };
        tally.packets += 1;
        tally.bytes += u64::from(length);
    }

    /// The value itself, of which the compiler knows nothing.
    #[inline(always)]
    pub(crate) fn opaque(&self, value: u64) -> u64 {
        // SAFETY: as in `count`. Volatile, so that the value does go through memory, where the
        // verifier does not track it.
        unsafe {
            let scratch = &raw mut (*self.counters).scratch;
            scratch.write_volatile(value);
            scratch.read_volatile()
        }
    }

    /// Whether the packet in hand, which was over its limit, is to be looked up among this host's connections.
    #[inline(always)]
    pub(crate) fn is_sought(&self) -> bool {
        // SAFETY: as in `count`.
        unsafe { (*self.counters).sought != 0 }
    }

    /// The slot of its source, once.
    #[inline(always)]
    pub(crate) fn take_sought(&self) -> Option<u32> {
        // SAFETY: as in `count`.
        let sought = unsafe { core::mem::take(&mut (*self.counters).sought) };
        sought.checked_sub(1).map(|index| index as u32)
    }

    /// Whether somebody wants samples of packets that met `reason`.
    #[inline(always)]
    pub(crate) fn is_sampled(&self, reason: Reason) -> bool {
        match self.config() {
            Some(config) => asked_for(atomic::load(&config.sampled), reason),
            None => false,
        }
    }
}

impl Constants for Kernel {
    #[inline(always)]
    fn masks(&self) -> PrefixMasks {
        PrefixMasks {
            ipv4: layout!(masks.ipv4),
            ipv6_high: layout!(masks.ipv6_high),
            ipv6_low: layout!(masks.ipv6_low),
        }
    }

    #[inline(always)]
    fn hash(&self, key: SourceKey) -> Hash {
        let words: HashKey = layout!(hash_key);
        words.hash(key)
    }

    #[inline(always)]
    fn shape(&self) -> Shape {
        Shape { mask: layout!(sketch.mask), depth: layout!(sketch.depth) }
    }

    #[inline(always)]
    fn window(&self) -> Window {
        Window { shift: layout!(window_shift) }
    }

    #[inline(always)]
    fn set_mask(&self) -> u32 {
        layout!(set_mask)
    }

    #[inline(always)]
    fn cpus(&self) -> u32 {
        layout!(cpus)
    }

    #[inline(always)]
    fn tunnels(&self) -> u64 {
        global!(TUNNELS.count)
    }

    #[inline(always)]
    fn tunnel(&self, index: usize) -> Prefix {
        let at = (&raw const TUNNELS.prefixes).cast::<Prefix>();
        // SAFETY: the mask keeps the index below the number of elements, of a static that nobody writes after loading;
        // volatile as in `global!`.
        unsafe { at.add(index & (MAX_TUNNELS - 1)).read_volatile() }
    }

    #[inline(always)]
    fn listen(&self) -> Listen {
        let port = global!(LISTEN.port);
        // Most hosts are of no cluster.
        if port == 0 {
            return Listen::default();
        }
        let address =
            SourceKey { high: global!(LISTEN.address.high), low: global!(LISTEN.address.low) };
        Listen { address, port }
    }

    #[inline(always)]
    fn features(&self) -> Features {
        Features(FEATURES.load())
    }
}

impl State for Kernel {
    #[inline(always)]
    fn config(&self) -> Option<&Config> {
        self.config.or_else(|| element(&CONFIG, 0))
    }

    #[inline(always)]
    fn fingerprints(&self, set: u32) -> Option<&AtomicU64> {
        element(&FINGERPRINTS, set)
    }

    #[inline(always)]
    fn slot(&self, index: u32) -> Option<&Slot> {
        element(&SLOTS, index)
    }

    #[inline(always)]
    fn identity(&self, index: u32) -> Option<&Identity> {
        element(&IDENTITIES, index)
    }

    #[inline(always)]
    fn share(&self, index: u32) -> Option<&ShareSlot> {
        element(&SHARES, index)
    }

    #[inline(always)]
    fn drop_cache_entry(&self, index: u32) -> Option<&DropCacheEntry> {
        // SAFETY: this CPU's element of the map, aligned and valid as long as the program runs, and
        // only ever accessed word by word.
        let cache: &[DropCacheEntry; DROP_CACHE_ENTRIES] = unsafe { &*DROP_CACHE.get_ptr(0)? };
        Some(&cache[index as usize % DROP_CACHE_ENTRIES])
    }

    #[inline(always)]
    fn prefix_bitmap(&self, index: u32) -> Option<&AtomicU64> {
        element(&PREFIX_BITMAP, index)
    }

    #[inline(always)]
    fn filter(&self, index: u32) -> Option<&AtomicU64> {
        element(&FILTER, index)
    }

    #[inline(always)]
    fn listed(&self, key: SourceKey) -> Option<Entry> {
        // SAFETY: the daemon replaces elements, it never writes into one; a u64 does not tear.
        unsafe { LISTED.get(key) }.map(|entry| Entry(*entry))
    }

    #[inline(always)]
    fn listed_prefix(&self, key: SourceKey) -> Option<Entry> {
        let entry = match key.ipv4() {
            Some(bits) => LISTED4.get(Key::new(32, bits.to_be_bytes())),
            None => LISTED6.get(Key::new(128, key.octets())),
        };
        entry.map(|entry| Entry(*entry))
    }

    #[inline(always)]
    fn cell(&self, index: u32) -> Option<&AtomicU64> {
        element(&SKETCH, index)
    }

    #[inline(always)]
    fn registers(&self) -> Option<&Registers> {
        element(&DISTINCT, 0)
    }

    #[inline(always)]
    fn policy(&self, slot: u32) -> Option<&Policy> {
        element(&POLICIES, slot)
    }

    #[inline(always)]
    fn lookup(&self, class: u32, key: SourceKey) -> Option<u32> {
        // An empty map still costs a miss of the cache, for each source that a flood invents.
        let absent = atomic::load(&self.config()?.absent);
        if absent & keys::SINGLES == 0 {
            // A single source is longer than any prefix, so a hit ends the search; and a hash is
            // cheaper than a trie.
            let single = ClassKey { source: key, class: u64::from(class) };
            // SAFETY: the daemon replaces elements, it never writes into one; a u32 does not tear.
            if let Some(slot) = unsafe { EXACT.get(single) } {
                return Some(*slot);
            }
        }
        let prefixes = if key.ipv4().is_some() { keys::IPV4 } else { keys::IPV6 };
        if absent & prefixes != 0 {
            return None;
        }
        longest(&PREFIXES4, &PREFIXES6, class, key)
    }

    #[inline(always)]
    fn class_table(&self, index: u32) -> Option<&Table> {
        element(&CLASSES, index)
    }

    #[inline(always)]
    fn shared_by(&self, class: u32, key: SourceKey) -> Option<u32> {
        longest(&SHARED4, &SHARED6, class, key)
    }

    #[inline(always)]
    fn shared(&self, slot: u32) -> Option<&Shared> {
        element(&SHARED, slot)
    }

    #[inline(always)]
    fn batch(&self, slot: u32) -> Option<&Batch> {
        // SAFETY: the helper takes nothing and only tells the CPU, on which the program stays.
        let cpu = unsafe { bpf_get_smp_processor_id() };
        element(&BATCHES, cpu * BATCHES_PER_CPU + slot % BATCHES_PER_CPU)
    }

    #[inline(always)]
    fn peer(&self, address: SourceKey) -> Option<&AtomicU64> {
        // SAFETY: the daemon adds and removes elements and never writes into one; the kernel frees none
        // while a program may be looking at it.
        unsafe { PEERS.get(address) }
    }
}

impl Processor for Kernel {
    #[inline(always)]
    fn now(&self) -> u64 {
        // SAFETY: the helper takes nothing and only reads the clock.
        unsafe { bpf_ktime_get_ns() }
    }

    #[inline(always)]
    fn now_coarse(&self) -> u64 {
        // The coarse clock moves with the kernel's ticks, and asking for the tick is many times
        // cheaper than asking for the clock.
        // SAFETY: the helpers take nothing and only read clocks; the rest as in `count`.
        unsafe {
            let tick = bpf_jiffies64();
            let counters = &mut *self.counters;
            if counters.settled_tick != tick {
                let now_ns = bpf_ktime_get_coarse_ns();
                // The kernel counts ticks, many at once after a pause, before it moves the clock. What is read
                // in between must not last: it does only if it was seen to move in this tick or since the last.
                if now_ns != counters.coarse_ns && tick.wrapping_sub(counters.coarse_tick) <= 1 {
                    counters.settled_tick = tick;
                }
                counters.coarse_tick = tick;
                counters.coarse_ns = now_ns;
            }
            counters.coarse_ns
        }
    }

    #[inline(always)]
    fn promotions(&self) -> Option<&AtomicU64> {
        // SAFETY: a live, aligned word of this CPU's element of the map; as in `count`.
        Some(unsafe { AtomicU64::from_ptr(&raw mut (*self.counters).promotions_tat) })
    }

    #[inline(always)]
    fn note(&self, what: Internal) -> u64 {
        // SAFETY: as in `count`.
        let counter = unsafe { &mut (*self.counters).internal[what as usize & (INTERNALS - 1)] };
        *counter += 1;
        marks::mark(what);
        *counter
    }

    #[inline(always)]
    fn send(&self, event: Event) -> bool {
        EVENTS.output::<Event>(&event, 0).is_ok()
    }

    #[inline(always)]
    fn random(&self) -> u32 {
        // SAFETY: the helper takes nothing and returns a random number.
        unsafe { bpf_get_prandom_u32() }
    }

    #[inline(always)]
    fn look_up(&self, index: u32) {
        let now = ticks(self.now_coarse());
        // SAFETY: as in `count`.
        let counters = unsafe { &mut *self.counters };
        if let Some(next) = decide(counters.lookups_tat, now, INTERVAL, TOLERANCE) {
            counters.lookups_tat = next;
            counters.sought = u64::from(index) + 1;
        }
    }
}
