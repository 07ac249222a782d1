//! The maps and the read-only globals. Sizes marked 1 are set by the loader.
//!
//! Who writes and reads each of them, and what lies in it, is in `docs/design/abi.md`.

use aya_ebpf::Global;
use aya_ebpf::bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC};
use aya_ebpf::macros::map;
use aya_ebpf::maps::lpm_trie::LpmTrie;
use aya_ebpf::maps::{Array, HashMap, PerCpuArray, RingBuf};
use limiter_common::abi::{
    Config, Counters, EVENT_RING_BYTES, LISTED_PREFIXES, Layout, LinkKind, POLICY_SLOTS, Policy,
};
use limiter_common::atomic::AtomicU64;
use limiter_common::batch::Batch;
use limiter_common::class::{BANKS, TABLES, Table};
use limiter_common::drop_cache::{DROP_CACHE_ENTRIES, DropCacheEntry};
use limiter_common::engine::Arrival;
use limiter_common::gcra::Ticks;
use limiter_common::hash::HashKey;
use limiter_common::hll::Registers;
use limiter_common::key::{ClassKey, PrefixMasks, SourceKey};
use limiter_common::lists::PREFIX_BITMAP_WORDS;
use limiter_common::peers::{Listen, MAX_PEERS};
use limiter_common::sampling::{RING_BYTES, Sampling};
use limiter_common::share::ShareSlot;
use limiter_common::shared::{SHARED_SLOTS, Shared};
use limiter_common::sketch::Shape;
use limiter_common::table::{Identity, Slot};
use limiter_common::tunnels::{MAX_TUNNELS, Prefix, Tunnels};

/// What is fixed while the maps live. The loader overwrites it before the program is verified, so
/// that the verifier sees constants and prunes what they rule out.
#[unsafe(no_mangle)]
pub(crate) static LAYOUT: Layout = Layout {
    abi: 0,
    window_shift: 0,
    sketch: Shape { mask: 0, depth: 0 },
    set_mask: 0,
    cpus: 1,
    filter_words: 1,
    padding: 0,
    masks: PrefixMasks { ipv4: 0, ipv6_high: 0, ipv6_low: 0 },
    hash_key: HashKey { words: [0; 10] },
};

/// Where this host listens for frames of its cluster, likewise.
#[unsafe(no_mangle)]
// A global, not a map: in no cluster its port is a constant 0, and the verifier removes the check
// for frames.
pub(crate) static LISTEN: Listen = Listen { address: SourceKey { high: 0, low: 0 }, port: 0 };

/// Whose tunnels are looked into, likewise.
#[unsafe(no_mangle)]
pub(crate) static TUNNELS: Tunnels = Tunnels {
    count: 0,
    prefixes: [Prefix { key: SourceKey { high: 0, low: 0 }, mask: SourceKey { high: 0, low: 0 } };
        MAX_TUNNELS],
};

/// What the program is loaded for, likewise: the bits of [`limiter_common::features::Features`].
#[unsafe(no_mangle)]
pub(crate) static FEATURES: Global<u32> = Global::new(u32::MAX);

/// What frames it is loaded for, likewise: a [`limiter_common::abi::LinkKind`].
#[unsafe(no_mangle)]
pub(crate) static LINK_KIND: Global<u8> = Global::new(LinkKind::Ethernet as u8);

/// Whether lines are written. The loader sets it before the program is verified, so that the verifier
/// takes all that writes them out again if not.
#[unsafe(no_mangle)]
pub(crate) static KERNEL_LOG: Global<u8> = Global::new(0);

/// The packet in hand, where each of the program's functions finds it: as its source's, its group's and its
/// destination's.
#[map]
pub(crate) static ARRIVAL: PerCpuArray<Arrival> = PerCpuArray::with_max_entries(3, 0);

/// What one CPU has to tell in lines.
#[repr(C)]
pub(crate) struct Marked {
    /// What happened to the packet at hand: a bit for each [`limiter_common::abi::Internal`].
    pub(crate) what: u64,
    /// What the lines tell that are written now, and of which source.
    pub(crate) told: u64,
    pub(crate) source: SourceKey,
    /// GCRA word of the lines.
    pub(crate) tat: Ticks,
    /// Packets about which nothing was written because of it, since the last line.
    pub(crate) left_out: u64,
}

#[map]
// Mapped, so that one store of the daemon puts a generation in force between two packets.
pub(crate) static CONFIG: Array<Config> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
pub(crate) static POLICIES: Array<Policy> = Array::with_max_entries(POLICY_SLOTS, 0);
/// Limits of single sources: key to policy slot.
#[map]
// Not preallocated: room for a million limits would take its memory on hosts that have three.
// Packets never add to it (P3).
pub(crate) static EXACT: HashMap<ClassKey, u32> = HashMap::with_max_entries(1, BPF_F_NO_PREALLOC);
/// Limits by class and IPv4 prefix: a byte for the class, a zero, then the address in network order. A
/// limit of the class for everyone ends after the class.
#[map]
// The kernel refuses a trie that is preallocated, so the flag is no choice here.
pub(crate) static PREFIXES4: LpmTrie<[u8; 6], u32> =
    LpmTrie::with_max_entries(POLICY_SLOTS, BPF_F_NO_PREALLOC);
/// Limits by class and IPv6 prefix.
#[map]
pub(crate) static PREFIXES6: LpmTrie<[u8; 18], u32> =
    LpmTrie::with_max_entries(POLICY_SLOTS, BPF_F_NO_PREALLOC);
/// What tells classes apart: see [`limiter_common::class`].
#[map]
pub(crate) static CLASSES: Array<Table> = Array::with_max_entries(BANKS * TABLES, BPF_F_MMAPABLE);
/// Shared limits by class and IPv4 prefix.
#[map]
pub(crate) static SHARED4: LpmTrie<[u8; 6], u32> =
    LpmTrie::with_max_entries(SHARED_SLOTS, BPF_F_NO_PREALLOC);
/// Shared limits by class and IPv6 prefix.
#[map]
pub(crate) static SHARED6: LpmTrie<[u8; 18], u32> =
    LpmTrie::with_max_entries(SHARED_SLOTS, BPF_F_NO_PREALLOC);
/// The shared limits.
#[map]
pub(crate) static SHARED: Array<Shared> = Array::with_max_entries(SHARED_SLOTS, BPF_F_MMAPABLE);
/// What each CPU holds of shared limits.
#[map]
// By the number of the CPU, not per CPU: the daemon takes back what idle CPUs hold.
pub(crate) static BATCHES: Array<Batch> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
pub(crate) static SKETCH: Array<AtomicU64> = Array::with_max_entries(1, BPF_F_MMAPABLE);
/// What counts distinct sources; one element.
#[map]
pub(crate) static DISTINCT: Array<Registers> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
// Apart from the slots: a source without a bucket learns it from this word alone.
pub(crate) static FINGERPRINTS: Array<AtomicU64> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
pub(crate) static SLOTS: Array<Slot> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
// Apart from the slots: an address is needed at a promotion, not for a charge.
pub(crate) static IDENTITIES: Array<Identity> = Array::with_max_entries(1, BPF_F_MMAPABLE);
/// What buckets may use of limits of the cluster.
#[map]
// Apart from the slots, whose line is full: packets under local limits never touch these.
pub(crate) static SHARES: Array<ShareSlot> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
// Not mapped into the daemon: the kernel maps plain arrays only. The daemon reads those of all
// CPUs with one call.
pub(crate) static COUNTERS: PerCpuArray<Counters> = PerCpuArray::with_max_entries(1, 0);
/// What each CPU remembers of sources over their limit; one element.
#[map]
// Per CPU: a plain array by the number of the CPU was slower, 16.8 Mpps in place of 17.2.
pub(crate) static DROP_CACHE: PerCpuArray<[DropCacheEntry; DROP_CACHE_ENTRIES]> =
    PerCpuArray::with_max_entries(1, 0);
/// Listed sources.
#[map]
// Not preallocated, for a million entries that most hosts do not have.
pub(crate) static LISTED: HashMap<SourceKey, u64> = HashMap::with_max_entries(1, BPF_F_NO_PREALLOC);
/// Listed IPv4 prefixes, network order.
#[map]
pub(crate) static LISTED4: LpmTrie<[u8; 4], u64> =
    LpmTrie::with_max_entries(LISTED_PREFIXES, BPF_F_NO_PREALLOC);
/// Listed IPv6 prefixes, network order.
#[map]
pub(crate) static LISTED6: LpmTrie<[u8; 16], u64> =
    LpmTrie::with_max_entries(LISTED_PREFIXES, BPF_F_NO_PREALLOC);
/// A bit for each prefix of 16 bits in which anything is listed.
#[map]
pub(crate) static PREFIX_BITMAP: Array<AtomicU64> =
    Array::with_max_entries(PREFIX_BITMAP_WORDS, BPF_F_MMAPABLE);
/// Who may be listed: see [`limiter_common::lists`].
#[map]
pub(crate) static FILTER: Array<AtomicU64> = Array::with_max_entries(1, BPF_F_MMAPABLE);
/// Budgets of the members' and seeds' whole addresses, as GCRA words.
#[map]
// A hash by whole address: two members behind one /64 must not share a budget.
pub(crate) static PEERS: HashMap<SourceKey, AtomicU64> =
    HashMap::with_max_entries(MAX_PEERS, BPF_F_NO_PREALLOC);
/// Which samples are wanted.
#[map]
pub(crate) static SAMPLING: Array<Sampling> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
pub(crate) static SAMPLES: RingBuf = RingBuf::with_byte_size(RING_BYTES, 0);
/// What each CPU has to tell of the packet at hand; one element. Never pinned, as it is of no use to
/// another program.
#[map]
pub(crate) static MARKED: PerCpuArray<Marked> = PerCpuArray::with_max_entries(1, 0);
#[map]
pub(crate) static EVENTS: RingBuf = RingBuf::with_byte_size(EVENT_RING_BYTES, 0);
