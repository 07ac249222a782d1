//! One request about several keys: all of them are charged, or none.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use limiter_common::atomic::AtomicU64;
use limiter_common::gcra::Ticks;

use crate::act::{Act, Role, Standing};
use crate::central::{self, Answer, Name, Question};
use crate::key::{Entry, KeyHash, Secret, Space};
use crate::overrides::{Keeper, Overrides};
use crate::rules::{Rule, Rules, Terms, key};
use crate::scope::OnError;
use crate::shared::Outcome;
use crate::states::States;
use model::Stance;
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
    /// Limits of several domains, which the store keeps.
    #[error("a request has strict limits of one domain at most")]
    Domains,
    /// A key of no rule, and without a limit.
    #[error("a key of no rule needs a limit")]
    NoLimit,
    /// It brings a limit that there cannot be.
    #[error("the limit of the request: {0}")]
    Limit(#[from] LimitError),
}

/// A key that has a limit.
#[derive(Debug)]
struct Subject {
    /// Which status is its.
    at: usize,
    key: KeyHash,
    terms: Terms,
    act: Act,
    cost: u64,
    role: Role,
    keeper: Keeper,
    standing: Option<Standing>,
    alone: bool,
    charged: bool,
    /// Whether all hosts stay away from the store, or change to it.
    away: bool,
    /// Whether the store is to be asked.
    stored: bool,
    /// Whether nothing more is to be done about it.
    settled: bool,
}

/// What the limit of a rule does.
const fn role_of(rule: &Rule) -> Role {
    match (rule.shadow, rule.quota) {
        (true, _) => Role::Shadow,
        (false, true) => Role::Quota,
        (false, false) => Role::Enforced,
    }
}

impl Subject {
    /// Asks its state here, and whether there was room. What the store keeps is answered as it is without one.
    fn ask<M: AsRef<[AtomicU64]>>(&mut self, states: &States<M>, act: Act, now: Ticks) -> bool {
        let shared = |key: KeyHash, on_error| {
            let shared = states.shared.as_ref()?;
            Some(shared.ask(key, &self.terms.limit, on_error, act, self.cost, now))
        };
        let outcome = match &self.keeper {
            Keeper::Host => None,
            Keeper::Cluster(key, on_error) => shared(*key, Some(*on_error)),
            Keeper::Store(_, key, on_error, _) => {
                if let Some(standing) = self.ask_untold(states, act, now) {
                    self.standing = Some(standing);
                    return standing.admitted;
                }
                let outcome = match on_error {
                    OnError::Open => Some(Standing::OPEN),
                    OnError::Closed => None,
                    OnError::Floor => shared(*key, None).map(|outcome| outcome.standing),
                    OnError::Cluster => {
                        // A share only if no host asks the store: one call that fails is no reason.
                        let has_share = stance(states, now) == Stance::Escrow;
                        let share = has_share.then_some(OnError::Floor);
                        shared(*key, share).map(|outcome| outcome.standing)
                    }
                };
                Some(Outcome { standing: outcome.unwrap_or(Standing::CLOSED), alone: true })
            }
        };
        let standing = match outcome {
            Some(outcome) => {
                self.alone |= outcome.alone;
                outcome.standing
            }
            None => states.ask(self.key, &self.terms.meter, act, self.cost, now),
        };
        self.standing = Some(standing);
        standing.admitted
    }

    /// Asks what this host admits by itself of what the store keeps; `None` if only the store can tell.
    fn ask_untold<M: AsRef<[AtomicU64]>>(
        &self,
        states: &States<M>,
        act: Act,
        now: Ticks,
    ) -> Option<Standing> {
        let Keeper::Store(name, key, _, Some(pace)) = &self.keeper else { return None };
        if self.away {
            return None;
        }
        let terms = (&self.terms.limit, &self.terms.meter);
        states.synced.as_ref()?.ask((*key, name), *pace, terms, act, self.cost, now)
    }

    /// Its name in the store, if that is to be asked. Nobody has to keep a limit of nothing.
    fn name(&self) -> Option<&Name> {
        match &self.keeper {
            Keeper::Store(name, ..) if self.terms.limit.requests > 0 && !self.away => Some(name),
            _ => None,
        }
    }

    fn is_over(&self) -> bool {
        self.asks() && self.standing.is_some_and(|standing| !standing.admitted)
    }

    /// Whether it asks for units. What gives some back is never denied.
    const fn asks(&self) -> bool {
        matches!(self.act, Act::Take | Act::Peek)
    }
}

/// Who answers about limits with `on_error: cluster`.
fn stance<M: AsRef<[AtomicU64]>>(states: &States<M>, now: Ticks) -> Stance {
    states.shared.as_ref().map_or(Stance::Store, |shared| shared.stance(now))
}

/// A request of which the limits are known, and what is kept here is looked at.
#[derive(Debug)]
pub struct Begun {
    statuses: Vec<Status>,
    subjects: Vec<Subject>,
}

/// Begins to decide on a request at `now`: what is to be asked of the store follows from it.
///
/// # Errors
/// If there is nothing to decide, or it brings an impossible limit.
pub fn begin<M: AsRef<[AtomicU64]>>(
    states: &States<M>,
    rules: &Rules,
    overrides: &Overrides,
    items: &[Item<'_>],
    now: Ticks,
) -> Result<Begun, RequestError> {
    if items.is_empty() {
        return Err(RequestError::NoDescriptors);
    }
    let secret = states.table.secret();
    let (statuses, mut subjects) = resolve(secret, rules, overrides, items, now)?;
    let is_away = stance(states, now) != Stance::Store;
    for subject in &mut subjects {
        subject.away =
            is_away && matches!(subject.keeper, Keeper::Store(_, _, OnError::Cluster, _));
    }
    Ok(Begun { statuses, subjects })
}

impl Begun {
    /// What the store is to be asked, and the domain it is about: nothing if it keeps no limit of the request, or the request
    /// is over one that is kept here.
    ///
    /// # Errors
    /// If the limits are of several domains: no one store has all of them.
    pub fn questions<M: AsRef<[AtomicU64]>>(
        &mut self,
        states: &States<M>,
        now: Ticks,
    ) -> Result<Option<(Name, Vec<Question>)>, RequestError> {
        let mut names = self.subjects.iter().filter_map(Subject::name);
        let Some(first) = names.next().cloned() else { return Ok(None) };
        if names.any(|name| name.domain != first.domain) {
            return Err(RequestError::Domains);
        }
        let several = self.subjects.len() > 1;
        for subject in &mut self.subjects {
            if subject.name().is_none() {
                subject.ask(states, Act::Peek, now);
                continue;
            }
            // One alone needs no look before.
            let act = if several { Act::Peek } else { subject.act };
            subject.standing = subject.ask_untold(states, act, now);
            subject.stored = subject.standing.is_none();
            subject.settled = !several && !subject.stored;
        }
        let is_stored = self.subjects.iter().any(|subject| subject.stored);
        if !is_stored || is_over(&self.subjects) {
            return Ok(None);
        }
        let here = self.subjects.iter().filter(|subject| !subject.stored);
        let mut quotas = here.filter(|subject| subject.role == Role::Quota).map(Subject::is_over);
        let flag = match quotas.next() {
            None => 0,
            Some(first) if first && quotas.all(|over| over) => central::QUOTA_IS_OVER,
            Some(_) => central::QUOTA_HAS_ROOM,
        };
        let mut questions = questions(&self.subjects, |subject| Some(subject.act));
        if let Some(last) = questions.last_mut() {
            last.set(flag);
        }
        Ok(Some((first, questions)))
    }

    /// Takes what the store has answered to the [`Begun::questions`]. Without that, or where it is no answer to one of them,
    /// each of their rules has its own way out.
    pub fn take<M: AsRef<[AtomicU64]>>(
        &mut self,
        states: &States<M>,
        answers: &[Answer],
        now: Ticks,
    ) {
        let standings: Option<Vec<_>> = answers
            .iter()
            .map(|answer| match answer {
                Answer::Standing(standing, charged) => Some((*standing, *charged > 0)),
                Answer::Foreign | Answer::ReadOnly => None,
            })
            .collect();
        let Some(standings) = standings else { return };
        let stored = self.subjects.iter_mut().filter(|subject| subject.stored);
        for (subject, (standing, charged)) in stored.zip(standings) {
            subject.standing = Some(standing);
            subject.charged = charged && subject.act == Act::Take;
            subject.settled = true;
            if let (Keeper::Store(_, key, _, Some(_)), Some(synced)) =
                (&subject.keeper, &states.synced)
            {
                synced.heard(*key, 0, standing.renews, now);
            }
        }
    }

    /// Decides. What the store is to be asked after that gives back what it has charged: another request about what is kept
    /// here was faster.
    pub fn finish<M: AsRef<[AtomicU64]>>(
        mut self,
        states: &States<M>,
        now: Ticks,
    ) -> (Decision, Vec<Question>) {
        let over = settle(states, &mut self.subjects, now);
        let back = |subject: &Subject| (over && subject.charged).then_some(Act::Refund);
        let refunds = questions(&self.subjects, back);
        for subject in self.subjects {
            let Some(standing) = subject.standing else { continue };
            let is_over = subject.is_over();
            let status = &mut self.statuses[subject.at];
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
        for status in &self.statuses {
            if let Some(rule) = &status.rule {
                rule.tally.count(status.over, status.shadowed, status.untracked);
                if status.alone {
                    rule.tally.alone.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        (Decision { over, statuses: self.statuses }, refunds)
    }
}

/// What the store is asked about keys that it keeps: to do to each what `act` says, if it does.
fn questions(subjects: &[Subject], act: impl Fn(&Subject) -> Option<Act>) -> Vec<Question> {
    let question = |subject: &Subject| {
        let Subject { terms, role, cost, .. } = subject;
        let name = subject.name().filter(|_| subject.stored)?;
        Some(Question::new(name, &terms.limit, *role, act(subject)?, *cost))
    };
    let mut questions: Vec<_> = subjects.iter().filter_map(question).collect();
    if let Some(last) = questions.last_mut() {
        last.set(central::LAST);
    }
    questions
}

/// Decides on a request at `now` without a store.
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
    Ok(begin(states, rules, overrides, items, now)?.finish(states, now).0)
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
        let subject = |key, terms, role, keeper| {
            let (standing, [alone, charged, away, stored, settled]) = (None, [false; 5]);
            Subject {
                at,
                key,
                terms,
                act,
                cost,
                role,
                keeper,
                standing,
                alone,
                charged,
                away,
                stored,
                settled,
            }
        };
        match (item.key, item.limit) {
            (Key::Descriptor { domain: "", .. }, _) => return Err(RequestError::NoDomain),
            (Key::Named(_), None) => return Err(RequestError::NoLimit),
            (Key::Named(name), Some(limit)) => {
                let key = secret.hash(Space::Named, name);
                subjects.push(subject(key, Terms::new(limit)?, Role::Enforced, Keeper::Host));
            }
            (Key::Descriptor { domain, entries }, Some(limit)) if rules.has(domain) => {
                let key = key(secret, domain, entries);
                subjects.push(subject(key, Terms::new(limit)?, Role::Enforced, Keeper::Host));
            }
            (Key::Descriptor { domain, entries }, _) => {
                let whose = (domain, entries);
                if let Some(held) = overrides.find(rules, secret, whose, now, &mut scratch) {
                    let role = held.rule.as_deref().map_or(Role::Enforced, role_of);
                    match held.terms {
                        Some(terms) => subjects.push(subject(held.key, terms, role, held.keeper)),
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

/// Charges all or none of them, but for what is settled: whether the request is over a limit.
fn settle<M: AsRef<[AtomicU64]>>(states: &States<M>, subjects: &mut [Subject], now: Ticks) -> bool {
    let is_open = |subject: &&mut Subject| !subject.settled;
    let several = subjects.len() > 1;
    if several {
        // Asked before, so that as a rule nothing has to be given back: others could be denied meanwhile.
        for subject in subjects.iter_mut().filter(is_open) {
            subject.ask(states, Act::Peek, now);
        }
    }
    if !several || !is_over(subjects) {
        let open = subjects.iter_mut().filter(is_open);
        for subject in open.filter(|subject| !several || subject.act != Act::Peek) {
            let admitted = subject.ask(states, subject.act, now);
            subject.charged = admitted && subject.act == Act::Take;
            if subject.is_over() && subject.role == Role::Enforced {
                break;
            }
        }
        if is_over(subjects) {
            // Another request was faster.
            for subject in subjects.iter_mut().filter(is_open).filter(|subject| subject.charged) {
                subject.ask(states, Act::Refund, now);
            }
        }
    }
    let over = is_over(subjects);
    if over && !subjects.iter().any(|subject| subject.role == Role::Enforced && subject.is_over()) {
        // All quotas are used up. What is denied may be what was used already: a debit after the fact.
        let denied =
            |subject: &&mut Subject| subject.role == Role::Quota && subject.act == Act::Take;
        for subject in subjects.iter_mut().filter(is_open).filter(denied) {
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
