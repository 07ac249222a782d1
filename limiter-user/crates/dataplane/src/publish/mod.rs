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
mod lookup;
mod order;
mod place;
mod shadows;
mod shared;
mod slots;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use aya::maps::{Array, MapData};
use ipnet::IpNet;
use limiter_common::abi::{Config, POLICY_SLOTS, Policy, PolicyWord, UNLIMITED_SLOT};
use limiter_common::atomic;
use limiter_common::class::ANY;
use limiter_common::gcra::ticks;
use limiter_common::shared::{SHARED_SLOTS, Shared};

use super::memory::Elements;
use super::sources::{MapKey as _, Prefixes, SourceMaps};
use super::{Error, kernel};
use classes::ClassUse;
use model::class::Class;
use model::target::prefixes_of;
use model::{Changes, Limits, Selector, Target};
use order::Maps;
use place::ClassPlace;
use shadows::Shadows;
use shared::SharedMaps;
use slots::PolicySlots;

pub(super) use classes::ClassTables;
pub(super) use lookup::PolicyLookup;
pub(super) use shadows::ShadowLimit;
pub use shared::SharedCounts;

/// The policies of an amount: for each source by itself, and shared.
pub(super) type Compiled = [Option<Policy>; 2];

/// The maps that lead from a packet to its policies.
pub(super) struct PolicyMaps {
    pub(super) policies: Array<MapData, Policy>,
    pub(super) each: SourceMaps<ClassPlace, u32>,
    pub(super) shared: Prefixes<ClassPlace, u32>,
    pub(super) buckets: Elements<Shared>,
    pub(super) classes: Arc<ClassTables>,
    /// How many single sources there is room for.
    pub(super) max_exact: usize,
}

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

    /// Whether it is the one that lies in the configuration, not in a map.
    fn is_default(&self) -> bool {
        *self == Self::DEFAULT
    }
}

/// 0 for IPv4, 1 for IPv6.
fn family(net: &IpNet) -> usize {
    usize::from(net.addr().is_ipv6())
}

/// What is in force, and the slots it lies in.
pub(super) struct Publisher {
    each: SourceMaps<ClassPlace, u32>,
    shared: SharedMaps,
    tables: Arc<ClassTables>,
    max_exact: usize,
    /// Where each leads.
    targets: HashMap<Key, u32>,
    /// How many prefixes of each length there are: IPv4, IPv6.
    lengths: [[usize; 129]; 2],
    slots: PolicySlots,
    classes: ClassUse,
    generation: u32,
    /// Prefixes in which every target leads to "no limit", whatever it is given.
    exempt: Vec<IpNet>,
    /// The shadow limits.
    shadows: Shadows,
}

/// A change as the maps have it.
#[derive(Clone, Copy)]
struct Step {
    key: Key,
    before: Option<u32>,
    after: Option<u32>,
}

impl Publisher {
    /// Reads what the maps hold, and writes the "no limit" slot.
    ///
    /// # Errors
    /// [`Error::Map`] if they cannot be read or written.
    pub(super) fn new(maps: PolicyMaps, config: &Config) -> Result<Self, Error> {
        let PolicyMaps { policies, each, shared, buckets, classes, max_exact } = maps;
        // The maps are the truth about what is in force, not the store: packets went by them while
        // no daemon was there.
        let word = PolicyWord(atomic::load(&config.policy));
        let present = each.present().map_err(Error::map("read the policies in force"))?;
        let own = present.into_iter().map(|(place, slot)| (Key { place, aggregate: false }, slot));
        let mut targets: HashMap<_, _> = own.collect();
        targets.insert(Key::DEFAULT, word.slot());
        let shared = SharedMaps::new(shared, buckets, config)?;
        let aggregate = |(place, slot)| (Key { place, aggregate: true }, slot);
        targets.extend(shared.present().map(aggregate));
        let slots = PolicySlots::new(policies, targets.values().copied())?;
        let mut publisher = Self {
            each,
            shared,
            classes: classes.present(config),
            tables: classes,
            max_exact,
            lengths: [[0; 129]; 2],
            slots,
            generation: word.generation(),
            exempt: Vec::new(),
            shadows: Shadows::default(),
            targets: HashMap::new(),
        };
        for key in targets.keys() {
            publisher.count(key, true);
            note(&mut publisher.classes, key, true);
        }
        publisher.targets = targets;
        // A daemon that died in the middle of a change left buckets of this generation that lead to slots which
        // nothing else leads to any more, so that they are free. And limits that are shared, as they were before.
        publisher.renew(config);
        let shared = publisher.targets.keys().filter(|key| key.aggregate);
        publisher.clamp(shared);
        Ok(publisher)
    }

    /// Lets no limit apply in `nets`, once [`Publisher::replacing`] was put in force.
    pub(super) fn exempt(&mut self, nets: &[IpNet]) {
        self.exempt = nets.to_vec();
    }

    /// The generation of policies in force.
    pub(super) const fn generation(&self) -> u32 {
        self.generation
    }

    /// The policy in a slot.
    pub(super) fn policy(&self, slot: u32) -> Option<Policy> {
        self.slots.policy(slot)
    }

    /// The numbers of the classes in use.
    pub(super) fn class_ids(&self) -> impl Iterator<Item = u8> {
        self.classes.ids()
    }

    /// The class with a number.
    pub(super) fn class(&self, id: u8) -> Option<Class> {
        self.classes.class(id)
    }

    /// The policy that applies to what `address` sends of the class that it has a bucket for, and whom
    /// it is for.
    pub(super) fn policy_for(&self, address: IpAddr, class: u8) -> (Target, Option<Policy>) {
        let everyone =
            Key { place: ClassPlace { whom: Selector::Default, class }, aggregate: false };
        let key = self.leading(address, class).find(|key| !self.shadows.only(key));
        let key = key.unwrap_or(everyone);
        (self.target(&key), self.own(&key))
    }

    /// The keys for prefixes that lead somewhere for `address`, that of the longest prefix first.
    fn leading(&self, address: IpAddr, class: u8) -> impl Iterator<Item = Key> {
        let lengths = &self.lengths[usize::from(address.is_ipv6())];
        prefixes_of(IpNet::from(address))
            .filter(|net| lengths[usize::from(net.prefix_len())] > 0)
            .map(move |net| Key::each(net, class))
            .filter(|key| self.targets.contains_key(key))
    }

    /// All policies in force.
    pub(super) fn policies(&self) -> impl Iterator<Item = (Target, Policy)> {
        self.targets.keys().filter_map(|key| Some((self.target(key), self.own(key)?)))
    }

    /// What came to a shared limit since it is set.
    pub(super) fn shared_counts(&self, target: &Target) -> Option<SharedCounts> {
        let key = Self::key(&self.classes, target)?;
        if key.aggregate { self.shared.counts(&key.place) } else { None }
    }

    fn target(&self, key: &Key) -> Target {
        let class = self.classes.class(key.place.class).unwrap_or(Class::ANY);
        Target { whom: key.place.whom, class, aggregate: key.aggregate }
    }

    fn key(classes: &ClassUse, target: &Target) -> Option<Key> {
        let place = ClassPlace { whom: target.whom, class: classes.id(&target.class)? };
        Some(Key { place, aggregate: target.aggregate })
    }

    /// The changes that make exactly `limits` those in force.
    pub(super) fn replacing(&self, limits: &Limits) -> Changes {
        let mut changes = Changes::default();
        for target in self.targets.keys().map(|key| self.target(key)) {
            if limits.get(&target).is_none() {
                changes.unset(target);
            }
        }
        limits.iter().for_each(|limit| changes.set(limit));
        // Their own prefixes lead to "no limit" also where nobody has set one.
        for net in &self.exempt {
            let target = Target::from(*net);
            let known = self.targets.contains_key(&Key::each(*net, ANY as u8));
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
            self.slots.release(slot);
        }
        atomic::store(&config.min_gate, u64::from(self.slots.least_gate()));
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
                    *slot = Some(self.slots.hold(policy)?);
                }
            }
            slots.push(held);
        }
        // A smaller gate first and a larger one last: in between, too many look their policy up,
        // never too few.
        let new = policies.iter().flatten().flatten().map(|policy| policy.gate).min();
        if let Some(new) = new
            && u64::from(new) < atomic::load(&config.min_gate)
        {
            atomic::store(&config.min_gate, u64::from(new));
        }
        let mut shadowed = self.hold_shadows(changes, &classes, policies)?;
        // Taken out, as the closure below needs it while `write` has all of this.
        let exempt = std::mem::take(&mut self.exempt);
        let after = |key: &Key, amount| match shadowed.get(key) {
            Some((slot, _)) => Some(*slot),
            None => destination(&exempt, key, slot_of(amount, slots, key)),
        };
        let written = self.write(changes, &classes, after, config);
        if written.is_ok() {
            // At once, and no more than that: a million limits that come one by one would copy the
            // table twenty times.
            self.targets.reserve(changes.len().saturating_sub(self.targets.len()));
            for (target, amount) in changes.numbered() {
                // What has no class has no limit that could be removed.
                let key = Self::key(&classes, &target);
                if let Some(key) = key.or_else(|| Self::key(&self.classes, &target)) {
                    self.lead(key, after(&key, amount));
                }
            }
        }
        self.exempt = exempt;
        for (key, (slot, own)) in shadowed.drain() {
            self.slots.release(slot);
            if let Some(shadow) = self.shadows.of_mut(&key).filter(|_| written.is_ok()) {
                shadow.own = own;
            }
        }
        if let Err(error) = written {
            // Buckets of this generation may lead to what was in force for a moment.
            self.renew(config);
            return Err(error);
        }
        self.classes = classes;
        self.shared.announce(config);
        // One word: the new generation and its default together. Full barrier, after all the rest.
        self.renew(config);
        let keys: Vec<Key> = changes
            .numbered()
            .filter_map(|(target, _)| Self::key(&self.classes, &target))
            .filter(|key| key.aggregate)
            .collect();
        self.clamp(keys.iter());
        Ok(())
    }

    /// Has the buckets of shared limits owe no more than empty ones do under their policies. The kernel does so with
    /// a source's bucket when it looks the policy up.
    fn clamp<'a>(&self, keys: impl Iterator<Item = &'a Key>) {
        let now = ticks(kernel::monotonic_ns());
        for key in keys {
            if let Some(policy) = self.own(key) {
                self.shared.clamp(&key.place, &policy, now);
            }
        }
    }

    /// Where those of the changed keys lead with a shadow limit, each slot held once more, and
    /// the policies that are set for them then.
    fn hold_shadows(
        &mut self,
        changes: &Changes,
        classes: &ClassUse,
        policies: &[Compiled],
    ) -> Result<HashMap<Key, (u32, Option<Policy>)>, Error> {
        let mut shadowed = HashMap::new();
        if self.shadows.is_empty() {
            return Ok(shadowed);
        }
        for (target, amount) in changes.numbered() {
            let Some(key) = Self::key(classes, &target) else { continue };
            let Some(shadow) = self.shadows.of(&key) else { continue };
            let own = amount.and_then(|amount| policies[amount][usize::from(key.aggregate)]);
            let present = self.targets.get(&key).copied();
            let slot = match (own, present) {
                (Some(own), _) => self.slots.hold(&shadow.beside(own))?,
                // What applies without a limit of its own is found out when that is gone.
                (None, Some(present)) => {
                    self.slots.hold_slot(present);
                    present
                }
                (None, None) => continue,
            };
            shadowed.insert(key, (slot, own));
        }
        Ok(shadowed)
    }

    /// Lets every CPU look again at what it remembers of sources.
    pub(super) fn renew(&mut self, config: &Config) {
        let default = self.targets.get(&Key::DEFAULT).copied().unwrap_or(UNLIMITED_SLOT);
        self.generation = self.generation.wrapping_add(1);
        atomic::swap(&config.policy, PolicyWord::new(self.generation, default).0);
    }

    /// How many targets there are that are single sources, IPv4 prefixes, IPv6 prefixes, and shared.
    fn room_taken(&self) -> [usize; 4] {
        let mut taken = [0; 4];
        let [in4, in6] = &self.lengths;
        let (v4, v6) = self.each.lengths();
        let exact = [in4[usize::from(v4)], in6[usize::from(v6)]];
        let sum = |lengths: &[usize; 129]| lengths.iter().sum::<usize>();
        taken[0] = exact[0] + exact[1];
        taken[1] = sum(in4) - exact[0];
        taken[2] = sum(in6) - exact[1];
        taken[3] = self.shared.present().count();
        taken
    }

    /// Which of the kinds of [`Publisher::room_taken`] a key is of.
    fn kind(&self, key: &Key) -> Option<usize> {
        if key.aggregate {
            return Some(3);
        }
        let net = key.place.net()?;
        Some(if self.each.is_exact(&key.place) { 0 } else { 1 + family(&net) })
    }

    /// The classes that there are after `changes`, for which there is room.
    ///
    /// # Errors
    /// [`Error::TooMany`], or [`Error::Limit`] for classes that do not go together.
    fn after(&self, changes: &Changes) -> Result<ClassUse, Error> {
        let mut taken = self.room_taken();
        let mut classes = self.classes.clone();
        for (target, amount) in changes.numbered() {
            let key = if amount.is_some() {
                classes.give(&target.class).map(|class| {
                    let place = ClassPlace { whom: target.whom, class };
                    Key { place, aggregate: target.aggregate }
                })
            } else {
                Self::key(&classes, &target)
            };
            let Some(key) = key else {
                if amount.is_none() {
                    continue;
                }
                return Err(Error::TooMany {
                    kind: "classes",
                    wanted: model::class::MAX_CLASSES + 1,
                    room: model::class::MAX_CLASSES,
                    hint: "combine classes, or remove some with `limiter limit unset`",
                });
            };
            let kind = self.kind(&key);
            let leads = amount.is_some() || self.holds(&key);
            let led = self.targets.contains_key(&key);
            if led != leads {
                note(&mut classes, &key, leads);
                if let Some(kind) = kind {
                    taken[kind] = taken[kind] + usize::from(leads) - usize::from(led);
                }
            }
        }
        // Now, not while counting: a class that one of the changes leaves and another one comes to
        // keeps its number.
        classes.forget_unused();
        classes.classes()?;
        let slots = POLICY_SLOTS as usize;
        let combine = "combine prefixes that have the same limit";
        let kinds = [
            ("single sources", self.max_exact, "run the daemon with a larger --max-limits"),
            ("IPv4 prefixes", slots, combine),
            ("IPv6 prefixes", slots, combine),
            ("shared limits", SHARED_SLOTS as usize - 1, "combine prefixes that share a limit"),
        ];
        for ((kind, room, hint), wanted) in kinds.into_iter().zip(taken) {
            if wanted > room {
                return Err(Error::TooMany { kind, wanted, room, hint });
            }
        }
        Ok(classes)
    }

    /// Whether there is room for `changes`, and their classes go together.
    ///
    /// # Errors
    /// [`Error::TooMany`] and [`Error::Limit`].
    pub(super) fn check(&self, changes: &Changes) -> Result<(), Error> {
        self.after(changes).map(drop)
    }

    /// Whether a key leads somewhere when it is given no limit.
    fn holds(&self, key: &Key) -> bool {
        let any = u32::from(key.place.class) == ANY;
        let exempt = || key.place.net().is_some_and(|net| any && self.exempt.contains(&net));
        !key.aggregate && (exempt() || self.shadows.of(key).is_some())
    }

    /// Changes the maps, and changes them back if one cannot be.
    fn write(
        &mut self,
        changes: &Changes,
        classes: &ClassUse,
        destination: impl Fn(&Key, Option<usize>) -> Option<u32>,
        config: &Config,
    ) -> Result<(), Error> {
        let former = self.classes.clone();
        // While keys of both are in the maps packets are told apart by both, or they would miss
        // keys of one of them.
        let both = former.until(classes);
        let Self { each, shared, tables, targets, generation, .. } = self;
        let default = targets.get(&Key::DEFAULT).copied().unwrap_or(UNLIMITED_SLOT);
        let steps = changes.numbered().filter_map(|(target, amount)| {
            let key = Self::key(classes, &target).or_else(|| Self::key(&former, &target))?;
            let before = targets.get(&key).copied();
            let after = destination(&key, amount);
            (before != after).then_some(Step { key, before, after })
        });
        // The default is found last of all. It lies elsewhere, and always leads somewhere.
        let new_default = steps.clone().find(|step| step.key.is_default());
        let new_default = new_default.map_or(default, |step| step.after.unwrap_or(UNLIMITED_SLOT));
        let steps = steps.filter(|step| !step.key.is_default());
        let coming = steps.clone().filter(|step| step.after.is_some());
        let going = steps.filter(|step| step.after.is_none());
        let is_new = |step: &Step| former.class(step.key.place.class).is_none();
        let mut maps = Maps::new(each, shared, &both);
        let lead = |slot| atomic::swap(&config.policy, PolicyWord::new(*generation, slot).0);
        let mut change = || {
            // Nobody finds a limit of a class that is not in the tables yet.
            maps.add(coming.clone().filter(is_new))?;
            // There may be no room for both the old classes and the new ones. Then what is both new and
            // found in the place of an old class's is in force a moment before or after the rest.
            let at_once = !former.tells_as(&both) && both.classes().is_err();
            if !at_once && !former.tells_as(&both) {
                tables.publish(&both, config)?;
            }
            maps.add(coming.clone().filter(|step| !is_new(step)))?;
            lead(new_default);
            if at_once {
                tables.publish(classes, config)?;
            }
            maps.remove(going.clone())?;
            if !at_once && !both.tells_as(classes) {
                tables.publish(classes, config)?;
            }
            Ok(())
        };
        let Err(error) = change() else { return Ok(()) };
        // Some of these have not been changed: then nothing becomes of them.
        let steps = going.chain(coming).map(|step| Step { after: step.before, ..step });
        let (returning, leaving): (Vec<_>, Vec<_>) = steps.partition(|step| step.after.is_some());
        // What was there comes back first, and what is new goes last: in between a packet finds one
        // of the two, never none.
        let undone = maps.undo(returning.into_iter());
        lead(default);
        let undone = undone
            .and_then(|()| tables.publish(&former, config))
            .and_then(|()| maps.undo(leaving.into_iter()));
        if let Err(undo) = undone {
            tracing::error!("cannot change limits back: {undo}");
        }
        Err(error)
    }

    /// Records that a key leads to `slot` now, or nowhere; the default leads somewhere always.
    fn lead(&mut self, key: Key, slot: Option<u32>) {
        let slot = if key.is_default() { slot.or(Some(UNLIMITED_SLOT)) } else { slot };
        let former = match slot {
            Some(slot) => self.targets.insert(key, slot),
            None => self.targets.remove(&key),
        };
        if former == slot {
            return;
        }
        if slot.is_some() != former.is_some() {
            self.count(&key, slot.is_some());
        }
        if let Some(slot) = slot {
            self.slots.hold_slot(slot);
        }
        if let Some(former) = former {
            self.slots.release(former);
        }
    }

    /// Counts a prefix that has a limit now, or none any more.
    fn count(&mut self, key: &Key, more: bool) {
        let Some(net) = key.place.net().filter(|_| !key.aggregate) else { return };
        let count = &mut self.lengths[family(&net)][usize::from(net.prefix_len())];
        *count = if more { *count + 1 } else { *count - 1 };
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
fn destination(exempt: &[IpNet], key: &Key, slot: Option<u32>) -> Option<u32> {
    let Some(net) = key.place.net().filter(|_| !key.aggregate) else { return slot };
    let given = slot.is_some() || u32::from(key.place.class) == ANY && exempt.contains(&net);
    let is_exempt = exempt.iter().any(|exempt| exempt.contains(&net));
    if given && is_exempt { Some(UNLIMITED_SLOT) } else { slot }
}

/// Where the amount with a number leads.
fn slot_of(amount: Option<usize>, slots: &[[Option<u32>; 2]], key: &Key) -> Option<u32> {
    slots.get(amount?)?[usize::from(key.aggregate)]
}
