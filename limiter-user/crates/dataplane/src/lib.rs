//! The kernel's side as the daemon sees it: loaded, attached, told its limits, and read.
//!
//! It owns the program, its maps and links, and all that is `unsafe` about them. It decides nothing: what a limit
//! means is `model`'s, what becomes of a packet `limiter-common`'s. It knows neither requests nor files of state.

mod attach;
mod error;
mod events;
mod exact;
mod facts;
mod floors;
mod foreign;
pub mod kernel;
pub mod link;
mod lists;
mod log;
mod look;
mod memory;
pub mod nic;
mod object;
mod options;
mod orphan;
mod peers;
mod pending;
mod pins;
mod publish;
mod run_time;
mod samples;
mod shadows;
mod share_maps;
mod shares;
mod sources;
mod try_load;
mod view;

use model::interface::{Attachment, Mode};
use model::tables::OnFull;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aya::Ebpf;
use aya::maps::{Map, MapData, MapError, PerCpuArray};
use ipnet::IpNet;
use limiter_common::abi::{Counters, Layout};
use limiter_common::atomic;
use limiter_common::class::ANY;

pub use attach::detach_link;
pub use error::Error;
pub use facts::{Event, WindowRanks};
pub use floors::ClusterTerms;
pub use kernel::wait_for_packets;
pub use link::LinkEvents;
pub use log::KernelLog;
pub use object::has_program;
pub use options::{HashSecret, Options, SOURCE_BYTES};
pub use orphan::Pinned;
pub use pins::pins_of;
pub use publish::SharedCounts;
pub use run_time::RunTime;
pub use shadows::ShadowView;
pub use share_maps::ShareMaps;
pub use shares::{BucketShare, ClusterBucket, ClusterMember, SharesChanged};
pub use try_load::try_load;

use attach::Links;
use events::EventQueue;
use lists::ListMaps;
use memory::Elements;
use peers::PeerMap;
use pending::DropCaches;
use publish::{ClassTables, Compiled, PolicyLookup, PolicyMaps, Publisher};
use samples::Sampler;
use sources::{Prefixes, SourceMaps};
use view::Memory;

use model::chain;
use model::compile::decompile;
use model::lists::{ListChanges, Lists};
use model::{Change, Changes, Class, Limit, Limits, Target};

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
    memory: Arc<Memory>,
    publisher: Publisher,
    shares: Arc<ShareMaps>,
    lists: ListMaps,
    peers: PeerMap,
    counters: PerCpuArray<MapData, Counters>,
    drop_caches: Arc<DropCaches>,
    events: Arc<EventQueue>,
    sampler: Sampler,
    log: Option<KernelLog>,
    max_frame: u32,
    /// The limits that are the cluster's, if it is in one.
    cluster: Option<floors::ClusterLimits>,
}

/// Takes the map `name` out of a loaded object, as the type it should have.
fn take<T>(ebpf: &mut Ebpf, name: &'static str) -> Result<T, Error>
where
    T: TryFrom<Map, Error = MapError>,
{
    let map =
        ebpf.take_map(name).ok_or_else(|| Error::load(format!("no map {name} in the object")))?;
    map.try_into().map_err(Error::map(format!("open the map {name}")))
}

/// Opens the map `name` of a loaded object once more, by a descriptor of its own.
fn second<T>(ebpf: &Ebpf, name: &'static str) -> Result<T, Error>
where
    T: TryFrom<Map, Error = MapError>,
{
    let Some(Map::Array(data) | Map::HashMap(data) | Map::LpmTrie(data)) = ebpf.map(name) else {
        return Err(Error::Load(format!("no map {name} in the object").into()));
    };
    let action = || format!("open the map {name}");
    let fd = data.fd().as_fd().try_clone_to_owned();
    let fd = fd.map_err(|source| Error::Map { action: action(), source: Box::new(source) })?;
    let map = MapData::from_fd(fd).and_then(Map::from_map_data).and_then(T::try_from);
    map.map_err(Error::map(action()))
}

/// Maps the memory of the array map `name`.
fn elements<T: memory::Shared>(ebpf: &Ebpf, name: &'static str) -> Result<Elements<T>, Error> {
    match ebpf.map(name) {
        Some(Map::Array(data)) => Elements::new(data, name),
        _ => Err(Error::load(format!("no array {name} in the object"))),
    }
}

impl Dataplane {
    /// Loads the kernel program, or takes over what is pinned in `options.pin_dir`: maps with their
    /// buckets and counters, and the interfaces it is attached to, each of which switches to this
    /// program between two packets.
    ///
    /// # Errors
    /// Options out of range, missing privileges, an old kernel, no BPF file system, pins of another
    /// version or made with other options. What was pinned before stays at work; with `options.reset`
    /// until the first [`Dataplane::publish`].
    pub fn open(options: &Options) -> Result<Self, Error> {
        let object::Loaded { ebpf, layout, staging } = object::load(options)?;
        let opened = Self::with_maps(options, ebpf, layout, staging.as_deref());
        if let (Err(_), Some(staging)) = (&opened, staging) {
            object::discard(&staging);
        }
        opened
    }

    /// Opens the maps of a loaded object.
    fn with_maps(
        options: &Options,
        mut ebpf: Ebpf,
        layout: Layout,
        staging: Option<&Path>,
    ) -> Result<Self, Error> {
        let memory = Arc::new(Memory {
            config: elements(&ebpf, "CONFIG")?,
            fingerprints: elements(&ebpf, "FINGERPRINTS")?,
            slots: elements(&ebpf, "SLOTS")?,
            identities: elements(&ebpf, "IDENTITIES")?,
            shares: elements(&ebpf, "SHARES")?,
            cells: elements(&ebpf, "SKETCH")?,
            registers: elements(&ebpf, "DISTINCT")?,
            layout,
        });
        let classes = Arc::new(ClassTables::new(elements(&ebpf, "CLASSES")?));
        // With descriptors of its own, before the publisher takes the maps: shares are given in
        // another thread, which waits for no change of limits.
        let lookup = PolicyLookup::open(&ebpf)?;
        let config = memory.config();
        let maps = PolicyMaps {
            policies: take(&mut ebpf, "POLICIES")?,
            each: SourceMaps::take(
                &mut ebpf,
                ["EXACT", "PREFIXES4", "PREFIXES6"],
                layout.masks.lengths(),
            )?,
            shared: Prefixes::take(&mut ebpf, ["SHARED4", "SHARED6"])?,
            buckets: elements(&ebpf, "SHARED")?,
            classes: Arc::clone(&classes),
            max_exact: options.max_limits as usize,
        };
        let publisher = Publisher::new(maps, config)?;
        let lists = ListMaps::take(&mut ebpf, &layout, options.max_listed as usize)?;
        let peers = PeerMap::take(&mut ebpf)?;
        let counters = take(&mut ebpf, "COUNTERS")?;
        let drop_caches = Arc::new(take(&mut ebpf, "DROP_CACHE")?);
        let events = Arc::new(EventQueue::new(take(&mut ebpf, "EVENTS")?));
        let shares = ShareMaps::new(
            Arc::clone(&memory),
            Arc::clone(&drop_caches),
            Arc::clone(&events),
            classes,
            lookup,
        );
        let sampler = Sampler::new(&mut ebpf, memory.config())?;
        let log = if options.kernel_log {
            let log = KernelLog::new(&mut ebpf);
            // Limits do not depend on it.
            log.inspect_err(|error| tracing::warn!("{}", chain(error))).ok()
        } else {
            None
        };
        let links = if staging.is_none() {
            Links::take_over(&options.pin_dir, object::program(&mut ebpf)?)?
        } else {
            Links::default()
        };
        let mut dataplane = Self {
            options: options.clone(),
            ebpf,
            took_over: staging.is_none(),
            staging: staging.map(Into::into),
            links,
            memory,
            publisher,
            shares: Arc::new(shares),
            lists,
            peers,
            counters,
            drop_caches,
            events,
            sampler,
            log,
            max_frame: USUAL_FRAME,
            cluster: None,
        };
        dataplane.set_verdicts(options.drop_malformed, options.on_full);
        dataplane.refresh_clock();
        // Last, as it compiles the limits in force again if an interface has been given a larger
        // MTU while no daemon was there.
        dataplane.measure_frames()?;
        Ok(dataplane)
    }

    /// Whether a data plane was there already.
    pub fn took_over(&self) -> bool {
        self.took_over
    }

    /// What the kernel program writes from now on, if [`Options::kernel_log`] is set and it can; once.
    pub fn take_log(&mut self) -> Option<KernelLog> {
        self.log.take()
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

    /// Detaches from all interfaces and removes the pinned maps. Before the first
    /// [`Dataplane::publish`] fresh maps are discarded, and what they were to replace stays at work.
    ///
    /// # Errors
    /// If the pins cannot be removed.
    pub fn detach_all(&mut self) -> Result<(), Error> {
        if let Some(staging) = self.staging.take() {
            object::discard(&staging);
            return Ok(());
        }
        // Pins first: if one cannot be removed, the links that are open here still show what is
        // attached.
        object::remove(&self.options.pin_dir)?;
        self.links.clear();
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
        let mut largest = self.links.list()?.into_iter().map(|(_, mtu)| mtu).max();
        if self.staging.is_some() {
            // Fresh maps have no links before `settle`, but the first policies must suit those that come then.
            largest = largest.max(attach::largest_mtu(&self.options.pin_dir)?);
        }
        let max_frame = largest.map_or(USUAL_FRAME, |mtu| mtu + FRAMING).max(USUAL_FRAME);
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
        let changes = self.publisher.replacing(limits);
        let settled = self.change(&changes).and_then(|()| self.settle());
        // A daemon that died between a change and its `retire` left buckets of classes that are gone.
        self.retire();
        settled
    }

    /// Makes exactly `lists` the sources that are let through or dropped whatever they send.
    ///
    /// # Errors
    /// Too many of them; nothing is changed then. Or the kernel refuses.
    pub fn publish_lists(&mut self, lists: &Lists) -> Result<(), Error> {
        let (layout, config) = (&self.memory.layout, self.memory.config());
        // The generation is raised also where this fails, as some entries may have been changed:
        // packets of tracked sources skip the lists within a generation.
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

    /// Whether there is room for `lists`.
    ///
    /// # Errors
    /// Too many of them.
    pub fn check_lists(&self, lists: &Lists) -> Result<(), Error> {
        self.lists.check_room(lists).map(drop)
    }

    /// Decides what happens to packets whose source cannot be read, and to sources without a place in
    /// the bucket table.
    pub fn set_verdicts(&mut self, drop_malformed: bool, on_full: OnFull) {
        let config = self.memory.config();
        atomic::store(&config.drop_malformed, u64::from(drop_malformed));
        atomic::store(&config.on_full, on_full.word());
    }

    /// Changes some limits: all of them, or none. No target may occur twice.
    ///
    /// # Errors
    /// As [`Dataplane::publish`].
    pub fn change(&mut self, changes: &Changes) -> Result<(), Error> {
        let policies = self.compiled(changes)?;
        let before: Vec<u8> = self.publisher.class_ids().collect();
        let changed = self.publisher.change(changes, &policies, self.memory.config());
        if before.into_iter().any(|id| self.publisher.class(id).is_none()) {
            self.retire();
        }
        changed
    }

    /// Empties the buckets for classes that no limit is for any more: nothing is charged to them, and another
    /// class may get their number. While a class is in use anywhere its buckets keep what they owe: a limit that
    /// is put back must not find them full.
    fn retire(&self) {
        wait_for_packets();
        // Only now: a packet that was told apart by the former classes may have been about to
        // charge one of these buckets.
        self.memory.retire(|class| self.publisher.class(class).is_some());
    }

    /// Whether [`Dataplane::change`] would make `changes`, as far as that can be told beforehand.
    ///
    /// # Errors
    /// As [`Dataplane::change`], but for what only the kernel knows.
    pub fn try_out(&self, changes: &Changes) -> Result<(), Error> {
        self.compiled(changes)?;
        self.publisher.check(changes)
    }

    /// Lets no limit apply to sources in `nets`, from the next [`Dataplane::publish`] on.
    pub fn exempt(&mut self, nets: &[IpNet]) {
        self.publisher.exempt(nets);
        self.lists.exempt(nets);
    }

    /// Lets frames that hosts of the cluster send from these addresses pass unlimited, beside those from
    /// addresses before while there is room. Returns how many addresses there is no room for.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_peers(&mut self, present: &BTreeSet<IpAddr>) -> Result<usize, Error> {
        self.peers.update(present)
    }

    /// Addresses of other hosts whose frames to this one pass unlimited.
    pub fn peers(&self) -> usize {
        self.options.listen.map_or(0, |_| self.peers.len())
    }

    /// Where frames of the cluster pass unlimited that come from `address`, if they do.
    pub fn unlimited_frames(&self, address: IpAddr) -> Option<SocketAddr> {
        self.options.listen.filter(|_| self.peers.contains(address))
    }

    /// The policies of each of the amounts in use.
    fn compiled(&self, changes: &Changes) -> Result<Vec<Compiled>, Error> {
        let (v4, v6) = self.memory.layout.masks.lengths();
        // What is compiled does not depend on the target, beyond whether it is shared and an error's
        // text.
        let mut policies: Vec<Compiled> = vec![[None; 2]; changes.amounts().len()];
        for (target, amount) in changes.numbered() {
            let Some(amount) = amount else { continue };
            let limit = changes.amounts()[amount].of(target);
            limit.check_prefix(v4, v6)?;
            let policy = &mut policies[amount][usize::from(target.aggregate)];
            if policy.is_none() {
                *policy = Some(self.policy_of(&limit)?);
            }
        }
        Ok(policies)
    }

    /// The number of a class in use.
    fn class_id(&self, class: Class) -> Option<u8> {
        let known = |id: &u8| self.publisher.class(*id) == Some(class);
        if class.is_any() { Some(ANY as u8) } else { self.publisher.class_ids().find(known) }
    }

    /// The limit that applies to what an address sends of a class, by whose number it is asked for.
    fn limit_for(&self, address: IpAddr, class: u8) -> Option<Limit> {
        let (target, policy) = self.publisher.policy_for(address, class);
        decompile(target, &policy?)
    }

    /// What came to a shared limit since it is set; `None` if it is not in force.
    pub fn shared_counts(&self, target: &Target) -> Option<SharedCounts> {
        self.publisher.shared_counts(target)
    }

    /// Puts fresh maps, which have their limits now, in the place of what was pinned.
    fn settle(&mut self) -> Result<(), Error> {
        let Some(staging) = &self.staging else { return Ok(()) };
        let program = object::program(&mut self.ebpf)?;
        self.links = object::settle(staging, &self.options.pin_dir, program)?;
        self.staging = None;
        self.measure_frames()
    }

    /// The estimate below which a source with this limit needs no bucket; 1 means that every source
    /// gets one at once, as happens to limits that are slow for the sketch's window.
    pub fn gate_of(&self, limit: &Limit) -> u32 {
        self.policy_of(limit).map_or(1, |policy| policy.gate)
    }
}

impl Drop for Dataplane {
    fn drop(&mut self) {
        // Never put in place: what it was to replace goes on.
        if let Some(staging) = &self.staging {
            object::discard(staging);
        }
    }
}
