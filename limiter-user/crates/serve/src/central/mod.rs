//! The central store, for limits that it keeps: asked in batches, and not at all while it does not answer.
//!
//! One task has the connection. While a call is under way, what is asked makes the next one, which waits for its answer
//! or until it is full. So calls are small where there is little to ask, and large where there is much: a call costs the
//! store as much as two keys. Nothing waits longer than an answer may take.

mod address;
mod link;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use api::CentralReport;
use decide::central::{Answer, MAX_KEYS, Name, Question};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use model::{Stance, chain};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

pub(crate) use address::StoreAddress;
pub(crate) use link::StoreSettings;
use link::{Facts, Link, StoreError};

use crate::latency::Histogram;

/// Calls at once, for a store that is far away.
const MAX_CALLS: usize = 4;

/// Decisions that wait at the most. One more is answered as if the store was not there.
const MAX_QUEUE: usize = 4_096;

/// Decisions that are looked through for such of one domain, which a call can have.
const MAX_LOOK: usize = 512;

/// Calls in a row that fail before the store is no more asked.
const MAX_FAILURES: u32 = 3;

/// How often it is told at the most that a state cannot be used.
const COMPLAINT_PAUSE: Duration = Duration::from_secs(10);

/// How often a store that nobody asks has to give a sign of life.
const BEAT: Duration = Duration::from_millis(250);

/// How long after a failure the store is tried again: at first, and at the most.
// A part of it by chance: hosts that have lost it at once are not to come back at once.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Questions of one decision, and who waits for their answers.
struct Job {
    since: Vec<u8>,
    questions: Vec<Question>,
    /// From then on nobody does.
    deadline: Instant,
    answer: oneshot::Sender<Vec<Answer>>,
}

/// The store.
#[derive(Debug)]
pub(crate) struct Central {
    settings: StoreSettings,
    jobs: mpsc::Sender<Job>,
    health: Arc<Health>,
}

/// How the store fares.
#[derive(Debug, Default)]
pub(crate) struct Health {
    up: AtomicBool,
    state: Mutex<State>,
    /// Keys in calls that were answered.
    pub(crate) keys: AtomicU64,
    /// Calls that were not.
    pub(crate) failures: AtomicU64,
    /// Keys whose state cannot be used.
    pub(crate) unusable: AtomicU64,
    /// Decisions that did not wait, as too many did.
    pub(crate) turned_away: AtomicU64,
    /// How long calls took.
    pub(crate) latency: Histogram,
}

/// Since when it fares so.
#[derive(Clone, Debug)]
struct State {
    since: SystemTime,
    /// Why it does not answer, if it does not.
    problem: Option<String>,
    /// What it has told of itself last.
    facts: Facts,
    /// When it was told last that an answer is none.
    complained: Option<Instant>,
}

impl Default for State {
    fn default() -> Self {
        let problem = Some("it was not asked yet".into());
        Self { since: SystemTime::now(), problem, facts: Facts::default(), complained: None }
    }
}

impl Health {
    /// Whether the store answers.
    pub(crate) fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is one assignment: whoever panicked left it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the store does not answer, if it does not.
    pub(crate) fn problem(&self) -> Option<String> {
        let why = || self.lock().problem.clone().unwrap_or_else(|| "it does not answer".into());
        (!self.is_up()).then(why)
    }

    /// Since when it fares how.
    fn state(&self) -> State {
        self.lock().clone()
    }

    fn rise(&self, facts: &Facts) {
        let was_up = self.up.swap(true, Ordering::Relaxed);
        let mut state = self.lock();
        if !was_up {
            let took = state.since.elapsed().unwrap_or_default();
            let version =
                if facts.version.is_empty() { "its version is not told" } else { &facts.version };
            let seconds = took.as_secs_f64();
            tracing::info!("the store answers ({version}), after {seconds:.1} s without it");
            state.since = SystemTime::now();
        }
        state.problem = None;
        state.facts = facts.clone();
    }

    /// Tells of an answer that is none, once in a while.
    fn complain(&self, question: &Question, answer: &Answer) {
        let problem = match answer {
            Answer::Standing(..) => return,
            Answer::Foreign => "is no state of a limit: delete it, if nobody else needs it",
            Answer::ReadOnly => {
                "cannot be written: the store is full, a replica, or its user may not"
            }
        };
        self.unusable.fetch_add(1, Ordering::Relaxed);
        let mut state = self.lock();
        if state.complained.is_none_or(|at| at.elapsed() >= COMPLAINT_PAUSE) {
            state.complained = Some(Instant::now());
            let key = String::from_utf8_lossy(&question.key);
            tracing::warn!("{key} {problem}; on_error says what is answered about it");
        }
    }

    fn fall(&self, why: &StoreError) {
        let was_up = self.up.swap(false, Ordering::Relaxed);
        let problem = Some(chain(why));
        let mut state = self.lock();
        if was_up || state.problem != problem {
            tracing::warn!(
                "the store does not answer, so on_error says what is answered: {}",
                chain(why)
            );
        }
        if was_up {
            state.since = SystemTime::now();
        }
        state.problem = problem;
    }
}

impl Central {
    /// Begins to ask the store as long as the runtime lives. Returns when it was reached, or was not.
    pub(crate) async fn start(settings: StoreSettings) -> Self {
        let (jobs, waiting) = mpsc::channel(MAX_QUEUE);
        let health = Arc::new(Health::default());
        let first = Link::connect(&settings).await;
        if let Ok(link) = &first {
            health.rise(&link.facts);
        }
        tokio::spawn(keep(settings.clone(), first, waiting, Arc::clone(&health)));
        Self { settings, jobs, health }
    }

    /// How the store fares.
    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    /// All that is known of it, and who answers about rules that need the cluster without it.
    pub(crate) fn report(&self, stance: Option<(Stance, String)>) -> CentralReport {
        let health = &self.health;
        let State { since, problem, facts, .. } = health.state();
        let (sum, calls, _) = health.latency.read();
        let (stance, stance_why) = stance.unzip();
        CentralReport {
            address: self.settings.address.to_string(),
            up: health.is_up(),
            since_s: since.elapsed().unwrap_or_default().as_secs_f64(),
            problem,
            version: facts.version,
            round_trip_us: facts.round_trip.as_micros() as u64,
            call_us: (calls > 0).then(|| sum * 1e6 / calls as f64),
            timeout_ms: self.settings.timeout.as_millis() as u64,
            eviction: facts.eviction,
            journal: facts.journal,
            snapshots: facts.snapshots,
            ahead_ms: facts.ahead_ms,
            calls,
            keys: health.keys.load(Ordering::Relaxed),
            failures: health.failures.load(Ordering::Relaxed),
            stance,
            stance_why: stance_why.unwrap_or_default(),
        }
    }

    /// What the store answers to the questions of a decision; `None` if it does not in time.
    pub(crate) async fn ask(&self, name: &Name, questions: Vec<Question>) -> Option<Vec<Answer>> {
        let answer = self.send(name, questions, self.settings.timeout)?;
        timeout(self.settings.timeout, answer).await.ok()?.ok()
    }

    /// Tells the store something that nobody waits for.
    pub(crate) fn tell(&self, name: &Name, questions: Vec<Question>) {
        // If that fails, it has less room than there is.
        drop(self.send(name, questions, MAX_PAUSE));
    }

    fn send(
        &self,
        name: &Name,
        questions: Vec<Question>,
        within: Duration,
    ) -> Option<oneshot::Receiver<Vec<Answer>>> {
        if !self.health.is_up() || questions.len() > MAX_KEYS {
            return None;
        }
        let (answer, receiver) = oneshot::channel();
        let deadline = Instant::now() + within;
        let sent = self.jobs.try_send(Job { since: name.since(), questions, deadline, answer });
        if sent.is_err() {
            self.health.turned_away.fetch_add(1, Ordering::Relaxed);
        }
        sent.ok().map(|()| receiver)
    }
}

/// Has a connection to the store, as long as there is somebody to ask it.
async fn keep(
    settings: StoreSettings,
    mut link: Result<Link, StoreError>,
    mut jobs: mpsc::Receiver<Job>,
    health: Arc<Health>,
) {
    let mut pause = MIN_PAUSE;
    while !jobs.is_closed() {
        let why = match link {
            Ok(link) => {
                pause = MIN_PAUSE;
                health.rise(&link.facts);
                serve(&link, &mut jobs, &health).await
            }
            Err(why) => why,
        };
        health.fall(&why);
        // Whoever waits is answered as the rule says.
        while jobs.try_recv().is_ok() {}
        let part = f64::from(getrandom::u32().unwrap_or(u32::MAX)) / f64::from(u32::MAX);
        sleep(pause.mul_f64(0.5 + 0.5 * part)).await;
        pause = (2 * pause).min(MAX_PAUSE);
        link = Link::connect(&settings).await;
    }
}

/// Asks what there is to ask, until the store does not answer any more: why.
async fn serve(link: &Link, jobs: &mut mpsc::Receiver<Job>, health: &Health) -> StoreError {
    let (mut waiting, mut arrived) = (VecDeque::new(), Vec::new());
    let mut calls = FuturesUnordered::new();
    let mut beat = interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut failures, mut quiet) = (0, false);
    loop {
        while calls.is_empty() || (waiting.len() >= MAX_KEYS && calls.len() < MAX_CALLS) {
            let batch = next_batch(&mut waiting, Instant::now());
            if batch.is_empty() {
                break;
            }
            quiet = false;
            calls.push(call(link.clone(), batch, health));
        }
        let room = MAX_QUEUE - waiting.len();
        tokio::select! {
            Some(done) = calls.next() => match done {
                Ok(()) => failures = 0,
                Err(why) => {
                    failures += 1;
                    if failures >= MAX_FAILURES || !why.may_pass() {
                        return why;
                    }
                    tracing::debug!("a call of the store has failed: {}", chain(&why));
                }
            },
            count = jobs.recv_many(&mut arrived, room), if room > 0 => {
                if count == 0 {
                    // Nobody is left to ask anything.
                    return StoreError::Answer;
                }
                waiting.extend(arrived.drain(..));
            }
            _ = beat.tick() => {
                if std::mem::replace(&mut quiet, true) {
                    calls.push(call(link.clone(), Vec::new(), health));
                }
            }
        }
    }
}

/// The next decisions of one domain, as many as a call has room for. What nobody waits for any more is left out.
fn next_batch(waiting: &mut VecDeque<Job>, now: Instant) -> Vec<Job> {
    let (mut batch, mut keys) = (Vec::<Job>::new(), 0);
    let mut at = 0;
    while at < waiting.len().min(MAX_LOOK) && keys < MAX_KEYS {
        let job = &waiting[at];
        let is_late = job.deadline <= now;
        let is_its = batch.first().is_none_or(|first| first.since == job.since)
            && keys + job.questions.len() <= MAX_KEYS;
        if !is_late && !is_its {
            at += 1;
            continue;
        }
        // Of those that are left, the ones before it are of other domains: few.
        if let Some(job) = waiting.remove(at).filter(|_| !is_late) {
            keys += job.questions.len();
            batch.push(job);
        }
    }
    batch
}

/// One call of the store for some decisions, or for a sign of life.
async fn call(mut link: Link, batch: Vec<Job>, health: &Health) -> Result<(), StoreError> {
    let Some(first) = batch.first() else { return link.ping().await };
    let questions: Vec<&Question> = batch.iter().flat_map(|job| &job.questions).collect();
    let begun = Instant::now();
    let answered = link.call(&first.since, &questions).await;
    let failed = |_: &StoreError| {
        health.failures.fetch_add(1, Ordering::Relaxed);
    };
    let answers = answered.inspect_err(failed)?;
    health.keys.fetch_add(questions.len() as u64, Ordering::Relaxed);
    health.latency.count(1, begun.elapsed());
    for (question, answer) in questions.iter().zip(&answers.all) {
        health.complain(question, answer);
    }
    let mut answers = answers.all.into_iter();
    for job in batch {
        let own = answers.by_ref().take(job.questions.len()).collect();
        // An error says that its client has gone.
        let _ = job.answer.send(own);
    }
    Ok(())
}
