//! Divides limits: a thread that looks at what sources send, asks and hears other hosts, and tells the data
//! plane what it may let through.
//!
//! Other hosts hear nothing before what they may rely on is so: what is kept is durable, and sources may use no more
//! than the escrow has decided. Until then messages wait, and later ones take their place. Shares wait for nothing:
//! they end by themselves, and what they are raised by another host has given up, which keeps it as on its way until it
//! hears that it was taken.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;

use super::core_worker::{Answer, Request};
use super::host::Host;
use super::key::Keys;
use super::ledger::Written;
use super::link::{Command, monotonic};
use super::partitions::Partitions;
use super::pending::Pending;
use super::sources::{Bounds, Demand, Observation, Sources};
use super::{MAX_WAITING, RegionShares, ShareReport};
use crate::{CoreHandle, Shares};
use api::error::{Failure, exit};
use cluster::escrow::{self, Escrow, Outputs};
use cluster::link::{ClusterId, Step};
use cluster::membership::Identity;
use cluster::{HostId, KeyId, Message, Moment};
use model::Share;

/// How often it is looked at what sources send while that matters to somebody.
const BUSY_INTERVAL: Duration = Duration::from_millis(50);
/// The same while it does not.
const IDLE_INTERVAL: Duration = Duration::from_millis(200);
/// Of its time a thread may look for this part at most: 1/20.
const PART: u32 = 20;
/// How often it is told how limits are divided.
const REPORT: Duration = Duration::from_secs(1);
/// How soon is tried again what could not be done.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// For so long home shares have to be with no host that is there before it is told: others are on their way.
const IDLE: Duration = Duration::from_secs(10);
/// Messages that are taken in one go.
const BATCH: usize = 256;
/// Less than this is not worth a word: 1 %.
const MIN_IDLE: Share = Share::from_units(1 << 32 >> 7);
/// Bytes of a frame, where a limit counts them.
const FRAME: f64 = 1514.0;

/// What comes to it.
pub(super) enum Input {
    /// A member has said something.
    Said(HostId, Box<Message>),
    /// A member of this cluster has answered: this host joins it, unless it belongs to one.
    Invited(ClusterId),
    /// This host is to vote or to found, with those that it sees, if its vote is this one.
    Bootstrap(Step, Option<ClusterId>),
    /// The operator wants this host to found a cluster.
    Init(oneshot::Sender<Result<ClusterId, Failure>>),
    /// Hand everything over, and tell when that is done: whether the cluster is no more.
    Leave(oneshot::Sender<bool>),
    /// End.
    End,
}

/// What it has done, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Work {
    /// Looks at what sources send.
    pub looks: u64,
    /// Shares that the data plane was told.
    pub shares_told: u64,
    /// The same that were tried again, as packets came at the same moment.
    pub shares_again: u64,
    /// Messages that were given to the link.
    pub messages: u64,
    /// Messages that were not: what has to be done before was not, until later ones took their place.
    pub messages_withheld: u64,
    /// Sources that were not tracked because there were too many.
    pub sources_refused: u64,
    /// The longest that a look has taken, ms.
    pub longest_look_ms: u64,
    /// The longest that it has gone without hearing others, ms.
    pub longest_step_ms: u64,
}

/// The thread.
pub(super) struct Thread {
    pub(super) inbox: mpsc::Sender<Input>,
    pub(super) report: watch::Receiver<ShareReport>,
    thread: JoinHandle<()>,
}

impl Thread {
    /// Ends it; all that it has begun is done.
    pub(super) async fn end(self) {
        let _ = self.inbox.send(Input::End).await;
        let _ = tokio::task::spawn_blocking(|| self.thread.join()).await;
    }
}

/// What a host with this home share may use of each source's limit without end.
pub(crate) fn floor_of(home: Share) -> Share {
    let floor = escrow::Settings::new(HostId(0), 1).floor;
    home.times(floor.units(), Share::WHOLE.units())
}

/// Starts the thread, which never waits for the core: what it asks of that is answered when it has time.
///
/// # Errors
/// If there can be none, or the core's state is in doubt.
pub(super) fn start(host: Host, shared: &CoreHandle) -> Result<Thread, Failure> {
    let (inbox, inputs) = mpsc::channel(MAX_WAITING);
    let (tell, report) = watch::channel(ShareReport::default());
    let failed = |error| Failure::new(exit::PRIVILEGE, format!("cannot start a thread: {error}"));
    let (plane, alone) = shared.with_now(|core| {
        let plane = core.plane();
        Ok((plane.shares(), plane.has_everything()))
    })?;
    let pending = Pending::start(shared, Arc::clone(&plane))?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(failed)?;
    let thread = std::thread::Builder::new()
        .name("shares".into())
        .spawn(move || {
            let shares = ShareLoop::new(host, plane, alone, pending, tell);
            runtime.block_on(shares.run(inputs));
        })
        .map_err(failed)?;
    Ok(Thread { inbox, report, thread })
}

/// When things are due.
struct Due {
    look: Moment,
    report: Moment,
    poll: Moment,
}

/// Gives the escrow what comes and what sources send, when it is time, and has done what it says.
struct ShareLoop {
    host: Host,
    plane: Arc<dyn Shares>,
    pending: Pending,
    tell: watch::Sender<ShareReport>,
    escrow: Escrow,
    /// It is a new one, which knows no members yet.
    anew: bool,
    /// Nothing while this host belongs to no cluster.
    sources: Option<Sources>,
    due: Due,
    /// The least that limits of the cluster let through, packets a second, if there are any.
    slowest: Option<f64>,
    /// What becomes of limits while hosts are lost.
    partitions: Partitions,
    /// Who waits to hear that all is handed over.
    leaving: Option<oneshot::Sender<bool>>,
    work: Work,
    /// Since when home shares are with no host that is there.
    idle: Option<Moment>,
}

impl ShareLoop {
    fn new(
        host: Host,
        plane: Arc<dyn Shares>,
        alone: bool,
        pending: Pending,
        tell: watch::Sender<ShareReport>,
    ) -> Self {
        let now = monotonic();
        let escrow = host.escrow(alone, now);
        let sources = host.kept.cluster().map(|id| Sources::new(Keys::of(id), now));
        Self {
            host,
            plane,
            pending,
            tell,
            escrow,
            anew: false,
            sources,
            due: Due { look: now, report: now, poll: now },
            slowest: None,
            partitions: Partitions::default(),
            leaving: None,
            work: Work::default(),
            idle: None,
        }
    }

    async fn run(mut self, mut inputs: mpsc::Receiver<Input>) {
        let mut batch = Vec::with_capacity(BATCH);
        let mut members = self.host.link.members.clone();
        members.mark_changed();
        let mut began = monotonic();
        loop {
            let now = monotonic();
            if members.has_changed().unwrap_or_default() || self.anew {
                self.anew = false;
                let seen = members.borrow_and_update();
                let member = |member: &Identity| escrow::Member {
                    weight: member.weight,
                    region: escrow::Region::new(member.region()),
                };
                let alive = seen.iter().map(|(host, its)| (*host, member(its))).collect();
                drop(seen);
                self.escrow.set_members(now, &alive);
                self.due.poll = now;
            }
            self.step(now);
            let next = self.due.look.min(self.due.report).min(self.due.poll);
            let ended = monotonic();
            self.worked(ended.since(began));
            let pause = next.since(ended);
            let count = tokio::select! {
                count = inputs.recv_many(&mut batch, BATCH) => Some(count),
                changed = members.changed() => match changed {
                    Ok(()) => { members.mark_changed(); None }
                    Err(_) => return,
                },
                answer = self.pending.core.answers.recv() => match self.handle_answer(answer) {
                    Ok(()) => None,
                    Err(failure) => return stopped(&failure),
                },
                written = self.pending.ledger.written() => match self.handle_written(written) {
                    Ok(()) => None,
                    Err(failure) => return stopped(&failure),
                },
                () = sleep(pause) => None,
            };
            began = monotonic();
            let Some(count) = count else { continue };
            if count == 0 {
                return;
            }
            for input in batch.drain(..) {
                if !matches!(input, Input::Said(..))
                    && let Err(failure) = self.settle().await
                {
                    return stopped(&failure);
                }
                match input {
                    Input::Said(from, message) => self.handle_message(from, &message),
                    Input::Invited(id) => {
                        if self.host.join(id) {
                            self.belong(id);
                        }
                    }
                    Input::Bootstrap(step, vote) => {
                        let founded = self.host.bootstrap(step, vote);
                        founded.into_iter().for_each(|id| self.found(id));
                    }
                    Input::Init(done) => {
                        let founded = self.host.init();
                        founded.iter().for_each(|id| self.found(*id));
                        let _ = done.send(founded);
                    }
                    Input::Leave(done) => {
                        self.escrow.leave(monotonic());
                        self.leaving = Some(done);
                    }
                    Input::End => return,
                }
            }
            self.due.poll = Moment(0);
        }
    }

    /// The thread has had something to do for so long: what it has time for, it tracks.
    fn worked(&mut self, span: Duration) {
        self.work.longest_step_ms = self.work.longest_step_ms.max(span.as_millis() as u64);
        if let Some(sources) = &mut self.sources {
            sources.room.worked(span);
        }
    }

    fn handle_message(&mut self, from: HostId, message: &Message) {
        if !self.host.refused && !self.host.left {
            self.escrow.receive(monotonic(), from, message);
        }
    }

    /// Takes what the core says to what it was asked.
    ///
    /// # Errors
    /// If it will say nothing any more.
    fn handle_answer(&mut self, answer: Option<Answer>) -> Result<(), Failure> {
        match answer {
            Some(Answer::Floor(floor)) => {
                self.pending.handle_floor(Ok(floor));
                self.go_on();
            }
            Some(Answer::Refused(failure)) => self.pending.handle_floor(Err(failure)),
            Some(Answer::Partitions(round, found)) => self.partitions.learn(round, found),
            Some(Answer::InDoubt(failure)) => return Err(failure),
            None => return Err(ended()),
        }
        Ok(())
    }

    /// Takes note of what is durable.
    ///
    /// # Errors
    /// If nothing will be any more.
    fn handle_written(&mut self, written: Option<Written>) -> Result<(), Failure> {
        let written = written.ok_or_else(ended)?;
        if self.pending.handle_written(written, &mut self.host) {
            self.go_on();
        }
        Ok(())
    }

    /// Something is done that messages may have waited for.
    fn go_on(&mut self) {
        self.due.poll = Moment(0);
        self.pending.send(&self.host, &mut self.work);
    }

    /// Waits until nothing is being written: what else is kept is written here.
    ///
    /// # Errors
    /// As [`ShareLoop::handle_written`].
    async fn settle(&mut self) -> Result<(), Failure> {
        while self.pending.ledger.is_writing() {
            let written = self.pending.ledger.written().await;
            self.handle_written(written)?;
        }
        Ok(())
    }

    /// From now on this host divides limits with others.
    fn belong(&mut self, id: ClusterId) {
        self.sources = Some(Sources::new(Keys::of(id), monotonic()));
        self.host.link.order(Command::Belong(id));
        self.due.report = Moment(0);
    }

    /// This host has founded its cluster.
    fn found(&mut self, id: ClusterId) {
        // Nothing of it has been delegated yet.
        self.escrow = self.host.escrow(true, monotonic());
        self.anew = true;
        self.belong(id);
    }

    /// Does what is due.
    fn step(&mut self, now: Moment) {
        if self.host.limits.has_changed().unwrap_or_default() {
            let facts = *self.host.limits.borrow_and_update();
            self.slowest = facts.slowest;
            self.partitions.begin(facts);
            self.due.report = now;
        }
        if now >= self.due.report {
            self.due.report = now.after(REPORT);
            self.host.look_at_members();
            if self.partitions.by_majority() {
                self.escrow.go_by_majority();
            }
            self.report();
        }
        if now >= self.due.look {
            self.look(now);
            self.due.poll = now;
        }
        if now >= self.due.poll {
            let now = monotonic();
            let out = self.escrow.poll(now);
            self.due.poll = out.next;
            self.carry_out(now, out);
        }
    }

    /// Looks at what sources send.
    fn look(&mut self, now: Moment) {
        let floor = self.escrow.floor();
        let Some(sources) = &mut self.sources else {
            self.due.look = now.after(IDLE_INTERVAL);
            return;
        };
        if self.slowest.is_none() && sources.is_empty() {
            self.due.look = now.after(IDLE_INTERVAL);
            return;
        }
        let bounds = Bounds { floor, slowest: self.slowest.unwrap_or(f64::MAX) };
        let begun = monotonic();
        sources.room.renew(begun, sources.len());
        let noticed = self.plane.begun_to_be_limited();
        let seen = if self.host.refused || self.host.left {
            Observation { over: sources.drop_all(), ..Observation::default() }
        } else {
            sources.look(&*self.plane, monotonic(), &noticed, bounds)
        };
        let ended = monotonic();
        let took = ended.since(begun);
        self.work.looks += 1;
        self.work.longest_look_ms = self.work.longest_look_ms.max(took.as_millis() as u64);
        self.work.sources_refused = sources.refused;
        let pause =
            if sources.is_empty() { IDLE_INTERVAL.min(2 * BUSY_INTERVAL) } else { BUSY_INTERVAL };
        self.due.look = now.after(pause.max(took * PART));
        for key in seen.gone {
            self.forget(key);
        }
        for (key, bucket) in seen.over {
            self.forget(key);
            self.pending.shares.revoke(bucket, ended);
        }
        for Demand { key, part, limited, source, class } in seen.demands {
            self.escrow.demand(ended, key, part, limited);
            if let Some(partition) = self.partitions.of(key, source, class) {
                self.escrow.set_partition(key, partition);
            }
        }
        if let Some(question) = self.partitions.ask() {
            self.pending.core.ask(Request::Partitions(question));
        }
    }

    /// A source is tracked no more.
    fn forget(&mut self, key: KeyId) {
        self.escrow.forget(key);
        self.partitions.forget(key);
    }

    /// Does what the escrow says.
    fn carry_out(&mut self, now: Moment, out: Outputs) {
        self.host.left |= out.left;
        let (kept, sources) = (self.escrow.kept(), self.sources.as_ref());
        for key in self.pending.take(out, kept, &self.host, sources, &mut self.work) {
            self.forget(key);
            if let Some(sources) = &mut self.sources {
                sources.drop(key);
            }
        }
        if !self.pending.send(&self.host, &mut self.work) {
            // A disk that is full is so for a while.
            let full = self.pending.unkept.is_some();
            let again = if full { IDLE_INTERVAL } else { RETRY_INTERVAL };
            self.due.poll = self.due.poll.min(now.after(again));
            return;
        }
        if self.host.left
            && let Some(done) = self.leaving.take()
        {
            let disbanded = self.host.leave();
            // What is told from now on: the link ends, and this thread with it.
            self.report();
            let _ = done.send(disbanded);
        }
    }

    /// The regions of the members that are there.
    fn regions(&self) -> BTreeMap<String, RegionShares> {
        let mut regions: BTreeMap<String, RegionShares> = BTreeMap::new();
        for (host, member) in self.host.link.members.borrow().iter() {
            if !regions.contains_key(member.region()) {
                regions.insert(member.region().into(), RegionShares::default());
            }
            if let Some(region) = regions.get_mut(member.region()) {
                region.members += 1;
                region.home += self.escrow.home_of(*host).unwrap_or(Share::NONE);
            }
        }
        regions
    }

    /// The home shares that no host has which is there, if that has been so for a while.
    fn missing(&mut self, regions: &BTreeMap<String, RegionShares>) -> Share {
        let there: Share = regions.values().map(|region| region.home).sum();
        let missing = Share::WHOLE.without(there + self.escrow.kept().on_the_way());
        let members = self.host.link.members.borrow().len();
        let now = monotonic();
        if missing <= MIN_IDLE
            || members <= 1
            || self.host.kept.cluster().is_none()
            || self.host.left
        {
            self.idle = None;
            return Share::NONE;
        }
        let since = *self.idle.get_or_insert(now);
        if now.since(since) >= IDLE { missing } else { Share::NONE }
    }

    fn report(&mut self) {
        // An order is lost where too many wait.
        if let Some(id) = self.host.kept.cluster()
            && self.host.link.report.borrow().cluster.is_none()
            && !self.host.left
        {
            self.host.link.order(Command::Belong(id));
        }
        let (keys, limited) = self.sources.as_ref().map_or((0, 0), Sources::count);
        let left_out = self.sources.as_ref().map_or(0, Sources::left_out);
        let regions = self.regions();
        let missing = self.missing(&regions);
        let (kept, loans) = (self.escrow.kept(), self.escrow.count_loans(monotonic()));
        self.tell.send_replace(ShareReport {
            home: kept.home,
            on_the_way: kept.on_the_way(),
            floor: self.escrow.without_end(monotonic()),
            keys,
            limited,
            left_out,
            grants: self.escrow.count_grants(monotonic()),
            loans: [loans.borrowed, loans.lent],
            regions,
            missing,
            twice: self.sources.as_ref().map_or(0, Sources::twice),
            unwritten: self.pending.unwritten(),
            lost: self.escrow.count_lost(monotonic()),
            refused: self.host.refused,
            left: self.host.left,
            refused_name: self.host.kept.refused_name().map(str::to_owned),
            doubts: self.escrow.doubts(),
            problem: self.pending.problem.clone(),
            counters: self.escrow.counters(),
            work: self.work,
        });
    }
}

/// Tells that the thread ends before it is to: the kernel falls back to the floor by itself.
fn stopped(failure: &Failure) {
    tracing::error!("cluster limit sharing has stopped: {failure}");
}

/// That a thread which this one needs is gone.
fn ended() -> Failure {
    Failure::new(exit::NEGATIVE, "a thread of the share loop has ended by itself")
}

/// What a tier lets through, packets a second; full frames where it counts bytes.
pub(super) fn packets_a_second(tier: &model::Tier) -> f64 {
    let period_s = tier.rate.period_ns() as f64 / 1e9;
    let frame = if tier.rate.unit() == model::Unit::Bytes { FRAME } else { 1.0 };
    tier.rate.amount() as f64 / frame / period_s.max(1e-9)
}
