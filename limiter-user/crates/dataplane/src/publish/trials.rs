//! Limits that are tried: a shadow in the policy of whom they are tried for.
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

/// Trials at a time.
const MAX: usize = 16;

/// A limit that is tried.
pub(super) struct Trial {
    key: Key,
    tier: CompiledTier,
    /// The same as it was said.
    spec: Spec,
    /// What packets are counted under.
    pub(super) number: u16,
    /// The limit that is set for this very target.
    pub(super) own: Option<Policy>,
}

/// A trial as the data plane tells it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trying {
    /// For whom.
    pub(crate) target: Target,
    /// What.
    pub(crate) tier: Spec,
    /// What packets are counted under.
    pub(crate) number: u16,
}

/// The limits that are tried.
#[derive(Default)]
pub(super) struct Trials {
    all: Vec<Trial>,
    last: u16,
}

impl Trials {
    pub(super) const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn of(&self, key: &Key) -> Option<&Trial> {
        self.all.iter().find(|trial| trial.key == *key)
    }

    pub(super) fn of_mut(&mut self, key: &Key) -> Option<&mut Trial> {
        self.all.iter_mut().find(|trial| trial.key == *key)
    }

    /// Whether a key is only there for a trial.
    pub(super) fn only(&self, key: &Key) -> bool {
        self.of(key).is_some_and(|trial| trial.own.is_none())
    }
}

impl Trial {
    /// The policy with what is tried.
    pub(super) fn beside(&self, policy: Policy) -> Policy {
        policy.trying(self.tier, self.number)
    }
}

impl Publisher {
    /// Tries a limit for `target`, in the place of what is tried there. Returns the number that packets
    /// are counted under.
    ///
    /// # Errors
    /// [`Error::TooMany`], or [`Error::Limit`] where a trial would change what applies; [`Error::Map`] if
    /// the kernel refuses. Nothing is tried then.
    pub(crate) fn start_trial(
        &mut self,
        target: &Target,
        (tier, spec): (CompiledTier, Spec),
        config: &Config,
    ) -> Result<u16, Error> {
        let refuse = |problem: &str, hint: &str| Error::from(refused(target, problem, hint));
        if target.aggregate {
            return Err(refuse(
                "a limit that many sources share cannot be tried",
                "set it with --no-enforce: nothing is dropped, and `show` counts",
            ));
        }
        let key = Self::key(&self.classes, target).filter(|key| self.base(key).is_some());
        let key = key.ok_or_else(|| {
            refuse(
                "no limit of this class applies there, so its packets have no bucket of their own",
                "try it for all packets, or set a limit of the class first",
            )
        })?;
        let own = match self.trials.of(&key) {
            Some(trial) => trial.own,
            None => self.own(&key),
        };
        if self.trials.of(&key).is_none() && self.trials.all.len() == MAX {
            let (wanted, room) = (MAX + 1, MAX);
            let hint = "stop one: limiter limit try --stop";
            return Err(Error::TooMany { kind: "trials", wanted, room, hint });
        }
        self.trials.last = self.trials.last.checked_add(1).unwrap_or(1);
        let number = self.trials.last;
        let former = self.trials.all.iter().position(|trial| trial.key == key);
        let former = former.map(|place| self.trials.all.remove(place));
        self.trials.all.push(Trial { key, tier, spec, number, own });
        let settled = self.settle_trials(config);
        if settled.is_err() {
            self.trials.all.pop();
            self.trials.all.extend(former);
        }
        settled.map(|()| number)
    }

    /// What is tried.
    pub(crate) fn trials(&self) -> impl Iterator<Item = Trying> {
        self.trials.all.iter().map(|&Trial { key, spec, number, .. }| Trying {
            target: self.target(&key),
            tier: spec,
            number,
        })
    }

    /// Tries nothing for `target` any more. Whether something was.
    ///
    /// # Errors
    /// [`Error::Map`] if the kernel refuses; then it still is.
    pub(crate) fn stop_trial(&mut self, target: &Target, config: &Config) -> Result<bool, Error> {
        let Some(key) = Self::key(&self.classes, target) else { return Ok(false) };
        let Some(own) = self.trials.of(&key).map(|trial| trial.own) else { return Ok(false) };
        self.point(key, own, config)?;
        self.trials.all.retain(|trial| trial.key != key);
        Ok(true)
    }

    /// Ends the trials of whose class nothing applies any more.
    fn forget_trials(&mut self, config: &Config) -> Result<(), Error> {
        let gone: Vec<Key> = self
            .trials
            .all
            .iter()
            .map(|trial| trial.key)
            .filter(|key| self.base(key).is_none())
            .collect();
        for key in gone {
            self.point(key, None, config)?;
            self.trials.all.retain(|trial| trial.key != key);
        }
        Ok(())
    }

    /// Gives every target for which something is tried what applies there, with the shadow.
    ///
    /// # Errors
    /// [`Error::Map`] if the kernel refuses.
    pub(super) fn settle_trials(&mut self, config: &Config) -> Result<(), Error> {
        self.forget_trials(config)?;
        let keys: Vec<Key> = self.trials.all.iter().map(|trial| trial.key).collect();
        for key in keys {
            let base = self.trials.of(&key).and_then(|trial| trial.own).or_else(|| self.base(&key));
            let wanted = self.trials.of(&key).zip(base).map(|(trial, base)| trial.beside(base));
            let present = self.targets.get(&key).and_then(|slot| self.policy(*slot));
            if wanted.is_some() && wanted != present {
                self.point(key, wanted, config)?;
            }
        }
        Ok(())
    }

    /// The policy that is set for a key itself.
    pub(super) fn own(&self, key: &Key) -> Option<Policy> {
        match self.trials.of(key) {
            Some(trial) => trial.own,
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
        // Where nothing is limited, a trial still counts.
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
        if let Some(slot) = held {
            self.slots.release(slot);
        }
        atomic::store(&config.min_gate, u64::from(self.slots.least_gate()));
        written
    }
}
