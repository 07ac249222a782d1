//! The kernel program's memory, as it is without a look at the limits.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray};
use limiter_common::abi::{Counters, Layout};
use limiter_common::atomic;
use limiter_common::class::MAX_CLASSES;
use limiter_common::hash::{Hash, HashKey};
use limiter_common::hll::{self, Ranks};
use limiter_common::sketch::{Cell, Shape, Total};
use limiter_common::table::{Identity, SPARED, WAYS};
use siphasher::sip::SipHasher24;

use super::events::EventQueue;
use super::facts::{SketchCounts, WindowRanks};
use super::pending::{DropCaches, Pending};
use super::sources::key_of;
use super::view::{Memory, Now};
use super::{Error, Options, elements, kernel, take};
use model::Distinct;
use model::source::Counts;
use model::tables::{SketchHealth, TableHealth};

/// Buckets, sketch, counters and events. Apart from the limits, so that who gives shares reads it in a thread of its
/// own, while they change.
pub struct BucketTable {
    pub(super) memory: Arc<Memory>,
    pub(super) events: EventQueue,
    counters: PerCpuArray<MapData, Counters>,
    drop_caches: DropCaches,
    /// The sketch's ε and δ, as they were asked for.
    requested: (f64, f64),
}

/// What a key is known by. It says nothing about the key: the hash is keyed with two words of it.
fn fingerprint(key: &HashKey) -> u64 {
    let bytes: Vec<u8> = key.words.iter().flat_map(|word| word.to_be_bytes()).collect();
    SipHasher24::new_with_keys(key.words[0], key.words[1]).hash(&bytes)
}

impl BucketTable {
    /// Takes the maps out of a loaded object.
    ///
    /// # Errors
    /// If one is not there, or is not what it should be.
    pub(super) fn take(ebpf: &mut Ebpf, layout: Layout, options: &Options) -> Result<Self, Error> {
        let memory = Memory {
            config: elements(ebpf, "CONFIG")?,
            fingerprints: elements(ebpf, "FINGERPRINTS")?,
            slots: elements(ebpf, "SLOTS")?,
            identities: elements(ebpf, "IDENTITIES")?,
            shares: elements(ebpf, "SHARES")?,
            cells: elements(ebpf, "SKETCH")?,
            registers: elements(ebpf, "DISTINCT")?,
            layout,
        };
        Ok(Self {
            memory: Arc::new(memory),
            events: EventQueue::new(take(ebpf, "EVENTS")?),
            counters: take(ebpf, "COUNTERS")?,
            drop_caches: take(ebpf, "DROP_CACHE")?,
            requested: (options.epsilon, options.delta),
        })
    }

    /// The counters, summed over CPUs.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn counters(&self) -> Result<Counters, Error> {
        // CPUs go on counting while the kernel copies: a sum is of moments
        // that differ a little, and never less than the one before.
        let values = self.counters.get(&0, 0).map_err(Error::map("read the counters"))?;
        let mut sum = Counters::default();
        for counters in values.iter() {
            for (total, tally) in sum.verdicts.iter_mut().zip(&counters.verdicts) {
                total.packets += tally.packets;
                total.bytes += tally.bytes;
            }
            for (total, count) in sum.internal.iter_mut().zip(&counters.internal) {
                *total += count;
            }
        }
        Ok(sum)
    }

    /// Drops that are not in the buckets yet.
    pub(super) fn pending(&self) -> Pending {
        Pending::now(&self.drop_caches)
    }

    /// Visits the counts of every source that has a bucket, by the number of the bucket.
    pub fn counts(&self, visit: &mut dyn FnMut(usize, Counts)) {
        let pending = self.pending();
        self.memory.occupied(|bucket, slot| visit(bucket, pending.counts(bucket, slot)));
    }

    /// The same in the order of the numbers, of buckets that are `wanted`, for whoever looks often: the visit is compiled
    /// into the loop over the table.
    #[inline]
    pub fn counts_in_order(
        &self,
        wanted: impl Fn(&Identity) -> bool,
        visit: impl FnMut(usize, Counts),
    ) {
        self.memory.counts_in_order(&self.pending(), wanted, visit);
    }

    /// How many buckets there are.
    pub fn buckets(&self) -> usize {
        self.memory.slots.all().len()
    }

    /// The sketch's size and state.
    pub fn sketch(&self) -> SketchHealth {
        let shape = self.memory.layout.sketch;
        SketchHealth {
            requested_epsilon: self.requested.0,
            requested_delta: self.requested.1,
            epsilon: std::f64::consts::E / f64::from(shape.width()),
            delta: (-f64::from(shape.depth)).exp(),
            width: shape.width(),
            depth: shape.depth,
            window_ms: self.memory.window().ns() as f64 / 1e6,
            noise: self.noise(),
            memory_bytes: self.memory.cells.bytes(),
        }
    }

    /// The bucket table's size and state.
    pub fn table(&self) -> TableHealth {
        let now = Now::take().ticks();
        let (mut occupied, mut busy, mut held, mut full_sets) = (0, 0, 0, 0);
        for ways in self.memory.occupied_sets() {
            let mut held_ways = 0;
            for (_, slot) in ways {
                occupied += 1;
                busy += u64::from(atomic::load(&slot.tat) > now);
                // Whoever needs a bucket takes any other one: spoofed packets alone fill no set.
                held_ways += u64::from(slot.is_held(now));
            }
            held += held_ways;
            // For a limit that leaves two ways to others.
            full_sets += u64::from(held_ways >= u64::from(WAYS - SPARED));
        }
        let Memory { fingerprints, slots, identities, layout, .. } = &*self.memory;
        let sets = layout.set_mask + 1;
        TableHealth {
            sets,
            ways: WAYS,
            capacity: sets * WAYS,
            occupied,
            busy,
            held,
            full_sets,
            memory_bytes: fingerprints.bytes() + slots.bytes() + identities.bytes(),
        }
    }

    /// The present, ns since boot: the time in which the data plane thinks.
    pub fn monotonic_ns(&self) -> u64 {
        kernel::monotonic_ns()
    }

    /// Mean packets of others in a cell of the sketch, in the sliding window.
    pub fn noise(&self) -> f64 {
        let position = Now::take().position(self.memory.window());
        let total = Total::at(&self.memory.config().sketch_total, position);
        f64::from(total.estimate(position)) / f64::from(self.memory.layout.sketch.width())
    }

    /// Distinct sources in the last full window.
    pub fn distinct(&self) -> Option<Distinct> {
        Some(Distinct {
            sources: self.registers()?.ranks.estimate(),
            standard_error: Ranks::STANDARD_ERROR,
            window_s: (1u64 << hll::WINDOW_SHIFT) as f64 / 1e9,
        })
    }

    /// What that is estimated from.
    pub fn registers(&self) -> Option<WindowRanks> {
        let registers = self.memory.registers.all().first()?;
        let epoch = || hll::epoch(self.wall_ns());
        let mut before = epoch();
        loop {
            let ranks = Ranks::full(registers, before);
            let after = epoch();
            // Registers that rolled meanwhile have forgotten the window that was asked for.
            if after == before {
                let key = fingerprint(&self.memory.layout.hash_key);
                return Some(WindowRanks { ranks, window: after.wrapping_sub(1), key });
            }
            before = after;
        }
    }

    /// The present as the kernel program reckons it, which is up to a millisecond from the wall clock: ns since 1970.
    fn wall_ns(&self) -> u64 {
        let offset_ns = atomic::load(&self.memory.config().clock_offset);
        kernel::monotonic_ns().wrapping_add(offset_ns)
    }

    /// What the sketch has counted in its present epoch. The packets of sources with a bucket, which it does not
    /// count, are added to their cells: as many as `sent` says for a bucket's number, class and counts. `None` if the
    /// epoch ended meanwhile.
    pub fn sketch_counts(
        &self,
        sent: &mut dyn FnMut(usize, u8, &Counts) -> u64,
    ) -> Option<SketchCounts> {
        let Memory { layout, identities, .. } = &*self.memory;
        let (shape, window, now_ns) = (layout.sketch, self.memory.window(), self.wall_ns());
        let epoch = window.position(now_ns).epoch;
        let count = |word| {
            let cell = Cell(atomic::load(word));
            // What was touched in no packet of this epoch still has the count of an earlier one.
            if cell.epoch() == epoch { cell.current().into() } else { 0 }
        };
        let mut cells: Vec<u64> = self.memory.cells.all().iter().map(count).collect();
        // A cell that has rolled meanwhile has forgotten this epoch.
        if window.position(self.wall_ns()).epoch != epoch {
            return None;
        }
        let pending = self.pending();
        self.memory.occupied(|bucket, slot| {
            let class = identities.all().get(bucket).map(|identity| identity.class().class());
            // Packets of a group or a destination are of sources that are counted already.
            let of_sources = |class: &u8| u32::from(*class) <= MAX_CLASSES;
            let Some(class) = class.filter(of_sources) else { return };
            let packets = sent(bucket, class, &pending.counts(bucket, slot));
            let hash = Hash(atomic::load(&slot.tag));
            for row in 0..shape.depth {
                if let Some(cell) = cells.get_mut(shape.index(hash, row) as usize) {
                    *cell += packets;
                }
            }
        });
        let elapsed = Duration::from_nanos(now_ns & (window.ns() - 1));
        let began = SystemTime::UNIX_EPOCH + Duration::from_nanos(now_ns) - elapsed;
        let key = fingerprint(&layout.hash_key);
        Some(SketchCounts { key, shape, window, began, elapsed, cells })
    }

    /// The cells of a source's packets that are in no class, in a sketch of that size: one in each row; and what the
    /// hash's key is known by. `address` is cut to its prefix already.
    pub fn sketch_cells(&self, address: IpAddr, shape: Shape) -> (u64, Vec<u32>) {
        let key = &self.memory.layout.hash_key;
        let hash = key.hash(key_of(address));
        (fingerprint(key), (0..shape.depth).map(|row| shape.index(hash, row)).collect())
    }

    /// Bits of an address that make a source: of IPv4 and of IPv6.
    pub fn prefixes(&self) -> (u8, u8) {
        self.memory.layout.masks.lengths()
    }

    /// Tells the kernel how far the wall clock is from the monotonic one, if that has changed by
    /// more than reading them costs. A stale offset shifts the sketch's epochs, nothing else.
    pub fn refresh_clock(&self) {
        let offset = kernel::clock_offset();
        let word = &self.memory.config().clock_offset;
        if atomic::load(word).abs_diff(offset) > 1_000_000 {
            atomic::store(word, offset);
        }
    }
}
