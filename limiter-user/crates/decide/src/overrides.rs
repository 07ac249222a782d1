//! Limits of single descriptors that hold in place of what the rules say.

use std::collections::HashMap;
use std::sync::Arc;

use limiter_common::gcra::Ticks;
use model::meter::{Choice, Limit, LimitError};

use crate::key::{KeyHash, Secret};
use crate::rules::{Entry, Found, Rule, Rules, Terms, key};
use crate::shared::{OnError, PORTABLE};

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
    /// The bucket as all hosts know it, and what is answered without a share, if they share the limit.
    pub shared: Option<(KeyHash, OnError)>,
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
    pub fn find(
        &self,
        rules: &Rules,
        secret: Secret,
        (domain, entries): (&str, &[Entry<'_>]),
        now: Ticks,
        scratch: &mut String,
    ) -> Option<Held> {
        let found = rules.find(secret, domain, entries, scratch);
        let on_error = found.as_ref().and_then(|found| found.rule.shared);
        if !self.is_empty() {
            // Not the key that it shares with others by a pattern: this limit is its alone.
            let own = key(secret, domain, entries);
            if let Some(terms) = self.get(own, now) {
                // Nobody divides other algorithms: then it is each host's.
                let is_bucket = terms.limit.algorithm == Choice::TokenBucket;
                let on_error = on_error.filter(|_| is_bucket);
                let shared = on_error.map(|on_error| (key(PORTABLE, domain, entries), on_error));
                let rule = found.map(|found| found.rule);
                return Some(Held { key: own, rule, terms: Some(terms), shared });
            }
        }
        let Found { rule, key } = found?;
        let shared = on_error.and_then(|on_error| {
            let portable = rules.find(PORTABLE, domain, entries, scratch)?.key;
            Some((portable, on_error))
        });
        Some(Held { key, terms: rule.terms, rule: Some(rule), shared })
    }
}
