//! The layouts of the maps, shared by the kernel program and the daemon.
//!
//! No `bool`, `Option` or enum lies in a map: every field is a number that any bit pattern is valid
//! for, padding is explicit, and sizes and offsets are checked at compile time. [`ABI_VERSION`] is
//! raised with every change; a daemon refuses pinned maps of another version.
//!
//! A field has one meaning. Several numbers share a word only where they must change in one step, or
//! where a cache line has no room; such a word has a type of its own, which names its parts.
//! `docs/design/abi.md` lists all maps: their keys, values, writers and readers.

use crate::algorithm;
use crate::atomic::AtomicU64;
use crate::drop_cache::DropCacheEntry;
use crate::gcra::{MAX_TOLERANCE, Ticks};
use crate::hash::HashKey;
use crate::key::{PrefixMasks, SourceKey};
use crate::peers::Listen;
use crate::share::{Multiplier, ShareSlot};
use crate::shared::Shared;
use crate::sketch::Shape;
use crate::table::{Identity, Slot};
use core::mem::{offset_of, size_of};

/// The version of every layout in this file.
pub const ABI_VERSION: u32 = 18;

/// What is fixed while the maps live: a read-only global of the program, kept beside the maps so
/// that a later daemon can check it against its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Layout {
    /// [`ABI_VERSION`] of whoever made the maps.
    pub abi: u32,
    /// log2 of the sketch's epoch in ns.
    pub window_shift: u32,
    /// Rows and columns of the sketch.
    pub sketch: Shape,
    /// Sets in the bucket table, minus one; a power of two minus one.
    pub set_mask: u32,
    /// CPUs that may run the program, those that are offline included.
    // One that comes online later charges packets like the others.
    pub cpus: u32,
    /// Words of the lists' filter that there are for single sources; a power of two.
    pub filter_words: u32,
    /// To 8 bytes: 0.
    pub padding: u32,
    /// How many bits of an address make a source.
    // Sources in the buckets were cut by these. Under others no packet would find its bucket again.
    pub masks: PrefixMasks,
    /// The hash's secret. It stays with the maps, or no bucket would be found again.
    pub hash_key: HashKey,
}

/// What the daemon changes while packets flow. One element; each word changes atomically.
///
/// The first cache line has what packets read, and only the daemon writes it. The words that packets
/// write are in the second one, so that they do not take the first one away from other CPUs.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Config {
    /// `generation << 32 | default policy slot`: see [`PolicyWord`].
    pub policy: AtomicU64,
    /// What sources without a bucket meet: see [`Newcomers`].
    // One word, so that light sources pass without a look at any policy.
    pub newcomers: AtomicU64,
    /// Wall-clock minus monotonic time in ns.
    // The program has the monotonic clock alone, and hosts agree on epochs by the wall clock.
    pub clock_offset: AtomicU64,
    /// The reasons of which samples are wanted: a bit for each discriminant of [`Reason`].
    pub sampled: AtomicU64,
    /// What to do when a set has no free buckets: see [`on_full`].
    pub on_full: AtomicU64,
    /// Which kinds of entries the lists have, and how much of their filter is in use: see
    /// [`crate::lists::in_use`]. One word, because a packet must not meet new entries with the former
    /// size of the filter.
    pub listed: AtomicU64,
    /// The bank of tables that tells classes apart, plus one; 0 for no classes: see [`crate::class`].
    pub classes: AtomicU64,
    /// Which kinds of shared limits there are: see [`crate::shared`].
    pub shared: AtomicU64,
    /// Packets added to the sketch, as a sketch cell of its own (in steps of [`TOTAL_STEP`]).
    pub sketch_total: AtomicU64,
    /// GCRA word of [`EventKind::Limited`] and its like, so that a flood does not become a flood of events.
    pub limited_event_tat: AtomicU64,
    /// GCRA word of [`EventKind::SetFull`] and its like.
    pub set_full_event_tat: AtomicU64,
    /// Verdict for IP packets whose source cannot be read: 0 pass, 1 drop. Such packets are rare, and
    /// the first cache line is full.
    pub drop_malformed: AtomicU64,
    /// Verdict for what the link needs: 0 pass, 1 that of its sender's limit. See [`crate::packet::is_link_control`].
    pub limit_link_control: AtomicU64,
    /// Kinds of keys that no limit has, so that packets do not look for them: see [`keys`].
    // What is absent, not what is there: with zero a packet looks everywhere, which is never wrong.
    pub absent: AtomicU64,
    /// The features that have been used: see [`crate::features::Features`].
    // Only for a daemon that takes the maps over: its program must serve them.
    pub features: AtomicU64,
    /// To a cache line.
    pub padding: [AtomicU64; 1],
}

/// What the frames of an interface are like: there is a program for each kind, loaded with its number as a read-only global.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LinkKind {
    /// Ethernet, a frame in one buffer.
    Ethernet = 0,
    /// Ethernet, a frame in several buffers: an MTU beyond a page.
    Jumbo = 1,
    /// Packets without Ethernet, from the IP header on: tun, WireGuard, PPP, IP in IP.
    Ip = 2,
}

impl LinkKind {
    /// The name of its program.
    #[must_use]
    pub const fn program(self) -> &'static str {
        match self {
            Self::Ethernet => "limiter",
            Self::Jumbo => "limiter_frags",
            Self::Ip => "limiter_ip",
        }
    }
}

/// What packets of sources without a bucket meet: `slot of the groups' policy:16 | groups' IPv6 prefix:16 | least
/// gate:32`. A word, because the first cache line of [`Config`] is full, and such a packet reads it anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newcomers(pub u64);

impl Newcomers {
    /// The smallest gate over all policies of sources.
    #[inline(always)]
    pub const fn least_gate(self) -> u32 {
        self.0 as u32
    }

    /// With another least gate.
    #[must_use]
    pub const fn with_least_gate(self, gate: u32) -> Self {
        Self(self.0 >> 32 << 32 | gate as u64)
    }

    /// The slot of the policy that every group of sources has; [`UNLIMITED_SLOT`] where groups are not limited.
    #[inline(always)]
    pub const fn group_slot(self) -> u32 {
        (self.0 >> 48) as u32
    }

    /// Leading bits of an IPv6 address that make a group.
    #[inline(always)]
    pub const fn group_ipv6_prefix(self) -> u32 {
        (self.0 >> 32) as u32 & 0xffff
    }

    /// With groups that have the policy in a slot, below [`POLICY_SLOTS`].
    #[must_use]
    pub const fn with_groups(self, slot: u32, ipv6_prefix: u8) -> Self {
        Self((slot as u64) << 48 | (ipv6_prefix as u64) << 32 | self.least_gate() as u64)
    }
}

/// How many packets a CPU adds to the sketch before it tells [`Config::sketch_total`].
pub const TOTAL_STEP: u64 = 64;

/// A policy slot and the generation of policies it was resolved in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyWord(pub u64);

impl PolicyWord {
    /// Packs a word.
    pub const fn new(generation: u32, slot: u32) -> Self {
        Self((generation as u64) << 32 | slot as u64)
    }

    /// The generation of policies and lists. It counts changes, modulo 2^32.
    #[inline(always)]
    pub const fn generation(&self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The slot in the policy array, below [`POLICY_SLOTS`].
    #[inline(always)]
    pub const fn slot(&self) -> u32 {
        self.0 as u32
    }
}

/// What to do with a packet whose source deserves a bucket when its set has no free ones; the
/// values of [`Config::on_full`].
pub mod on_full {
    /// Pass the packet unlimited.
    pub const PASS: u64 = 0;
    /// Drop the packet.
    pub const DROP: u64 = 1;
    /// Give it the least recently used bucket of those that deny nothing.
    pub const EVICT_OLDEST: u64 = 2;
}

/// Kinds of keys that lead to policies; the bits of [`Config::absent`].
pub mod keys {
    /// Single sources, in `EXACT`.
    pub const SINGLES: u64 = 1;
    /// Prefixes of IPv4 addresses, in `PREFIXES4`.
    pub const IPV4: u64 = 2;
    /// Prefixes of IPv6 addresses, in `PREFIXES6`.
    pub const IPV6: u64 = 4;
}

/// The slot of "no limit", always present.
// A slot, not a missing entry: without a default limit `Config::policy` still has to name a policy.
pub const UNLIMITED_SLOT: u32 = 0;

/// The policy array's size. Equal limits share a slot.
// 16 MiB at 256 bytes a slot. A million limits share far fewer amounts.
pub const POLICY_SLOTS: u32 = 65_536;

/// Prefixes of a family that can be listed.
pub const LISTED_PREFIXES: u32 = 1 << 20;

/// A limit of packets or of bytes as the kernel computes with it: a token bucket, or a window.
///
/// A limit in packets has a fixed cost, a limit in bytes one for each byte, no limit neither. Costs are ticks of a token
/// bucket, or what a window counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Tier {
    /// What each packet costs, ≤ [`crate::gcra::MAX_COST`].
    pub fixed: u64,
    /// What each byte costs, times 2^`shift`; < 2^40 so that a frame of 2^20 bytes cannot overflow.
    pub per_byte: u64,
    /// What a window admits; 0 for a token bucket.
    pub limit: u32,
    /// Fraction bits of `per_byte`, 0..=32.
    pub shift: u8,
    /// Of a window: see [`algorithm::Window`].
    pub current_bits: u8,
    /// Of a window, likewise.
    pub previous_bits: u8,
    /// Of a window, likewise.
    pub previous_shift: u8,
    /// The burst as time, ticks; of a window its length.
    pub tolerance: Ticks,
}

impl Tier {
    /// No limit: every packet is free.
    pub const UNLIMITED: Self = Self::of_packets(0, MAX_TOLERANCE);

    /// A token bucket in which each packet costs so many ticks.
    pub const fn of_packets(fixed: Ticks, tolerance: Ticks) -> Self {
        Self {
            fixed,
            per_byte: 0,
            limit: 0,
            shift: 0,
            current_bits: 0,
            previous_bits: 0,
            previous_shift: 0,
            tolerance,
        }
    }

    /// A token bucket in which each byte costs so many ticks, times 2^`shift`.
    pub const fn of_bytes(per_byte: u64, shift: u8, tolerance: Ticks) -> Self {
        Self { per_byte, shift, ..Self::of_packets(0, tolerance) }
    }

    /// With a window in place of the token bucket. What a packet costs is in its units then.
    #[must_use]
    pub const fn in_window(self, window: algorithm::Window) -> Self {
        let algorithm::Window { length, limit, current_bits, previous_bits, previous_shift } =
            window;
        Self { limit, current_bits, previous_bits, previous_shift, tolerance: length, ..self }
    }

    /// Its window; `None` for a token bucket.
    #[inline(always)]
    pub const fn window(&self) -> Option<algorithm::Window> {
        if self.limit == 0 {
            return None;
        }
        let Self { limit, current_bits, previous_bits, previous_shift, tolerance: length, .. } =
            *self;
        Some(algorithm::Window { length, limit, current_bits, previous_bits, previous_shift })
    }

    /// What a policy with it is to be flagged as.
    const fn flags(&self) -> u32 {
        if self.limit == 0 { 0 } else { Policy::WINDOWS }
    }

    /// What a frame of `length` bytes costs, rounded up: rounding never admits more than the limit, and takes less than
    /// one tick, or one unit of a window, per packet from it.
    #[inline(always)]
    pub const fn cost(&self, length: u32) -> u64 {
        // The masks are no-ops for valid policies; they give the verifier its bounds.
        let shift = self.shift & 63;
        let round = (1u64 << shift) - 1;
        self.fixed + (((length & 0xf_ffff) as u64 * self.per_byte + round) >> shift)
    }
}

/// The same limit as the operator wrote it. The kernel never reads it: a later daemon does, which knows
/// the limits in force from the maps alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Terms {
    /// The limit, in units per `period_ns`.
    pub rate: u64,
    /// The period of `rate`, ns.
    pub period_ns: u64,
    /// The burst, in units.
    pub burst: u64,
    /// [`Terms::PACKETS`], [`Terms::BYTES`] or [`Terms::NOTHING`].
    pub unit: u32,
    /// [`Terms::TOKEN_BUCKET`], [`Terms::FIXED_WINDOW`] or [`Terms::SLIDING_WINDOW`].
    pub algorithm: u32,
}

impl Terms {
    /// Nothing is limited.
    pub const NOTHING: u32 = 0;
    /// Packets are limited.
    pub const PACKETS: u32 = 1;
    /// Bytes are limited.
    pub const BYTES: u32 = 2;

    /// By a token bucket.
    pub const TOKEN_BUCKET: u32 = 0;
    /// By a fixed window, of `period_ns`.
    pub const FIXED_WINDOW: u32 = 1;
    /// By a sliding window, of `period_ns`.
    pub const SLIDING_WINDOW: u32 = 2;

    /// No limit.
    pub const UNLIMITED: Self = Self::of_bucket(0, 0, 0, Self::NOTHING);

    /// A token bucket of `burst` and `rate` per `period_ns`, in a unit.
    pub const fn of_bucket(rate: u64, period_ns: u64, burst: u64, unit: u32) -> Self {
        Self { rate, period_ns, burst, unit, algorithm: Self::TOKEN_BUCKET }
    }
}

/// One rate of a limit, compiled: what policies are made of. It lies in no map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompiledTier {
    /// What the kernel computes with.
    pub tier: Tier,
    /// What the operator wrote.
    pub terms: Terms,
    /// Estimates below this need no bucket, packets in a window: see [`crate::gate`].
    pub gate: u32,
}

impl CompiledTier {
    /// No limit: every packet is free, sources are tracked from `gate` packets in a window.
    pub const fn unlimited(gate: u32) -> Self {
        Self { tier: Tier::UNLIMITED, terms: Terms::UNLIMITED, gate }
    }
}

/// A compiled limit: one tier, or two that hold at the same time, and perhaps a shadow, which only counts.
///
/// The first cache line is all that a charge needs under a limit of one tier. The second line serves the
/// other two tiers and promotions, and what follows is for the daemon. Slots have 256 bytes, so that all of
/// them lie across cache lines alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Policy {
    /// The limit.
    pub first: Tier,
    /// Estimates below this need no bucket, for the sake of all tiers: the least of their gates.
    pub gate: u32,
    /// [`Policy::OBSERVE`], [`Policy::SECOND`], [`Policy::SHADOW`], [`Policy::CLUSTER`], [`Policy::EVIDENCE`],
    /// [`Policy::WINDOWS`] and [`Policy::LEASED`].
    pub flags: u32,
    /// The [`Multiplier`] of the share that each bucket has without end, if [`Policy::CLUSTER`] is set; else 0.
    // In the first line, as each packet under a limit of the cluster needs it.
    pub floor: u32,
    /// The number of the shadow, from 1 on; 0 without a shadow.
    // Counts of a former shadow stay in the slots, and the number tells them apart.
    pub shadow_id: u16,
    /// The home share, of which `floor` is the [`Multiplier`], in units of 2^-15: see [`crate::share::burst_floor`].
    pub home: u16,
    /// When a bucket of a cluster limit that is made now is full at the earliest, in the first tier; 0 for
    /// at once.
    pub first_filled: Ticks,
    /// The same of the second tier.
    pub second_filled: Ticks,
    /// The limit in the other unit, if [`Policy::SECOND`] is set.
    pub second: Tier,
    /// The shadow, which only counts, if [`Policy::SHADOW`] is set.
    pub shadow: Tier,
    /// What the operator wrote for `first`.
    pub first_terms: Terms,
    /// What the operator wrote for `second`.
    pub second_terms: Terms,
    /// What the operator wrote for `shadow`.
    pub shadow_terms: Terms,
    /// What is more of a limit that sources share.
    pub sharing: Sharing,
}

/// How CPUs come to the tokens of a limit that sources share; all 0 for others. The tolerance of its tiers has room for
/// what CPUs hold beside the burst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Sharing {
    /// What a CPU draws at once of the first tier, ticks; 0 for what a packet costs.
    pub first_batch: u32,
    /// The same of the second tier.
    pub second_batch: u32,
    /// How much of the first tier's tolerance is left for sources that are not known.
    pub first_common: Ticks,
    /// The same of the second tier.
    pub second_common: Ticks,
    /// How much of the burst is kept for known sources, percent, 0..=90.
    pub reserve: u32,
    /// To 8 bytes: 0.
    pub padding: u32,
}

impl Sharing {
    /// Of a limit that each source has by itself.
    const NONE: Self = Self {
        first_batch: 0,
        second_batch: 0,
        first_common: 0,
        second_common: 0,
        reserve: 0,
        padding: 0,
    };
}

/// Where [`Policy::LEASED`] begins.
const LEASED_SHIFT: u32 = 8;

impl Policy {
    /// A flag: packets over the limit are counted and pass.
    pub const OBSERVE: u32 = 1 << 0;
    /// A flag: there is a second tier.
    pub const SECOND: u32 = 1 << 1;
    /// A flag: there is a shadow.
    pub const SHADOW: u32 = 1 << 2;
    /// A flag: the limit is the cluster's, so each bucket has a share of it.
    pub const CLUSTER: u32 = 1 << 3;
    /// A flag: the limit bans, and only on evidence: see [`crate::evidence`].
    pub const EVIDENCE: u32 = 1 << 4;
    /// A flag: a tier, or the shadow, is a window.
    pub const WINDOWS: u32 = 1 << 5;
    /// A number in the flags: 0, or from 1 on what is done while a central store leases nothing of the limit. For the
    /// daemon alone: to packets such a limit is the cluster's.
    pub const LEASED: u32 = 3 << LEASED_SHIFT;

    /// A limit of one tier.
    pub const fn new(first: CompiledTier) -> Self {
        Self {
            first: first.tier,
            gate: first.gate,
            flags: first.tier.flags(),
            floor: 0,
            shadow_id: 0,
            home: 0,
            first_filled: 0,
            second_filled: 0,
            second: Tier::UNLIMITED,
            shadow: Tier::UNLIMITED,
            first_terms: first.terms,
            second_terms: Terms::UNLIMITED,
            shadow_terms: Terms::UNLIMITED,
            sharing: Sharing::NONE,
        }
    }

    /// No limit, as [`CompiledTier::unlimited`].
    pub const fn unlimited(gate: u32) -> Self {
        Self::new(CompiledTier::unlimited(gate))
    }

    /// With a second tier, which holds at the same time.
    #[must_use]
    pub const fn and(mut self, second: CompiledTier) -> Self {
        self.flags |= Self::SECOND | second.tier.flags();
        self.lower_gate(second.gate);
        self.second = second.tier;
        self.second_terms = second.terms;
        self
    }

    /// With a shadow, under a number from 1 on that no recent one has.
    #[must_use]
    pub const fn with_shadow(mut self, shadow: CompiledTier, shadow_id: u16) -> Self {
        self.flags |= Self::SHADOW | shadow.tier.flags();
        self.lower_gate(shadow.gate);
        self.shadow = shadow.tier;
        self.shadow_terms = shadow.terms;
        self.shadow_id = shadow_id;
        self
    }

    /// Without enforcement.
    #[must_use]
    pub const fn observing(mut self) -> Self {
        self.flags |= Self::OBSERVE;
        self
    }

    /// With a ban that asks for evidence.
    #[must_use]
    pub const fn seeking_evidence(mut self) -> Self {
        self.flags |= Self::EVIDENCE;
        self
    }

    /// As a limit of the cluster, of which each bucket has the share `floor` without end. Who gets a bucket
    /// finds it full at `filled`, by tier, at the earliest (0 for at once): a larger floor than before brings
    /// nobody tokens.
    #[must_use]
    pub const fn shared_by_hosts(mut self, floor: Multiplier, filled: [Ticks; 2]) -> Self {
        self.flags |= Self::CLUSTER;
        self.floor = floor.0;
        self.home = floor.home();
        [self.first_filled, self.second_filled] = filled;
        self
    }

    /// As a limit that a central store leases, with a number from 1 to 3 for what is done while it does not.
    #[must_use]
    pub const fn leased_by_store(mut self, otherwise: u32) -> Self {
        self.flags |= otherwise << LEASED_SHIFT & Self::LEASED;
        self
    }

    /// The number of [`Policy::LEASED`].
    #[must_use]
    pub const fn leased(&self) -> u32 {
        (self.flags & Self::LEASED) >> LEASED_SHIFT
    }

    const fn lower_gate(&mut self, gate: u32) {
        if gate < self.gate {
            self.gate = gate;
        }
    }

    /// The share of a limit of the cluster that each bucket has without end.
    #[inline(always)]
    pub const fn floor(&self) -> Multiplier {
        Multiplier(self.floor)
    }

    /// When a bucket of the cluster's limit that is made now is full at the earliest, by tier.
    #[inline(always)]
    pub const fn filled(&self) -> [Ticks; 2] {
        [self.first_filled, self.second_filled]
    }

    /// The tiers that are enforced, each with what the operator wrote.
    pub fn tiers(&self) -> [Option<(&Tier, &Terms)>; 2] {
        let second = (&self.second, &self.second_terms);
        [Some((&self.first, &self.first_terms)), self.whole().has_second().then_some(second)]
    }
}

/// Why a packet met its verdict. The discriminant indexes [`Counters::verdicts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Reason {
    /// Passed: not IP.
    NonIp = 0,
    /// Passed: too few packets in the window to deserve a bucket.
    BelowGate = 1,
    /// Passed: within the source's limit.
    Conforming = 2,
    /// Passed: no bucket was free and `on_full` is `pass`.
    PassedSetFull = 3,
    /// Passed: IP without a readable source, and `malformed` is `pass`.
    PassedMalformed = 4,
    /// Passed: the program could not reach its own maps; never happens unless a map is missing.
    Internal = 5,
    /// Passed: the source is on the allow list.
    Allowed = 6,
    /// Passed: over the source's limit, which is not enforced.
    WouldDrop = 7,
    /// Dropped: over the source's limit.
    OverLimit = 8,
    /// Dropped: no bucket was free and `on_full` is `drop`.
    DroppedSetFull = 9,
    /// Dropped: IP without a readable source, and `malformed` is `drop`.
    DroppedMalformed = 10,
    /// Dropped: the source is on the deny list.
    Denied = 11,
    /// Dropped: over a limit that the sources of a prefix or a class share.
    OverShared = 12,
    /// Dropped: over the limit of all sources together.
    OverTotal = 13,
    /// Passed: a frame of another host of the cluster, within the budget of its address.
    // At the end, behind reasons to drop: counters are pinned and in files, so no number may
    // change its meaning.
    PeerFrame = 14,
    /// Dropped: such a frame, over that budget.
    OverPeerBudget = 15,
    /// Passed: other CPUs changed the source's bucket twice while the packet was judged.
    PassedContended = 16,
    /// Passed: its source deserves a bucket, but too many got one just now: see [`crate::promotions`].
    Deferred = 17,
    /// Dropped: of a source without a bucket, whose group is over the limit of groups.
    OverGroup = 18,
    /// Passed: the link needs it to work, and `link_control` is `pass`: see [`crate::packet::is_link_control`].
    LinkControl = 19,
    /// Dropped: over the limit of its destination.
    OverDestination = 20,
}

impl Reason {
    /// All of them, in the order of their discriminants.
    pub const ALL: [Self; 21] = [
        Self::NonIp,
        Self::BelowGate,
        Self::Conforming,
        Self::PassedSetFull,
        Self::PassedMalformed,
        Self::Internal,
        Self::Allowed,
        Self::WouldDrop,
        Self::OverLimit,
        Self::DroppedSetFull,
        Self::DroppedMalformed,
        Self::Denied,
        Self::OverShared,
        Self::OverTotal,
        Self::PeerFrame,
        Self::OverPeerBudget,
        Self::PassedContended,
        Self::Deferred,
        Self::OverGroup,
        Self::LinkControl,
        Self::OverDestination,
    ];

    /// The reason with a discriminant; [`Reason::Internal`] for a number that is none.
    #[inline(always)]
    // Not a transmute: the number comes out of a map, and any bit pattern is possible there.
    pub fn from_u32(discriminant: u32) -> Self {
        match discriminant {
            0 => Self::NonIp,
            1 => Self::BelowGate,
            2 => Self::Conforming,
            3 => Self::PassedSetFull,
            4 => Self::PassedMalformed,
            6 => Self::Allowed,
            7 => Self::WouldDrop,
            8 => Self::OverLimit,
            9 => Self::DroppedSetFull,
            10 => Self::DroppedMalformed,
            11 => Self::Denied,
            12 => Self::OverShared,
            13 => Self::OverTotal,
            14 => Self::PeerFrame,
            15 => Self::OverPeerBudget,
            16 => Self::PassedContended,
            17 => Self::Deferred,
            18 => Self::OverGroup,
            19 => Self::LinkControl,
            20 => Self::OverDestination,
            _ => Self::Internal,
        }
    }

    /// Whether the packet goes on.
    #[inline(always)]
    pub const fn passes(self) -> bool {
        (self as u32) < Self::OverLimit as u32
            || matches!(
                self,
                Self::PeerFrame | Self::PassedContended | Self::Deferred | Self::LinkControl
            )
    }

    /// The reason's name in output; the verdict is told beside it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NonIp => "non_ip",
            Self::BelowGate => "below_gate",
            Self::Conforming => "conforming",
            Self::PassedSetFull | Self::DroppedSetFull => "set_full",
            Self::PassedMalformed | Self::DroppedMalformed => "malformed",
            Self::Internal => "internal_error",
            Self::Allowed => "allowed",
            Self::WouldDrop => "would_drop",
            Self::OverLimit => "over_limit",
            Self::Denied => "denied",
            Self::OverShared => "over_shared_limit",
            Self::OverTotal => "over_total_limit",
            Self::PeerFrame => "peer_frame",
            Self::OverPeerBudget => "over_peer_budget",
            Self::PassedContended => "contended",
            Self::Deferred => "promotion_deferred",
            Self::OverGroup => "over_group_limit",
            Self::LinkControl => "link_control",
            Self::OverDestination => "over_destination_limit",
        }
    }
}

/// Places in [`Counters::verdicts`], a power of two: the kernel program masks the index with it.
pub const VERDICTS: usize = 32;

/// Places in [`Counters::internal`], a power of two: the kernel program masks the index with it.
pub const INTERNALS: usize = 16;

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Tally {
    /// Packets.
    pub packets: u64,
    /// Bytes, from the Ethernet header on, without the frame check sequence.
    // The card has checked and removed it before the program sees a frame.
    pub bytes: u64,
}

/// What happened beside verdicts. The discriminant indexes [`Counters::internal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Internal {
    /// A source got a bucket.
    Promotions = 0,
    /// Of those, in the place of another source whose bucket was full again.
    Evictions = 1,
    /// Of those, in the place of a source whose bucket was not (`on_full = evict-oldest`).
    BusyEvictions = 2,
    /// A set had no free buckets.
    SetFull = 3,
    /// IP with an invalid header whose source could be read: limited as usual.
    Malformed = 4,
    /// An event found the ring buffer full.
    EventsLost = 5,
    /// An event was not sent because its kind had sent enough.
    EventsSuppressed = 6,
    /// Two CPUs met on one bucket and one tried again.
    Contended = 7,
    /// Packets added to the sketch.
    SketchAdds = 8,
    /// Packets that somebody who captures wants to see, whether or not a sample was taken.
    SamplesMatched = 9,
    /// A sample found the ring buffer full.
    SamplesLost = 10,
}

impl Internal {
    /// All of them with their names, in the order of their discriminants.
    pub const ALL: [(Self, &'static str); 11] = [
        (Self::Promotions, "promotions"),
        (Self::Evictions, "evictions"),
        (Self::BusyEvictions, "busy_evictions"),
        (Self::SetFull, "set_full"),
        (Self::Malformed, "malformed"),
        (Self::EventsLost, "events_lost"),
        (Self::EventsSuppressed, "events_suppressed"),
        (Self::Contended, "contended"),
        (Self::SketchAdds, "sketch_adds"),
        (Self::SamplesMatched, "samples_matched"),
        (Self::SamplesLost, "samples_lost"),
    ];
}

/// One CPU's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counters {
    /// Every packet counts in exactly one of these; the index is a [`Reason`].
    pub verdicts: [Tally; VERDICTS],
    /// The index is an [`Internal`].
    pub internal: [u64; INTERNALS],
    /// What the program hides from the verifier for a moment; means nothing.
    pub scratch: u64,
    /// The coarse clock when it was last read, ns since boot.
    pub coarse_ns: u64,
    /// The clock tick that `coarse_ns` was read in.
    pub coarse_tick: u64,
    /// The clock tick for all of which `coarse_ns` holds.
    pub settled_tick: u64,
    /// The theoretical arrival time of the CPU's promotions.
    pub promotions_tat: Ticks,
    /// The slot, plus one, whose source has the packet in hand looked up after its verdict; 0 for none: see
    /// [`crate::evidence`].
    pub sought: u64,
    /// GCRA word of those lookups.
    pub lookups_tat: Ticks,
    /// To whole cache lines.
    pub padding: [u64; 1],
}

/// What an event tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum EventKind {
    /// A source was dropped for the first time since its promotion.
    Limited = 0,
    /// A set had no free buckets.
    SetFull = 1,
    /// As [`EventKind::Limited`], of a destination.
    DestinationLimited = 2,
    /// As [`EventKind::SetFull`], of a destination.
    DestinationSetFull = 3,
    /// As [`EventKind::Limited`], of a group of sources.
    GroupLimited = 4,
    /// As [`EventKind::SetFull`], of a group of sources.
    GroupSetFull = 5,
}

impl EventKind {
    /// Kinds of one source. Those of a destination have numbers higher by so much, those of a group by twice as much.
    pub const KINDS: u32 = 2;

    /// The kind with a discriminant; `None` for a number that is none.
    pub const fn from_u32(discriminant: u32) -> Option<Self> {
        match discriminant {
            0 => Some(Self::Limited),
            1 => Some(Self::SetFull),
            2 => Some(Self::DestinationLimited),
            3 => Some(Self::DestinationSetFull),
            4 => Some(Self::GroupLimited),
            5 => Some(Self::GroupSetFull),
            _ => None,
        }
    }
}

/// A record of the ring buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Event {
    /// When, ns since boot.
    pub time_ns: u64,
    /// Whose packet it was, cut to its prefix.
    pub source: SourceKey,
    /// An [`EventKind`].
    pub kind: u32,
    /// The slot of the policy that it was judged by.
    // The slot alone: the daemon looks up what it stands for, so that the program copies no limit.
    pub policy: u32,
}

/// Events of one kind in a second, and at once.
pub const EVENTS_PER_SECOND: u64 = 100;

/// The ring buffer's size in bytes.
// Twenty seconds of all kinds at full rate, at 40 bytes an event: a daemon that is that late loses
// none.
pub const EVENT_RING_BYTES: u32 = 256 * 1024;

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Layout>() == 136 && offset_of!(Layout, hash_key) == 56);
    assert!(size_of::<Listen>() == 24 && offset_of!(Listen, port) == 16);
    assert!(size_of::<Config>() == 128 && offset_of!(Config, sketch_total) == 64);
    assert!(size_of::<Tier>() == 32 && size_of::<Terms>() == 32);
    assert!(size_of::<Policy>() == 256 && offset_of!(Policy, gate) == 32);
    assert!(offset_of!(Policy, second) == 64 && offset_of!(Policy, first_terms) == 128);
    assert!(size_of::<Slot>() == 64 && offset_of!(Slot, first_seen) == 56);
    assert!(size_of::<Identity>() == 64 && offset_of!(Identity, shadow_id) == 40);
    assert!(size_of::<ShareSlot>() == 16 && offset_of!(ShareSlot, floor) == 8);
    assert!(size_of::<Shared>() == 64 && offset_of!(Shared, share) == 48);
    assert!(size_of::<Sharing>() == 32 && offset_of!(Policy, sharing) == 224);
    assert!(size_of::<Counters>() == 704 && offset_of!(Counters, internal) == 512);
    assert!(size_of::<DropCacheEntry>() == 32);
    assert!(size_of::<Event>() == 32 && offset_of!(Event, kind) == 24);
    assert!(Reason::ALL.len() <= VERDICTS && VERDICTS.is_power_of_two());
    assert!(Internal::ALL.len() <= INTERNALS && INTERNALS.is_power_of_two());
};

#[cfg(feature = "pod")]
// Behind a feature of its own: with `user` alone, the cluster's core would be built with aya.
mod pod {
    use super::{Counters, Layout, Policy, Tally, Terms, Tier};
    use crate::key::{ClassKey, SourceKey};
    use crate::peers::Listen;
    use crate::tunnels::Tunnels;

    // SAFETY: integers only, `repr(C)`, no padding (the sizes asserted above are the sums of the
    // fields), so every bit pattern is a value and every byte of a value is initialised.
    unsafe impl aya::Pod for Layout {}
    // SAFETY: as above.
    unsafe impl aya::Pod for Tier {}
    // SAFETY: as above.
    unsafe impl aya::Pod for Terms {}
    // SAFETY: as above.
    unsafe impl aya::Pod for Policy {}
    // SAFETY: as above.
    unsafe impl aya::Pod for Tally {}
    // SAFETY: as above.
    unsafe impl aya::Pod for Counters {}
    // SAFETY: as above.
    unsafe impl aya::Pod for SourceKey {}
    // SAFETY: as above.
    unsafe impl aya::Pod for ClassKey {}
    // SAFETY: as above.
    unsafe impl aya::Pod for Listen {}
    // SAFETY: a u64 and an array of two [`SourceKey`]s each.
    unsafe impl aya::Pod for Tunnels {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
    #[test]
    fn bytes_cost_what_they_should(length in 1u32..65_536, bytes_per_second in 1_000u64..100_000_000_000) {
        let shift = 32;
        let per_byte = (u128::from(16_000_000_000_u64) << shift) / u128::from(bytes_per_second);
        prop_assume!(per_byte < 1 << 40);
        let tier = Tier::of_bytes(per_byte as u64, shift, 0);
        let exact = f64::from(length) * 16e9 / bytes_per_second as f64;
        let got = tier.cost(length) as f64;
        prop_assert!(got >= exact - exact * 1e-6 - 1e-3 && got <= exact + 1.001, "{} {}", got, exact);
    }
    }

    #[test]
    fn discriminants_index_their_tables() {
        for (i, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, i);
            assert_eq!(Reason::from_u32(i as u32), reason);
        }
        for (i, (internal, _)) in Internal::ALL.into_iter().enumerate() {
            assert_eq!(internal as usize, i);
        }
        assert!(Reason::Internal.passes() && !Reason::OverLimit.passes());
        assert!(Reason::PeerFrame.passes() && !Reason::OverPeerBudget.passes());
    }

    #[test]
    fn a_policy_word_keeps_its_parts() {
        let word = PolicyWord::new(u32::MAX, 7);
        assert_eq!((word.generation(), word.slot()), (u32::MAX, 7));
    }

    #[test]
    fn gate_and_groups_do_not_disturb_each_other() {
        let word = Newcomers(0).with_least_gate(16);
        assert_eq!((word.group_slot(), word.least_gate()), (UNLIMITED_SLOT, 16));
        let word = word.with_groups(POLICY_SLOTS - 1, 56).with_least_gate(3);
        assert_eq!((word.group_slot(), word.group_ipv6_prefix()), (POLICY_SLOTS - 1, 56));
        assert_eq!(word.least_gate(), 3);
        assert_eq!(word.with_groups(UNLIMITED_SLOT, 0), Newcomers(3));
    }
}
