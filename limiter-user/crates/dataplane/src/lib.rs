//! The kernel's side as the daemon sees it: loaded, attached, told its limits, and read.
//!
//! It owns the program, its maps and links, and all that is `unsafe` about them. It decides nothing: what a limit
//! means is `model`'s, what becomes of a packet `limiter-common`'s. It knows neither requests nor files of state.

mod attach;
mod attachments;
mod buckets;
mod error;
mod events;
mod exact;
mod facts;
mod floors;
mod foreign;
pub mod kernel;
mod kind;
pub mod link;
mod lists;
mod log;
mod memory;
pub mod nic;
mod object;
mod options;
mod orphan;
mod peers;
mod pending;
mod pins;
mod policies;
mod programs;
mod publish;
mod run_time;
mod samples;
mod share_maps;
mod shared_buckets;
mod shares;
mod sources;
mod table;
mod try_load;
mod view;

use std::ops::Range;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use aya::Ebpf;
use aya::maps::{Map, MapData, MapError};
use ipnet::IpNet;
use limiter_common::atomic;
use limiter_common::class::ANY;
use limiter_common::features::Features;
use model::interface::{Attachment, Mode};
use model::lists::{ListChanges, Lists};
use model::sample::PacketSample;
use model::{Changes, Groups, Limit, Limits, Share, Target, Tier, chain};

pub use attach::detach_link;
pub use attachments::Attachments;
pub use buckets::Buckets;
pub use error::Error;
pub use facts::{Event, ShadowView, SketchCounts, WindowRanks};
pub use floors::ClusterTerms;
pub use kernel::wait_for_packets;
pub use kind::Kind;
pub use limiter_common::abi::LinkKind;
pub use link::LinkEvents;
pub use lists::ListMaps;
pub use log::KernelLog;
pub use options::{HashSecret, Options, SOURCE_BYTES};
pub use orphan::Pinned;
pub use peers::PeerMap;
pub use pins::pins_of;
pub use policies::Policies;
pub use programs::has_program;
pub use run_time::RunTime;
pub use samples::Sampler;
pub use share_maps::ShareMaps;
pub use shares::{BucketShare, ClusterBucket, ClusterMember, SharesChanged};
pub use table::BucketTable;
pub use try_load::try_load;

use memory::Elements;
use publish::{ClassTables, PolicyLookup, Publisher};

/// The largest MTU that every driver with native XDP serves to a program without fragments: a frame
/// and what surrounds it in memory must fit a page.
pub const NATIVE_MTU: u32 = 3498;

/// The loaded program and its maps, in parts. Each owns what it changes. What takes two of them is done here, in the
/// order that keeps packets limited. Dropping it leaves everything pinned and at work.
pub struct Dataplane {
    /// Where it runs.
    pub links: Attachments,
    /// What limits packets.
    pub policies: Policies,
    /// What is let through or dropped whatever it sends.
    pub lists: ListMaps,
    /// Where frames of the cluster come from.
    pub peers: PeerMap,
    /// What the kernel program counts.
    pub table: Arc<BucketTable>,
    /// The way to what sources may use of limits of the cluster, for a thread that waits for no change of limits.
    pub shares: Arc<ShareMaps>,
    /// The way to samples of packets.
    pub sampler: Sampler,
    log: Option<KernelLog>,
    took_over: bool,
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
    // aya hands each map out once, to an owner that may be in the middle of a change for seconds.
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
        let object::Loaded { programs, layout, staging } = object::load(options)?;
        let took_over = staging.is_none();
        // First, as it discards a staged data plane where anything fails.
        let mut links = Attachments::new(programs, options.pin_dir.clone(), staging);
        let ebpf = &mut links.programs.at_work;
        let classes = Arc::new(ClassTables::new(elements(ebpf, "CLASSES")?));
        // With descriptors of its own, before the publisher takes the maps: shares are given in
        // another thread, which waits for no change of limits.
        let lookup = PolicyLookup::open(ebpf)?;
        let table = Arc::new(BucketTable::take(ebpf, layout, options)?);
        let memory = &table.memory;
        let max_exact = options.max_limits as usize;
        let publisher =
            Publisher::take(ebpf, &layout, memory.config(), Arc::clone(&classes), max_exact)?;
        let mut policies = Policies::new(Arc::clone(memory), publisher);
        let lists = ListMaps::take(ebpf, Arc::clone(memory), options.max_listed as usize)?;
        let peers = PeerMap::take(ebpf, options.listen)?;
        let shared = policies.publisher.shared_buckets();
        let shares = Arc::new(ShareMaps::new(Arc::clone(&table), shared, classes, lookup));
        let sampler = Sampler::new(ebpf, Arc::clone(memory))?;
        let log = if options.kernel_log {
            let log = KernelLog::new(ebpf);
            // Limits do not depend on it.
            log.inspect_err(|error| tracing::warn!("{}", chain(error))).ok()
        } else {
            None
        };
        // Late: what fails before this leaves the former program at work, with its limits (P4).
        links.take_over()?;
        policies.set_verdicts(options);
        table.refresh_clock();
        // Last, as it compiles the limits in force again if an interface has been given a larger
        // MTU while no daemon was there.
        policies.fit_frames(links.max_frame()?)?;
        let mut plane =
            Self { links, policies, lists, peers, table, shares, sampler, log, took_over };
        plane.set_groups(options.groups)?;
        Ok(plane)
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
        self.links.attach(interface, mode, replace)?;
        // This interface may have larger frames than the others: by the
        // largest ones the gates of byte limits are compiled.
        self.policies.fit_frames(self.links.max_frame()?)?;
        let mut attachments = self.links.attachments().into_iter();
        let attachment = attachments.find(|attachment| attachment.name == interface);
        attachment.ok_or_else(|| Error::NotAttached { name: interface.into() })
    }

    /// Puts fresh maps, which have their limits now, in the place of what was pinned.
    fn settle(&mut self) -> Result<(), Error> {
        if self.links.settle()? {
            // Links of the former maps have come along, and with them their MTUs.
            self.policies.fit_frames(self.links.max_frame()?)?;
        }
        Ok(())
    }

    /// Makes exactly `limits` the limits in force. Each source sees its old limit or its new one.
    ///
    /// # Errors
    /// A limit that cannot be enforced, or too many; nothing is changed then. If the kernel refuses,
    /// what was changed is changed back.
    pub fn publish(&mut self, limits: &Limits) -> Result<(), Error> {
        let changes = self.policies.publisher.replacing(limits);
        // Limits first: fresh maps take the place of the pinned ones only when they limit the same (P4).
        let settled = self.change(&changes).and_then(|()| self.settle());
        // A daemon that died between a change and its `retire` left buckets of classes that are gone.
        self.policies.retire();
        settled
    }

    /// Changes some limits: all of them, or none. No target may occur twice.
    ///
    /// # Errors
    /// As [`Dataplane::publish`].
    pub fn change(&mut self, changes: &Changes) -> Result<(), Error> {
        let compiled = self.policies.compile(changes)?;
        self.require(compiled.features)?;
        self.policies.put(changes, &compiled)
    }

    /// Limits groups of sources, or no longer.
    ///
    /// # Errors
    /// A limit that cannot be enforced, or the kernel refuses; then groups are limited as before.
    pub fn set_groups(&mut self, groups: Groups) -> Result<(), Error> {
        if groups.limit.is_some() {
            self.require(Features::GROUPS)?;
        }
        self.policies.set_groups(groups)
    }

    /// Sets a shadow limit, which touches no packet.
    ///
    /// # Errors
    /// A limit that cannot be enforced, or a target that it cannot have without changing what
    /// applies; or the kernel refuses.
    pub fn set_shadow(&mut self, target: &Target, tier: &Tier) -> Result<(), Error> {
        self.require(Features::SHADOWS)?;
        self.policies.set_shadow(target, tier)
    }

    /// Makes exactly `lists` the sources that are let through or dropped whatever they send.
    ///
    /// # Errors
    /// Too many of them; nothing is changed then. Or the kernel refuses.
    pub fn publish_lists(&mut self, lists: &Lists) -> Result<(), Error> {
        if !lists.is_empty() || self.lists.has_exempt() {
            self.require(Features::LISTS)?;
        }
        self.lists.publish_lists(lists)
    }

    /// Changes some entries of the lists, of which `after` is what they are then.
    ///
    /// # Errors
    /// As [`Dataplane::publish_lists`]; if the kernel refuses, some may have been changed.
    pub fn change_lists(&mut self, changes: &ListChanges, after: &Lists) -> Result<(), Error> {
        self.require(Features::LISTS)?;
        self.lists.change_lists(changes, after)
    }

    /// Sees to it that the program serves `features`, before anything that needs them is put in force.
    fn require(&mut self, features: Features) -> Result<(), Error> {
        self.links.require(features)?;
        // What is used, not what is loaded: the next start has a program for just that.
        atomic::or(&self.table.memory.config().features, u64::from(features.0));
        Ok(())
    }

    /// Lets no limit apply to sources in `nets`, from the next [`Dataplane::publish`] on, and no entry of the lists from
    /// the next [`Dataplane::publish_lists`] on.
    pub fn exempt(&mut self, nets: &[IpNet]) {
        self.policies.publisher.exempt(nets);
        self.lists.exempt(nets);
    }

    /// Lets each bucket use `floor` of every limit that `includes` says is the cluster's, without end, which so
    /// many `hosts` share. A larger floor than before brings no source any tokens.
    ///
    /// # Errors
    /// As [`Dataplane::publish`], or a limit that cannot be divided; then the former floor stays.
    pub fn set_floor(
        &mut self,
        floor: Share,
        hosts: u32,
        includes: fn(&Limit) -> bool,
    ) -> Result<SharesChanged, Error> {
        self.change_floor(floor, hosts, includes)?;
        Ok(self.renew_floors(0..self.table.buckets()))
    }

    /// As [`Dataplane::set_floor`], but where the floor becomes larger buckets keep the one that they have until
    /// [`Dataplane::renew_floors`]. A smaller one is in force at once.
    ///
    /// # Errors
    /// As [`Dataplane::set_floor`].
    pub fn change_floor(
        &mut self,
        floor: Share,
        hosts: u32,
        includes: fn(&Limit) -> bool,
    ) -> Result<(), Error> {
        // A limit of the cluster that was set before any floor was known becomes one only now.
        if self.policies.in_force().any(|limit| includes(&limit)) {
            self.require(Features::CLUSTER)?;
        }
        self.policies.change_floor(floor, hosts, includes)
    }

    /// Lets these buckets have the floor of their policy, and keeps who gives shares waiting meanwhile. With the last
    /// ones those of limits that sources share.
    pub fn renew_floors(&self, buckets: Range<usize>) -> SharesChanged {
        self.shares.renew_floors(&self.policies.publisher.in_force, buckets)
    }

    /// Buckets, with the limits in force.
    pub fn buckets(&self) -> Buckets<'_> {
        Buckets::new(&self.table, &self.policies.publisher.in_force)
    }

    /// Visits up to `most` samples that have come since the last call.
    pub fn samples(&mut self, most: usize, visit: &mut dyn FnMut(PacketSample)) {
        let in_force = &self.policies.publisher.in_force;
        // Of a packet whose class is unknown, the limit is.
        let classless = in_force.classes.ids().next().is_none();
        self.sampler.visit(most, &mut |sample| {
            let limit = sample.source.filter(|_| classless);
            let limit = limit.and_then(|source| in_force.limit_for(source, ANY as u8));
            visit(PacketSample { limit, ..sample });
        });
    }
}
