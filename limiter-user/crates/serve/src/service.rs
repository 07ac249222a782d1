//! What all faces ask: the rules in force, the states of keys, the clock, and what was decided.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use decide::act::{Act, Standing};
use decide::decider::{Decision, Item, Key, RequestError, begin};
use decide::key::{Secret, Space};
use decide::overrides::Overrides;
use decide::rules::{RuleError, Rules, Tallies, Tally};
use decide::scope::{OnError, Scope};
use decide::shared::Shared;
use decide::side::{self, Side};
use decide::states::States;
use decide::synced::Synced;
use decide::table::{self, Table, TableError};
use limiter_common::gcra::Ticks;
use model::meter::{Limit, LimitError, Meter};
use model::{Explain, Fault, Stance};

use crate::central::Central;
use crate::clock::Clock;
use crate::latency::Latencies;
use crate::memory::{Folder, MemoryError, Words};
use crate::push_down::PushDowns;
use crate::quotas::Quotas;
use crate::top::Top;

/// What all faces ask.
#[derive(Debug)]
pub(crate) struct Service {
    states: States<Words>,
    clock: Clock,
    boot: String,
    rules: RwLock<Arc<Rules>>,
    overrides: RwLock<Overrides>,
    tallies: Mutex<Tallies>,
    files: Vec<PathBuf>,
    /// Takes whom the kernel is to deny.
    pub(crate) push_downs: PushDowns,
    /// The store that keeps limits of all hosts, if there is one.
    pub(crate) central: Option<Central>,
    /// Who answers about rules with `on_error: cluster`, and why, as told last.
    fallback: Mutex<(Stance, String)>,
    /// When this process began.
    pub(crate) since: Ticks,
    /// The limits that proxies keep parts of.
    pub(crate) quotas: Quotas,
    /// What was decided of keys without a rule: their limits came with them, or are of their own.
    pub(crate) named: Tally,
    /// Who is denied most.
    pub(crate) top: Top,
    /// How long answers took.
    pub(crate) latencies: Latencies,
}

/// Where the states are, and how many there may be.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The folder.
    pub(crate) folder: PathBuf,
    /// Keys at once.
    pub(crate) keys: u64,
    /// Of them, with sub-windows or a sliding log.
    pub(crate) side_keys: u64,
    /// Of them, under limits of the cluster.
    pub(crate) cluster_keys: u64,
}

#[cfg(test)]
impl Place {
    /// One for tests, in `folder`, with room for so many `keys`.
    pub(crate) fn small(folder: &Path, keys: u64) -> Self {
        Self { folder: folder.to_owned(), keys, side_keys: 10, cluster_keys: 10 }
    }
}

/// Why there is no service.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServiceError {
    /// Its memory cannot be used.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Something else is in a file.
    #[error("{}", .0.display())]
    Table(PathBuf, #[source] TableError),
    /// Something else is in the file of states with many words.
    #[error("{} is no table of this version", .0.display())]
    Side(PathBuf),
    /// There are no random numbers.
    #[error("the system has no random numbers")]
    Random,
    /// A file of rules cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A rule is wrong.
    #[error(transparent)]
    Rules(#[from] RuleError),
    /// A rule that needs the daemon.
    #[error("{0} has {1}, and no daemon is known")]
    NoDaemon(String, &'static str),
    /// A rule that needs a store.
    #[error("{0} has scope: synced or strict, and no store is known")]
    NoStore(String),
}

impl Explain for ServiceError {
    fn fault(&self) -> Fault {
        match self {
            Self::Memory(error) => error.fault(),
            Self::Random => Fault::Refused,
            _ => Fault::Input,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Memory(error) => error.hint(),
            Self::Table(path, _) | Self::Side(path) => Some(format!(
                "remove {}: all keys begin anew then; or give another --state-dir",
                path.display()
            )),
            Self::Read { .. } => Some("give files, or folders with .yaml files".into()),
            Self::NoDaemon(_, FLOOR) => {
                Some("give on_error: closed or open, or --daemon with the daemon's socket".into())
            }
            Self::NoDaemon(..) => Some("give --daemon with the daemon's socket".into()),
            Self::NoStore(_) => Some("give --store, such as redis://HOST:PORT".into()),
            Self::Random | Self::Rules(_) => None,
        }
    }
}

/// What a rule has that falls back to a part of the cluster's limit.
const FLOOR: &str = "a store, with the cluster to fall back to";

/// Whom rules may ask for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Partners {
    /// This host's daemon.
    pub(crate) daemon: bool,
    /// A central store.
    pub(crate) store: bool,
}

impl Partners {
    fn check(self, rules: &Rules) -> Result<(), ServiceError> {
        for rule in rules.all() {
            let wants = match rule.scope {
                _ if rule.push_down.is_some() => Some("push_down"),
                Scope::Cluster(_) => Some("scope: cluster"),
                scope if scope.needs_daemon() => Some(FLOOR),
                _ => None,
            };
            if let Some(what) = wants.filter(|_| !self.daemon) {
                return Err(ServiceError::NoDaemon(rule.path.clone(), what));
            }
            if rule.scope.needs_store() && !self.store {
                return Err(ServiceError::NoStore(rule.path.clone()));
            }
        }
        Ok(())
    }
}

/// Reads rules from files, and from all `.yaml` and `.yml` files of folders. They ask for no others than `partners`.
///
/// # Errors
/// If one of them cannot be read, or a rule is wrong.
pub(crate) fn read_rules(
    paths: &[PathBuf],
    partners: Partners,
    tallies: &mut Tallies,
) -> Result<Rules, ServiceError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| ServiceError::Read { path, source }
    };
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let is_yaml = |path: &PathBuf| {
            path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
        };
        let found = fs::read_dir(path).map_err(failed(path))?;
        let mut found: Vec<_> = found.flatten().map(|file| file.path()).filter(is_yaml).collect();
        // In one order, so that errors and pages are the same each time.
        found.sort();
        files.append(&mut found);
    }
    let mut texts = Vec::with_capacity(files.len());
    for path in files {
        let text = fs::read_to_string(&path).map_err(failed(&path))?;
        texts.push((path.display().to_string(), text));
    }
    let texts = texts.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    let rules = Rules::read(texts, tallies)?;
    partners.check(&rules)?;
    Ok(rules)
}

/// What the key table's file is called, and those of the others.
const TABLE: &str = "keys";
const SIDE: &str = "side";
const CLUSTER: &str = "cluster";

fn secret() -> Result<Secret, ServiceError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|_| ServiceError::Random)?;
    let (words, _) = bytes.as_chunks();
    Ok(Secret([u64::from_ne_bytes(words[0]), u64::from_ne_bytes(words[1])]))
}

/// The key table in its file: what an earlier process has left, in as large a one as is asked for.
fn open_table(folder: &Folder, keys: u64) -> Result<Table<Words>, ServiceError> {
    let bytes = table::bytes(keys);
    let words = folder.words(TABLE, bytes)?;
    let failed = |error| ServiceError::Table(folder.file(TABLE), error);
    if table::is_empty(&words) {
        return Table::create(words, secret()?, Clock::boot()).map_err(failed);
    }
    let length = size_of_val(words.as_ref());
    let old = Table::open(words).map_err(failed)?;
    if length == bytes {
        return Ok(old);
    }
    // Filled beside it, so that a process that is killed meanwhile leaves the old one.
    let name = "keys-new";
    // What such a process has left of it, perhaps of another size.
    folder.remove(name)?;
    let table = Table::create(folder.words(name, bytes)?, old.secret(), old.epoch());
    let table = table.map_err(failed)?;
    table.take_over(&old, Clock::since(old.epoch()).now());
    folder.replace(TABLE, name)?;
    Ok(table)
}

/// The states of many words that an earlier process has left in a file, or a new one.
fn open_side<const RECORD: usize>(
    folder: &Folder,
    name: &str,
    keys: u64,
) -> Result<Side<Words, RECORD>, ServiceError> {
    let side = Side::open(folder.words(name, side::bytes(keys, RECORD))?);
    side.ok_or_else(|| ServiceError::Side(folder.file(name)))
}

impl Service {
    /// Opens the states, and reads the rules.
    ///
    /// # Errors
    /// If one of them cannot be used.
    pub(crate) fn open(
        place: &Place,
        files: Vec<PathBuf>,
        push_downs: PushDowns,
        central: Option<Central>,
    ) -> Result<Self, ServiceError> {
        let mut tallies = Tallies::default();
        let partners = Partners { daemon: push_downs.is_on(), store: central.is_some() };
        let rules = read_rules(&files, partners, &mut tallies)?;
        let folder = Folder::open(&place.folder)?;
        let table = open_table(&folder, place.keys)?;
        let side = match place.side_keys {
            0 => None,
            keys => Some(open_side(&folder, SIDE, keys)?),
        };
        let mut side_of_all = None;
        if partners.daemon || partners.store {
            side_of_all = Some(Arc::new(open_side(&folder, CLUSTER, place.cluster_keys)?));
        }
        let of_all = |has: bool| side_of_all.clone().filter(|_| has);
        // Without a daemon nobody divides limits.
        let shared = of_all(partners.daemon).map(|side| Shared::new(side, table.secret()));
        let synced = of_all(partners.store).map(|side| Synced::new(side, table.secret()));
        let clock = Clock::since(table.epoch());
        Ok(Self {
            clock,
            since: clock.now(),
            quotas: Quotas::default(),
            boot: folder.boot().to_owned(),
            states: States { table, side, shared, synced },
            rules: RwLock::new(Arc::new(rules)),
            overrides: RwLock::default(),
            tallies: Mutex::new(tallies),
            files,
            push_downs,
            central,
            fallback: Mutex::default(),
            named: Tally::default(),
            top: Top::default(),
            latencies: Latencies::default(),
        })
    }

    /// The time that decisions are made at.
    pub(crate) fn now(&self) -> Ticks {
        self.clock.now()
    }

    /// The time so long after the boot.
    pub(crate) fn at_boot(&self, since_boot: Duration) -> Ticks {
        self.clock.at(since_boot)
    }

    /// The kernel's boot.
    pub(crate) fn boot(&self) -> &str {
        &self.boot
    }

    /// Decisions without a share that could be had.
    pub(crate) fn alone(&self) -> u64 {
        let rules = self.rules();
        rules.all().iter().map(|rule| rule.tally.alone.load(Ordering::Relaxed)).sum()
    }

    /// The rules in force.
    pub(crate) fn rules(&self) -> Arc<Rules> {
        // Nothing is done in two steps under the lock: whoever panicked left the rules whole.
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Who answers about rules with `on_error: cluster`, and why that is not the store; nothing without such rules.
    pub(crate) fn stance(&self) -> Option<(Stance, String)> {
        let shared = self.states.shared.as_ref().filter(|_| self.falls_back())?;
        let (_, why) = self.fallback.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let stance = shared.stance(self.now());
        let is_untold = stance != Stance::Store && why.is_empty();
        Some((stance, if is_untold { "no daemon says who is to answer".into() } else { why }))
    }

    /// Whether rules have the cluster to fall back to.
    pub(crate) fn falls_back(&self) -> bool {
        let needs =
            |scope: Scope| scope.needs_store() && scope.on_error() == Some(OnError::Cluster);
        self.central.is_some() && self.rules().all().iter().any(|rule| needs(rule.scope))
    }

    /// Has others answer about these until then, and tells of it if that is new.
    pub(crate) fn set_stance(
        &self,
        shared: &Shared<Words>,
        stance: Stance,
        until: Ticks,
        why: &str,
    ) {
        shared.set_stance(stance, until);
        let mut known = self.fallback.lock().unwrap_or_else(PoisonError::into_inner);
        let was = std::mem::replace(&mut *known, (stance, why.to_owned())).0;
        let text = stance.text();
        match stance {
            _ if was == stance => {}
            Stance::Store => tracing::info!("on_error cluster: {text}"),
            _ => tracing::warn!("on_error cluster: {text}: {why}"),
        }
    }

    /// The limits that single descriptors have of their own.
    pub(crate) fn overrides(&self) -> RwLockReadGuard<'_, Overrides> {
        // Each change is one call: whoever panicked left them whole.
        self.overrides.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, to change them.
    pub(crate) fn overrides_mut(&self) -> RwLockWriteGuard<'_, Overrides> {
        self.overrides.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The states of keys.
    pub(crate) const fn states(&self) -> &States<Words> {
        &self.states
    }

    /// Reads the rules again: all that are new are in force, or none. How many there are.
    ///
    /// # Errors
    /// If a file cannot be read, or a rule is wrong.
    pub(crate) fn reload(&self) -> Result<usize, ServiceError> {
        let mut tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        let partners = Partners { daemon: self.push_downs.is_on(), store: self.central.is_some() };
        let rules = read_rules(&self.files, partners, &mut tallies)?;
        let count = rules.all().len();
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
        Ok(count)
    }

    /// Decides on a request.
    ///
    /// # Errors
    /// If there is nothing to decide, or it brings an impossible limit.
    pub(crate) async fn decide(&self, items: &[Item<'_>]) -> Result<Decision, RequestError> {
        let mut now = self.now();
        let mut begun = begin(&self.states, &self.rules(), &self.overrides(), items, now)?;
        let mut asked = None;
        if let Some(central) = &self.central
            && let Some((name, questions)) = begun.questions(&self.states, now)?
        {
            if let Some(answers) = central.ask(&name, questions).await {
                begun.take(&self.states, &answers, self.now());
            }
            now = self.now();
            asked = Some((central, name));
        }
        let (decision, refunds) = begun.finish(&self.states, now);
        if let (Some((central, name)), false) = (asked, refunds.is_empty()) {
            central.tell(&name, refunds);
        }
        for (item, status) in items.iter().zip(&decision.statuses) {
            if status.over && item.act == Act::Take {
                self.top.denied(item.key, item.cost);
            }
            match &status.rule {
                None if status.terms.is_some() => {
                    self.named.count(status.over, false, status.untracked);
                }
                Some(rule) if status.pushes_down => self.push_downs.push(item, rule),
                _ => {}
            }
        }
        Ok(decision)
    }

    /// Does to a key what is asked, of `cost` units, under a limit that comes with it.
    ///
    /// # Errors
    /// If there can be no such limit.
    pub(crate) fn ask(
        &self,
        key: &[u8],
        limit: &Limit,
        act: Act,
        cost: u64,
        now: Ticks,
    ) -> Result<Standing, LimitError> {
        let meter = Meter::new(limit)?;
        let hash = self.states.table.secret().hash(Space::Named, key);
        let standing = self.states.ask(hash, &meter, act, cost, now);
        if !standing.admitted && act == Act::Take {
            self.top.denied(Key::Named(key), cost);
        }
        self.named.count(!standing.admitted, false, !standing.tracked);
        Ok(standing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_has_left_of_a_larger_table_is_no_obstacle() {
        let home = tempfile::tempdir().unwrap();
        let place = |keys| Place::small(home.path(), keys);
        let limit = Limit::new(1, Duration::from_secs(3_600));
        let take = |service: &Service| {
            service.ask(b"k", &limit, Act::Take, 1, service.now()).unwrap().admitted
        };
        let open = |keys| {
            let push_downs = PushDowns::off(Arc::default());
            Service::open(&place(keys), Vec::new(), push_downs, None).unwrap()
        };
        assert!(take(&open(100)));
        let left = Folder::open(home.path()).unwrap().file("keys-new");
        fs::write(left, [7; 4_096]).unwrap();
        assert!(!take(&open(10_000)));
    }
}
