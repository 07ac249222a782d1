//! Limits of single descriptors that hold in place of what the rules say.

use std::collections::HashMap;
use std::sync::Arc;

use limiter_common::gcra::Ticks;
use model::meter::{Limit, LimitError};

use crate::central::Name;
use crate::key::{Entry, KeyHash, Secret};
use crate::rules::{Found, Rule, Rules, Terms, key};
use crate::scope::Pace;
use crate::scope::{OnError, Scope};
use crate::shared::PORTABLE;

/// The limits of descriptors, by the hashes of these.
// By hash and with one copy of each limit: a million take 70 MB.
#[derive(Debug, Default)]
pub struct Overrides {
    all: HashMap<KeyHash, Entered>,
    terms: Vec<Terms>,
    numbers: HashMap<Limit, u32>,
}

/// What a descriptor has.
#[derive(Clone, Copy, Debug)]
struct Entered {
    /// Which of the limits.
    number: u32,
    /// When it ends; the latest time if it does not.
    end: Ticks,
}

/// What holds for a descriptor.
#[derive(Clone, Debug)]
pub struct Held {
    /// The bucket.
    pub key: KeyHash,
    /// Its rule, if there is one.
    pub rule: Option<Arc<Rule>>,
    /// Its limit; none if it is unlimited.
    pub terms: Option<Terms>,
    /// Who keeps the limit.
    pub keeper: Keeper,
}

/// Who keeps the limit of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Keeper {
    /// This host.
    #[default]
    Host,
    /// All hosts, to whom the key has this hash.
    Cluster(KeyHash, OnError),
    /// The central store, where the key has this name. It has a hash for when all hosts keep it. With a pace, each host
    /// admits some by itself.
    Store(Name, KeyHash, OnError, Option<Pace>),
}

impl Keeper {
    fn new(scope: Scope, domain: &str, entries: &[Entry<'_>]) -> Self {
        let portable = || key(PORTABLE, domain, entries);
        match scope {
            Scope::Host => Self::Host,
            Scope::Cluster(on_error) => Self::Cluster(portable(), on_error),
            Scope::Synced(on_error, pace) => {
                Self::Store(Name::new(domain, entries), portable(), on_error, Some(pace))
            }
            Scope::Strict(on_error) => {
                Self::Store(Name::new(domain, entries), portable(), on_error, None)
            }
        }
    }
}

impl Overrides {
    /// Sets the limit of a descriptor, until `end` if there is one.
    ///
    /// # Errors
    /// If there can be no such limit.
    pub fn set(
        &mut self,
        key: KeyHash,
        limit: Limit,
        end: Option<Ticks>,
    ) -> Result<(), LimitError> {
        let number = match self.numbers.get(&limit) {
            Some(number) => *number,
            None => {
                let number = self.terms.len() as u32;
                self.terms.push(Terms::new(limit)?);
                self.numbers.insert(limit, number);
                number
            }
        };
        self.all.insert(key, Entered { number, end: end.unwrap_or(Ticks::MAX) });
        Ok(())
    }

    /// Lets a descriptor have what the rules say.
    pub fn unset(&mut self, key: KeyHash) {
        self.all.remove(&key);
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn get(&self, key: KeyHash, now: Ticks) -> Option<Terms> {
        let entered = self.all.get(&key).filter(|entered| now < entered.end)?;
        self.terms.get(entered.number as usize).copied()
    }

    /// What holds for a descriptor at `now`: its own limit, else that of its rule. Shadows and quotas are a matter of the
    /// rule. `scratch` is overwritten.
    #[must_use]
    pub fn find<'a>(
        &self,
        rules: &'a Rules,
        secret: Secret,
        (domain, entries): (&str, &[Entry<'a>]),
        now: Ticks,
        scratch: &mut String,
    ) -> Option<Held> {
        let found = rules.bucket(secret, domain, entries, scratch);
        let scope = found.as_ref().map(|found| found.rule.scope).unwrap_or_default();
        if !self.is_empty() {
            // Not the key that it shares with others by a pattern: this limit is its alone.
            let own = key(secret, domain, entries);
            if let Some(terms) = self.get(own, now) {
                let keeper = Keeper::new(scope.under(terms.limit.algorithm), domain, entries);
                let rule = found.map(|found| found.rule);
                return Some(Held { key: own, rule, terms: Some(terms), keeper });
            }
        }
        let Found { rule, key } = found?;
        let mut keeper = Keeper::Host;
        if scope != Scope::Host {
            let mut common = Vec::with_capacity(entries.len());
            rules.find(domain, entries, scratch, |entry| common.push(entry))?;
            keeper = Keeper::new(scope, domain, &common);
        }
        Some(Held { key, terms: rule.terms, rule: Some(rule), keeper })
    }
}
