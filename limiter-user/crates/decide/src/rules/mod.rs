//! Which limit holds for a descriptor: a tree of keys and values for each domain.

mod format;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Map, Value};

use crate::key::{Entry, KeyHash, Secret};
use crate::scope::Pace;
use crate::scope::{Scope, ScopeError};
use format::{Descriptor, File, RateLimit};
use model::meter::{Limit, LimitError, Meter, Unit};

/// The limits of all domains.
#[derive(Debug, Default)]
pub struct Rules {
    domains: HashMap<String, Node>,
    all: Vec<Arc<Rule>>,
}

/// What was decided by rules, by their paths. It outlives the rules: files are read anew.
#[derive(Debug, Default)]
pub struct Tallies(HashMap<String, Arc<Tally>>);

/// What was decided by a rule, in descriptors.
#[derive(Debug, Default)]
pub struct Tally {
    /// Those within the limit.
    pub ok: AtomicU64,
    /// Those over it.
    pub over: AtomicU64,
    /// Those over it that were let through: the rule is a shadow.
    pub shadow: AtomicU64,
    /// Those that were let through because the key table is full.
    pub untracked: AtomicU64,
    /// Those of all these that a share of the cluster's limit could not be had for.
    pub alone: AtomicU64,
}

impl Tally {
    /// Counts one.
    pub fn count(&self, over: bool, shadowed: bool, untracked: bool) {
        let counter = match (over, shadowed, untracked) {
            (true, _, _) => &self.over,
            (_, true, _) => &self.shadow,
            (_, _, true) => &self.untracked,
            _ => &self.ok,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Where one or more entries of a descriptor lead.
#[derive(Debug, Default)]
struct Node {
    /// What may follow, by `key_value` or `key`.
    // One text for both, as in `envoyproxy/ratelimit`: an entry without a value there matches a rule of such a key.
    next: HashMap<String, Self>,
    /// Those of them with a `*`, in the order of the file.
    wildcards: Vec<Wildcard>,
    rule: Option<Arc<Rule>>,
}

/// A pattern among the next entries: the parts between its stars.
#[derive(Debug)]
struct Wildcard {
    name: String,
    parts: Vec<String>,
    /// The pattern's value, where all that match it share one limit.
    shared: Option<String>,
}

/// What holds for the descriptors that a path of the tree matches.
#[derive(Debug)]
pub struct Rule {
    /// The path, as metrics and logs name it: `domain.key_value.key`.
    pub path: String,
    /// The name that other rules replace it by, and answers tell; empty if it has none.
    pub name: String,
    /// The names of rules that do not hold where this one does.
    pub replaces: Vec<String>,
    /// Its limit; none if it is unlimited.
    pub terms: Option<Terms>,
    /// Whether it is only counted.
    pub shadow: bool,
    /// Whether a request is over only if all such rules are; what was used already is owed.
    pub quota: bool,
    /// What is told with a descriptor that passes.
    pub metadata: Map<String, Value>,
    /// When the address of a descriptor is to be denied by the kernel.
    pub push_down: Option<PushDown>,
    /// Who keeps it.
    pub scope: Scope,
    /// What was decided by it.
    pub tally: Arc<Tally>,
}

/// When an address is to be denied by the kernel, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushDown {
    /// How many times its limit somebody asks for who is to be denied, 2 to 10,000.
    pub factor: u32,
    /// For how long, 1 s to 30 days.
    pub span: Duration,
}

/// The entry of a descriptor that is the address of who asks, as Envoy names it.
pub const ADDRESS: &str = "remote_address";

/// A limit as answers tell it, and what decides by it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// The limit.
    pub limit: Limit,
    /// What decides.
    pub meter: Meter,
}

impl Terms {
    /// Those of a limit.
    ///
    /// # Errors
    /// If there can be no such limit.
    pub fn new(limit: Limit) -> Result<Self, LimitError> {
        Ok(Self { limit, meter: Meter::new(&limit)? })
    }
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
#[error("{file}{}: {problem}", .line.map(|line| format!(":{line}")).unwrap_or_default())]
pub struct RuleError {
    /// Its name.
    pub file: String,
    /// The line, from 1, where it is known.
    pub line: Option<u64>,
    /// What is wrong there.
    pub problem: Problem,
}

/// What is wrong, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// No YAML, or other keys and types than the format has.
    #[error("{0}")]
    Format(String),
    /// A file without a domain.
    #[error("no domain: begin with `domain: NAME`")]
    NoDomain,
    /// A domain that another file has.
    #[error("domain {0} is in another file: each domain has one file")]
    DuplicateDomain(String),
    /// An entry without a key.
    #[error("a descriptor without a key: give `key: NAME`")]
    NoKey,
    /// Two entries of a key and value side by side.
    #[error("descriptor {0} is there twice")]
    DuplicateKey(String),
    /// A unit that is none.
    #[error("unit {0:?} of {1} is none: give second, minute, hour, day, week, month or year")]
    Unit(String, String),
    /// A limit and none.
    #[error("{0} is unlimited and has a unit: leave one of them out")]
    UnitOfUnlimited(String),
    /// A name that is missing.
    #[error("{0} replaces a limit without a name")]
    ReplacesNothing(String),
    /// Its own name.
    #[error("{0} replaces itself")]
    ReplacesItself(String),
    /// What only patterns have.
    #[error("{0} has share_threshold, which is for values with a *")]
    NotShared(String),
    /// A limit that cannot be kept.
    #[error("{0}: {1}")]
    Limit(String, LimitError),
    /// A denial of whoever it is.
    #[error("{0} has push_down, which is for descriptors with {ADDRESS}")]
    NoAddress(String),
    /// A denial of who has no limit.
    #[error("{0} is unlimited and has push_down: leave one of them out")]
    PushDownOfUnlimited(String),
    /// A factor that denies who keeps to the limit, or nobody.
    #[error("push_down of {0} has factor {1}: give 2 to {MAX_FACTOR}")]
    Factor(String, u32),
    /// A time that is none.
    #[error("push_down of {0} is for {1:?}: give 1s to 30d")]
    For(String, String),
    /// A budget or an interval that cannot be read.
    #[error("{0} has {1:?}: give a budget such as 10%, an interval such as 100ms")]
    Pace(String, String),
    /// Somebody who cannot keep it.
    #[error("{0} has {1}")]
    Scope(String, ScopeError),
}

/// The largest factor of a push down.
const MAX_FACTOR: u32 = 10_000;

/// A descriptor's rule, and whose bucket it is about.
#[derive(Clone, Debug)]
pub struct Found {
    /// The rule.
    pub rule: Arc<Rule>,
    /// The key.
    pub key: KeyHash,
}

impl Rules {
    /// Reads files, each by its name and text: all of them, or none. What is decided by them is counted in `tallies`.
    ///
    /// # Errors
    /// The first thing that is wrong with one of them.
    pub fn read<'a>(
        files: impl IntoIterator<Item = (&'a str, &'a str)>,
        tallies: &mut Tallies,
    ) -> Result<Self, RuleError> {
        let mut rules = Self::default();
        for (name, text) in files {
            let fail = |(line, problem)| RuleError { file: name.to_owned(), line, problem };
            rules.add(text, tallies).map_err(fail)?;
        }
        Ok(rules)
    }

    fn add(&mut self, text: &str, tallies: &mut Tallies) -> Result<(), Fault> {
        let file: File = serde_saphyr::from_str(text).map_err(|error| {
            let line = error.location().map(|location| location.line());
            (line, Problem::Format(message(&error)))
        })?;
        if file.domain.is_empty() {
            return Err((None, Problem::NoDomain));
        }
        if self.domains.contains_key(&file.domain) {
            return Err((None, Problem::DuplicateDomain(file.domain)));
        }
        let mut root = Node::default();
        let mut filling = Filling { all: &mut self.all, tallies };
        filling.fill(&mut root, &file.domain, false, file.descriptors.unwrap_or_default())?;
        self.domains.insert(file.domain, root);
        Ok(())
    }

    /// All rules, in the order of the files.
    #[must_use]
    pub fn all(&self) -> &[Arc<Rule>] {
        &self.all
    }

    /// Whether there is such a domain.
    #[must_use]
    pub fn has(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// Whether a domain has rules for descriptors that begin with a key.
    #[must_use]
    pub fn has_key(&self, domain: &str, key: &str) -> bool {
        let is_its = |name: &String| {
            name.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
        };
        self.domains.get(domain).is_some_and(|root| root.next.keys().any(is_its))
    }

    /// The rule of a descriptor in a domain: each entry leads on by key and value, else by a pattern, else by the key
    /// alone. A rule holds for what ends at it. `each` is handed the entries that its bucket is about. `scratch` is
    /// overwritten.
    #[must_use]
    pub fn find<'a>(
        &'a self,
        domain: &str,
        entries: &[Entry<'a>],
        scratch: &mut String,
        mut each: impl FnMut(Entry<'a>),
    ) -> Option<&'a Arc<Rule>> {
        let mut node = self.domains.get(domain)?;
        for &(key, value) in entries {
            scratch.clear();
            scratch.extend([key, "_", value]);
            let (next, shared) = node.step(scratch, key)?;
            node = next;
            each((key, shared.unwrap_or(value)));
        }
        node.rule.as_ref()
    }

    /// The rule of a descriptor, and its bucket: as [`Rules::find`].
    #[must_use]
    pub fn bucket(
        &self,
        secret: Secret,
        domain: &str,
        entries: &[Entry<'_>],
        scratch: &mut String,
    ) -> Option<Found> {
        let mut hasher = secret.descriptor(domain);
        let rule = self.find(domain, entries, scratch, |(key, value)| hasher.entry(key, value))?;
        Some(Found { rule: Arc::clone(rule), key: hasher.finish() })
    }
}

/// The key of a descriptor whose limit comes with the request.
#[must_use]
pub fn key(secret: Secret, domain: &str, entries: &[Entry<'_>]) -> KeyHash {
    let mut hasher = secret.descriptor(domain);
    entries.iter().for_each(|(key, value)| hasher.entry(key, value));
    hasher.finish()
}

/// What is wrong, and in which line.
type Fault = (Option<u64>, Problem);

/// What the rules of a file go to.
struct Filling<'a> {
    all: &'a mut Vec<Arc<Rule>>,
    tallies: &'a mut Tallies,
}

impl Filling<'_> {
    fn fill(
        &mut self,
        node: &mut Node,
        path: &str,
        has_address: bool,
        descriptors: Vec<Descriptor>,
    ) -> Result<(), Fault> {
        for descriptor in descriptors {
            let line = descriptor.key.as_ref().map(|key| key.referenced.line());
            let key = descriptor.key.as_ref().map_or("", |key| key.value.as_str());
            if key.is_empty() {
                return Err((line, Problem::NoKey));
            }
            let value = descriptor.value.as_deref().filter(|value| !value.is_empty());
            let name = value.map_or_else(|| key.to_owned(), |value| format!("{key}_{value}"));
            let path = format!("{path}.{name}");
            let has_address = has_address || key == ADDRESS;
            let fail = |problem: fn(String) -> Problem| Err((line, problem(path.clone())));
            if node.next.contains_key(&name) {
                return fail(Problem::DuplicateKey);
            }
            let is_pattern = name.contains('*');
            if descriptor.share_threshold && !is_pattern {
                return fail(Problem::NotShared);
            }
            if is_pattern {
                let parts = name.split('*').map(str::to_owned).collect();
                let shared = value.filter(|_| descriptor.share_threshold).map(str::to_owned);
                node.wildcards.push(Wildcard { name: name.clone(), parts, shared });
            }
            let mut next = Node::default();
            if let Some(limit) = &descriptor.rate_limit {
                let tally = Arc::clone(self.tallies.0.entry(path.clone()).or_default());
                let rule = rule(&path, &descriptor, limit, tally);
                let rule = Arc::new(rule.map_err(|problem| (line, problem))?);
                if rule.push_down.is_some() && !has_address {
                    return fail(Problem::NoAddress);
                }
                self.all.push(Arc::clone(&rule));
                next.rule = Some(rule);
            }
            self.fill(&mut next, &path, has_address, descriptor.descriptors.unwrap_or_default())?;
            node.next.insert(name, next);
        }
        Ok(())
    }
}

impl Node {
    /// Where an entry leads, and the value that all like it share.
    fn step(&self, name: &str, key: &str) -> Option<(&Self, Option<&str>)> {
        if let Some(next) = self.next.get(name) {
            return Some((next, None));
        }
        if let Some(wildcard) = self.wildcards.iter().find(|wildcard| wildcard.matches(name)) {
            return Some((self.next.get(&wildcard.name)?, wildcard.shared.as_deref()));
        }
        Some((self.next.get(key)?, None))
    }
}

impl Wildcard {
    fn matches(&self, name: &str) -> bool {
        let [first, middle @ .., last] = self.parts.as_slice() else { return false };
        let inner =
            name.strip_prefix(first.as_str()).and_then(|name| name.strip_suffix(last.as_str()));
        let Some(mut rest) = inner else { return false };
        middle.iter().all(|part| match rest.split_once(part.as_str()) {
            Some((_, after)) => {
                rest = after;
                true
            }
            None => false,
        })
    }
}

fn rule(
    path: &str,
    descriptor: &Descriptor,
    limit: &RateLimit,
    tally: Arc<Tally>,
) -> Result<Rule, Problem> {
    let name = limit.name.clone().unwrap_or_default();
    let mut replaces = Vec::new();
    for replaced in &limit.replaces {
        match replaced.name.as_deref() {
            None | Some("") => return Err(Problem::ReplacesNothing(path.to_owned())),
            Some(other) if other == name => return Err(Problem::ReplacesItself(path.to_owned())),
            Some(other) => replaces.push(other.to_owned()),
        }
    }
    let written = limit.unit.as_deref().unwrap_or_default();
    let terms = match (limit.unlimited, Unit::from_name(written)) {
        (true, Some(_)) => return Err(Problem::UnitOfUnlimited(path.to_owned())),
        (true, None) => None,
        (false, None) => return Err(Problem::Unit(written.to_owned(), path.to_owned())),
        (false, Some(unit)) => {
            let terms = Terms::new(Limit {
                requests: limit.requests_per_unit.into(),
                window: unit.duration(),
                algorithm: limit.algorithm,
                burst: limit.burst.map(u64::from),
                granularity: limit.granularity.map(u64::from),
            });
            Some(terms.map_err(|error| Problem::Limit(path.to_owned(), error))?)
        }
    };
    let push_down = match (&limit.push_down, &terms) {
        (None, _) => None,
        (Some(_), None) => return Err(Problem::PushDownOfUnlimited(path.to_owned())),
        (Some(push_down), Some(terms)) => Some(PushDown::new(path, push_down, terms)?),
    };
    let algorithm = terms.map(|terms| terms.limit.algorithm).unwrap_or_default();
    let pace = pace(path, limit)?;
    let scope = Scope::new(limit.scope, limit.on_error, pace, algorithm)
        .map_err(|error| Problem::Scope(path.to_owned(), error))?;
    Ok(Rule {
        path: path.to_owned(),
        name,
        replaces,
        push_down,
        scope,
        terms,
        shadow: descriptor.shadow_mode,
        quota: descriptor.quota_mode,
        metadata: descriptor.metadata.clone().unwrap_or_default(),
        tally,
    })
}

/// How a host and the store agree, if that is written.
fn pace(path: &str, limit: &RateLimit) -> Result<Option<Pace>, Problem> {
    let wrong = |written: &String| Problem::Pace(path.to_owned(), written.clone());
    let mut pace = Pace::default();
    if let Some(written) = &limit.budget {
        let number = written.trim().strip_suffix('%').and_then(|number| number.trim().parse().ok());
        pace.budget = number.ok_or_else(|| wrong(written))?;
    }
    if let Some(written) = &limit.interval {
        pace.interval = humantime::parse_duration(written).map_err(|_| wrong(written))?;
    }
    Ok((limit.budget.is_some() || limit.interval.is_some()).then_some(pace))
}

impl PushDown {
    fn new(path: &str, written: &format::PushDown, terms: &Terms) -> Result<Self, Problem> {
        const MAX_SPAN: Duration = Duration::from_secs(30 * 86_400);
        if !(2..=MAX_FACTOR).contains(&written.factor) {
            return Err(Problem::Factor(path.to_owned(), written.factor));
        }
        let span = humantime::parse_duration(&written.r#for).ok();
        let span = span.filter(|span| (Duration::from_secs(1)..=MAX_SPAN).contains(span));
        let span = span.ok_or_else(|| Problem::For(path.to_owned(), written.r#for.clone()))?;
        let push_down = Self { factor: written.factor, span };
        let above = push_down.above(&terms.limit);
        above.map_err(|error| Problem::Limit(path.to_owned(), error))?;
        Ok(push_down)
    }

    /// The limit of what is denied by a `limit`: above it, the address is.
    ///
    /// # Errors
    /// If so many times the limit is none.
    pub fn above(&self, limit: &Limit) -> Result<Meter, LimitError> {
        // What is denied is what is above the limit. Of a limit of nothing all is: one more than that counts.
        let requests = limit.requests.max(1).saturating_mul(u64::from(self.factor) - 1);
        Meter::new(&Limit::new(requests, limit.window))
    }
}

/// The first line of what the parser says, without the text around it.
fn message(error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().to_string();
    text.lines().next().unwrap_or_default().to_owned()
}
