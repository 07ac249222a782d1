//! Reading the data plane: counters, sources, events and samples.

use std::net::IpAddr;

use ipnet::IpNet;
use limiter_common::abi::{Counters, EventKind};
use limiter_common::atomic;
use limiter_common::class::ANY;

use super::facts::{Event, WindowRanks};
use super::pending::Pending;
use super::publish::ShadowLimit;
use super::view::{Now, Tracked};
use super::{Dataplane, Error, RunTime, kernel};
use model::Class;
use model::Distinct;
use model::compile::decompile;
use model::sample::{PacketSample, SampleFilter};
use model::source::{Counts, Member, Source, SourceShadow};
use model::tables::{SketchHealth, TableHealth};

impl Dataplane {
    /// The counters, summed over CPUs.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn counters(&self) -> Result<Counters, Error> {
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

    pub(super) fn pending(&self) -> Pending {
        Pending::now(&self.drop_caches)
    }

    /// A bucket's source; `None` if its class is not in use, and the bucket about to be emptied.
    pub(super) fn view(&self, tracked: &Tracked<'_>, counts: Counts, now: Now) -> Option<Source> {
        let class = self.publisher.class(tracked.class())?;
        let policy = self.publisher.policy(tracked.policy_slot());
        let network = self.memory.network(tracked.key());
        let limit = self.limit_for(network.addr(), tracked.class());
        let source = self.memory.source(tracked, class, counts, policy.as_ref(), limit, now);
        let (number, packets, would_drop) = tracked.shadow_counts();
        let mut shadows = self.publisher.shadows();
        let shadow = shadows.find(|shadow| u64::from(shadow.number) == number);
        let shadow =
            shadow.map(|ShadowLimit { tier, .. }| SourceShadow { tier, packets, would_drop });
        Some(Source { shadow, ..source })
    }

    /// What is known of the source that `address` belongs to: of its packets of no class, and then of
    /// those of each class that it has a bucket for.
    ///
    /// # Errors
    /// None at present; reading memory cannot fail.
    pub fn source(&self, address: IpAddr) -> Result<Vec<Source>, Error> {
        let now = Now::take();
        let key = self.memory.key_of(address);
        let pending = self.pending();
        let found = |class| {
            let tracked = self.memory.find(key, class)?;
            self.view(&tracked, tracked.counts(&pending), now)
        };
        let network = self.memory.network(key).addr();
        // A source without a bucket is answered for, too, as it has an estimate and a limit.
        let any = found(ANY as u8)
            .unwrap_or_else(|| self.memory.light(key, self.limit_for(network, ANY as u8), now));
        Ok([any].into_iter().chain(self.publisher.class_ids().filter_map(found)).collect())
    }

    /// Visits the counts of every source that has a bucket, by the number of the bucket.
    pub fn counts(&self, visit: &mut dyn FnMut(usize, Counts)) {
        let pending = self.pending();
        self.memory.occupied(|bucket, slot| visit(bucket, pending.counts(bucket, slot)));
    }

    /// The same in the order of the numbers, for whoever looks often: the visit is compiled into the
    /// loop over the table.
    #[inline]
    pub fn counts_in_order(&self, visit: impl FnMut(usize, Counts)) {
        self.memory.counts_in_order(&self.pending(), visit);
    }

    /// Visits the sources that have buckets of these numbers.
    pub fn members(
        &self,
        buckets: &mut dyn Iterator<Item = usize>,
        visit: &mut dyn FnMut(usize, Member),
    ) {
        let (pending, now) = (self.pending(), Now::take());
        self.memory.part(buckets, |bucket, tracked| {
            let Some(class) = self.publisher.class(tracked.class()) else { return };
            let counts = tracked.counts(&pending);
            visit(
                bucket,
                Member {
                    source: self.memory.network(tracked.key()),
                    class,
                    counts,
                    first_seen: now.wall(counts.since_ns),
                    last_seen: now.wall(tracked.last_seen_ns()),
                },
            );
        });
    }

    /// How many buckets there are.
    pub fn buckets(&self) -> usize {
        self.memory.slots.all().len()
    }

    /// Visits the sources that have the buckets of these numbers now, and what the buckets count.
    pub fn sources_at(&self, buckets: &[usize], visit: &mut dyn FnMut(usize, Counts, Source)) {
        let (pending, now) = (self.pending(), Now::take());
        for &bucket in buckets {
            let Some(tracked) = self.memory.at(bucket) else { continue };
            let counts = tracked.counts(&pending);
            if let Some(source) = self.view(&tracked, counts, now) {
                visit(bucket, counts, source);
            }
        }
    }

    /// The sketch's size and state.
    pub fn sketch(&self) -> SketchHealth {
        self.memory.sketch_health((self.options.epsilon, self.options.delta))
    }

    /// The present, ns since boot: the time in which the data plane thinks.
    pub fn monotonic_ns(&self) -> u64 {
        kernel::monotonic_ns()
    }

    /// Mean packets of others in a cell of the sketch.
    pub fn noise(&self) -> f64 {
        self.memory.noise(Now::take())
    }

    /// Distinct sources in the last full window.
    pub fn distinct(&self) -> Option<Distinct> {
        self.memory.distinct()
    }

    /// What that is estimated from.
    pub fn registers(&self) -> Option<WindowRanks> {
        self.memory.registers()
    }

    /// The number of the bucket that a source has for packets of a class.
    pub fn bucket_of(&self, source: IpNet, class: Class) -> Option<usize> {
        let key = self.memory.key_of(source.addr());
        Some(self.memory.find(key, self.class_id(class)?)?.bucket())
    }

    /// How long the kernel program has run, and how often, while the kernel measured that; `None` if the
    /// kernel does not tell.
    pub fn run_time(&self) -> Option<RunTime> {
        RunTime::from_ebpf(&self.ebpf)
    }

    /// The bucket table's size and state.
    pub fn table(&self) -> TableHealth {
        self.memory.table_health()
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

    /// Drains the events that have come since the last call.
    pub fn events(&mut self, visit: &mut dyn FnMut(Event)) {
        let now = Now::take();
        loop {
            let events = self.events.take();
            if events.is_empty() {
                return;
            }
            for event in events {
                let source = self.memory.network(event.source);
                let policy = self.publisher.policy(event.policy);
                let limit = policy.and_then(|policy| decompile(source.into(), &policy));
                let kind = if event.kind == EventKind::SetFull as u32 {
                    EventKind::SetFull
                } else {
                    EventKind::Limited
                };
                visit(Event { time: now.wall(event.time_ns), source, kind, limit });
            }
        }
    }
}

impl Dataplane {
    /// Lets the kernel program take samples of packets, and forgets earlier ones.
    ///
    /// # Errors
    /// If this kernel cannot.
    pub fn start_sampling(&mut self, filter: &SampleFilter) -> Result<(), Error> {
        self.sampler.start(self.memory.config(), filter)
    }

    /// Ends that.
    pub fn stop_sampling(&mut self) {
        self.sampler.stop(self.memory.config());
    }

    /// Visits up to `most` samples that have come since the last call.
    pub fn samples(&mut self, most: usize, visit: &mut dyn FnMut(PacketSample)) {
        // Of a packet whose class is unknown, the limit is.
        let classless = self.publisher.class_ids().next().is_none();
        let mut samples = Vec::new();
        self.sampler.visit(most, &mut |sample| samples.push(sample));
        for sample in samples {
            let limit = sample.source.filter(|_| classless);
            let limit = limit.and_then(|source| self.limit_for(source, ANY as u8));
            visit(PacketSample { limit, ..sample });
        }
    }
}
