//! Makes limits the kernel's.
//!
//! A limit becomes a [`Policy`] in a slot of the policy array, and a key that leads to the slot: the
//! default slot, a source of its own, or a prefix, each for a class of packets. A slot that a packet may
//! be reading is never written: a changed limit gets another slot, its key is replaced in one step, and
//! then the generation is raised, upon which every tracked source looks its policy up again. So a packet
//! sees the old or the new limit, never a part of each. Slots that nothing leads to any more rest before
//! they are used again, far longer than a packet takes.
//!
//! Keys of new classes are written before packets are told apart by them. Then come the other keys, what a
//! packet finds first before what it finds later, and then go the old ones, the other way round: see
//! [`order`]. Old classes are told apart until nothing is left of them.

mod classes;
mod in_force;
mod lookup;
mod maps;
mod order;
mod place;
mod shadows;
mod shared;
mod slots;

use std::sync::Arc;

use aya::Ebpf;
use ipnet::IpNet;
use limiter_common::abi::{Config, Layout, Newcomers, Policy, PolicyWord, UNLIMITED_SLOT, keys};
use limiter_common::atomic;
use limiter_common::class::{ANY, is_of_destinations};
use limiter_common::gcra::ticks;
use limiter_common::share::Held;

use super::shared_buckets::SharedBuckets;
use super::sources::MapKey as _;
use super::{Error, kernel, take};
use classes::ClassUse;
use maps::PolicyMaps;
use model::source::Counts;
use model::{Changes, Limits, Selector, Target};
use place::ClassPlace;
use slots::PolicySlots;

pub(super) use classes::ClassTables;
pub(super) use in_force::InForce;
pub(super) use lookup::PolicyLookup;
pub(super) use place::lengths;
pub(super) use shadows::ShadowLimit;

/// The policies of an amount: not shared, and shared.
pub(super) type Compiled = [Option<Policy>; 2];

/// Whom a limit is for, and whether they share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    place: ClassPlace,
    aggregate: bool,
}

impl Key {
    const DEFAULT: Self = Self { place: ClassPlace::DEFAULT, aggregate: false };

    const fn each(net: IpNet, class: u8) -> Self {
        Self { place: ClassPlace::prefix(net, class), aggregate: false }
    }

    const fn everyone(class: u8) -> Self {
        Self { place: ClassPlace { whom: Selector::Default, class }, aggregate: false }
    }

    /// The key of a target; `None` if its class is not among those in use.
    fn from_target(target: &Target, classes: &ClassUse) -> Option<Self> {
        let place = ClassPlace { whom: target.whom, class: classes.id(&target.class)? };
        Some(Self { place, aggregate: target.aggregate })
    }

    /// Whether it is the one that lies in the configuration, not in a map.
    fn is_default(&self) -> bool {
        *self == Self::DEFAULT
    }
}

/// 0 for IPv4, 1 for IPv6.
fn family(net: &IpNet) -> usize {
    usize::from(net.addr().is_ipv6())
}

/// Puts limits in force. It alone changes the maps that lead to policies ([`PolicyMaps`]), and with them what is
/// known of these ([`InForce`]): a change is both, or neither.
pub(super) struct Publisher {
    maps: PolicyMaps,
    pub(super) in_force: InForce,
    /// Prefixes in which every target leads to "no limit", whatever it is given.
    exempt: Vec<IpNet>,
}

/// A change as the maps have it.
#[derive(Clone, Copy)]
struct Step {
    key: Key,
    before: Option<u32>,
    after: Option<u32>,
}

/// The generation in force, and the slot of the default.
pub(super) fn published(config: &Config) -> PolicyWord {
    PolicyWord(atomic::load(&config.policy))
}

/// What sources without a bucket meet.
pub(super) fn newcomers(config: &Config) -> Newcomers {
    Newcomers(atomic::load(&config.newcomers))
}

/// Lowers the gate below which no policy is looked up.
fn lower_gate(config: &Config, gate: u32) {
    if gate < newcomers(config).least_gate() {
        atomic::store(&config.newcomers, newcomers(config).with_least_gate(gate).0);
    }
}

/// Raises the generation, so that every CPU looks again at what it remembers of sources. The default leads to
/// `slot` from then on.
pub(super) fn renew(config: &Config, slot: u32) {
    let generation = published(config).generation().wrapping_add(1);
    atomic::swap(&config.policy, PolicyWord::new(generation, slot).0);
}

impl Publisher {
    /// Takes the maps out of a loaded object, which have room for limits of `max_exact` single sources. Reads what
    /// they hold, and writes the "no limit" slot.
    ///
    /// # Errors
    /// If one is not there, or cannot be read or written.
    pub(super) fn take(
        ebpf: &mut Ebpf,
        layout: &Layout,
        config: &Config,
        tables: Arc<ClassTables>,
        max_exact: usize,
    ) -> Result<Self, Error> {
        let classes = tables.present(config);
        let maps = PolicyMaps::take(ebpf, layout, config, tables, max_exact)?;
        // The maps are the truth about what is in force, not the store: packets went by them while
        // no daemon was there.
        let targets = maps.present(config)?;
        let groups = Some(newcomers(config).group_slot()).filter(|slot| *slot != UNLIMITED_SLOT);
        let leading = targets.values().copied().chain(groups);
        let slots = PolicySlots::new(take(ebpf, "POLICIES")?, leading)?;
        let in_force = InForce::new(targets, slots, classes);
        let publisher = Self { maps, in_force, exempt: Vec::new() };
        // A daemon that died in the middle of a change left buckets of this generation that lead to slots which
        // nothing else leads to any more, so that they are free. And limits that are shared, as they were before.
        publisher.renew(config);
        publisher.settle(config);
        publisher.clamp(publisher.in_force.targets.keys().filter(|key| key.aggregate));
        publisher.tell_shared();
        Ok(publisher)
    }

    /// Lets no limit apply in `nets`, once [`Publisher::replacing`] was put in force.
    pub(super) fn exempt(&mut self, nets: &[IpNet]) {
        self.exempt = nets.to_vec();
    }

    /// What came to a shared limit since it is set.
    pub(super) fn shared_counts(&self, target: &Target) -> Option<Counts> {
        let key = Key::from_target(target, &self.in_force.classes)?;
        if key.aggregate { self.maps.shared.counts(&key.place) } else { None }
    }

    /// What this host may use of a limit of the cluster that sources share.
    pub(super) fn shared_held(&self, target: &Target) -> Option<Held> {
        let key = Key::from_target(target, &self.in_force.classes).filter(|key| key.aggregate)?;
        let policy = self.in_force.own(&key).filter(|policy| policy.whole().is_cluster())?;
        self.maps.shared.held(&key.place, &policy)
    }

    /// The buckets of shared limits.
    pub(super) fn shared_buckets(&self) -> Arc<SharedBuckets> {
        Arc::clone(&self.maps.shared.buckets)
    }

    /// Tells who gives shares which shared limits are the cluster's.
    fn tell_shared(&self) {
        let keys = self.in_force.targets.keys().filter(|key| key.aggregate);
        let cluster = keys.filter_map(|key| {
            let policy = self.in_force.own(key)?;
            let number = self.maps.shared.number(&key.place)?;
            policy.whole().is_cluster().then(|| (number, self.in_force.target(key)))
        });
        self.maps.shared.buckets.set_cluster(cluster.collect());
    }

    /// Returns what CPUs hold of shared limits.
    pub(super) fn take_back(&self) {
        self.maps.shared.take_back();
    }

    /// The changes that make exactly `limits` those in force.
    pub(super) fn replacing(&self, limits: &Limits) -> Changes {
        let mut changes = Changes::default();
        for target in self.in_force.targets.keys().map(|key| self.in_force.target(key)) {
            if limits.get(&target).is_none() {
                changes.unset(target);
            }
        }
        limits.iter().for_each(|limit| changes.set(limit));
        // Their own prefixes lead to "no limit" also where nobody has set one.
        for net in &self.exempt {
            let target = Target::from(*net);
            let known = self.in_force.targets.contains_key(&Key::each(*net, ANY as u8));
            if limits.get(&target).is_none() && !known {
                changes.unset(target);
            }
        }
        changes
    }

    /// Gives each target the one of `policies` that has the number of its amount, or none. A target
    /// must not occur twice.
    ///
    /// # Errors
    /// [`Error::TooMany`] or [`Error::Limit`] before anything is changed; [`Error::Map`] if the kernel
    /// refuses, after what was changed has been changed back.
    pub(super) fn change(
        &mut self,
        changes: &Changes,
        policies: &[Compiled],
        config: &Config,
    ) -> Result<(), Error> {
        // All that can be refused is refused before the first word is written.
        let classes = self.after(changes)?;
        let mut slots = Vec::with_capacity(policies.len());
        let changed = self.change_to(changes, classes, policies, &mut slots, config);
        // Only now, when keys hold what they need: a slot that was released earlier might have been
        // given away.
        for slot in slots.into_iter().flatten().flatten() {
            self.in_force.slots.release(slot);
        }
        self.settle(config);
        changed?;
        if let Err(error) = self.settle_shadows(config) {
            // The limits are in force; a shadow goes on with what applied before.
            tracing::warn!("the shadow limits are not up to date: {error}");
        }
        Ok(())
    }

    /// As [`Publisher::change`]. Holds the slots of `policies`, and leaves them to be released: one
    /// that a target leaves may be the one that another comes to.
    fn change_to(
        &mut self,
        changes: &Changes,
        classes: ClassUse,
        policies: &[Compiled],
        slots: &mut Vec<[Option<u32>; 2]>,
        config: &Config,
    ) -> Result<(), Error> {
        for compiled in policies {
            let mut held = [None; 2];
            for (slot, policy) in held.iter_mut().zip(compiled) {
                if let Some(policy) = policy {
                    *slot = Some(self.in_force.slots.hold(policy)?);
                }
            }
            slots.push(held);
        }
        // A smaller gate first and a larger one last: in between, too many look their policy up,
        // never too few.
        let new = policies.iter().flatten().flatten().map(|policy| policy.gate).min();
        if let Some(new) = new {
            lower_gate(config, new);
        }
        let mut shadowed = self.hold_shadows(changes, &classes, policies)?;
        let Self { maps, in_force, exempt } = self;
        let after = |key: &Key, amount| match shadowed.get(key) {
            Some((slot, _)) => Some(*slot),
            None => leads_to(exempt, key, slot_of(amount, slots, key)),
        };
        // Before the first key that is new of its kind.
        atomic::store(&config.absent, 0);
        let written = maps.write(in_force, changes, &classes, after, config);
        if written.is_ok() {
            // At once, and no more than that: a million limits that come one by one would copy the
            // table twenty times.
            in_force.targets.reserve(changes.len().saturating_sub(in_force.targets.len()));
            for (target, amount) in changes.numbered() {
                // What has no class has no limit that could be removed.
                let key = Key::from_target(&target, &classes);
                if let Some(key) = key.or_else(|| Key::from_target(&target, &in_force.classes)) {
                    in_force.lead(key, after(&key, amount));
                }
            }
        }
        for (key, (slot, own)) in shadowed.drain() {
            in_force.slots.release(slot);
            if let Some(shadow) = in_force.shadows.of_mut(&key).filter(|_| written.is_ok()) {
                shadow.own = own;
            }
        }
        if let Err(error) = written {
            // Buckets of this generation may lead to what was in force for a moment.
            self.renew(config);
            return Err(error);
        }
        self.in_force.classes = classes;
        self.maps.shared.announce(config);
        // One word: the new generation and its default together. Full barrier, after all the rest.
        self.renew(config);
        let keys: Vec<Key> = changes
            .numbered()
            .filter_map(|(target, _)| Key::from_target(&target, &self.in_force.classes))
            .filter(|key| key.aggregate)
            .collect();
        self.clamp(keys.iter());
        // A million limits of single sources are not gone through for nothing.
        if !keys.is_empty() {
            self.tell_shared();
        }
        Ok(())
    }

    /// Has the buckets of shared limits owe no more than empty ones do under their policies. The kernel does so with
    /// a source's bucket when it looks the policy up.
    fn clamp<'a>(&self, keys: impl Iterator<Item = &'a Key>) {
        let now = ticks(kernel::monotonic_ns());
        for key in keys {
            if let Some(policy) = self.in_force.own(key) {
                self.maps.shared.clamp(&key.place, &policy, now);
            }
        }
    }

    /// Gives every group of sources a policy, or none. Those of IPv6 are prefixes of `ipv6_prefix` bits.
    ///
    /// # Errors
    /// As [`PolicySlots::hold`]; then nothing has changed.
    pub(super) fn set_groups(
        &mut self,
        policy: Option<&Policy>,
        ipv6_prefix: u8,
        config: &Config,
    ) -> Result<(), Error> {
        let slots = &mut self.in_force.slots;
        let after = policy.map_or(Ok(UNLIMITED_SLOT), |policy| slots.hold(policy))?;
        let before = newcomers(config).group_slot();
        atomic::store(&config.newcomers, newcomers(config).with_groups(after, ipv6_prefix).0);
        // After that word: a group's bucket of the new generation must not have the former slot.
        self.renew(config);
        if before != UNLIMITED_SLOT {
            self.in_force.slots.release(before);
        }
        Ok(())
    }

    fn renew(&self, config: &Config) {
        renew(config, self.in_force.default_slot());
    }

    /// Spares packets a look at what is not there, once the maps are as [`InForce`] says: policies with a smaller gate,
    /// and keys of a kind that no limit has. And tells what is to become of packets that hide what they are.
    fn settle(&self, config: &Config) {
        let known = newcomers(config);
        let gate = self.in_force.slots.least_gate(known.group_slot());
        atomic::store(&config.newcomers, known.with_least_gate(gate).0);
        let [singles, ipv4, ipv6, _shared] = self.maps.taken(&self.in_force);
        // The key of everyone is among the prefixes of both families. So is what classes name.
        let classes = &self.in_force.classes;
        let both = usize::from(classes.limits_everyone() || classes.names_destinations());
        let kinds =
            [(singles, keys::SINGLES), (ipv4 + both, keys::IPV4), (ipv6 + both, keys::IPV6)];
        let absent =
            kinds.iter().filter(|(count, _)| *count == 0).fold(0, |all, (_, kind)| all | kind);
        atomic::store(&config.absent, absent);
        self.maps.tables.hide(classes, config, self.in_force.strictest());
    }

    /// The classes that there are after `changes`, for which there is room.
    ///
    /// # Errors
    /// [`Error::TooMany`], or [`Error::Limit`] for classes that do not go together.
    pub(super) fn after(&self, changes: &Changes) -> Result<ClassUse, Error> {
        let mut taken = self.maps.taken(&self.in_force);
        let mut classes = self.in_force.classes.clone();
        for (target, amount) in changes.numbered() {
            if amount.is_some() && classes.give(&target.class).is_none() {
                return Err(Error::TooMany {
                    kind: "classes",
                    wanted: model::class::MAX_CLASSES + 1,
                    room: model::class::MAX_CLASSES,
                    hint: "combine classes, or remove some with `limiter limit unset`",
                });
            }
            let Some(key) = Key::from_target(&target, &classes) else { continue };
            let leads = amount.is_some() || self.holds(&key);
            let led = self.in_force.targets.contains_key(&key);
            if led != leads {
                note(&mut classes, &key, leads);
                if let Some(kind) = self.maps.kind(&key) {
                    taken[kind] = taken[kind] + usize::from(leads) - usize::from(led);
                }
            }
        }
        // Now, not while counting: a class that one of the changes leaves and another one comes to
        // keeps its number.
        classes.forget_unused();
        classes.classes()?;
        self.maps.check_room(taken)?;
        Ok(classes)
    }

    /// Whether a key leads somewhere when it is given no limit.
    fn holds(&self, key: &Key) -> bool {
        let any = u32::from(key.place.class) == ANY;
        let exempt = || key.place.net().is_some_and(|net| any && self.exempt.contains(&net));
        !key.aggregate && (exempt() || self.in_force.shadows.of(key).is_some())
    }
}

/// Notes how a class is used by a key that leads somewhere now, or nowhere any more.
fn note(classes: &mut ClassUse, key: &Key, leads: bool) {
    if u32::from(key.place.class) == ANY {
        return;
    }
    let used = classes.of(key.place.class);
    let count = if key.aggregate { &mut used.shared } else { &mut used.each };
    *count = if leads { *count + 1 } else { count.saturating_sub(1) };
    if !key.aggregate && key.place.net().is_none() {
        used.everyone = leads;
    }
}

/// Where a key leads that is given `slot`. An exempt prefix itself always leads somewhere, what is in it
/// only if it has a limit. (What shares a limit does not include exempt sources: they are allowed.)
fn leads_to(exempt: &[IpNet], key: &Key, slot: Option<u32>) -> Option<u32> {
    let of_sources = !key.aggregate && !is_of_destinations(key.place.class);
    let Some(net) = key.place.net().filter(|_| of_sources) else { return slot };
    let given = slot.is_some() || u32::from(key.place.class) == ANY && exempt.contains(&net);
    let is_exempt = exempt.iter().any(|exempt| exempt.contains(&net));
    if given && is_exempt { Some(UNLIMITED_SLOT) } else { slot }
}

/// Where the amount with a number leads.
fn slot_of(amount: Option<usize>, slots: &[[Option<u32>; 2]], key: &Key) -> Option<u32> {
    slots.get(amount?)?[usize::from(key.aggregate)]
}
