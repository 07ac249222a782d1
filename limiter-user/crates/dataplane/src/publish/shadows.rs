//! Shadow limits: in the policies of their targets.
//!
//! Where that has a limit of its own, the shadow goes with it; otherwise a key of its own leads to what
//! applies there anyway, with the shadow.

use std::iter;

use limiter_common::abi::{CompiledTier, Config, Policy, UNLIMITED_SLOT};
use limiter_common::atomic;
use limiter_common::class::ANY;
use limiter_common::gate::MAX_GATE;

use super::super::Error;
use super::super::sources::MapKey as _;
use super::order::Maps;
use super::place::ClassPlace;
use super::{Key, Publisher, Step, note};
use model::compile::refused;
use model::target::prefixes_of;
use model::{Selector, Target, Tier as Spec};

/// Shadow limits at a time.
const MAX: usize = 16;

/// A shadow limit.
pub(super) struct Shadow {
    key: Key,
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
        let key = Self::key(&self.classes, target).filter(|key| self.base(key).is_some());
        let key = key.ok_or_else(|| {
            refuse(
                "no limit of this class applies there, so its packets have no bucket of their own",
                "set it for all packets, or set a limit of the class first",
            )
        })?;
        let own = match self.shadows.of(&key) {
            Some(shadow) => shadow.own,
            None => self.own(&key),
        };
        if self.shadows.of(&key).is_none() && self.shadows.all.len() == MAX {
            let (wanted, room) = (MAX + 1, MAX);
            let hint = "remove one: limiter limit shadow unset";
            return Err(Error::TooMany { kind: "shadow limits", wanted, room, hint });
        }
        // A number that no recent one had, not the place in the list: buckets keep what they
        // counted under a number until another one comes.
        self.shadows.last = self.shadows.last.checked_add(1).unwrap_or(1);
        let number = self.shadows.last;
        let former = self.shadows.all.iter().position(|shadow| shadow.key == key);
        let former = former.map(|place| self.shadows.all.remove(place));
        self.shadows.all.push(Shadow { key, tier, spec, number, own });
        let settled = self.settle_shadows(config);
        if settled.is_err() {
            self.shadows.all.pop();
            self.shadows.all.extend(former);
        }
        settled.map(|()| number)
    }

    /// All shadow limits.
    pub(crate) fn shadows(&self) -> impl Iterator<Item = ShadowLimit> {
        self.shadows.all.iter().map(|&Shadow { key, spec, number, .. }| ShadowLimit {
            target: self.target(&key),
            tier: spec,
            number,
        })
    }

    /// Removes the shadow limit of `target`. Whether there was one.
    ///
    /// # Errors
    /// [`Error::Map`] if the kernel refuses; then it stays.
    pub(crate) fn unset_shadow(&mut self, target: &Target, config: &Config) -> Result<bool, Error> {
        let Some(key) = Self::key(&self.classes, target) else { return Ok(false) };
        let Some(own) = self.shadows.of(&key).map(|shadow| shadow.own) else { return Ok(false) };
        self.point(key, own, config)?;
        self.shadows.all.retain(|shadow| shadow.key != key);
        Ok(true)
    }

    /// Removes the shadow limits of whose class nothing applies any more.
    fn forget_shadows(&mut self, config: &Config) -> Result<(), Error> {
        let gone: Vec<Key> = self
            .shadows
            .all
            .iter()
            .map(|shadow| shadow.key)
            .filter(|key| self.base(key).is_none())
            .collect();
        for key in gone {
            self.point(key, None, config)?;
            self.shadows.all.retain(|shadow| shadow.key != key);
        }
        Ok(())
    }

    /// Gives every target with a shadow limit what applies there, with the shadow.
    ///
    /// # Errors
    /// [`Error::Map`] if the kernel refuses.
    pub(super) fn settle_shadows(&mut self, config: &Config) -> Result<(), Error> {
        self.forget_shadows(config)?;
        let keys: Vec<Key> = self.shadows.all.iter().map(|shadow| shadow.key).collect();
        for key in keys {
            let base =
                self.shadows.of(&key).and_then(|shadow| shadow.own).or_else(|| self.base(&key));
            let wanted = self.shadows.of(&key).zip(base).map(|(shadow, base)| shadow.beside(base));
            let present = self.targets.get(&key).and_then(|slot| self.policy(*slot));
            if wanted.is_some() && wanted != present {
                self.point(key, wanted, config)?;
            }
        }
        Ok(())
    }

    /// The policy that is set for a key itself.
    pub(super) fn own(&self, key: &Key) -> Option<Policy> {
        match self.shadows.of(key) {
            Some(shadow) => shadow.own,
            None => self.targets.get(key).and_then(|slot| self.policy(*slot)),
        }
    }

    /// What applies where a key is: its own policy, or that of the longest prefix around it.
    fn base(&self, key: &Key) -> Option<Policy> {
        let class = key.place.class;
        let everyone =
            Key { place: ClassPlace { whom: Selector::Default, class }, aggregate: false };
        let around = key.place.net().into_iter().flat_map(prefixes_of);
        let mut keys = around.map(|net| Key::each(net, class)).chain(iter::once(everyone));
        let found = keys.find_map(|key| self.own(&key));
        // Where nothing is limited, a shadow still counts.
        let unlimited = || (u32::from(class) == ANY).then(|| Policy::unlimited(MAX_GATE));
        found.or_else(unlimited)
    }

    /// Lets one key lead to a policy, or nowhere.
    fn point(&mut self, key: Key, policy: Option<Policy>, config: &Config) -> Result<(), Error> {
        let held = match &policy {
            Some(policy) => Some(self.slots.hold(policy)?),
            None => None,
        };
        if let Some(policy) = policy
            && u64::from(policy.gate) < atomic::load(&config.min_gate)
        {
            atomic::store(&config.min_gate, u64::from(policy.gate));
        }
        let before = self.targets.get(&key).copied();
        let step = iter::once(Step { key, before, after: held });
        let mut maps = Maps::new(&mut self.each, &mut self.shared, &self.classes);
        // The default has no key. It is in the word that `renew` writes.
        let written = match held {
            _ if key.is_default() => Ok(()),
            Some(_) => maps.add(step),
            None => maps.remove(step),
        };
        if written.is_ok() {
            if before.is_some() != held.is_some() && !key.is_default() {
                note(&mut self.classes, &key, held.is_some());
            }
            self.lead(key, held.or(key.is_default().then_some(UNLIMITED_SLOT)));
            self.renew(config);
        }
        // `lead` holds what it needs.
        if let Some(slot) = held {
            self.slots.release(slot);
        }
        atomic::store(&config.min_gate, u64::from(self.slots.least_gate()));
        written
    }
}
