//! Buckets, and what the limits in force make of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use limiter_common::abi::{EventKind, POLICY_SLOTS, PolicyWord};
use limiter_common::atomic;
use limiter_common::class::{ANY, GROUPS, group_prefix};

use super::Error;
use super::facts::{Event, ShadowView};
use super::publish::{InForce, ShadowLimit, newcomers};
use super::sources::key_of;
use super::table::BucketTable;
use super::view::{Now, Tracked};
use model::compile::decompile;
use model::group::{prefix_of, target_of};
use model::price::Holder;
use model::source::{Counts, Member, Source, SourceShadow};
use model::{Class, Limit};

/// Buckets that are looked at to tell which limits hold the most.
const SAMPLED: usize = 1 << 16;

/// How long ago a group was over its limit that is told of.
const RECENT: Duration = Duration::from_secs(60);

/// The buckets of a [`BucketTable`] beside what is in force: it owns neither. It is apart from both because either can be
/// read, or changed, without the other.
#[derive(Clone, Copy)]
pub struct Buckets<'a> {
    table: &'a BucketTable,
    in_force: &'a InForce,
}

impl<'a> Buckets<'a> {
    pub(super) const fn new(table: &'a BucketTable, in_force: &'a InForce) -> Self {
        Self { table, in_force }
    }

    /// A bucket's source; `None` if its class is not in use, and the bucket about to be emptied.
    fn view(&self, tracked: &Tracked<'_>, counts: Counts, now: Now) -> Option<Source> {
        let network = self.table.memory.network_of(tracked);
        let policy = self.in_force.policy(tracked.policy_slot());
        // Not what its slot says: that was looked up for its last packet. This is what the next one meets.
        let (class, limit) = match group_prefix(tracked.class()) {
            Some(_) => (Class::ANY, self.group_limit(network)),
            None => {
                let class = self.in_force.classes.class(tracked.class())?;
                (class, self.in_force.limit_for(network.addr(), tracked.class()))
            }
        };
        let source = self.table.memory.source(tracked, class, counts, policy.as_ref(), limit, now);
        let (number, packets, would_drop) = tracked.shadow_counts();
        let mut shadows = self.in_force.shadows();
        let shadow = shadows.find(|shadow| u64::from(shadow.number) == number);
        let shadow =
            shadow.map(|ShadowLimit { tier, .. }| SourceShadow { tier, packets, would_drop });
        Some(Source { shadow, ..source })
    }

    /// What is known of the source that `address` belongs to: of its packets of no class, and then of
    /// those of each class that it has a bucket for, as a source or as a destination.
    ///
    /// # Errors
    /// None at present; reading memory cannot fail.
    pub fn source(&self, address: IpAddr) -> Result<Vec<Source>, Error> {
        let now = Now::take();
        let key = self.table.memory.key_of(address);
        let pending = self.table.pending();
        let found = |class| {
            let tracked =
                self.table.memory.find(self.table.memory.key_for(address, class), class)?;
            self.view(&tracked, tracked.counts(&pending), now)
        };
        let network = self.table.memory.network(key).addr();
        // A source without a bucket is answered for, too, as it has an estimate and a limit.
        let any = found(ANY as u8).unwrap_or_else(|| {
            self.table.memory.light(key, self.in_force.limit_for(network, ANY as u8), now)
        });
        Ok([any].into_iter().chain(self.in_force.classes.ids().filter_map(found)).collect())
    }

    /// The limit of a group; `None` where groups are not limited.
    fn group_limit(&self, group: IpNet) -> Option<Limit> {
        let slot = newcomers(self.table.memory.config()).group_slot();
        decompile(target_of(group), &self.in_force.policy(slot)?)
    }

    /// What is known of the group that `address` belongs to; `None` where groups are not limited.
    pub fn group(&self, address: IpAddr) -> Option<Source> {
        let (memory, now) = (&self.table.memory, Now::take());
        let (key, bits) = key_of(address).group(newcomers(memory.config()).group_ipv6_prefix());
        let class = (GROUPS + bits) as u8;
        let group = prefix_of(key.address(), bits as u8);
        let limit = self.group_limit(group)?;
        let found = memory
            .find(key, class)
            .and_then(|tracked| self.view(&tracked, tracked.counts(&self.table.pending()), now));
        Some(found.unwrap_or_else(|| Source {
            source: group,
            is_group: true,
            estimate: memory.estimate(key, class, now),
            ..memory.light(key, Some(limit), now)
        }))
    }

    /// The `n` groups that have lost most of those that were over their limit within the last minute, and how many of
    /// those there are.
    pub fn limited_groups(&self, n: usize) -> (Vec<Source>, usize) {
        let (memory, now) = (&self.table.memory, Now::take());
        let (pending, identities) = (self.table.pending(), memory.identities.all());
        let mut found = Vec::new();
        memory.occupied(|bucket, slot| {
            // Most buckets end here, without a look at whose they are.
            if atomic::load(&slot.dropped) == 0 || !now.is_recent(slot, RECENT) {
                return;
            }
            let class = identities.get(bucket).map_or(0, |known| atomic::load(&known.class));
            if group_prefix(class as u8).is_some() {
                found.push((Reverse(pending.counts(bucket, slot).dropped), bucket));
            }
        });
        found.sort_unstable();
        let most = found.iter().take(n).filter_map(|(_, bucket)| memory.at(*bucket));
        let views = most.filter_map(|it| self.view(&it, it.counts(&pending), now));
        (views.collect(), found.len())
    }

    /// Visits the sources that have buckets of these numbers.
    pub fn members(
        &self,
        buckets: &mut dyn Iterator<Item = usize>,
        visit: &mut dyn FnMut(usize, Member),
    ) {
        let (pending, now) = (self.table.pending(), Now::take());
        self.table.memory.part(buckets, |bucket, tracked| {
            // What goes to a destination is counted by who sends it.
            let class = self.in_force.classes.class(tracked.class());
            let Some(class) = class.filter(|class| !class.is_of_destinations()) else { return };
            let counts = tracked.counts(&pending);
            visit(
                bucket,
                Member {
                    source: self.table.memory.network(tracked.key()),
                    class,
                    counts,
                    first_seen: now.wall(counts.since_ns),
                    last_seen: now.wall(tracked.last_seen_ns()),
                },
            );
        });
    }

    /// Visits the sources that have the buckets of these numbers now, and what the buckets count.
    pub fn sources_at(&self, buckets: &[usize], visit: &mut dyn FnMut(usize, Counts, Source)) {
        let (pending, now) = (self.table.pending(), Now::take());
        for &bucket in buckets {
            let Some(tracked) = self.table.memory.at(bucket) else { continue };
            let counts = tracked.counts(&pending);
            if let Some(source) = self.view(&tracked, counts, now) {
                visit(bucket, counts, source);
            }
        }
    }

    /// The number of the bucket that a source has for packets of a class.
    pub fn bucket_of(&self, source: IpNet, class: Class) -> Option<usize> {
        let class = self.in_force.classes.id(&class)?;
        let key = self.table.memory.key_for(source.addr(), class);
        Some(self.table.memory.find(key, class)?.bucket())
    }

    /// The limits whose sources hold the most buckets, up to `most` of them; estimated in a large table.
    pub fn holders(&self, most: usize) -> Vec<Holder> {
        let now = Now::take().ticks();
        let slots = self.table.memory.slots.all();
        // Of a large table every so many: `status` is asked most where floods take the processor.
        let stride = slots.len().div_ceil(SAMPLED).max(1);
        let mut counts = vec![0u64; POLICY_SLOTS as usize];
        for slot in slots.iter().step_by(stride) {
            if slot.is_held(now)
                && let Some(count) =
                    counts.get_mut(PolicyWord(atomic::load(&slot.policy)).slot() as usize)
            {
                *count += stride as u64;
            }
        }
        let mut held: Vec<_> = (0..).zip(counts).filter(|(_, buckets)| *buckets > 0).collect();
        held.sort_unstable_by_key(|(slot, buckets)| (Reverse(*buckets), *slot));
        let limit = |slot| {
            let policy = self.in_force.policy(slot)?;
            decompile(self.in_force.target_in(slot)?, &policy)
        };
        held.into_iter()
            .filter_map(|(slot, buckets)| Some(Holder { limit: limit(slot)?, buckets }))
            .take(most)
            .collect()
    }

    /// Drains the events that have come since the last call.
    pub fn events(&self, visit: &mut dyn FnMut(Event)) {
        let now = Now::take();
        loop {
            let events = self.table.events.take();
            if events.is_empty() {
                return;
            }
            for event in events {
                let Some(kind) = EventKind::from_u32(event.kind) else { continue };
                let memory = &self.table.memory;
                let source = match kind {
                    EventKind::GroupLimited | EventKind::GroupSetFull => {
                        let ipv6 = newcomers(memory.config()).group_ipv6_prefix();
                        prefix_of(event.source.address(), event.source.group(ipv6).1 as u8)
                    }
                    EventKind::DestinationLimited | EventKind::DestinationSetFull => {
                        event.source.address().into()
                    }
                    EventKind::Limited | EventKind::SetFull => memory.network(event.source),
                };
                let policy = self.in_force.policy(event.policy);
                let limit = policy.and_then(|policy| decompile(source.into(), &policy));
                visit(Event { time: now.wall(event.time_ns), source, kind, limit });
            }
        }
    }

    /// All shadow limits, and the `n` sources of each that would have lost most.
    pub fn shadows(&self, n: usize) -> Vec<ShadowView> {
        self.in_force.shadows().map(|shadow| self.shadow(&shadow, n)).collect()
    }

    fn shadow(&self, shadow: &ShadowLimit, n: usize) -> ShadowView {
        let ShadowLimit { target, tier, number } = *shadow;
        let mut view = ShadowView {
            target,
            tier,
            sources: 0,
            limited: 0,
            packets: 0,
            would_drop: 0,
            most: Vec::new(),
        };
        let identities = self.table.memory.identities.all();
        let mut most = BinaryHeap::new();
        self.table.memory.occupied(|bucket, _| {
            let Some(identity) = identities.get(bucket) else { return };
            if atomic::load(&identity.shadow_id) != u64::from(number) {
                return;
            }
            let would_drop = atomic::load(&identity.would_drop);
            view.sources += 1;
            view.limited += u64::from(would_drop > 0);
            view.packets += atomic::load(&identity.shadow_packets);
            view.would_drop += would_drop;
            if would_drop > 0 {
                // The heap has the least of them on top, so that `n` are kept of however many
                // buckets there are.
                most.push(Reverse((would_drop, bucket)));
                if most.len() > n {
                    most.pop();
                }
            }
        });
        let (pending, now) = (self.table.pending(), Now::take());
        for Reverse((would_drop, bucket)) in most.into_sorted_vec() {
            // Another source may have got the bucket since.
            let Some(tracked) = self.table.memory.at(bucket) else { continue };
            let packets =
                identities.get(bucket).map_or(0, |identity| atomic::load(&identity.shadow_packets));
            let counts = tracked.counts(&pending);
            if let Some(source) = self.view(&tracked, counts, now) {
                view.most.push((source, packets, would_drop));
            }
        }
        view
    }
}
