//! What is in force, as far as the maps say it.

use std::collections::HashMap;
use std::iter;
use std::net::IpAddr;

use ipnet::IpNet;
use limiter_common::abi::{Policy, Terms, UNLIMITED_SLOT};
use limiter_common::batch::FULL_FRAME;
use limiter_common::class::{ANY, is_of_destinations};
use limiter_common::gate::MAX_GATE;

use super::super::sources::MapKey as _;
use super::classes::ClassUse;
use super::shadows::{ShadowLimit, Shadows};
use super::slots::PolicySlots;
use super::{Key, family, note};
use model::class::{Destination, Kind};
use model::compile::decompile;
use model::target::prefixes_of;
use model::{Class, Limit, Target};

/// Where each target leads, the slots that lie there, the classes in use and the shadow limits. Only the publisher
/// changes it; it is apart because whoever explains a bucket reads it too.
pub(crate) struct InForce {
    /// Where each leads.
    pub(super) targets: HashMap<Key, u32>,
    /// How many prefixes of each length there are, IPv4 and IPv6: of sources, and of destinations.
    pub(super) lengths: [[[usize; 129]; 2]; 2],
    pub(super) slots: PolicySlots,
    pub(crate) classes: ClassUse,
    pub(super) shadows: Shadows,
}

impl InForce {
    /// What `targets` and `slots` say, with the numbers of `classes`.
    pub(super) fn new(targets: HashMap<Key, u32>, slots: PolicySlots, classes: ClassUse) -> Self {
        let (lengths, shadows) = ([[[0; 129]; 2]; 2], Shadows::default());
        let mut in_force = Self { targets: HashMap::new(), lengths, slots, classes, shadows };
        for key in targets.keys() {
            in_force.count(key, true);
            note(&mut in_force.classes, key, true);
        }
        in_force.targets = targets;
        in_force
    }

    /// The slot of the default.
    pub(super) fn default_slot(&self) -> u32 {
        self.targets.get(&Key::DEFAULT).copied().unwrap_or(UNLIMITED_SLOT)
    }

    /// The policy in a slot.
    pub(crate) fn policy(&self, slot: u32) -> Option<Policy> {
        self.slots.policy(slot)
    }

    /// Whether destinations have limits.
    pub(crate) fn limits_destinations(&self) -> bool {
        self.classes.ids().any(is_of_destinations)
    }

    /// The policy that applies to what `address` sends of the class that it has a bucket for, and whom
    /// it is for.
    pub(crate) fn policy_for(&self, address: IpAddr, class: u8) -> (Target, Option<Policy>) {
        // A key that is there for a shadow alone leads to a copy of
        // what applies around it. So the limit is that one's.
        let key = self.leading(address, class).find(|key| !self.shadows.only(key));
        let key = key.unwrap_or(Key::everyone(class));
        (self.target(&key), self.own(&key))
    }

    /// The limit that applies to what `address` sends of a class, by whose number it is asked for.
    pub(crate) fn limit_for(&self, address: IpAddr, class: u8) -> Option<Limit> {
        let (target, policy) = self.policy_for(address, class);
        decompile(target, &policy?)
    }

    /// The keys for prefixes that lead somewhere for `address`, that of the longest prefix first.
    fn leading(&self, address: IpAddr, class: u8) -> impl Iterator<Item = Key> {
        // Of 129 lengths few occur, and this is asked for each source that is shown.
        let whose = usize::from(is_of_destinations(class));
        let lengths = &self.lengths[whose][usize::from(address.is_ipv6())];
        prefixes_of(IpNet::from(address))
            // Few of up to 129 lengths have limits. Each of the others would cost a look for nothing.
            .filter(|net| lengths[usize::from(net.prefix_len())] > 0)
            .map(move |net| Key::each(net, class))
            .filter(|key| self.targets.contains_key(key))
    }

    /// All policies in force.
    pub(crate) fn policies(&self) -> impl Iterator<Item = (Target, Policy)> {
        self.targets.keys().filter_map(|key| Some((self.target(key), self.own(key)?)))
    }

    pub(super) fn target(&self, key: &Key) -> Target {
        let class = self.classes.class(key.place.class).unwrap_or(Class::ANY);
        Target { whom: key.place.whom, class, aggregate: key.aggregate }
    }

    /// One of the targets that lead to a slot: equal limits share it.
    pub(crate) fn target_in(&self, slot: u32) -> Option<Target> {
        let (key, _) = self.targets.iter().find(|(_, to)| **to == slot)?;
        Some(self.target(key))
    }

    /// The policy that is set for a key itself.
    pub(super) fn own(&self, key: &Key) -> Option<Policy> {
        match self.shadows.of(key) {
            Some(shadow) => shadow.own,
            None => self.targets.get(key).and_then(|slot| self.policy(*slot)),
        }
    }

    /// Tells the class with the slowest limit for everyone, of those that a packet to a prefix can be in which hides all
    /// but its protocol, or that too. Of some with none, the most specific one: its sources with limits have those.
    /// Or of those that destinations have limits of.
    pub(super) fn strictest(&self) -> impl Fn(Option<u8>, Option<Destination>) -> Class {
        // Their order takes a sort, so it is asked for once.
        let classes = self.classes.classes().unwrap_or_default();
        let rated =
            classes.iter().filter_map(|class| Some((class, self.rate(self.classes.id(&class)?))));
        let any = (Class::ANY, self.rate(ANY as u8));
        let rated: Vec<_> = rated.chain([any]).collect();
        move |protocol, destination| {
            let packet = Class { protocol, ..Class::ANY };
            // Fragments of IPv6 hide their protocol behind further headers.
            let can_be = |class: &Class| {
                let goes_there =
                    Class::ANY.to(class.destination).contains(&Class::ANY.to(destination));
                goes_there
                    && class.to(None).overlaps(&packet)
                    && (protocol.is_none() || class.kind != Some(Kind::Fragments))
            };
            let able = rated.iter().filter(|(class, _)| can_be(class));
            able.min_by(|(_, one), (_, other)| one.total_cmp(other))
                .map_or(Class::ANY, |(class, _)| *class)
        }
    }

    /// How fast a class's limit for everyone is, packets a second: infinite, if there is none.
    fn rate(&self, class: u8) -> f64 {
        let policy = self.own(&Key::everyone(class)).filter(|it| it.flags & Policy::OBSERVE == 0);
        let Some(policy) = policy else { return f64::INFINITY };
        let rate = |terms: Terms| {
            let rate = terms.rate as f64 / terms.period_ns.max(1) as f64 * 1e9;
            match terms.unit {
                Terms::PACKETS => rate,
                // Whole frames: of what is smaller, more pass.
                Terms::BYTES => rate / f64::from(FULL_FRAME),
                _ => f64::INFINITY,
            }
        };
        rate(policy.first_terms).min(rate(policy.second_terms))
    }

    /// What applies where a key is: its own policy, or that of the longest prefix around it.
    pub(super) fn base(&self, key: &Key) -> Option<Policy> {
        let class = key.place.class;
        let around = key.place.net().into_iter().flat_map(prefixes_of);
        let around = around.map(|net| Key::each(net, class));
        let found = around.chain(iter::once(Key::everyone(class))).find_map(|key| self.own(&key));
        // Where nothing is limited, a shadow still counts.
        let unlimited = || (u32::from(class) == ANY).then(|| Policy::unlimited(MAX_GATE));
        found.or_else(unlimited)
    }

    /// All shadow limits.
    pub(crate) fn shadows(&self) -> impl Iterator<Item = ShadowLimit> {
        self.shadows.all().map(|shadow| shadow.described(self.target(&shadow.key)))
    }

    /// Records that a key leads to `slot` now, or nowhere; the default leads somewhere always.
    pub(super) fn lead(&mut self, key: Key, slot: Option<u32>) {
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
        // Held before the former one is released: a slot that only this key needs must not fall free in between.
        if let Some(slot) = slot {
            self.slots.hold_slot(slot);
        }
        if let Some(former) = former {
            self.slots.release(former);
        }
    }

    /// Counts a prefix that has a limit now, or none any more.
    fn count(&mut self, key: &Key, more: bool) {
        // Shared limits lie in maps of their own, where `leading` does not look.
        let Some(net) = key.place.net().filter(|_| !key.aggregate) else { return };
        let whose = usize::from(is_of_destinations(key.place.class));
        let count = &mut self.lengths[whose][family(&net)][usize::from(net.prefix_len())];
        *count = if more { *count + 1 } else { *count - 1 };
    }
}
