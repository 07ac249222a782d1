//! The data plane as the daemon uses it, so that its behaviour can be tested without a kernel.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use ipnet::IpNet;
use limiter_common::abi::Counters;

use super::top::Scan;
use dataplane::{
    BucketShare, ClusterBucket, ClusterMember, ClusterTerms, Dataplane, Error, Event, Migrated,
    RunTime, SharedCounts, SharesChanged, TrialView, WindowRanks,
};
use model::Distinct;
use model::Share;
use model::lists::{ListChanges, Lists};
use model::source::{Counts, Member, Source};
use model::{Changes, Class, LimitSpec, Limits, Target, Tier};
use model::{
    interface::{Attachment, Mode},
    sample::{PacketSample, SampleFilter},
    tables::{OnFull, SketchHealth, TableHealth},
};

/// What the daemon asks of a data plane; see [`Dataplane`] for what each does.
#[expect(missing_docs, reason = "the methods are those of `Dataplane`, documented there")]
pub trait Plane: Send {
    fn attach(&mut self, interface: &str, mode: Mode, replace: bool) -> Result<Attachment, Error>;
    fn detach(&mut self, interface: &str) -> Result<(), Error>;
    fn detach_all(&mut self) -> Result<(), Error>;
    fn occupant(&self, interface: &str) -> Result<(u32, Option<u32>), Error>;
    fn attachments(&self) -> Vec<Attachment>;
    fn migrated(&self) -> Option<Migrated>;
    fn exempt(&mut self, nets: &[IpNet]);
    fn set_peers(&mut self, _present: &BTreeSet<IpAddr>) -> Result<usize, Error> {
        Ok(0)
    }
    fn peers(&self) -> usize {
        0
    }
    fn unlimited_frames(&self, _address: IpAddr) -> Option<SocketAddr> {
        None
    }
    fn publish(&mut self, limits: &Limits) -> Result<(), Error>;
    fn try_out(&self, changes: &Changes) -> Result<(), Error>;
    fn change(&mut self, changes: &Changes) -> Result<(), Error>;
    fn publish_lists(&mut self, lists: &Lists) -> Result<(), Error>;
    fn change_lists(&mut self, changes: &ListChanges, after: &Lists) -> Result<(), Error>;
    fn check_lists(&self, lists: &Lists) -> Result<(), Error>;
    fn set_verdicts(&mut self, drop_malformed: bool, on_full: OnFull);
    fn gate_of(&self, limit: &LimitSpec) -> u32;
    fn counters(&self) -> Result<Counters, Error>;
    fn source(&self, address: IpAddr) -> Result<Vec<Source>, Error>;
    fn shared_counts(&self, target: &Target) -> Option<SharedCounts>;
    fn start_trial(&mut self, target: &Target, tier: &Tier) -> Result<(), Error>;
    fn stop_trial(&mut self, target: &Target) -> Result<bool, Error>;
    fn trials(&self, n: usize) -> Vec<TrialView>;
    fn counts(&self, visit: &mut dyn FnMut(usize, Counts));
    /// As [`Plane::counts`], by a loop that is compiled for the scan where that is possible.
    fn scan(&self, scan: &mut Scan<'_>) {
        self.counts(&mut |bucket, counts| scan.visit(bucket, &counts));
    }
    fn members(
        &self,
        buckets: &mut dyn Iterator<Item = usize>,
        visit: &mut dyn FnMut(usize, Member),
    );
    fn buckets(&self) -> usize;
    fn sources_at(&self, buckets: &[usize], visit: &mut dyn FnMut(usize, Counts, Source));
    fn sketch(&self) -> SketchHealth;
    fn table(&self) -> TableHealth;
    fn prefixes(&self) -> (u8, u8);
    fn monotonic_ns(&self) -> u64;
    fn noise(&self) -> f64;
    fn distinct(&self) -> Option<Distinct>;
    /// The number of the bucket that a source has for packets of a class.
    fn bucket_of(&self, _source: IpNet, _class: Class) -> Option<usize> {
        None
    }
    fn registers(&self) -> Option<WindowRanks> {
        None
    }
    fn refresh_clock(&self);
    fn events(&mut self, visit: &mut dyn FnMut(Event));
    fn run_time(&self) -> Option<RunTime> {
        None
    }
    fn set_floor(
        &mut self,
        _floor: Share,
        _hosts: u32,
        _includes: fn(&LimitSpec) -> bool,
    ) -> Result<SharesChanged, Error> {
        Ok(SharesChanged::default())
    }
    fn change_floor(
        &mut self,
        _floor: Share,
        _hosts: u32,
        _includes: fn(&LimitSpec) -> bool,
    ) -> Result<(), Error> {
        Ok(())
    }
    fn has_everything(&self) -> bool {
        false
    }
    fn cluster_terms(&self) -> Option<ClusterTerms> {
        None
    }
    fn renew_floors(&self, _buckets: Range<usize>) -> SharesChanged {
        SharesChanged::default()
    }
    fn set_shares(&self, _shares: &mut dyn Iterator<Item = BucketShare>) -> SharesChanged {
        SharesChanged::default()
    }
    fn give_back(&self, _changed: SharesChanged) {}
    fn cluster_buckets(&self, _buckets: Range<usize>, _visit: &mut dyn FnMut(ClusterBucket)) {}
    fn cluster_members(
        &self,
        _buckets: &mut dyn Iterator<Item = usize>,
        _visit: &mut dyn FnMut(ClusterMember),
    ) {
    }
    fn buckets_of(&self, _source: IpNet) -> Vec<usize> {
        Vec::new()
    }
    fn start_sampling(&mut self, filter: &SampleFilter) -> Result<(), Error>;
    fn stop_sampling(&mut self);
    fn samples(&mut self, most: usize, visit: &mut dyn FnMut(PacketSample));
}

impl Plane for Dataplane {
    fn attach(&mut self, interface: &str, mode: Mode, replace: bool) -> Result<Attachment, Error> {
        self.attach(interface, mode, replace)
    }

    fn detach(&mut self, interface: &str) -> Result<(), Error> {
        self.detach(interface)
    }

    fn detach_all(&mut self) -> Result<(), Error> {
        self.detach_all()
    }

    fn occupant(&self, interface: &str) -> Result<(u32, Option<u32>), Error> {
        self.occupant(interface)
    }

    fn attachments(&self) -> Vec<Attachment> {
        self.attachments()
    }

    fn migrated(&self) -> Option<Migrated> {
        self.migrated()
    }

    fn exempt(&mut self, nets: &[IpNet]) {
        self.exempt(nets);
    }

    fn set_peers(&mut self, present: &BTreeSet<IpAddr>) -> Result<usize, Error> {
        self.set_peers(present)
    }

    fn peers(&self) -> usize {
        self.peers()
    }

    fn unlimited_frames(&self, address: IpAddr) -> Option<SocketAddr> {
        self.unlimited_frames(address)
    }

    fn publish(&mut self, limits: &Limits) -> Result<(), Error> {
        self.publish(limits)
    }

    fn try_out(&self, changes: &Changes) -> Result<(), Error> {
        self.try_out(changes)
    }

    fn change(&mut self, changes: &Changes) -> Result<(), Error> {
        self.change(changes)
    }

    fn publish_lists(&mut self, lists: &Lists) -> Result<(), Error> {
        self.publish_lists(lists)
    }

    fn change_lists(&mut self, changes: &ListChanges, after: &Lists) -> Result<(), Error> {
        self.change_lists(changes, after)
    }

    fn check_lists(&self, lists: &Lists) -> Result<(), Error> {
        self.check_lists(lists)
    }

    fn set_verdicts(&mut self, drop_malformed: bool, on_full: OnFull) {
        self.set_verdicts(drop_malformed, on_full);
    }

    fn gate_of(&self, limit: &LimitSpec) -> u32 {
        self.gate_of(limit)
    }

    fn counters(&self) -> Result<Counters, Error> {
        self.counters()
    }

    fn source(&self, address: IpAddr) -> Result<Vec<Source>, Error> {
        self.source(address)
    }

    fn shared_counts(&self, target: &Target) -> Option<SharedCounts> {
        self.shared_counts(target)
    }

    fn start_trial(&mut self, target: &Target, tier: &Tier) -> Result<(), Error> {
        self.start_trial(target, tier)
    }

    fn stop_trial(&mut self, target: &Target) -> Result<bool, Error> {
        self.stop_trial(target)
    }

    fn trials(&self, n: usize) -> Vec<TrialView> {
        self.trials(n)
    }

    fn counts(&self, visit: &mut dyn FnMut(usize, Counts)) {
        self.counts(visit);
    }

    fn scan(&self, scan: &mut Scan<'_>) {
        self.counts_in_order(|bucket, counts| scan.visit(bucket, &counts));
    }

    fn members(
        &self,
        buckets: &mut dyn Iterator<Item = usize>,
        visit: &mut dyn FnMut(usize, Member),
    ) {
        self.members(buckets, visit);
    }

    fn buckets(&self) -> usize {
        self.buckets()
    }

    fn sources_at(&self, buckets: &[usize], visit: &mut dyn FnMut(usize, Counts, Source)) {
        self.sources_at(buckets, visit);
    }

    fn sketch(&self) -> SketchHealth {
        self.sketch()
    }

    fn table(&self) -> TableHealth {
        self.table()
    }

    fn prefixes(&self) -> (u8, u8) {
        (self.ipv4_prefix(), self.ipv6_prefix())
    }

    fn monotonic_ns(&self) -> u64 {
        self.monotonic_ns()
    }

    fn noise(&self) -> f64 {
        self.noise()
    }

    fn distinct(&self) -> Option<Distinct> {
        self.distinct()
    }

    fn bucket_of(&self, source: IpNet, class: Class) -> Option<usize> {
        self.bucket_of(source, class)
    }

    fn registers(&self) -> Option<WindowRanks> {
        self.registers()
    }

    fn refresh_clock(&self) {
        self.refresh_clock();
    }

    fn events(&mut self, visit: &mut dyn FnMut(Event)) {
        self.events(visit);
    }

    fn run_time(&self) -> Option<RunTime> {
        self.run_time()
    }

    fn set_floor(
        &mut self,
        floor: Share,
        hosts: u32,
        includes: fn(&LimitSpec) -> bool,
    ) -> Result<SharesChanged, Error> {
        self.set_floor(floor, hosts, includes)
    }

    fn change_floor(
        &mut self,
        floor: Share,
        hosts: u32,
        includes: fn(&LimitSpec) -> bool,
    ) -> Result<(), Error> {
        self.change_floor(floor, hosts, includes)
    }

    fn has_everything(&self) -> bool {
        self.has_everything()
    }

    fn cluster_terms(&self) -> Option<ClusterTerms> {
        self.cluster_terms()
    }

    fn renew_floors(&self, buckets: Range<usize>) -> SharesChanged {
        self.renew_floors(buckets)
    }

    fn set_shares(&self, shares: &mut dyn Iterator<Item = BucketShare>) -> SharesChanged {
        self.set_shares(shares)
    }

    fn give_back(&self, changed: SharesChanged) {
        self.give_back(changed);
    }

    fn cluster_buckets(&self, buckets: Range<usize>, visit: &mut dyn FnMut(ClusterBucket)) {
        self.cluster_buckets(buckets, visit);
    }

    fn cluster_members(
        &self,
        buckets: &mut dyn Iterator<Item = usize>,
        visit: &mut dyn FnMut(ClusterMember),
    ) {
        self.cluster_members(buckets, visit);
    }

    fn buckets_of(&self, source: IpNet) -> Vec<usize> {
        self.buckets_of(source)
    }

    fn start_sampling(&mut self, filter: &SampleFilter) -> Result<(), Error> {
        self.start_sampling(filter)
    }

    fn stop_sampling(&mut self) {
        self.stop_sampling();
    }

    fn samples(&mut self, most: usize, visit: &mut dyn FnMut(PacketSample)) {
        self.samples(most, visit);
    }
}
