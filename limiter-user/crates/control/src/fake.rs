//! A data plane in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use limiter_common::abi::{Counters, Reason};
use limiter_common::evidence::Evidence;
use limiter_common::hash::HashKey;
use limiter_common::hll::Ranks;
use limiter_common::key::SourceKey;
use limiter_common::sketch::{Shape, Window};

use super::Core;
use super::plane::{Buckets, Floors, Links, Plane, Policies, Samples, Shares};
use super::scan::Scan;
use dataplane::{
    BucketShare, ClusterBucket, ClusterMember, Error, Event, Options, ShadowView, SharesChanged,
};
use dataplane::{ClusterTerms, RunTime, SketchCounts, WindowRanks};
use model::Distinct;
use model::Share;
use model::group::{prefix_of, target_of};
use model::lists::{ListChanges, Lists};
use model::price::Holder;
use model::source::{Counts, HeldShare, Member, Source, SourceState};
use model::target::source_of;
use model::traffic::Whose;
use model::{Amount, Changes, Class, GroupLimit, Groups, Limit, Limits, Target, Tier};
use model::{
    interface::{Attachment, Mode},
    sample::{PacketSample, SampleFilter},
    tables::{OnFull, SketchHealth, TableHealth},
};
use state::Store;

/// What the tests look at and set from outside.
#[derive(Default)]
pub struct State {
    pub limits: Vec<Limit>,
    pub lists: Lists,
    pub attached: Vec<(String, Mode)>,
    /// Interfaces that exist.
    pub interfaces: Vec<String>,
    /// Those of them that another program is on.
    pub taken: Vec<String>,
    pub sources: BTreeMap<String, (u64, u64)>,
    /// What was looked up of them.
    pub evidence: BTreeMap<String, Evidence>,
    pub fail_publish: bool,
    pub panic_on_publish: bool,
    pub full_sets: u64,
    pub removed: bool,
    pub exempt: Vec<IpNet>,
    pub shadows: BTreeMap<Target, Tier>,
    pub drop_malformed: bool,
    pub groups: Option<GroupLimit>,
    pub fail_groups: bool,
    /// Addresses of groups over their limit.
    pub limited_groups: Vec<IpAddr>,
    pub monotonic_ns: u64,
    pub sampling: bool,
    /// Sources under limits of the cluster.
    pub cluster: Vec<ClusterMember>,
    /// What they may use of those, by bucket.
    pub shares: BTreeMap<usize, BucketShare>,
    /// Buckets that cannot be told so often.
    pub missed: BTreeMap<usize, u32>,
}

#[derive(Clone, Default)]
pub struct Fake(pub Arc<Mutex<State>>);

impl Fake {
    /// A core over this plane and a store in `directory`.
    pub fn core(&self, directory: &tempfile::TempDir) -> Core {
        let store = Store::open(directory.path()).unwrap();
        Core::new(Box::new(self.clone()), store, OnFull::Pass)
    }

    pub fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn counts_of(passed: u64, dropped: u64) -> Counts {
        Counts { passed, dropped, bytes: 64 * (passed + dropped), since_ns: 0 }
    }

    fn view(&self, state: &State, address: IpAddr) -> Source {
        let source = source_of(address, 32, 64);
        let counts = state.sources.get(&address.to_string());
        let (passed, dropped) = counts.copied().unwrap_or_default();
        let seen = counts.map(|_| SystemTime::UNIX_EPOCH);
        let fate = if counts.is_none() {
            SourceState::Light
        } else if dropped > 0 {
            SourceState::Limited
        } else {
            SourceState::Conforming
        };
        let limit = state.limits.iter().find(|l| l.target == Target::DEFAULT).cloned();
        Source {
            source,
            is_group: false,
            class: Class::ANY,
            state: fate,
            limit,
            tokens: counts.map(|_| 1.5),
            also_tokens: None,
            share: None,
            shadow: None,
            estimate: 3,
            passed,
            dropped,
            bytes: 64 * (passed + dropped),
            evidence: state.evidence.get(&address.to_string()).copied(),
            since_ns: 0,
            first_seen: seen,
            last_seen: seen,
        }
    }
}

impl Links for Fake {
    fn attach(&mut self, interface: &str, mode: Mode, _: bool) -> Result<Attachment, Error> {
        let mut state = self.state();
        if !state.interfaces.iter().any(|name| name == interface) {
            let known = state.interfaces.clone();
            return Err(Error::UnknownInterface { name: interface.into(), known });
        }
        if state.taken.iter().any(|name| name == interface) {
            return Err(Error::Occupied { name: interface.into(), id: 3 });
        }
        match state.attached.iter().find(|(name, _)| name == interface) {
            Some((_, present)) if *present != mode => {
                let present = present.name();
                return Err(Error::OtherMode { name: interface.into(), present });
            }
            Some(_) => {}
            None => state.attached.push((interface.into(), mode)),
        }
        drop(state);
        let attached = self.attachments().into_iter().find(|it| it.name == interface);
        attached.ok_or_else(|| Error::NotAttached { name: interface.into() })
    }

    fn detach(&mut self, interface: &str) -> Result<(), Error> {
        let mut state = self.state();
        let before = state.attached.len();
        state.attached.retain(|(name, _)| name != interface);
        if state.attached.len() == before {
            return Err(Error::NotAttached { name: interface.into() });
        }
        Ok(())
    }

    fn detach_all(&mut self) -> Result<(), Error> {
        let mut state = self.state();
        state.attached.clear();
        state.removed = true;
        Ok(())
    }

    fn occupant(&self, _: &str) -> Result<(u32, Option<u32>), Error> {
        Ok((7, None))
    }

    fn attachments(&self) -> Vec<Attachment> {
        let state = self.state();
        let attached = state.attached.iter();
        attached
            .map(|(name, mode)| Attachment {
                name: name.clone(),
                ifindex: 7,
                mode: *mode,
                program_id: 1,
                link_id: 2,
                mtu: 1500,
                rx_packets: 10,
            })
            .collect()
    }
}

impl Policies for Fake {
    fn exempt(&mut self, nets: &[IpNet]) {
        self.state().exempt = nets.to_vec();
    }

    fn try_out(&self, _: &Changes) -> Result<(), Error> {
        if self.state().fail_publish { Err(Error::NoProgram) } else { Ok(()) }
    }

    fn publish_lists(&mut self, lists: &Lists) -> Result<(), Error> {
        self.state().lists = lists.clone();
        Ok(())
    }

    fn change_lists(&mut self, _: &ListChanges, after: &Lists) -> Result<(), Error> {
        let mut state = self.state();
        if state.fail_publish {
            state.fail_publish = false;
            return Err(Error::NoProgram);
        }
        state.lists = after.clone();
        Ok(())
    }

    fn check_lists(&self, _: &Lists) -> Result<(), Error> {
        if self.state().fail_publish { Err(Error::NoProgram) } else { Ok(()) }
    }

    fn set_verdicts(&mut self, options: &Options) {
        self.state().drop_malformed = options.drop_malformed;
    }

    fn set_groups(&mut self, groups: Groups) -> Result<(), Error> {
        let mut state = self.state();
        if state.fail_groups {
            return Err(Error::NoProgram);
        }
        state.groups = groups.limit;
        Ok(())
    }

    fn publish(&mut self, limits: &Limits) -> Result<(), Error> {
        let mut state = self.state();
        assert!(!state.panic_on_publish, "asked to");
        if state.fail_publish {
            // Once: the second call is the one that restores.
            state.fail_publish = false;
            return Err(Error::NoProgram);
        }
        state.limits = limits.iter().collect();
        Ok(())
    }

    fn change(&mut self, changes: &Changes) -> Result<(), Error> {
        let mut limits: Limits = self.state().limits.iter().copied().collect();
        limits.apply(changes);
        self.publish(&limits)
    }

    fn gate_of(&self, limit: &Limit) -> u32 {
        if limit.burst < 16 { 1 } else { 16 }
    }

    fn held_of(&self, _: &Limit) -> [Option<u64>; 2] {
        [None; 2]
    }
    fn take_back(&self) {}
    fn shared_counts(&self, _: &Target) -> Option<Counts> {
        None
    }

    fn share_of(&self, _: &Target) -> Option<HeldShare> {
        None
    }

    fn set_shadow(&mut self, target: &Target, tier: &Tier) -> Result<(), Error> {
        self.state().shadows.insert(*target, *tier);
        Ok(())
    }

    fn unset_shadow(&mut self, target: &Target) -> Result<bool, Error> {
        Ok(self.state().shadows.remove(target).is_some())
    }

    fn shadows(&self, n: usize) -> Vec<ShadowView> {
        let state = self.state();
        let shadows = state.shadows.iter();
        shadows
            .map(|(target, tier)| ShadowView {
                target: *target,
                tier: *tier,
                sources: 4,
                limited: 1,
                packets: 400,
                would_drop: 100,
                most: [(self.view(&state, IpAddr::from([192, 0, 2, 1])), 200, 100)]
                    .into_iter()
                    .take(n)
                    .collect(),
            })
            .collect()
    }

    fn prefixes(&self) -> (u8, u8) {
        (32, 64)
    }

    fn peers(&self) -> usize {
        0
    }

    fn unlimited_frames(&self, _: IpAddr) -> Option<SocketAddr> {
        None
    }

    fn set_peers(&mut self, _: &BTreeSet<IpAddr>) -> Result<usize, Error> {
        Ok(0)
    }
}

impl Buckets for Fake {
    fn counters(&self) -> Result<Counters, Error> {
        let mut counters = Counters::default();
        counters.verdicts[Reason::OverLimit as usize].packets = 10;
        counters.verdicts[Reason::OverGroup as usize].packets =
            self.state().limited_groups.len() as u64;
        Ok(counters)
    }

    fn source(&self, address: IpAddr) -> Result<Vec<Source>, Error> {
        Ok(vec![self.view(&self.state(), address)])
    }

    fn group(&self, address: IpAddr) -> Option<Source> {
        let state = self.state();
        let GroupLimit(tier) = state.groups?;
        let group = prefix_of(address, if address.is_ipv4() { 24 } else { 48 });
        let limit = Some(Amount::new(tier).of(target_of(group)));
        Some(Source { source: group, is_group: true, limit, ..self.view(&state, group.addr()) })
    }

    fn limited_groups(&self, n: usize) -> (Vec<Source>, usize) {
        let limited = self.state().limited_groups.clone();
        (limited.iter().take(n).filter_map(|group| self.group(*group)).collect(), limited.len())
    }

    fn counts(&self, visit: &mut dyn FnMut(usize, Counts)) {
        for (bucket, (passed, dropped)) in self.state().sources.values().enumerate() {
            visit(bucket, Self::counts_of(*passed, *dropped));
        }
    }

    fn members(
        &self,
        buckets: &mut dyn Iterator<Item = usize>,
        visit: &mut dyn FnMut(usize, Member),
    ) {
        let state = self.state();
        for bucket in buckets {
            let Some((address, (passed, dropped))) = state.sources.iter().nth(bucket) else {
                continue;
            };
            let source = source_of(address.parse().unwrap(), 32, 64);
            let counts = Self::counts_of(*passed, *dropped);
            let (first_seen, last_seen) = (SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH);
            visit(bucket, Member { source, class: Class::ANY, counts, first_seen, last_seen });
        }
    }

    fn buckets(&self) -> usize {
        let state = self.state();
        let cluster = state.cluster.iter().map(|member| member.bucket.bucket + 1).max();
        state.sources.len().max(cluster.unwrap_or_default())
    }

    fn sources_at(&self, buckets: &[usize], visit: &mut dyn FnMut(usize, Counts, Source)) {
        let state = self.state();
        for &bucket in buckets {
            let (address, (passed, dropped)) = state.sources.iter().nth(bucket).unwrap();
            let source = self.view(&state, address.parse().unwrap());
            visit(bucket, Self::counts_of(*passed, *dropped), source);
        }
    }

    fn sketch(&self) -> SketchHealth {
        SketchHealth {
            epsilon: 0.005,
            delta: 0.006,
            requested_epsilon: 0.01,
            requested_delta: 0.01,
            width: 512,
            depth: 5,
            window_ms: 134.217_728,
            noise: 0.5,
            memory_bytes: 512 * 5 * 8,
        }
    }

    fn table(&self) -> TableHealth {
        TableHealth {
            sets: 4,
            ways: 4,
            capacity: 16,
            occupied: 3,
            busy: 1,
            held: 1,
            full_sets: self.state().full_sets,
            memory_bytes: 16 * 80,
        }
    }

    fn monotonic_ns(&self) -> u64 {
        self.state().monotonic_ns
    }

    fn noise(&self) -> f64 {
        0.0
    }

    fn distinct(&self) -> Option<Distinct> {
        None
    }

    fn refresh_clock(&self) {}

    fn bucket_of(&self, _: IpNet, _: Class) -> Option<usize> {
        None
    }

    fn holders(&self, most: usize) -> Vec<Holder> {
        let limits = self.state().limits.clone().into_iter();
        limits.map(|limit| Holder { limit, buckets: 1 }).take(most).collect()
    }

    fn registers(&self) -> Option<WindowRanks> {
        Some(WindowRanks { ranks: Ranks::default(), window: 0, key: 7 })
    }

    fn sketch_counts(
        &self,
        sent: &mut dyn FnMut(usize, u8, &Counts) -> u64,
    ) -> Option<SketchCounts> {
        let (shape, window) = (Shape { mask: 511, depth: 5 }, Window { shift: 27 });
        let mut cells = vec![0; shape.cells() as usize];
        for (bucket, (address, (passed, dropped))) in self.state().sources.iter().enumerate() {
            let packets = sent(bucket, 0, &Self::counts_of(*passed, *dropped));
            for cell in self.sketch_cells(address.parse().unwrap(), shape).1 {
                cells[cell as usize] += packets;
            }
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let elapsed = now.as_nanos() as u64 % window.ns();
        let began = SystemTime::now() - Duration::from_nanos(elapsed);
        let elapsed = Duration::from_nanos(elapsed);
        Some(SketchCounts { key: 7, shape, window, began, elapsed, cells })
    }

    fn sketch_cells(&self, address: IpAddr, shape: Shape) -> (u64, Vec<u32>) {
        let IpAddr::V4(v4) = address else { return (7, Vec::new()) };
        let hash = HashKey { words: [3; 10] }.hash(SourceKey::from_ipv4(v4.octets()));
        (7, (0..shape.depth).map(|row| shape.index(hash, row)).collect())
    }

    fn run_time(&self) -> Option<RunTime> {
        None
    }
}

impl Shares for Fake {
    fn buckets(&self) -> usize {
        Buckets::buckets(self)
    }

    fn begun_to_be_limited(&self) -> Vec<IpNet> {
        Vec::new()
    }

    fn cluster_buckets(&self, buckets: Range<usize>, visit: &mut dyn FnMut(ClusterBucket)) {
        let state = self.state();
        let all = state.cluster.iter().map(|member| member.bucket);
        all.filter(|bucket| buckets.contains(&bucket.bucket)).for_each(visit);
    }

    fn cluster_members(
        &self,
        buckets: &mut dyn Iterator<Item = usize>,
        visit: &mut dyn FnMut(ClusterMember),
    ) {
        let state = self.state();
        for bucket in buckets {
            let its = |member: &&ClusterMember| member.bucket.bucket == bucket;
            state.cluster.iter().filter(its).cloned().for_each(&mut *visit);
        }
    }

    fn buckets_of(&self, source: IpNet) -> Vec<usize> {
        let state = self.state();
        let its = state.cluster.iter().filter(|member| member.source == source);
        its.map(|member| member.bucket.bucket).collect()
    }

    fn shared_buckets(&self) -> Vec<usize> {
        let state = self.state();
        let shared = state.cluster.iter().filter(|member| member.limit.target.aggregate);
        shared.map(|member| member.bucket.bucket).collect()
    }

    fn set_shares(&self, shares: &mut dyn Iterator<Item = BucketShare>) -> SharesChanged {
        let mut state = self.state();
        let mut changed = SharesChanged::default();
        for share in shares {
            let its = |member: &ClusterMember| {
                (member.bucket.bucket, member.bucket.tag) == (share.bucket, share.tag)
            };
            if !state.cluster.iter().any(its) {
                changed.gone_buckets.push(share.bucket);
            } else if let Some(left) = state.missed.get_mut(&share.bucket).filter(|left| **left > 0)
            {
                *left -= 1;
                changed.missed_buckets.push(share.bucket);
            } else {
                state.shares.insert(share.bucket, share);
            }
        }
        changed
    }

    fn give_back(&self, _: SharesChanged) {}
}

impl Floors for Fake {
    fn has_everything(&self) -> bool {
        false
    }

    fn cluster_terms(&self) -> Option<ClusterTerms> {
        None
    }

    fn renew_floors(&self, _: Range<usize>) -> SharesChanged {
        SharesChanged::default()
    }

    fn target_of(&self, source: IpNet, class: Class) -> Option<Target> {
        let state = self.state();
        let its = |member: &&ClusterMember| (member.source, member.class) == (source, class);
        state.cluster.iter().find(its).map(|member| member.limit.target)
    }

    fn set_floor(
        &mut self,
        _: Share,
        _: u32,
        _: fn(&Limit) -> bool,
    ) -> Result<SharesChanged, Error> {
        Ok(SharesChanged::default())
    }

    fn change_floor(&mut self, _: Share, _: u32, _: fn(&Limit) -> bool) -> Result<(), Error> {
        Ok(())
    }
}

impl Samples for Fake {
    fn events(&mut self, _: &mut dyn FnMut(Event)) {}

    fn start_sampling(&mut self, _: &SampleFilter) {
        self.state().sampling = true;
    }

    fn stop_sampling(&mut self) {
        self.state().sampling = false;
    }

    fn samples(&mut self, _: usize, _: &mut dyn FnMut(PacketSample)) {}
}

impl Plane for Fake {
    fn shares(&self) -> Arc<dyn Shares> {
        Arc::new(self.clone())
    }

    fn leased_shares(&self) -> Arc<dyn Shares> {
        Arc::new(self.clone())
    }

    fn scan(&self, whose: Whose, scan: &mut Scan<'_>) {
        // It has no destinations.
        if whose == Whose::Sources {
            self.counts(&mut |bucket, counts| scan.visit(bucket, &counts));
        }
    }
}
