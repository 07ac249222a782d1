//! The maps that lead from a packet to its policies, and how they change.

use std::collections::HashMap;
use std::sync::Arc;

use aya::Ebpf;
use limiter_common::abi::{Config, Layout, POLICY_SLOTS, PolicyWord, UNLIMITED_SLOT};
use limiter_common::atomic;
use limiter_common::class::DESTINATIONS;
use limiter_common::shared::SHARED_SLOTS;

use super::super::sources::{MapKey as _, SourceMaps};
use super::classes::{ClassTables, ClassUse};
use super::order::Maps;
use super::place::{ClassPlace, WHOLE};
use super::shared::SharedMaps;
use super::{Error, InForce, Key, Step, family, published};
use model::Changes;

/// The maps of sources and prefixes, of shared limits, and the tables that tell classes apart. Apart from what is
/// known of them, because they change step by step: a packet finds a limit between any two.
pub(super) struct PolicyMaps {
    pub(super) each: SourceMaps<ClassPlace, u32>,
    pub(super) shared: SharedMaps,
    pub(super) tables: Arc<ClassTables>,
    /// How many single sources there is room for.
    max_exact: usize,
}

impl PolicyMaps {
    /// Takes the maps out of a loaded object.
    ///
    /// # Errors
    /// If one is not there, or cannot be read.
    pub(super) fn take(
        ebpf: &mut Ebpf,
        layout: &Layout,
        config: &Config,
        tables: Arc<ClassTables>,
        max_exact: usize,
    ) -> Result<Self, Error> {
        let names = ["EXACT", "PREFIXES4", "PREFIXES6"];
        let each = SourceMaps::take(ebpf, names, layout.masks.lengths())?;
        Ok(Self { each, shared: SharedMaps::take(ebpf, config)?, tables, max_exact })
    }

    /// Where each key leads.
    ///
    /// # Errors
    /// If the maps cannot be read.
    pub(super) fn present(&self, config: &Config) -> Result<HashMap<Key, u32>, Error> {
        let present = self.each.present().map_err(Error::map("read the policies in force"))?;
        // What classes name leads to no policy.
        let limits = present.into_iter().filter(|(place, _)| u32::from(place.class) < DESTINATIONS);
        let own = limits.map(|(place, slot)| (Key { place, aggregate: false }, slot));
        let mut targets: HashMap<_, _> = own.collect();
        targets.insert(Key::DEFAULT, published(config).slot());
        let aggregate = |(place, slot)| (Key { place, aggregate: true }, slot);
        targets.extend(self.shared.present().map(aggregate));
        Ok(targets)
    }

    /// How many targets there are that are single sources, IPv4 prefixes, IPv6 prefixes, and shared.
    pub(super) fn taken(&self, in_force: &InForce) -> [usize; 4] {
        let mut taken = [0, 0, 0, self.shared.present().count()];
        for ([in4, in6], (v4, v6)) in in_force.lengths.iter().zip([self.each.lengths(), WHOLE]) {
            let exact = [in4[usize::from(v4)], in6[usize::from(v6)]];
            let [all4, all6] = [in4, in6].map(|lengths| lengths.iter().sum::<usize>());
            taken[0] += exact[0] + exact[1];
            taken[1] += all4 - exact[0];
            taken[2] += all6 - exact[1];
        }
        taken
    }

    /// Which of the kinds of [`PolicyMaps::taken`] a key is of.
    pub(super) fn kind(&self, key: &Key) -> Option<usize> {
        if key.aggregate {
            return Some(3);
        }
        let net = key.place.net()?;
        Some(if self.each.is_exact(&key.place) { 0 } else { 1 + family(&net) })
    }

    /// Whether there is room for so many of each kind.
    ///
    /// # Errors
    /// [`Error::TooMany`].
    pub(super) fn check_room(&self, wanted: [usize; 4]) -> Result<(), Error> {
        let slots = POLICY_SLOTS as usize;
        let combine = "combine prefixes that have the same limit";
        let kinds = [
            ("single sources", self.max_exact, "run the daemon with a larger --max-limits"),
            ("IPv4 prefixes", slots, combine),
            ("IPv6 prefixes", slots, combine),
            // One slot is the total's.
            ("shared limits", SHARED_SLOTS as usize - 1, "combine prefixes that share a limit"),
        ];
        for ((kind, room, hint), wanted) in kinds.into_iter().zip(wanted) {
            if wanted > room {
                return Err(Error::TooMany { kind, wanted, room, hint });
            }
        }
        Ok(())
    }

    /// Lets each target of `changes` lead to where its amount `leads_to`, from the classes in force to `classes`.
    /// Changes the maps back if one cannot be changed.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn write(
        &mut self,
        in_force: &InForce,
        changes: &Changes,
        classes: &ClassUse,
        leads_to: impl Fn(&Key, Option<usize>) -> Option<u32>,
        config: &Config,
    ) -> Result<(), Error> {
        let former = &in_force.classes;
        // While keys of both are in the maps packets are told apart by both, or they would miss
        // keys of one of them.
        let both = former.until(classes);
        let Self { each, shared, tables, .. } = self;
        let (generation, default) = (published(config).generation(), in_force.default_slot());
        let steps = changes.numbered().filter_map(|(target, amount)| {
            let key = Key::from_target(&target, classes);
            let key = key.or_else(|| Key::from_target(&target, former))?;
            let before = in_force.targets.get(&key).copied();
            let after = leads_to(&key, amount);
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
        let lead = |slot| atomic::swap(&config.policy, PolicyWord::new(generation, slot).0);
        let mut change = || {
            // Nobody finds a limit of a class that is not in the tables yet.
            maps.add(coming.clone().filter(is_new))?;
            // There may be no room for both the old classes and the new ones. Then what is both new and
            // found in the place of an old class's is in force a moment before or after the rest.
            let at_once = !former.tells_as(&both) && both.classes().is_err();
            if !at_once && !former.tells_as(&both) {
                maps.publish(tables, &both, config)?;
            }
            maps.add(coming.clone().filter(|step| !is_new(step)))?;
            lead(new_default);
            if at_once {
                maps.publish(tables, classes, config)?;
            }
            maps.remove(going.clone())?;
            if !at_once && !both.tells_as(classes) {
                maps.publish(tables, classes, config)?;
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
            .and_then(|()| maps.publish(tables, former, config))
            .and_then(|()| maps.undo(leaving.into_iter()));
        if let Err(undo) = undone {
            tracing::error!("cannot change limits back: {undo}");
        }
        Err(error)
    }
}
