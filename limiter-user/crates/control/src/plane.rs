//! The data plane as the daemon uses it, so that its behaviour can be tested without a kernel.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use ipnet::IpNet;
use limiter_common::abi::Counters;
use limiter_common::class::is_of_destinations;
use limiter_common::sketch::Shape;
use limiter_common::table::Identity;

use super::scan::Scan;
use api::error::Failure;
use dataplane::{
    BucketShare, ClusterBucket, ClusterMember, ClusterTerms, Dataplane, Error, Event, Kind,
    Options, RunTime, ShadowView, ShareMaps, SharesChanged, SketchCounts, WindowRanks,
};
use model::Distinct;
use model::Share;
use model::lists::{ListChanges, Lists};
use model::price::Holder;
use model::source::{Counts, HeldShare, Member, Source};
use model::traffic::Whose;
use model::{Changes, Class, Groups, Limit, Limits, Target, Tier};
use model::{
    interface::{Attachment, Mode},
    sample::{PacketSample, SampleFilter},
    tables::{SketchHealth, TableHealth},
};
use telemetry::Sample;

/// Declares a concern of the data plane. A part of `$of` does each of it by its own method of the same name: `$part`,
/// as seen from `$plane`.
macro_rules! concern {
    (
        $(#[$doc:meta])*
        $name:ident of $of:ty $(: $($bound:ident),*)? {
            $(reads ($plane:ident => $part:expr) {
                $(fn $read:ident($($a:ident: $t:ty),*) $(-> $r:ty)?;)*
            })*
            $(changes ($changed:ident => $whole:expr) {
                $(fn $change:ident($($b:ident: $u:ty),*) $(-> $s:ty)?;)*
            })*
        }
    ) => {
        $(#[$doc])*
        #[allow(missing_docs, reason = "the methods are those of the data plane, documented there")]
        pub trait $name $(: $($bound +)*)? {
            $($(fn $read(&self, $($a: $t),*) $(-> $r)?;)*)*
            $($(fn $change(&mut self, $($b: $u),*) $(-> $s)?;)*)*
        }

        impl $name for $of {
            $($(fn $read(&self, $($a: $t),*) $(-> $r)? {
                let $plane = self;
                $part.$read($($a),*)
            })*)*
            $($(fn $change(&mut self, $($b: $u),*) $(-> $s)? {
                let $changed = self;
                $whole.$change($($b),*)
            })*)*
        }
    };
}

concern! {
    /// Where the program runs.
    Links of Dataplane {
        reads (plane => plane.links) {
            fn occupant(interface: &str) -> Result<(u32, Option<u32>), Error>;
            fn attachments() -> Vec<Attachment>;
        }
        changes (plane => plane) {
            fn attach(interface: &str, mode: Mode, replace: bool) -> Result<Attachment, Error>;
        }
        changes (plane => plane.links) {
            fn detach(interface: &str) -> Result<(), Error>;
            fn detach_all() -> Result<(), Error>;
        }
    }
}

concern! {
    /// Limits, lists, shadow limits, and what is exempt from them.
    Policies of Dataplane {
        reads (plane => plane.peers) {
            fn peers() -> usize;
            fn unlimited_frames(address: IpAddr) -> Option<SocketAddr>;
        }
        reads (plane => plane.policies) {
            fn try_out(changes: &Changes) -> Result<(), Error>;
            fn gate_of(limit: &Limit) -> u32;
            fn held_of(limit: &Limit) -> [Option<u64>; 2];
            fn take_back();
            fn shared_counts(target: &Target) -> Option<Counts>;
            fn share_of(target: &Target) -> Option<HeldShare>;
        }
        reads (plane => plane.lists) {
            fn check_lists(lists: &Lists) -> Result<(), Error>;
        }
        reads (plane => plane.buckets()) {
            fn shadows(n: usize) -> Vec<ShadowView>;
        }
        reads (plane => plane.table) {
            fn prefixes() -> (u8, u8);
        }
        changes (plane => plane) {
            fn exempt(nets: &[IpNet]);
            fn set_groups(groups: Groups) -> Result<(), Error>;
            fn publish(limits: &Limits) -> Result<(), Error>;
            fn change(changes: &Changes) -> Result<(), Error>;
            fn set_shadow(target: &Target, tier: &Tier) -> Result<(), Error>;
            fn publish_lists(lists: &Lists) -> Result<(), Error>;
            fn change_lists(changes: &ListChanges, after: &Lists) -> Result<(), Error>;
        }
        changes (plane => plane.peers) {
            fn set_peers(present: &BTreeSet<IpAddr>) -> Result<usize, Error>;
        }
        changes (plane => plane.policies) {
            fn set_verdicts(options: &Options);
            fn unset_shadow(target: &Target) -> Result<bool, Error>;
        }
    }
}

concern! {
    /// Counters, buckets, the sketch.
    Buckets of Dataplane {
        reads (plane => plane.table) {
            fn counters() -> Result<Counters, Error>;
            fn counts(visit: &mut dyn FnMut(usize, Counts));
            fn buckets() -> usize;
            fn sketch() -> SketchHealth;
            fn table() -> TableHealth;
            fn monotonic_ns() -> u64;
            fn noise() -> f64;
            fn distinct() -> Option<Distinct>;
            fn registers() -> Option<WindowRanks>;
            fn sketch_counts(sent: &mut dyn FnMut(usize, u8, &Counts) -> u64) -> Option<SketchCounts>;
            fn sketch_cells(address: IpAddr, shape: Shape) -> (u64, Vec<u32>);
            fn refresh_clock();
        }
        reads (plane => plane.buckets()) {
            fn source(address: IpAddr) -> Result<Vec<Source>, Error>;
            fn group(address: IpAddr) -> Option<Source>;
            fn limited_groups(n: usize) -> (Vec<Source>, usize);
            fn members(buckets: &mut dyn Iterator<Item = usize>, visit: &mut dyn FnMut(usize, Member));
            fn sources_at(buckets: &[usize], visit: &mut dyn FnMut(usize, Counts, Source));
            fn bucket_of(source: IpNet, class: Class) -> Option<usize>;
            fn holders(most: usize) -> Vec<Holder>;
        }
        reads (plane => plane.links) {
            fn run_time() -> Option<RunTime>;
        }
    }
}

concern! {
    /// What every source may use of limits of the cluster, without end.
    Floors of Dataplane {
        reads (plane => plane.policies) {
            fn has_everything() -> bool;
            fn cluster_terms() -> Option<ClusterTerms>;
            fn target_of(source: IpNet, class: Class) -> Option<Target>;
        }
        reads (plane => plane) {
            fn renew_floors(buckets: Range<usize>) -> SharesChanged;
        }
        changes (plane => plane) {
            fn change_floor(
                floor: Share,
                hosts: u32,
                includes: fn(&Limit) -> bool
            ) -> Result<(), Error>;
            fn set_floor(
                floor: Share,
                hosts: u32,
                includes: fn(&Limit) -> bool
            ) -> Result<SharesChanged, Error>;
        }
    }
}

concern! {
    /// What single sources may use of limits of the cluster, for a time. It waits for none of the other concerns: a
    /// thread of its own may have it.
    Shares of ShareMaps: Send, Sync {
        reads (maps => maps) {
            fn buckets() -> usize;
            fn begun_to_be_limited() -> Vec<IpNet>;
            fn set_shares(shares: &mut dyn Iterator<Item = BucketShare>) -> SharesChanged;
            fn give_back(changed: SharesChanged);
            fn cluster_buckets(buckets: Range<usize>, visit: &mut dyn FnMut(ClusterBucket));
            fn cluster_members(
                buckets: &mut dyn Iterator<Item = usize>,
                visit: &mut dyn FnMut(ClusterMember)
            );
            fn buckets_of(source: IpNet) -> Vec<usize>;
            fn shared_buckets() -> Vec<usize>;
        }
    }
}

concern! {
    /// Events, and samples of packets.
    Samples of Dataplane {
        changes (plane => plane.buckets()) {
            fn events(visit: &mut dyn FnMut(Event));
        }
        changes (plane => plane.sampler) {
            fn start_sampling(filter: &SampleFilter);
            fn stop_sampling();
        }
        changes (plane => plane) {
            fn samples(most: usize, visit: &mut dyn FnMut(PacketSample));
        }
    }
}

/// What a data plane counts at present.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn sample(plane: &dyn Plane) -> Result<Sample, Failure> {
    Ok(Sample {
        time: SystemTime::now(),
        monotonic_ns: plane.monotonic_ns(),
        counters: plane.counters()?,
        noise: plane.noise(),
        distinct: plane.distinct(),
    })
}

/// The interfaces that a data plane is attached to.
pub(crate) fn attached(plane: &dyn Plane) -> Vec<String> {
    plane.attachments().into_iter().map(|attachment| attachment.name).collect()
}

/// All that the daemon asks of a data plane.
pub trait Plane: Links + Policies + Buckets + Floors + Samples + Send {
    /// A handle for who gives shares.
    fn shares(&self) -> Arc<dyn Shares>;

    /// The same for limits that a central store leases.
    fn leased_shares(&self) -> Arc<dyn Shares>;

    /// As [`Buckets::counts`], of sources or of destinations, by a loop that is compiled for the scan where that is
    /// possible.
    fn scan(&self, whose: Whose, scan: &mut Scan<'_>);
}

impl Plane for Dataplane {
    fn shares(&self) -> Arc<dyn Shares> {
        self.shares.clone()
    }

    fn leased_shares(&self) -> Arc<dyn Shares> {
        Arc::new(self.shares.of(Kind::Leased))
    }

    fn scan(&self, whose: Whose, scan: &mut Scan<'_>) {
        let of_destination = |identity: &Identity| is_of_destinations(identity.class().class());
        let visit = |bucket, counts| scan.visit(bucket, &counts);
        match whose {
            // Nearly always: no look at what a bucket is for.
            Whose::Sources if !self.policies.limits_destinations() => {
                self.table.counts_in_order(|_| true, visit);
            }
            Whose::Sources => self.table.counts_in_order(|it| !of_destination(it), visit),
            // Not by its policy: the slot of one that is gone may be another's before the next packet.
            Whose::Destinations => self.table.counts_in_order(of_destination, visit),
        }
    }
}
