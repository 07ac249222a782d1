//! Limits, shadow limits and floors, as the daemon changes them.

use std::sync::Arc;

use ipnet::IpNet;
use limiter_common::abi::{Policy, UNLIMITED_SLOT};
use limiter_common::atomic;
use limiter_common::batch::FULL_FRAME;
use limiter_common::class::group_prefix;
use limiter_common::features::Features;
use limiter_common::key::GROUP_IPV4_PREFIX;

use super::floors::{ClusterTerms, Floors};
use super::publish::{Compiled, Publisher, newcomers};
use super::view::{Memory, Now, held_share};
use super::{Error, Options, wait_for_packets};
use model::compile::{compile_tier, decompile};
use model::source::{Counts, HeldShare};
use model::{Change, Changes, Class, Groups, Limit, Share, Target, Tier};

/// Changes as the kernel computes with them.
pub(super) struct CompiledChanges {
    policies: Vec<Compiled>,
    /// What a program must be loaded for to judge by them.
    pub(super) features: Features,
}

/// What limits are compiled with, the floors and the longest frame, and the publisher that puts them in force.
/// Apart from it, because a limit is compiled before anything is changed, and again when these change.
pub struct Policies {
    memory: Arc<Memory>,
    pub(super) publisher: Publisher,
    floors: Floors,
    max_frame: u32,
    groups: Option<Groups>,
}

impl Policies {
    pub(super) fn new(memory: Arc<Memory>, publisher: Publisher) -> Self {
        Self { memory, publisher, floors: Floors::default(), max_frame: FULL_FRAME, groups: None }
    }

    /// Decides what happens to packets whose source cannot be read, to what the link needs, and to sources without a
    /// place in the bucket table.
    pub fn set_verdicts(&mut self, options: &Options) {
        let config = self.memory.config();
        atomic::store(&config.drop_malformed, u64::from(options.drop_malformed));
        atomic::store(&config.limit_link_control, u64::from(options.limit_link_control));
        atomic::store(&config.on_full, options.on_full.word());
    }

    /// As [`super::Dataplane::set_groups`], by a program that serves groups.
    pub(super) fn set_groups(&mut self, groups: Groups) -> Result<(), Error> {
        if self.groups == Some(groups) {
            return Ok(());
        }
        self.publish_groups(groups)?;
        // What a daemon before this one has left is emptied when limits are published, once for classes and groups.
        let Some(former) = self.groups.replace(groups) else { return Ok(()) };
        // Groups of another length are other groups.
        if former.ipv6_prefix != groups.ipv6_prefix || groups.limit.is_none() {
            self.retire();
        }
        Ok(())
    }

    fn publish_groups(&mut self, groups: Groups) -> Result<(), Error> {
        let policy = groups.compile(self.memory.layout.window_shift, self.max_frame)?;
        let config = self.memory.config();
        self.publisher.set_groups(policy.as_ref(), groups.ipv6_prefix, config)
    }

    /// As [`super::Dataplane::change`], by a program that serves what the policies need.
    pub(super) fn put(
        &mut self,
        changes: &Changes,
        compiled: &CompiledChanges,
    ) -> Result<(), Error> {
        let policies = &compiled.policies;
        // A program would pass over what it is not loaded for, and nobody would notice.
        let served = Features(atomic::load(&self.memory.config().features) as u32);
        if !served.has(compiled.features) {
            return Err(Error::load("the program at work does not serve these limits"));
        }
        // Only where a class has gone are buckets emptied: that waits for packets, and looks at the whole table.
        let before: Vec<u8> = self.publisher.in_force.classes.ids().collect();
        let changed = self.publisher.change(changes, policies, self.memory.config());
        if before.into_iter().any(|id| self.publisher.in_force.classes.class(id).is_none()) {
            self.retire();
        }
        changed
    }

    /// Empties the buckets for classes that no limit is for any more: nothing is charged to them, and another
    /// class may get their number. While a class is in use anywhere its buckets keep what they owe: a limit that
    /// is put back must not find them full.
    pub(super) fn retire(&self) {
        wait_for_packets();
        // Only now: a packet that was told apart by the former classes may have been about to
        // charge one of these buckets.
        let classes = &self.publisher.in_force.classes;
        let newcomers = newcomers(self.memory.config());
        let lengths = [GROUP_IPV4_PREFIX, newcomers.group_ipv6_prefix()];
        let limited = newcomers.group_slot() != UNLIMITED_SLOT;
        let is_group =
            |length: u8| limited && lengths.into_iter().any(|bits| bits == u32::from(length));
        self.memory.retire(|class| {
            classes.class(class).is_some() || group_prefix(class).is_some_and(is_group)
        });
    }

    /// Whether [`super::Dataplane::change`] would make `changes`, as far as that can be told beforehand.
    ///
    /// # Errors
    /// As [`super::Dataplane::change`], but for what only the kernel knows.
    pub fn try_out(&self, changes: &Changes) -> Result<(), Error> {
        self.compile(changes)?;
        self.publisher.after(changes).map(drop)
    }

    /// The policies of each of the amounts in use, and what a program must be loaded for to judge by them.
    pub(super) fn compile(&self, changes: &Changes) -> Result<CompiledChanges, Error> {
        let (v4, v6) = self.memory.layout.masks.lengths();
        // What is compiled does not depend on the target, beyond whether it is shared and an error's
        // text.
        let mut policies: Vec<Compiled> = vec![[None; 2]; changes.amounts().len()];
        let mut features = Features::NONE;
        for (target, amount) in changes.numbered() {
            let Some(amount) = amount else { continue };
            let limit = changes.amounts()[amount].of(target);
            limit.check_prefix(v4, v6)?;
            if target.aggregate {
                features = features.and(Features::AGGREGATES);
            }
            if !target.class.is_any() {
                features = features.and(Features::CLASSES);
            }
            if target.class.destination.is_some() {
                features = features.and(Features::DESTINATIONS);
            }
            let policy = &mut policies[amount][usize::from(target.aggregate)];
            if policy.is_none() {
                let compiled = self.policy_of(&limit)?;
                features = features.and(Features::of_policy(&compiled));
                *policy = Some(compiled);
            }
        }
        Ok(CompiledChanges { policies, features })
    }

    /// The policy of a limit.
    fn policy_of(&self, limit: &Limit) -> Result<Policy, Error> {
        let layout = &self.memory.layout;
        let policy = self.floors.compile(limit, layout.window_shift, self.max_frame)?;
        Ok(match limit.target.aggregate {
            true => policy.shared_by_sources(layout.cpus, u32::from(limit.reserve)),
            false => policy,
        })
    }

    /// Whether destinations have limits: some buckets are no source's then.
    pub fn limits_destinations(&self) -> bool {
        self.publisher.in_force.limits_destinations()
    }

    /// The limits in force.
    pub(super) fn in_force(&self) -> impl Iterator<Item = Limit> {
        let known = self.publisher.in_force.policies();
        known.filter_map(|(target, policy)| decompile(target, &policy))
    }

    /// Compiles limits in force again, those that `includes` names.
    fn compile_again(&mut self, includes: fn(&Limit) -> bool) -> Result<(), Error> {
        let limits = self.in_force().filter(includes);
        let limits = limits.filter(|limit| self.floors.knows(limit));
        let changes: Changes = limits.map(Change::Set).collect();
        if changes.is_empty() {
            return Ok(());
        }
        let compiled = self.compile(&changes)?;
        self.put(&changes, &compiled)
    }

    /// Lets limits suit frames of up to so many bytes: byte limits' gates depend on it.
    ///
    /// # Errors
    /// As [`super::Dataplane::change`].
    pub(super) fn fit_frames(&mut self, max_frame: u32) -> Result<(), Error> {
        // All limits are compiled and published again: with a million of them that takes seconds.
        if max_frame == self.max_frame {
            return Ok(());
        }
        self.max_frame = max_frame;
        if let Some(groups) = self.groups {
            self.publish_groups(groups)?;
        }
        self.compile_again(|_| true)
    }

    /// The estimate below which a source with this limit needs no bucket; 1 means that every source
    /// gets one at once, as happens to limits that are slow for the sketch's window.
    pub fn gate_of(&self, limit: &Limit) -> u32 {
        self.policy_of(limit).map_or(1, |policy| policy.gate)
    }

    /// What came to a shared limit since it is set; `None` if it is not in force.
    pub fn shared_counts(&self, target: &Target) -> Option<Counts> {
        self.publisher.shared_counts(target)
    }

    /// What this host may use of a limit of the cluster that sources share; `None` if it is no such limit.
    pub fn share_of(&self, target: &Target) -> Option<HeldShare> {
        Some(held_share(self.publisher.shared_held(target)?, Now::take()))
    }

    /// What CPUs may hold of a shared limit, packets or bytes of each of its rates.
    pub fn held_of(&self, limit: &Limit) -> [Option<u64>; 2] {
        let policy = self.policy_of(limit).ok().filter(|policy| policy.sharing.first_common > 0);
        policy.map_or([None; 2], |policy| policy.held(self.memory.layout.cpus))
    }

    /// Returns what CPUs hold of shared limits: one that is idle keeps nothing for longer than this is called.
    pub fn take_back(&self) {
        self.publisher.take_back();
    }

    /// Whom the limit is for that applies to what a source sends of a class; `None` if that class is not in use.
    pub fn target_of(&self, source: IpNet, class: Class) -> Option<Target> {
        let in_force = &self.publisher.in_force;
        Some(in_force.policy_for(source.addr(), in_force.classes.id(&class)?).0)
    }

    /// As [`super::Dataplane::set_shadow`], by a program that serves shadows.
    pub(super) fn set_shadow(&mut self, target: &Target, tier: &Tier) -> Result<(), Error> {
        let shift = self.memory.layout.window_shift;
        let compiled = compile_tier(target, tier, shift, self.max_frame)?;
        self.publisher.set_shadow(target, (compiled, *tier), self.memory.config()).map(drop)
    }

    /// Removes the shadow limit of a target. Whether there was one.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn unset_shadow(&mut self, target: &Target) -> Result<bool, Error> {
        self.publisher.unset_shadow(target, self.memory.config())
    }

    /// As [`super::Dataplane::change_floor`], by a program that serves limits of the cluster.
    pub(super) fn change_floor(
        &mut self,
        floor: Share,
        hosts: u32,
        includes: fn(&Limit) -> bool,
    ) -> Result<(), Error> {
        let floors = self.floors.becoming(&self.publisher.in_force, floor, hosts, includes);
        // Set before, as limits are compiled with it, and put back where they do not come into force.
        let before = std::mem::replace(&mut self.floors, floors);
        self.compile_again(includes).inspect_err(|_| self.floors = before)
    }

    /// What each bucket has of limits of the cluster without end, if there can be any.
    pub fn cluster_terms(&self) -> Option<ClusterTerms> {
        self.floors.terms(self.max_frame)
    }

    /// Whether each bucket may use all of every limit of the cluster without end, as a daemon before this one has
    /// left it: then that one had delegated nothing.
    pub fn has_everything(&self) -> bool {
        self.floors.has_everything(&self.publisher.in_force)
    }
}
