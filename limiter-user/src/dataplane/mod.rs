//! The kernel's side as the daemon sees it: loaded, attached, told its limits, and read.

mod attach;
mod error;
mod exact;
mod foreign;
pub(crate) mod kernel;
pub(crate) mod link;
mod lists;
mod memory;
mod object;
mod options;
mod orphan;
mod pending;
mod publish;
mod trial;
mod view;

use std::net::IpAddr;
use std::path::PathBuf;

use aya::Ebpf;
use aya::maps::{Map, MapData, MapError, PerCpuArray, RingBuf};
use ipnet::IpNet;
use limiter_common::abi::{self, Counters, EventKind, Policy};
use limiter_common::atomic;
use limiter_common::key::SourceKey;

pub use attach::{Attachment, detach_link};
pub use error::Error;
pub use object::has_program;
pub use options::{Mode, OnFull, Options};
pub use orphan::{Pinned, PinnedOn};
pub use trial::try_load;
pub use view::{Counts, Event, SketchHealth, Source, SourceState, TableHealth};

use attach::Links;
use exact::Exact;
use lists::ListMaps;
use memory::Elements;
use pending::{Denied, Pending};
use publish::{PolicyMaps, Publisher};
use view::{Memory, Now, Tracked};

use crate::policy::compile::{compile, decompile};
use crate::policy::lists::{ListChanges, Lists};
use crate::policy::{Change, Changes, LimitSpec, Limits};

/// The largest frame on an interface with the usual MTU of 1500, without FCS.
const USUAL_FRAME: u32 = 1514;

/// The largest MTU that every driver with native XDP serves to a program without fragments: a frame
/// and what surrounds it in memory must fit a page.
pub const NATIVE_MTU: u32 = 3498;

/// What the Ethernet header and two VLAN tags add to the MTU.
const FRAMING: u32 = 22;

/// The loaded program, its maps, and the interfaces it runs on. Dropping it leaves everything
/// pinned and at work.
pub struct Dataplane {
    options: Options,
    ebpf: Ebpf,
    took_over: bool,
    staging: Option<PathBuf>,
    links: Links,
    memory: Memory,
    publisher: Publisher,
    lists: ListMaps,
    counters: PerCpuArray<MapData, Counters>,
    denied: Denied,
    events: RingBuf<MapData>,
    max_frame: u32,
}

/// Takes the map `name` out of a loaded object, as the type it should have.
fn take<T>(ebpf: &mut Ebpf, name: &'static str) -> Result<T, Error>
where
    T: TryFrom<Map, Error = MapError>,
{
    let map = ebpf
        .take_map(name)
        .ok_or_else(|| Error::Load(format!("no map {name} in the object").into()))?;
    map.try_into().map_err(Error::map(format!("open the map {name}")))
}

/// Maps the memory of the array map `name`.
fn elements<T: memory::Shared>(ebpf: &Ebpf, name: &'static str) -> Result<Elements<T>, Error> {
    match ebpf.map(name) {
        Some(Map::Array(data)) => Elements::new(data, name),
        _ => Err(Error::Load(format!("no array {name} in the object").into())),
    }
}

impl Dataplane {
    /// Loads the kernel program, or takes over what is pinned in `options.pin_dir`: maps with their
    /// buckets and counters, and the interfaces it is attached to, each of which switches to this
    /// program between two packets.
    ///
    /// # Errors
    /// Options out of range, missing privileges, an old kernel, no BPF file system, pins of another
    /// version or made with other options. What was pinned before stays at work; with
    /// `options.reset`, until the first [`Dataplane::publish`].
    pub fn open(options: &Options) -> Result<Self, Error> {
        let object::Loaded { mut ebpf, layout, staging } = object::load(options)?;
        let memory = Memory {
            config: elements(&ebpf, "CONFIG")?,
            fingerprints: elements(&ebpf, "FINGERPRINTS")?,
            slots: elements(&ebpf, "SLOTS")?,
            identities: elements(&ebpf, "IDENTITIES")?,
            cells: elements(&ebpf, "SKETCH")?,
            layout,
        };
        let config = memory.config();
        atomic::store(&config.malformed, u64::from(options.drop_malformed));
        atomic::store(&config.on_full, options.on_full.word());
        let maps = PolicyMaps {
            policies: take(&mut ebpf, "POLICIES")?,
            exact: Exact::take(&mut ebpf, "EXACT")?,
            prefixes4: take(&mut ebpf, "PREFIXES4")?,
            prefixes6: take(&mut ebpf, "PREFIXES6")?,
            max_exact: options.max_limits as usize,
            lengths: layout.masks.lengths(),
        };
        let publisher = Publisher::new(maps, config)?;
        let lists = ListMaps {
            single: Exact::take(&mut ebpf, "LISTED")?,
            prefixes4: take(&mut ebpf, "LISTED4")?,
            prefixes6: take(&mut ebpf, "LISTED6")?,
            filter: elements(&ebpf, "FILTER")?,
            max_single: options.max_listed as usize,
            exempt: Lists::new(),
        };
        let counters = take(&mut ebpf, "COUNTERS")?;
        let denied = take(&mut ebpf, "DENIED")?;
        let events = take(&mut ebpf, "EVENTS")?;
        let links = if staging.is_none() {
            Links::take_over(&options.pin_dir, object::program(&mut ebpf)?)?
        } else {
            Links::default()
        };
        let mut dataplane = Self {
            options: options.clone(),
            ebpf,
            took_over: staging.is_none(),
            staging,
            links,
            memory,
            publisher,
            lists,
            counters,
            denied,
            events,
            max_frame: USUAL_FRAME,
        };
        dataplane.refresh_clock();
        dataplane.measure_frames()?;
        Ok(dataplane)
    }

    /// Whether a data plane was there already.
    pub fn took_over(&self) -> bool {
        self.took_over
    }

    /// Attaches the program to an interface. Does nothing if it is attached in this mode already.
    ///
    /// # Errors
    /// An unknown interface, another XDP program there (unless `replace`), attached in another mode,
    /// or the kernel refuses. The mode is never changed silently.
    pub fn attach(
        &mut self,
        interface: &str,
        mode: Mode,
        replace: bool,
    ) -> Result<Attachment, Error> {
        self.settle()?;
        let program = object::program(&mut self.ebpf)?;
        self.links.attach(&self.options.pin_dir, program, interface, mode, replace)?;
        self.measure_frames()?;
        self.attachments()
            .into_iter()
            .find(|attachment| attachment.name == interface)
            .ok_or_else(|| Error::NotAttached { name: interface.into() })
    }

    /// Detaches the program from an interface; buckets and counters stay.
    ///
    /// # Errors
    /// An unknown interface, or one that is not ours.
    pub fn detach(&mut self, interface: &str) -> Result<(), Error> {
        self.links.detach(interface)
    }

    /// Detaches from all interfaces and removes the pinned maps.
    ///
    /// # Errors
    /// If the pins cannot be removed.
    pub fn detach_all(&mut self) -> Result<(), Error> {
        object::remove(&self.options.pin_dir)?;
        self.links.clear();
        self.staging = None;
        Ok(())
    }

    /// The index of an interface and the id of the XDP program on it, ours or another.
    ///
    /// # Errors
    /// An unknown interface.
    pub fn occupant(&self, interface: &str) -> Result<(u32, Option<u32>), Error> {
        let interface = link::Interface::named(interface)?;
        Ok((interface.index, interface.program.map(|(_, id)| id)))
    }

    /// The interfaces the program is attached to.
    pub fn attachments(&self) -> Vec<Attachment> {
        match self.links.list() {
            Ok(list) => list.into_iter().map(|(attachment, _)| attachment).collect(),
            Err(error) => {
                tracing::warn!("cannot list interfaces: {error}");
                Vec::new()
            }
        }
    }

    /// Finds the largest frame that can arrive, which byte limits' gates depend on.
    fn measure_frames(&mut self) -> Result<(), Error> {
        let largest = self.links.list()?.into_iter().map(|(_, mtu)| mtu + FRAMING).max();
        let max_frame = largest.unwrap_or(USUAL_FRAME).max(USUAL_FRAME);
        if max_frame != self.max_frame {
            self.max_frame = max_frame;
            let known = self.publisher.policies();
            let limits = known.filter_map(|(target, policy)| decompile(target, &policy));
            let changes: Changes = limits.map(Change::Set).collect();
            if !changes.is_empty() {
                self.change(&changes)?;
            }
        }
        Ok(())
    }

    /// Makes exactly `limits` the limits in force. Each source sees its old limit or its new one.
    ///
    /// # Errors
    /// A limit that cannot be enforced, or too many; nothing is changed then. If the kernel refuses,
    /// what was changed is changed back.
    pub fn publish(&mut self, limits: &Limits) -> Result<(), Error> {
        self.change(&self.publisher.replacing(limits))?;
        self.settle()
    }

    /// Makes exactly `lists` the sources that are let through or dropped whatever they send.
    ///
    /// # Errors
    /// Too many of them; nothing is changed then. Or the kernel refuses.
    pub fn publish_lists(&mut self, lists: &Lists) -> Result<(), Error> {
        let (layout, config) = (&self.memory.layout, self.memory.config());
        let published = self.lists.publish(lists, layout, config);
        self.publisher.renew(config);
        published
    }

    /// Changes some entries of the lists, of which `after` is what they are then.
    ///
    /// # Errors
    /// As [`Dataplane::publish_lists`].
    pub fn change_lists(&mut self, changes: &ListChanges, after: &Lists) -> Result<(), Error> {
        let (layout, config) = (&self.memory.layout, self.memory.config());
        let changed = self.lists.change(changes, after, layout, config);
        self.publisher.renew(config);
        changed
    }

    /// Changes some limits: all of them, or none. No target may occur twice.
    ///
    /// # Errors
    /// As [`Dataplane::publish`].
    pub fn change(&mut self, changes: &Changes) -> Result<(), Error> {
        let policies = self.compiled(changes)?;
        self.publisher.change(changes, &policies, self.memory.config())
    }

    /// Whether [`Dataplane::change`] would make `changes`, as far as that can be told beforehand.
    ///
    /// # Errors
    /// As [`Dataplane::change`], but for what only the kernel knows.
    pub fn try_out(&self, changes: &Changes) -> Result<(), Error> {
        self.compiled(changes)?;
        self.publisher.check_room(changes)
    }

    /// Lets no limit apply to sources in `nets`, from the next [`Dataplane::publish`] on.
    pub fn exempt(&mut self, nets: &[IpNet]) {
        self.publisher.exempt(nets);
        self.lists.exempt(nets);
    }

    /// A policy for each of the amounts in use.
    fn compiled(&self, changes: &Changes) -> Result<Vec<Option<Policy>>, Error> {
        let (v4, v6) = self.memory.layout.masks.lengths();
        // What is compiled does not depend on the target, beyond an error's text.
        let mut policies: Vec<Option<Policy>> = vec![None; changes.amounts().len()];
        for (target, amount) in changes.numbered() {
            let Some(amount) = amount else { continue };
            let limit = changes.amounts()[amount].of(target);
            limit.check_prefix(v4, v6)?;
            if policies[amount].is_none() {
                policies[amount] =
                    Some(compile(&limit, self.memory.layout.window_shift, self.max_frame)?);
            }
        }
        Ok(policies)
    }

    /// The limit that applies to an address.
    fn limit_for(&self, address: IpAddr) -> Option<LimitSpec> {
        let (target, policy) = self.publisher.policy_for(address);
        decompile(target, &policy?)
    }

    /// Puts fresh maps, which have their limits now, in the place of what was pinned.
    fn settle(&mut self) -> Result<(), Error> {
        let Some(staging) = self.staging.take() else { return Ok(()) };
        let program = object::program(&mut self.ebpf)?;
        self.links = object::settle(&staging, &self.options.pin_dir, program)?;
        self.measure_frames()
    }

    /// The estimate below which a source with this limit needs no bucket; 1 means that every source
    /// gets one at once, as happens to limits that are slow for the sketch's window.
    pub fn gate_of(&self, limit: &LimitSpec) -> u32 {
        compile(limit, self.memory.layout.window_shift, self.max_frame)
            .map_or(1, |policy| policy.gate)
    }

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

    fn pending(&self) -> Pending {
        Pending::read(&self.denied).unwrap_or_else(|error| {
            // The other counters are right, and late by a moment.
            tracing::warn!(%error, "drops of the last moments are not counted yet");
            Pending::default()
        })
    }

    fn view(&self, tracked: &Tracked<'_>, counts: Counts, now: Now) -> Source {
        let policy = self.publisher.policy(tracked.policy_slot());
        let network = self.memory.network(tracked.key());
        let limit = self.limit_for(network.addr());
        self.memory.source(tracked, counts, policy.as_ref(), limit, now)
    }

    /// What is known of the source that `address` belongs to.
    ///
    /// # Errors
    /// None at present; reading memory cannot fail.
    pub fn source(&self, address: IpAddr) -> Result<Source, Error> {
        let now = Now::take();
        let key = self.memory.key_of(address);
        Ok(match self.memory.find(key) {
            Some(tracked) => self.view(&tracked, tracked.counts(&self.pending()), now),
            None => self.memory.light(key, self.limit_for(self.memory.network(key).addr()), now),
        })
    }

    /// Visits the counts of every source that has a bucket, by the number of the bucket.
    pub fn counts(&self, visit: &mut dyn FnMut(usize, Counts)) {
        let pending = self.pending();
        self.memory.occupied(|bucket, slot| visit(bucket, Counts::of(bucket, slot, &pending)));
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
            visit(bucket, counts, self.view(&tracked, counts, now));
        }
    }

    /// The sketch's size and state.
    pub fn sketch(&self) -> SketchHealth {
        self.memory.sketch_health((self.options.epsilon, self.options.delta))
    }

    /// The bucket table's size and state.
    pub fn table(&self) -> TableHealth {
        self.memory.table_health()
    }

    /// Bits of an IPv4 address that make a source.
    pub fn ipv4_prefix(&self) -> u8 {
        self.memory.layout.masks.lengths().0
    }

    /// Bits of an IPv6 address that make a source.
    pub fn ipv6_prefix(&self) -> u8 {
        self.memory.layout.masks.lengths().1
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
        while let Some(event) = self.events.next().map(|item| parse_event(&item)) {
            let Some(event) = event else { continue };
            let source = self.memory.network(event.source);
            let limit = self.limit_for(source.addr());
            let kind = if event.kind == EventKind::SetFull as u32 {
                EventKind::SetFull
            } else {
                EventKind::Limited
            };
            visit(Event { time: now.wall(event.time_ns), source, kind, limit });
        }
    }
}

/// Reads a record of the ring buffer.
fn parse_event(bytes: &[u8]) -> Option<abi::Event> {
    let word = |at: usize| -> Option<u64> {
        Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
    };
    let half = |at: usize| -> Option<u32> {
        Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
    };
    Some(abi::Event {
        time_ns: word(0)?,
        source: SourceKey { high: word(8)?, low: word(16)? },
        kind: half(24)?,
        policy: half(28)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_read_as_the_kernel_writes_it() {
        let mut bytes = Vec::new();
        for word in [7u64, 1, 2] {
            bytes.extend(word.to_ne_bytes());
        }
        for half in [EventKind::SetFull as u32, 9] {
            bytes.extend(half.to_ne_bytes());
        }
        let event = parse_event(&bytes).unwrap();
        assert_eq!((event.time_ns, event.source.low, event.kind, event.policy), (7, 2, 1, 9));
        assert!(parse_event(&bytes[..31]).is_none());
    }
}
