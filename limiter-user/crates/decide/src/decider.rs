//! One request about several keys: all of them are charged, or none.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use limiter_common::atomic::AtomicU64;
use limiter_common::gcra::Ticks;

use crate::act::{Act, Standing};
use crate::key::{KeyHash, Secret, Space};
use crate::overrides::Overrides;
use crate::rules::{Entry, Rule, Rules, Terms, key};
use crate::shared::OnError;
use crate::states::States;
use model::meter::{Limit, LimitError, span};

/// What is asked about a key.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// The key.
    pub key: Key<'a>,
    /// A limit that holds instead of its rule's.
    pub limit: Option<Limit>,
    /// What is to be done.
    pub act: Act,
    /// Of how many units.
    pub cost: u64,
}

/// Whose limit is asked about.
#[derive(Clone, Copy, Debug)]
pub enum Key<'a> {
    /// A descriptor: the rules of its domain say which limit it has.
    Descriptor {
        /// The domain.
        domain: &'a str,
        /// Its keys and values.
        entries: &'a [Entry<'a>],
    },
    /// Any text: its limit comes with it.
    Named(&'a [u8]),
}

/// How a key stands.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Whether it is over its limit.
    pub over: bool,
    /// Whether it would be, and its rule is a shadow.
    pub shadowed: bool,
    /// Its rule; none if there is none, or its limit came with the request.
    pub rule: Option<Arc<Rule>>,
    /// Its limit; none if it has none.
    pub terms: Option<Terms>,
    /// Units that have room now; all there are where there is no limit.
    pub remaining: u64,
    /// How long until what was asked is admitted, if it is over, else until all that was used counts no more; none where
    /// there is no limit, or nothing is ever admitted.
    pub reset: Option<Duration>,
    /// Whether the key has no state, as the table is full of others.
    pub untracked: bool,
    /// Whether it asks so far above its limit that the kernel is to deny its address.
    pub pushes_down: bool,
    /// Whether its limit is the cluster's, and no share of it could be had.
    pub alone: bool,
}

/// What is decided.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Whether the request is over a limit.
    pub over: bool,
    /// How each key stands, in their order.
    pub statuses: Vec<Status>,
}

/// Why a request has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// It names no domain.
    #[error("rate limit domain must not be empty")]
    NoDomain,
    /// It has no descriptors.
    #[error("rate limit descriptor list must not be empty")]
    NoDescriptors,
    /// A key of no rule, and without a limit.
    #[error("a key of no rule needs a limit")]
    NoLimit,
    /// It brings a limit that there cannot be.
    #[error("the limit of the request: {0}")]
    Limit(#[from] LimitError),
}

/// A key that has a limit.
struct Subject {
    /// Which status is its.
    at: usize,
    key: KeyHash,
    terms: Terms,
    act: Act,
    cost: u64,
    role: Role,
    /// The key as all hosts know it, and what is answered without a share, if they share the limit.
    shared: Option<(KeyHash, OnError)>,
    standing: Option<Standing>,
    alone: bool,
    charged: bool,
}

/// What a limit does to the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Over it, the request is.
    Enforced,
    /// Over all such, the request is.
    Quota,
    /// Nothing.
    Shadow,
}

impl Role {
    const fn of(rule: &Rule) -> Self {
        match (rule.shadow, rule.quota) {
            (true, _) => Self::Shadow,
            (false, true) => Self::Quota,
            (false, false) => Self::Enforced,
        }
    }
}

impl Subject {
    /// Asks its state, and whether there was room.
    fn ask<M: AsRef<[AtomicU64]>>(&mut self, states: &States<M>, act: Act, now: Ticks) -> bool {
        let standing = match (self.shared, &states.shared) {
            (Some((key, on_error)), Some(shared)) => {
                let limit = &self.terms.limit;
                let outcome = shared.ask(key, limit, on_error, act, self.cost, now);
                self.alone |= outcome.alone;
                outcome.standing
            }
            _ => states.ask(self.key, &self.terms.meter, act, self.cost, now),
        };
        self.standing = Some(standing);
        standing.admitted
    }

    fn is_over(&self) -> bool {
        self.asks() && self.standing.is_some_and(|standing| !standing.admitted)
    }

    /// Whether it asks for units. What gives some back is never denied.
    const fn asks(&self) -> bool {
        matches!(self.act, Act::Take | Act::Peek)
    }
}

/// Decides on a request at `now`.
///
/// # Errors
/// If there is nothing to decide, or it brings an impossible limit.
pub fn decide<M: AsRef<[AtomicU64]>>(
    states: &States<M>,
    rules: &Rules,
    overrides: &Overrides,
    items: &[Item<'_>],
    now: Ticks,
) -> Result<Decision, RequestError> {
    if items.is_empty() {
        return Err(RequestError::NoDescriptors);
    }
    let (mut statuses, mut subjects) =
        resolve(states.table.secret(), rules, overrides, items, now)?;
    let over = settle(states, &mut subjects, now);
    for subject in subjects {
        let Some(standing) = subject.standing else { continue };
        let is_over = subject.is_over();
        let status = &mut statuses[subject.at];
        status.over = is_over && subject.role != Role::Shadow;
        status.shadowed = is_over && subject.role == Role::Shadow;
        status.terms = Some(subject.terms);
        status.remaining = standing.remaining;
        status.reset = if is_over { standing.wait } else { Some(standing.renews) }.map(span);
        status.untracked = !standing.tracked;
        status.alone = subject.alone;
        if let Some(push_down) = status.rule.as_ref().and_then(|rule| rule.push_down)
            && status.over
            && let Ok(above) = push_down.above(&subject.terms.limit)
        {
            let key = subject.key.within(Space::Denied, states.table.secret());
            // One request alone, whatever it costs, is not far above: there are as many as the factor at least.
            let cost = subject.cost.clamp(1, subject.terms.limit.requests.max(1));
            let ask = |act| states.ask(key, &above, act, cost, now);
            status.pushes_down = !ask(Act::Take).admitted;
            if status.pushes_down {
                // Not with each request from now on: whoever is denied may take a moment.
                ask(Act::Reset);
            }
        }
    }
    for status in &statuses {
        if let Some(rule) = &status.rule {
            rule.tally.count(status.over, status.shadowed, status.untracked);
            if status.alone {
                rule.tally.alone.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    Ok(Decision { over, statuses })
}

/// Finds the limits of all keys.
fn resolve(
    secret: Secret,
    rules: &Rules,
    overrides: &Overrides,
    items: &[Item<'_>],
    now: Ticks,
) -> Result<(Vec<Status>, Vec<Subject>), RequestError> {
    let mut scratch = String::new();
    let mut statuses = Vec::with_capacity(items.len());
    let mut subjects = Vec::with_capacity(items.len());
    for (at, item) in items.iter().enumerate() {
        let mut status = Status::default();
        let (act, cost) = (item.act, item.cost);
        let subject = |key, terms, role, shared| {
            let (standing, alone, charged) = (None, false, false);
            Subject { at, key, terms, act, cost, role, shared, standing, alone, charged }
        };
        match (item.key, item.limit) {
            (Key::Descriptor { domain: "", .. }, _) => return Err(RequestError::NoDomain),
            (Key::Named(_), None) => return Err(RequestError::NoLimit),
            (Key::Named(name), Some(limit)) => {
                let key = secret.hash(Space::Named, name);
                subjects.push(subject(key, Terms::new(limit)?, Role::Enforced, None));
            }
            (Key::Descriptor { domain, entries }, Some(limit)) if rules.has(domain) => {
                let key = key(secret, domain, entries);
                subjects.push(subject(key, Terms::new(limit)?, Role::Enforced, None));
            }
            (Key::Descriptor { domain, entries }, _) => {
                let whose = (domain, entries);
                if let Some(held) = overrides.find(rules, secret, whose, now, &mut scratch) {
                    let role = held.rule.as_deref().map_or(Role::Enforced, Role::of);
                    match held.terms {
                        Some(terms) => subjects.push(subject(held.key, terms, role, held.shared)),
                        None => status.remaining = u32::MAX.into(),
                    }
                    status.rule = held.rule;
                }
            }
        }
        statuses.push(status);
    }
    if subjects.len() > 1 {
        let replaced = |rule: &Rule| {
            let mut all = statuses.iter().filter_map(|status| status.rule.as_ref());
            !rule.name.is_empty() && all.any(|other| other.replaces.contains(&rule.name))
        };
        subjects.retain(|subject| !statuses[subject.at].rule.as_deref().is_some_and(replaced));
    }
    Ok((statuses, subjects))
}

/// Charges all or none of them: whether the request is over a limit.
fn settle<M: AsRef<[AtomicU64]>>(states: &States<M>, subjects: &mut [Subject], now: Ticks) -> bool {
    let several = subjects.len() > 1;
    if several {
        // Asked before, so that as a rule nothing has to be given back: others could be denied meanwhile.
        for subject in subjects.iter_mut() {
            subject.ask(states, Act::Peek, now);
        }
    }
    if !several || !is_over(subjects) {
        for subject in subjects.iter_mut().filter(|subject| !several || subject.act != Act::Peek) {
            let admitted = subject.ask(states, subject.act, now);
            subject.charged = admitted && subject.act == Act::Take;
            if !admitted && subject.role == Role::Enforced {
                break;
            }
        }
        if is_over(subjects) {
            // Another request was faster.
            for subject in subjects.iter_mut().filter(|subject| subject.charged) {
                subject.ask(states, Act::Refund, now);
            }
        }
    }
    let over = is_over(subjects);
    if over && !subjects.iter().any(|subject| subject.role == Role::Enforced && subject.is_over()) {
        // All quotas are used up. What is denied may be what was used already: a debit after the fact.
        let denied =
            |subject: &&mut Subject| subject.role == Role::Quota && subject.act == Act::Take;
        for subject in subjects.iter_mut().filter(denied) {
            subject.ask(states, Act::Owe, now);
        }
    }
    over
}

/// Whether a request about them is over a limit.
fn is_over(subjects: &[Subject]) -> bool {
    let over = |role| subjects.iter().filter(move |subject| subject.role == role);
    let mut quotas = over(Role::Quota).peekable();
    let all_quotas = quotas.peek().is_some() && quotas.all(Subject::is_over);
    over(Role::Enforced).any(Subject::is_over) || all_quotas
}
