//! Strict limits: a thread that looks at what sources send, and tells the data plane what a central store leases.
//!
//! The store is spoken to by `limiter-serve`, which asks the daemon what is wanted, and brings the answers. It can bring no
//! more than was asked for, and each lease has an end in the kernel. So the limits hold whatever becomes of it, of the
//! store, and of this thread.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;

use super::key::Keys;
use super::link::monotonic;
use super::pace::worked;
use super::sources::{Demand, Sources};
use super::watched::Bounds;
use super::words::{PendingShares, RefundWorker};
use super::{MAX_WAITING, ended, random, spawn};
use crate::rules::LeaseView;
use crate::{CoreHandle, Shares};
use api::error::Failure;
use api::{LeaseWanted, LeasesBrought, LeasesReport, LeasesWanted};
use cluster::Moment;
use cluster::lease::{Ask, Leases, Terms};
use cluster::link::ClusterId;
use model::lease::{FLOOR, MAX_LEASE, in_store};
use model::{Limit, OnError, Tier};

/// How often it is looked at what sources send, and while there is nothing to see.
const BUSY_INTERVAL: Duration = Duration::from_millis(25);
const IDLE_INTERVAL: Duration = Duration::from_millis(200);
/// Of its time a thread may look for this part at most: 1/20.
const PART: u32 = 20;
/// Between two answers to a `limiter-serve` passes such a time at least.
// Leases of that time are asked for together: a call of the store has room for 64.
const PACE: Duration = Duration::from_millis(10);
/// Without anything to ask it is answered after such a time.
const PARK: Duration = Duration::from_millis(200);
/// A `limiter-serve` that does not ask for so long is gone.
// Its own calls of the store take 20 ms at the most, if nothing else is said.
const SILENCE: Duration = Duration::from_millis(400);
/// Leases that are asked for in an answer.
// Eight calls of the store, four at a time: the last of them is to be answered in time, too.
const MAX_ASKS: usize = 512;
/// How often it is told how leases fare.
const REPORT: Duration = Duration::from_secs(1);

/// What there is to say while nobody asks.
const NOBODY: &str = "no limiter-serve with --daemon and --store asks for leases";

type Input = (LeasesBrought, oneshot::Sender<LeasesWanted>);

/// Where a `limiter-serve` brings leases.
#[derive(Clone)]
pub struct LeaseDesk(mpsc::Sender<Input>);

impl LeaseDesk {
    /// Takes what is brought. Returns what is wanted, when there is something.
    ///
    /// # Errors
    /// If the thread has ended, or another request has come.
    pub async fn bring(&self, brought: LeasesBrought) -> Result<LeasesWanted, Failure> {
        let (tell, wanted) = oneshot::channel();
        self.0.send((brought, tell)).await.map_err(ended)?;
        wanted.await.map_err(ended)
    }
}

/// Starts the thread, which never waits for the core.
///
/// # Errors
/// If there can be none, or the core's state is in doubt.
pub fn start_leases(core: &CoreHandle) -> Result<LeaseDesk, Failure> {
    let (inbox, inputs) = mpsc::channel(MAX_WAITING);
    let (slowest, facts) = watch::channel(None);
    let (tell, report) = watch::channel(LeasesReport::default());
    let plane = core.with_now(|core| {
        core.rules.strict = Some(LeaseView::new(slowest, report));
        core.rules.tell_limits();
        Ok(core.rules.plane.leased_shares())
    })?;
    let now = monotonic();
    // No other host has to know these numbers.
    let keys = Keys::of(ClusterId(random()?));
    let refunds = RefundWorker::start(Arc::clone(&plane))?;
    let mut leases = LeaseLoop {
        plane,
        refunds,
        sources: Sources::new(keys, now, worked),
        leases: Leases::new(now, random()?),
        pending: PendingShares::default(),
        parked: None,
        heard: now,
        answered: now,
        problem: NOBODY.to_owned(),
        since: now,
        look: now,
        wake: now,
        report: now,
        tell,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(super::no_thread)?;
    spawn("leases", move || runtime.block_on(leases.run(inputs, facts)))?;
    Ok(LeaseDesk(inbox))
}

struct LeaseLoop {
    plane: Arc<dyn Shares>,
    refunds: RefundWorker,
    sources: Sources,
    leases: Leases<Key>,
    pending: PendingShares,
    /// Who waits for what is wanted, and since when.
    parked: Option<(oneshot::Sender<LeasesWanted>, Moment)>,
    heard: Moment,
    answered: Moment,
    /// Why the store leases nothing, while it does not.
    problem: String,
    /// Since when it leases something, or does not.
    since: Moment,
    look: Moment,
    /// When something may be due again.
    wake: Moment,
    report: Moment,
    tell: watch::Sender<LeasesReport>,
}

impl LeaseLoop {
    async fn run(
        &mut self,
        mut inputs: mpsc::Receiver<Input>,
        mut facts: watch::Receiver<Option<f64>>,
    ) {
        let mut begun = monotonic();
        loop {
            let slowest = *facts.borrow_and_update();
            self.step(slowest);
            let done = monotonic();
            self.sources.room.worked(done.since(begun));
            let mut next = self.wake.min(self.report);
            if let Some((_, since)) = &self.parked {
                // What is wanted at this look may be told then.
                let told = self.answered.after(PACE);
                let told = if told > done { told } else { since.after(PARK) };
                next = next.min(told);
            }
            let input = tokio::select! {
                input = inputs.recv() => match input {
                    Some(input) => Some(input),
                    None => return,
                },
                changed = facts.changed() => match changed {
                    Ok(()) => None,
                    Err(_) => return,
                },
                () = sleep(next.since(done)) => None,
            };
            begun = monotonic();
            if let Some((brought, answer)) = input {
                self.take(begun, brought, answer);
            }
        }
    }

    /// Takes what a `limiter-serve` brings.
    fn take(&mut self, now: Moment, brought: LeasesBrought, answer: oneshot::Sender<LeasesWanted>) {
        self.heard = now;
        for (number, tokens) in brought.leases {
            self.leases.answer(now, number, tokens);
        }
        self.set_store(now, brought.problem);
        // Another one, or the same after a failure: the latest is there.
        self.parked = Some((answer, now));
    }

    fn set_store(&mut self, now: Moment, problem: Option<String>) {
        let was_there = self.leases.lost().is_none();
        self.leases.store(now, problem.is_none());
        if was_there != problem.is_none() {
            (self.since, self.report) = (now, now);
        }
        self.problem = problem.unwrap_or_default();
    }

    fn step(&mut self, slowest: Option<f64>) {
        let now = monotonic();
        // The connection has ended: whoever was there is gone.
        let left = self.parked.as_ref().is_some_and(|(answer, _)| answer.is_closed());
        if left {
            self.parked = None;
        }
        if left || self.parked.is_none() && now.since(self.heard) > SILENCE {
            self.set_store(now, Some(NOBODY.to_owned()));
        }
        self.look(now, slowest);
        // The look may have taken milliseconds, in which leases have ended.
        let now = monotonic();
        self.pending.grant(self.leases.poll(now), &self.sources);
        if self.pending.len() > 0 {
            for key in self.pending.tell(&*self.plane, Some(&self.sources), &self.refunds) {
                self.leases.forget(now, key);
                self.sources.drop(key);
            }
        }
        self.answer(now);
        if now >= self.report {
            self.report = now.after(REPORT);
            self.tell(now);
        }
    }

    /// Looks at what sources send, if it is time, or somebody has begun to be limited.
    fn look(&mut self, now: Moment, slowest: Option<f64>) {
        let is_used = slowest.is_some() || !self.sources.is_empty();
        let noticed = if is_used { self.plane.begun_to_be_limited() } else { Vec::new() };
        self.wake = now.after(if is_used { BUSY_INTERVAL } else { IDLE_INTERVAL });
        // Who is new has no lease, and must not wait for a pause.
        if !is_used || noticed.is_empty() && now < self.look {
            return;
        }
        self.sources.room.renew(now, self.sources.len());
        let (late, begun) = (now.since(self.look), worked());
        let bounds = Bounds { floor: FLOOR, slowest: slowest.unwrap_or(f64::MAX) };
        let seen = self.sources.look(&*self.plane, now, &noticed, bounds);
        let ended = monotonic();
        // Those that there is no room for have a packet, and no word.
        self.sources.untracked.renew(ended);
        for key in seen.gone {
            self.leases.forget(ended, key);
        }
        for (key, bucket) in seen.over {
            self.leases.forget(ended, key);
            self.pending.revoke(bucket, ended);
        }
        for Demand { key, part, limit, .. } in seen.demands {
            if let Some(terms) = terms_of(&limit) {
                self.leases.demand(ended, key, || key_of(&limit), terms, part);
            }
        }
        let pause = BUSY_INTERVAL.max(worked().saturating_sub(begun) * PART);
        self.sources.paused(pause + late);
        self.look = now.after(pause);
    }

    /// Tells a `limiter-serve` what is wanted.
    fn answer(&mut self, now: Moment) {
        let Some((answer, since)) = self.parked.take() else { return };
        // What is given back must not be in use any more.
        let is_due = now >= self.answered.after(PACE) && self.pending.len() == 0;
        let asks = if is_due { self.leases.asks(now, MAX_ASKS) } else { Vec::new() };
        if asks.is_empty() && now.since(since) < PARK {
            self.parked = Some((answer, since));
            return;
        }
        (self.answered, self.heard) = (now, now);
        // Where it is gone, what was asked has no answer, and what was given back is lost.
        let _ = answer.send(LeasesWanted { leases: asks.into_iter().map(wanted).collect() });
    }

    fn tell(&self, now: Moment) {
        let (sources, leased) = self.leases.count(now);
        let counters = self.leases.counters;
        self.tell.send_replace(LeasesReport {
            problem: self.leases.lost().map(|_| self.problem.clone()),
            seconds: now.since(self.since).as_secs(),
            sources,
            leased,
            left_out: self.sources.left_out() + self.sources.untracked.len(),
            tokens: counters.leased,
            given_back: counters.given_back,
            asked: counters.asked,
            unanswered: counters.unanswered,
        });
    }
}

/// What is to be known of a limit, if it is strict.
fn terms_of(limit: &Limit) -> Option<Terms> {
    let on_error: OnError = limit.scope.on_error()?;
    Some(Terms { rate: limit.rate.per_second(), burst: limit.burst, on_error })
}

/// By what name hosts ask the store for a source and a class, and of what limit.
// The limit is not in the name: hosts that have another one for a moment take from the same bucket.
type Key = Arc<(String, String, Tier)>;

fn key_of(limit: &Limit) -> Key {
    let source = limit.target.prefix().map_or_else(String::new, |source| source.to_string());
    Arc::new((source, limit.target.class.to_string(), limit.tier()))
}

fn wanted(ask: Ask<Key>) -> LeaseWanted {
    let (number, key, tokens, lease) = match ask {
        Ask::Buy(number, key, tokens, lease) => (Some(number), key, tokens, lease),
        Ask::GiveBack(key, tokens) => (None, key, tokens, MAX_LEASE),
    };
    let (source, class, tier) = &*key;
    let kept = in_store(tier, lease);
    LeaseWanted {
        number,
        tokens,
        source: source.clone(),
        class: class.clone(),
        requests: kept.requests,
        window_ns: kept.window.as_nanos() as u64,
        burst: kept.burst.unwrap_or(kept.requests),
    }
}
