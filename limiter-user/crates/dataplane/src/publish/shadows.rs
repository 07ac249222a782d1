//! Shadow limits: in the policies of their targets.
//!
//! Where that has a limit of its own, the shadow goes with it; otherwise a key of its own leads to what
//! applies there anyway, with the shadow.

use std::collections::HashMap;
use std::iter;

use limiter_common::abi::{CompiledTier, Config, Policy, UNLIMITED_SLOT};
use limiter_common::atomic;

use super::super::Error;
use super::classes::ClassUse;
use super::maps::PolicyMaps;
use super::order::Maps;
use super::{Compiled, InForce, Key, Publisher, Step, lower_gate, note};
use model::compile::refused;
use model::{Changes, Target, Tier as Spec};

/// Shadow limits at a time.
// Few, as all of them are gone through for each key that a change of limits touches.
const MAX: usize = 16;

/// A shadow limit.
pub(super) struct Shadow {
    pub(super) key: Key,
    tier: CompiledTier,
    /// The same as it was said.
    spec: Spec,
    /// What packets are counted under.
    pub(super) number: u16,
    /// The limit that is set for this very target.
    pub(super) own: Option<Policy>,
}

/// A shadow limit as the data plane tells it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShadowLimit {
    /// For whom.
    pub(crate) target: Target,
    /// What.
    pub(crate) tier: Spec,
    /// What packets are counted under.
    pub(crate) number: u16,
}

/// All shadow limits.
#[derive(Default)]
pub(super) struct Shadows {
    all: Vec<Shadow>,
    last: u16,
}

impl Shadows {
    pub(super) const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Shadow> {
        self.all.iter()
    }

    pub(super) fn of(&self, key: &Key) -> Option<&Shadow> {
        self.all.iter().find(|shadow| shadow.key == *key)
    }

    pub(super) fn of_mut(&mut self, key: &Key) -> Option<&mut Shadow> {
        self.all.iter_mut().find(|shadow| shadow.key == *key)
    }

    /// Whether a key is only there for a shadow limit.
    pub(super) fn only(&self, key: &Key) -> bool {
        self.of(key).is_some_and(|shadow| shadow.own.is_none())
    }
}

impl Shadow {
    /// The policy with the shadow.
    pub(super) fn beside(&self, policy: Policy) -> Policy {
        policy.with_shadow(self.tier, self.number)
    }

    pub(super) const fn described(&self, target: Target) -> ShadowLimit {
        ShadowLimit { target, tier: self.spec, number: self.number }
    }
}

impl Publisher {
    /// Sets a shadow limit for `target`, in the place of another one. Returns the number that packets
    /// are counted under.
    ///
    /// # Errors
    /// [`Error::TooMany`], or [`Error::Limit`] where it would change what applies; [`Error::Map`] if
    /// the kernel refuses. Then there is none.
    pub(crate) fn set_shadow(
        &mut self,
        target: &Target,
        (tier, spec): (CompiledTier, Spec),
        config: &Config,
    ) -> Result<u16, Error> {
        let refuse = |problem: &str, hint: &str| Error::from(refused(target, problem, hint));
        if target.aggregate {
            return Err(refuse(
                "a limit that many sources share cannot be a shadow",
                "set it with --no-enforce: nothing is dropped, and `show` counts",
            ));
        }
        let in_force = &self.in_force;
        let key = Key::from_target(target, &in_force.classes);
        let key = key.filter(|key| in_force.base(key).is_some()).ok_or_else(|| {
            refuse(
                "no limit of this class applies there, so its packets have no bucket of their own",
                "set it for all packets, or set a limit of the class first",
            )
        })?;
        let own = in_force.own(&key);
        let shadows = &mut self.in_force.shadows;
        if shadows.of(&key).is_none() && shadows.all.len() == MAX {
            let (wanted, room) = (MAX + 1, MAX);
            let hint = "remove one: limiter limit shadow unset";
            return Err(Error::TooMany { kind: "shadow limits", wanted, room, hint });
        }
        // A number that no recent one had, not the place in the list: buckets keep what they
        // counted under a number until another one comes.
        shadows.last = shadows.last.checked_add(1).unwrap_or(1);
        let number = shadows.last;
        let former = shadows.all.iter().position(|shadow| shadow.key == key);
        let former = former.map(|place| shadows.all.remove(place));
        shadows.all.push(Shadow { key, tier, spec, number, own });
        let settled = self.settle_shadows(config);
        if settled.is_err() {
            self.in_force.shadows.all.pop();
            self.in_force.shadows.all.extend(former);
        }
        settled.map(|()| number)
    }

    /// Removes the shadow limit of `target`. Whether there was one.
    ///
    /// # Errors
    /// [`Error::Map`] if the kernel refuses; then it stays.
    pub(crate) fn unset_shadow(&mut self, target: &Target, config: &Config) -> Result<bool, Error> {
        let Some(key) = Key::from_target(target, &self.in_force.classes) else { return Ok(false) };
        let Some(own) = self.in_force.shadows.of(&key).map(|shadow| shadow.own) else {
            return Ok(false);
        };
        // The key first: forgotten before, the shadow would go on where
        // the kernel refuses, and nobody could remove it.
        self.point(key, own, config)?;
        self.in_force.shadows.all.retain(|shadow| shadow.key != key);
        Ok(true)
    }

    /// Removes the shadow limits of whose class nothing applies any more.
    fn forget_shadows(&mut self, config: &Config) -> Result<(), Error> {
        let keys = self.in_force.shadows.all.iter().map(|shadow| shadow.key);
        let gone: Vec<Key> = keys.filter(|key| self.in_force.base(key).is_none()).collect();
        for key in gone {
            self.point(key, None, config)?;
            self.in_force.shadows.all.retain(|shadow| shadow.key != key);
        }
        Ok(())
    }

    /// Gives every target with a shadow limit what applies there, with the shadow.
    ///
    /// # Errors
    /// [`Error::Map`] if the kernel refuses.
    pub(super) fn settle_shadows(&mut self, config: &Config) -> Result<(), Error> {
        self.forget_shadows(config)?;
        let keys: Vec<Key> = self.in_force.shadows.all.iter().map(|shadow| shadow.key).collect();
        for key in keys {
            let in_force = &self.in_force;
            let shadow = in_force.shadows.of(&key);
            let base = shadow.and_then(|shadow| shadow.own).or_else(|| in_force.base(&key));
            let wanted = shadow.zip(base).map(|(shadow, base)| shadow.beside(base));
            let present = in_force.targets.get(&key).and_then(|slot| in_force.policy(*slot));
            if wanted.is_some() && wanted != present {
                self.point(key, wanted, config)?;
            }
        }
        Ok(())
    }

    /// Where those of the changed keys lead with a shadow limit, each slot held once more, and
    /// the policies that are set for them then.
    pub(super) fn hold_shadows(
        &mut self,
        changes: &Changes,
        classes: &ClassUse,
        policies: &[Compiled],
    ) -> Result<HashMap<Key, (u32, Option<Policy>)>, Error> {
        let mut shadowed = HashMap::new();
        let InForce { shadows, slots, targets, .. } = &mut self.in_force;
        if shadows.is_empty() {
            return Ok(shadowed);
        }
        for (target, amount) in changes.numbered() {
            let Some(key) = Key::from_target(&target, classes) else { continue };
            let Some(shadow) = shadows.of(&key) else { continue };
            let own = amount.and_then(|amount| policies[amount][usize::from(key.aggregate)]);
            let present = targets.get(&key).copied();
            let slot = match (own, present) {
                (Some(own), _) => slots.hold(&shadow.beside(own))?,
                // What applies without a limit of its own is found out when that is gone.
                (None, Some(present)) => {
                    slots.hold_slot(present);
                    present
                }
                (None, None) => continue,
            };
            shadowed.insert(key, (slot, own));
        }
        Ok(shadowed)
    }

    /// Lets one key lead to a policy, or nowhere.
    fn point(&mut self, key: Key, policy: Option<Policy>, config: &Config) -> Result<(), Error> {
        let held = match &policy {
            Some(policy) => Some(self.in_force.slots.hold(policy)?),
            None => None,
        };
        // Lowered before the key leads there, as in `change_to`: too
        // many packets look up their policy, never too few.
        if let Some(policy) = policy {
            lower_gate(config, policy.gate);
        }
        atomic::store(&config.absent, 0);
        let before = self.in_force.targets.get(&key).copied();
        let step = iter::once(Step { key, before, after: held });
        let PolicyMaps { each, shared, .. } = &mut self.maps;
        let mut maps = Maps::new(each, shared, &self.in_force.classes);
        // The default has no key. It is in the word that `renew` writes.
        let written = match held {
            _ if key.is_default() => Ok(()),
            Some(_) => maps.add(step),
            None => maps.remove(step),
        };
        if written.is_ok() {
            if before.is_some() != held.is_some() && !key.is_default() {
                note(&mut self.in_force.classes, &key, held.is_some());
            }
            self.in_force.lead(key, held.or(key.is_default().then_some(UNLIMITED_SLOT)));
            self.renew(config);
        }
        // `lead` holds what it needs.
        if let Some(slot) = held {
            self.in_force.slots.release(slot);
        }
        self.settle(config);
        written
    }
}
