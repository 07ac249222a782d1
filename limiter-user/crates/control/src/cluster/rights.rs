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

use super::core_worker::{Answer, CoreWorker, PendingFloor, Request};
use super::kept::StateFile;
use super::key::Keys;
use super::ledger::{LedgerWriter, Written};
use super::link::{self, Command, monotonic};
use super::partitions::{LimitFacts, Partitions};
use super::sources::{Bounds, Demand, Observation, Sources};
use super::words::{RefundWorker, Words};
use super::{MAX_WAITING, RegionRights, RightsReport};
use crate::{CoreHandle, Shares};
use api::error::{Failure, exit};
use cluster::escrow::{self, Escrow, Outputs};
use cluster::link::{ClusterId, Step};
use cluster::membership::Identity;
use cluster::wire::Content;
use cluster::{HostId, KeyId, Message, Moment};
use model::Share;

/// How often it is looked at what sources send while that matters to somebody.
const BUSY_INTERVAL: Duration = Duration::from_millis(50);
/// The same while it does not.
const IDLE_INTERVAL: Duration = Duration::from_millis(200);
/// Of its time a thread may look for this part at most: 1/20.
const PART: u32 = 20;
/// How often it is told how rights are divided.
const REPORT: Duration = Duration::from_secs(1);
/// How soon is tried again what could not be done.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// For so long home rights have to be with no host that is there before it is told: others are on their way.
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

/// Who this is, and how it reaches others.
pub(super) struct Host {
    pub(super) me: HostId,
    pub(super) weight: u32,
    pub(super) region: escrow::Region,
    pub(super) kept: StateFile,
    pub(super) link: link::Handle,
    /// Where it listens: another host may have its name.
    pub(super) address: std::net::SocketAddr,
    /// The hash of the limits, which rides in every message.
    pub(super) digest: watch::Receiver<u64>,
    /// What limits there are, as the core tells when they change.
    pub(super) limits: watch::Receiver<LimitFacts>,
}

impl Host {
    /// With the rights that are kept; `alone` as in [`escrow::Settings`].
    fn escrow(&self, alone: bool, now: Moment) -> Escrow {
        let settings = escrow::Settings::new(self.me, self.weight);
        let settings = escrow::Settings { region: self.region, alone, ..settings };
        Escrow::new(settings, self.kept.rights(), now)
    }
}

/// The thread.
pub(super) struct Thread {
    pub(super) inbox: mpsc::Sender<Input>,
    pub(super) report: watch::Receiver<RightsReport>,
    thread: JoinHandle<()>,
}

impl Thread {
    /// Ends it; all that it has begun is done.
    pub(super) async fn end(self) {
        let _ = self.inbox.send(Input::End).await;
        let _ = tokio::task::spawn_blocking(|| self.thread.join()).await;
    }
}

/// What a host with this home right may use of each source's limit without end.
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
    let (tell, report) = watch::channel(RightsReport::default());
    let failed = |error| Failure::new(exit::PRIVILEGE, format!("cannot start a thread: {error}"));
    let (plane, alone) = shared.with_now(|core| {
        let plane = core.plane();
        Ok((plane.shares(), plane.has_everything()))
    })?;
    let giver = RefundWorker::start(Arc::clone(&plane))?;
    let core = CoreWorker::start(shared.clone(), giver.clone())?;
    let workers = Workers { core, giver, ledger: LedgerWriter::start()? };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(failed)?;
    let thread = std::thread::Builder::new()
        .name("rights".into())
        .spawn(move || {
            let task = Task::new(host, plane, alone, workers, tell);
            runtime.block_on(task.run(inputs));
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

/// Threads that wait for what this one does not wait for.
struct Workers {
    core: CoreWorker,
    giver: RefundWorker,
    ledger: LedgerWriter,
}

struct Task {
    host: Host,
    plane: Arc<dyn Shares>,
    workers: Workers,
    tell: watch::Sender<RightsReport>,
    escrow: Escrow,
    /// It is a new one, which knows no members yet.
    anew: bool,
    /// Nothing while this host belongs to no cluster.
    sources: Option<Sources>,
    words: Words,
    floor: PendingFloor,
    /// What is kept has to be made durable, and is not being written.
    keep: bool,
    /// Messages that wait.
    unsent: BTreeMap<HostId, Message>,
    due: Due,
    /// The least that limits of the cluster let through, packets a second, if there are any.
    slowest: Option<f64>,
    /// What becomes of limits while hosts are lost.
    partitions: Partitions,
    /// Another host has had this one's name for longer.
    refused: bool,
    /// Who waits to hear that all is handed over.
    leaving: Option<oneshot::Sender<bool>>,
    left: bool,
    work: Work,
    problem: Option<String>,
    /// Why the floor is not what it is to be, and why what is kept is not.
    refusal: Option<String>,
    unkept: Option<String>,
    /// Since when home rights are with no host that is there.
    idle: Option<Moment>,
}

impl Task {
    fn new(
        host: Host,
        plane: Arc<dyn Shares>,
        alone: bool,
        workers: Workers,
        tell: watch::Sender<RightsReport>,
    ) -> Self {
        let now = monotonic();
        let escrow = host.escrow(alone, now);
        let sources = host.kept.cluster().map(|id| Sources::new(Keys::of(id), now));
        Self {
            host,
            plane,
            workers,
            tell,
            escrow,
            anew: false,
            sources,
            words: Words::default(),
            floor: PendingFloor::default(),
            keep: false,
            unsent: BTreeMap::new(),
            due: Due { look: now, report: now, poll: now },
            slowest: None,
            partitions: Partitions::default(),
            refused: false,
            leaving: None,
            left: false,
            work: Work::default(),
            problem: None,
            refusal: None,
            unkept: None,
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
                answer = self.workers.core.answers.recv() => match self.hear_core(answer) {
                    Ok(()) => None,
                    Err(failure) => return stopped(&failure),
                },
                written = self.workers.ledger.written() => match self.hear_ledger(written) {
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
                    Input::Said(from, message) => self.hear(from, &message),
                    Input::Invited(id) => self.join(id),
                    Input::Bootstrap(step, vote) => self.bootstrap(step, vote),
                    Input::Init(done) => {
                        let _ = done.send(self.init());
                    }
                    Input::Leave(done) => self.leave(done),
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

    fn hear(&mut self, from: HostId, message: &Message) {
        if !self.refused && !self.left {
            self.escrow.receive(monotonic(), from, message);
        }
    }

    /// Takes what the core says to what it was asked.
    ///
    /// # Errors
    /// If it will say nothing any more.
    fn hear_core(&mut self, answer: Option<Answer>) -> Result<(), Failure> {
        match answer {
            Some(Answer::Floor(floor)) => {
                self.floor.told(floor);
                self.refusal = None;
                self.due.poll = Moment(0);
                self.send();
            }
            Some(Answer::Refused(failure)) => {
                self.floor.refused();
                self.refusal = Some(failure.to_string());
            }
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
    fn hear_ledger(&mut self, written: Option<Written>) -> Result<(), Failure> {
        match written {
            Some((state, Ok(()))) => {
                self.host.kept.written(state);
                self.unkept = None;
                self.due.poll = Moment(0);
                self.send();
            }
            Some((_, Err(failure))) => {
                self.keep = true;
                self.unkept = Some(failure.to_string());
            }
            None => return Err(ended()),
        }
        Ok(())
    }

    /// Waits until nothing is being written: what else is kept is written here.
    ///
    /// # Errors
    /// As [`Task::hear_ledger`].
    async fn settle(&mut self) -> Result<(), Failure> {
        while self.workers.ledger.is_writing() {
            let written = self.workers.ledger.written().await;
            self.hear_ledger(written)?;
        }
        Ok(())
    }

    fn join(&mut self, id: ClusterId) {
        if self.host.kept.cluster().is_some() || self.left {
            return;
        }
        match self.host.kept.join(id) {
            Ok(()) => {
                tracing::info!(
                    "this host has joined the cluster {id}, and has no part of its limits yet"
                );
                self.belong(id);
            }
            // It is invited again.
            Err(failure) => tracing::error!("cannot join the cluster {id}: {failure}"),
        }
    }

    /// Does the next step to a cluster that several hosts found together. What fails is asked for again.
    fn bootstrap(&mut self, step: Step, vote: Option<ClusterId>) {
        // It may have been decided before this host kept another vote.
        let kept = &self.host.kept;
        if kept.cluster().is_some() || self.left || kept.bootstrap(0).vote != vote {
            return;
        }
        let done = match step {
            Step::Wait => return,
            Step::Vote(vote) => self.host.kept.vote(vote).map(|()| {
                self.host.link.order(Command::Vote(vote));
            }),
            Step::Found => self.found(self.host.kept.proposal()),
        };
        if let Err(failure) = done {
            tracing::error!("cannot found a cluster with the other hosts: {failure}");
        }
    }

    /// Founds a cluster because the operator says so.
    fn init(&mut self) -> Result<ClusterId, Failure> {
        if self.left {
            let failure = Failure::new(exit::NEGATIVE, "this host has left its cluster");
            return Err(failure.hint("restart the daemon, and ask again"));
        }
        if let Some(id) = self.host.kept.cluster() {
            return Err(belongs(id));
        }
        // Not what it proposed to others: if they go on with that, it is another cluster.
        let id = ClusterId(super::random()?.max(1));
        self.found(id)?;
        Ok(id)
    }

    fn found(&mut self, id: ClusterId) -> Result<(), Failure> {
        self.host.kept.found(id)?;
        tracing::info!("this host has founded the cluster {id}, and has all of its limits");
        // Nothing of it has been delegated yet.
        self.escrow = self.host.escrow(true, monotonic());
        self.anew = true;
        self.belong(id);
        Ok(())
    }

    /// From now on this host divides limits with others.
    fn belong(&mut self, id: ClusterId) {
        self.sources = Some(Sources::new(Keys::of(id), monotonic()));
        self.host.link.order(Command::Belong(id));
        self.due.report = Moment(0);
    }

    fn leave(&mut self, done: oneshot::Sender<bool>) {
        self.escrow.leave(monotonic());
        self.leaving = Some(done);
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
            self.look_at_members();
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

    /// Whether another host has this one's name.
    fn look_at_members(&mut self) {
        let report = self.host.link.report.borrow();
        let refused = report.refused.get(&self.host.me);
        let refused = refused.is_some_and(|identity| identity.address == self.host.address);
        drop(report);
        if refused && !self.refused {
            tracing::error!(
                "another host has this one's name: it asks for no rights and gives none"
            );
        }
        self.refused = refused;
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
        let seen = if self.refused || self.left {
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
            self.words.revoke(bucket, ended);
        }
        for Demand { key, part, limited, source, class } in seen.demands {
            self.escrow.demand(ended, key, part, limited);
            if let Some(partition) = self.partitions.of(key, source, class) {
                self.escrow.set_partition(key, partition);
            }
        }
        if let Some(question) = self.partitions.ask() {
            self.workers.core.ask(Request::Partitions(question));
        }
    }

    /// A source is tracked no more.
    fn forget(&mut self, key: KeyId) {
        self.escrow.forget(key);
        self.partitions.forget(key);
    }

    /// Does what the escrow says.
    fn carry_out(&mut self, now: Moment, out: Outputs) {
        self.keep |= out.keep;
        if let Some(floor) = out.floor {
            self.floor.want((floor, out.hosts));
        }
        if let Some(sources) = &self.sources {
            self.words.grant(out.grants, sources);
        }
        self.left |= out.left;
        self.prepare();
        self.note(self.unkept.clone().or_else(|| self.refusal.clone()));
        for (to, message) in out.messages {
            let former = self.unsent.insert(to, message);
            self.work.messages_withheld += u64::from(former.is_some());
        }
        if !self.send() {
            // A disk that is full is so for a while.
            let again = if self.unkept.is_some() { IDLE_INTERVAL } else { RETRY_INTERVAL };
            self.due.poll = self.due.poll.min(now.after(again));
            return;
        }
        if self.left
            && let Some(done) = self.leaving.take()
        {
            let disbanded = self.go();
            // What is told from now on: the link ends, and this thread with it.
            self.report();
            let _ = done.send(disbanded);
        }
    }

    /// Begins to make durable what is kept, asks for the floor, and tells the data plane shares.
    fn prepare(&mut self) {
        let Workers { core, giver, ledger } = &mut self.workers;
        if self.keep && !ledger.is_writing() {
            self.keep = false;
            if let Some(unwritten) = self.host.kept.with_rights(self.escrow.kept()) {
                ledger.write(unwritten);
            }
        }
        // Who has less than it may have need not wait.
        let may = self.floor.withholds() || !self.keep && !ledger.is_writing();
        if may && let Some(floor) = self.floor.ask() {
            core.ask(Request::Floor(floor));
        }
        if self.words.len() > 0 {
            let told = self.words.tell(&*self.plane, self.sources.as_ref(), giver);
            self.work.shares_told += told.made;
            self.work.shares_again += told.again;
            for key in told.gone {
                self.forget(key);
                if let Some(sources) = &mut self.sources {
                    sources.drop(key);
                }
            }
        }
    }

    /// Sends the messages that wait, if nothing is left to be done before. Whether it is so.
    fn send(&mut self) -> bool {
        let durable = !self.keep && !self.workers.ledger.is_writing();
        if !durable || self.words.len() > 0 || self.floor.withholds() {
            return false;
        }
        let messages = std::mem::take(&mut self.unsent);
        if !self.refused {
            let digest = Some(*self.host.digest.borrow());
            for (to, message) in messages {
                let content = Content::Shares(Box::new(message));
                self.work.messages += 1;
                self.host.link.order(Command::Send { to, digest, content });
            }
        }
        true
    }

    /// Everything is handed over. Returns whether the cluster is no more.
    fn go(&mut self) -> bool {
        let gone = self.host.kept.leave();
        match &gone {
            Ok(true) => tracing::info!("this host had all of its cluster, which is no more"),
            Ok(false) => tracing::info!("this host has left the cluster"),
            Err(failure) => tracing::error!("cannot keep that this host has left: {failure}"),
        }
        gone.unwrap_or_default()
    }

    fn note(&mut self, text: Option<String>) {
        if text != self.problem {
            match &text {
                Some(text) => tracing::error!("limits of the cluster cannot be divided: {text}"),
                None => tracing::info!("limits of the cluster are divided again"),
            }
            self.problem = text;
        }
    }

    /// The regions of the members that are there.
    fn regions(&self) -> BTreeMap<String, RegionRights> {
        let mut regions: BTreeMap<String, RegionRights> = BTreeMap::new();
        for (host, member) in self.host.link.members.borrow().iter() {
            if !regions.contains_key(member.region()) {
                regions.insert(member.region().into(), RegionRights::default());
            }
            if let Some(region) = regions.get_mut(member.region()) {
                region.members += 1;
                region.home += self.escrow.home_of(*host).unwrap_or(Share::NONE);
            }
        }
        regions
    }

    /// The home rights that no host has which is there, if that has been so for a while.
    fn missing(&mut self, regions: &BTreeMap<String, RegionRights>) -> Share {
        let there: Share = regions.values().map(|region| region.home).sum();
        let missing = Share::WHOLE.without(there + self.escrow.kept().on_the_way());
        let members = self.host.link.members.borrow().len();
        let now = monotonic();
        if missing <= MIN_IDLE || members <= 1 || self.host.kept.cluster().is_none() || self.left {
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
            && !self.left
        {
            self.host.link.order(Command::Belong(id));
        }
        let (keys, limited) = self.sources.as_ref().map_or((0, 0), Sources::count);
        let left_out = self.sources.as_ref().map_or(0, Sources::left_out);
        let regions = self.regions();
        let missing = self.missing(&regions);
        let (kept, loans) = (self.escrow.kept(), self.escrow.count_loans(monotonic()));
        self.tell.send_replace(RightsReport {
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
            unwritten: self.words.len() + usize::from(self.floor.is_pending()),
            lost: self.escrow.count_lost(monotonic()),
            refused: self.refused,
            left: self.left,
            refused_name: self.host.kept.refused_name().map(str::to_owned),
            doubts: self.escrow.doubts(),
            problem: self.problem.clone(),
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

/// That a host belongs to a cluster, and so cannot found one.
pub(super) fn belongs(id: ClusterId) -> Failure {
    let message = format!("this host belongs to the cluster {id}: it cannot found another one");
    Failure::new(exit::NEGATIVE, message).hint(
        "`limiter peers` shows its hosts; to take this one out of it, `limiter cluster leave`, and restart the daemon",
    )
}

/// What a tier lets through, packets a second; full frames where it counts bytes.
pub(super) fn packets_a_second(tier: &model::Tier) -> f64 {
    let period_s = tier.rate.period_ns() as f64 / 1e9;
    let frame = if tier.rate.unit() == model::Unit::Bytes { FRAME } else { 1.0 };
    tier.rate.amount() as f64 / frame / period_s.max(1e-9)
}
