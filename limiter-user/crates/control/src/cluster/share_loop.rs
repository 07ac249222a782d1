//! Divides limits: a thread that looks at what sources send, asks and hears other hosts, and tells the data
//! plane what it may let through.
//!
//! Other hosts hear nothing before what they may rely on is so: what is kept is durable, and sources may use no more
//! than the escrow has decided. Until then messages wait, and later ones take their place. Shares wait for nothing:
//! they end by themselves, and what they are raised by another host has given up, which keeps it as on its way until it
//! hears that it was taken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;

use super::clock_guard::{ClockFault, ClockGuard};
use super::core_worker::{Answer, Request};
use super::floors::FloorsFile;
use super::host::Host;
use super::key::Keys;
use super::ledger::Written;
use super::link::{Command, monotonic};
use super::pace::worked;
use super::partitions::Partitions;
use super::pending::Pending;
use super::served::ServedKeys;
use super::sources::{Demand, Observation, Sources};
use super::watched::Bounds;
use super::{MAX_WAITING, RegionShares, ShareReport};
use crate::{CoreHandle, Shares};
use api::error::{Failure, exit};
use api::{SharesAsked, SharesTold};
use cluster::escrow::{self, Escrow, Forget, LostHost, Outputs};
use cluster::link::{ClusterId, Step};
use cluster::membership::Identity;
use cluster::{HostId, KeyId, Message, Moment};
use model::Share;

/// How often it is looked at what sources send while that matters to somebody.
// A grant lasts half a second. Demand has to reach the owner of a key several times in that.
const BUSY_INTERVAL: Duration = Duration::from_millis(25);
/// The same while it does not.
// With nothing tracked, a wake-up only serves to notice the first source; a fifth of a second
// keeps an idle host quiet.
const IDLE_INTERVAL: Duration = Duration::from_millis(200);
/// Of its time a thread may look for this part at most: 1/20.
// Without this bound, a slow machine with many sources would spend a whole core on scans.
const PART: u32 = 20;
/// How often it is told how limits are divided.
const REPORT: Duration = Duration::from_secs(1);
/// How soon is tried again what could not be done.
// A bucket that could not be written was under packets at that moment, so the next attempt soon
// succeeds.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// For so long home shares have to be with no host that is there before it is told: others are on their way.
// Home shares move whenever members or weights change. A warning for each move would teach
// operators to ignore it.
const IDLE: Duration = Duration::from_secs(10);
/// A host whose home lease was renewed for the last time so long ago is cut off.
// The lease is a little shorter than it says, for clocks that run wrong.
const UNHEARD: Duration = Duration::from_secs(6);
/// For so long it is told that the clock was wrong.
const CLOCK_TOLD: Duration = Duration::from_secs(5);
/// Messages that are taken in one go.
// The bound keeps a burst of messages from delaying the scan that is due after it.
const BATCH: usize = 256;
/// Less than this is not worth a word: 1 %.
pub(super) const MIN_IDLE: Share = Share::from_units(1 << 32 >> 7);
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
    /// A `limiter-serve` of this host asks for shares; nothing is told where it can have none.
    Served(SharesAsked, oneshot::Sender<Option<SharesTold>>),
    /// The operator says that a host is gone for good.
    Forget(HostId, Forget, oneshot::Sender<()>),
    /// End.
    End,
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
        // A join blocks. On a worker of the runtime it would stop other tasks that this thread may
        // wait for.
        let _ = tokio::task::spawn_blocking(|| self.thread.join()).await;
    }
}

/// What a host with this home share may use of each source's limit without end.
pub(crate) fn floor_of(home: Share) -> Share {
    // The floor does not depend on host or weight, so any do.
    let floor = escrow::Settings::new(HostId(0), 1).floor;
    home.times(floor.units(), Share::WHOLE.units())
}

/// Starts the thread, which never waits for the core: what it asks of that is answered when it has time.
///
/// # Errors
/// If there can be none, or the core's state is in doubt.
pub(super) fn start(
    host: Host,
    shared: &CoreHandle,
    floors: &Arc<FloorsFile>,
) -> Result<Thread, Failure> {
    // Bounded: a member that floods must not fill the memory. Shares are repeated, so a lost
    // message costs one interval.
    let (inbox, inputs) = mpsc::channel(MAX_WAITING);
    let (tell, report) = watch::channel(ShareReport::default());
    let (plane, alone) = shared.with_now(|core| {
        let plane = core.plane();
        // The kernel still has the whole limit only if the daemon before lent nothing. This one
        // may then go on with it at once.
        Ok((plane.shares(), plane.has_everything()))
    })?;
    let pending = Pending::start(shared, Arc::clone(&plane), Arc::clone(floors))?;
    // A runtime of its own: on the common one, long work of other tasks would delay grants past
    // their end.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(super::no_thread)?;
    let mut shares = ShareLoop::new(host, plane, alone, pending, tell);
    // Before the cluster counts as up: whoever asks then is told what this host has, and not that it has nothing.
    shares.report();
    let thread = super::spawn("shares", move || {
        if let Err(failure) = runtime.block_on(shares.run(inputs)) {
            tracing::error!("cluster limit sharing has stopped: {failure}");
        }
    })?;
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
    /// The keys of a `limiter-serve`.
    served: ServedKeys,
    due: Due,
    /// The least that limits of the cluster let through, packets a second, if there are any.
    slowest: Option<f64>,
    /// What becomes of limits while hosts are lost.
    partitions: Partitions,
    /// Who waits to hear that all is handed over.
    leaving: Option<oneshot::Sender<bool>>,
    /// Since when home shares are with no host that is there.
    idle: Option<Moment>,
    clock: ClockGuard,
    /// What was wrong with the clock last, and when that was seen.
    clock_fault: Option<(ClockFault, Moment)>,
    /// When this loop began.
    began: Moment,
    /// What hosts are called that are there or lost.
    names: BTreeMap<HostId, String>,
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
        let sources = host.kept.cluster().map(|id| Sources::new(Keys::of(id), now, worked));
        Self {
            host,
            plane,
            pending,
            tell,
            escrow,
            anew: false,
            sources,
            served: ServedKeys::default(),
            due: Due { look: now, report: now, poll: now },
            slowest: None,
            partitions: Partitions::default(),
            leaving: None,
            idle: None,
            clock: ClockGuard::default(),
            clock_fault: None,
            began: now,
            names: BTreeMap::new(),
        }
    }

    /// # Errors
    /// If a thread that it needs has ended: the kernel falls back to the floor by itself.
    async fn run(mut self, mut inputs: mpsc::Receiver<Input>) -> Result<(), Failure> {
        let mut batch = Vec::with_capacity(BATCH);
        let mut members = self.host.link.members.clone();
        // A receiver counts the present value as seen. Without the mark the escrow would start
        // without any member.
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
                // The borrow locks the channel. Held any longer it would stop the link, which
                // sends to it.
                drop(seen);
                self.escrow.set_members(now, &alive);
                self.due.poll = now;
            }
            self.step(now);
            let next = self.due.look.min(self.due.report).min(self.due.poll);
            let ended = monotonic();
            if let Some(sources) = &mut self.sources {
                sources.room.worked(ended.since(began));
            }
            let pause = next.since(ended);
            let count = tokio::select! {
                count = inputs.recv_many(&mut batch, BATCH) => Some(count),
                // The loop's head must see the change again, so it is marked after the wake-up has
                // consumed it.
                changed = members.changed() => match changed {
                    Ok(()) => { members.mark_changed(); None }
                    Err(_) => return Ok(()),
                },
                answer = self.pending.core.answers.recv() => {
                    self.handle_answer(answer)?;
                    None
                }
                written = self.pending.ledger.written() => {
                    self.handle_written(written)?;
                    None
                }
                () = sleep(pause) => None,
            };
            began = monotonic();
            let Some(count) = count else { continue };
            if count == 0 {
                return Ok(());
            }
            for input in batch.drain(..) {
                // These inputs write the state file themselves. A write on its way would overwrite
                // theirs with an older state.
                if !matches!(input, Input::Said(..) | Input::Served(..)) {
                    self.settle().await?;
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
                        // The answer comes when all is handed over and durable, see `carry_out`.
                        // The caller has its own timeout.
                        self.leaving = Some(done);
                    }
                    Input::Served(asked, done) => {
                        let _ = done.send(self.serve(&asked));
                    }
                    Input::Forget(host, how, done) => {
                        self.escrow.forget_host(host, how);
                        let _ = done.send(());
                    }
                    Input::End => return Ok(()),
                }
            }
            self.due.poll = Moment(0);
        }
    }

    fn handle_message(&mut self, from: HostId, message: &Message) {
        // Another host has this ledger, or this one has left. Shares that it took now would lie idle
        // or count twice.
        if !self.host.refused && !self.host.left {
            self.escrow.receive(monotonic(), from, message);
        }
    }

    /// What a `limiter-serve` may use of its keys; nothing while this host divides no limits.
    fn serve(&mut self, asked: &SharesAsked) -> Option<SharesTold> {
        let names = self.host.kept.cluster().map(Keys::of);
        let names = names.filter(|_| !self.host.refused && !self.host.left)?;
        Some(self.served.ask(monotonic(), &names, &mut self.escrow, asked))
    }

    /// Takes what the core says to what it was asked.
    ///
    /// # Errors
    /// If it will say nothing any more.
    fn handle_answer(&mut self, answer: Option<Answer>) -> Result<(), Failure> {
        match answer {
            Some(Answer::Floor(floor)) => {
                // Messages may have waited for this floor alone.
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
        if !self.served.withholds(monotonic()) {
            self.pending.send(&self.host);
        }
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
        self.sources = Some(Sources::new(Keys::of(id), monotonic(), worked));
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

    /// Falls back to the floor where leases and buckets go by a clock that is wrong.
    fn look_at_clock(&mut self, now: Moment) {
        let Some(fault) = self.clock.look().filter(|_| self.escrow.distrust_clock(now)) else {
            return;
        };
        if self.clock_fault_told(now).is_none() {
            tracing::warn!("{fault}: it has its floor of cluster limits alone until that is over");
            self.due.report = now;
        }
        self.clock_fault = Some((fault, now));
        self.due.poll = now;
    }

    fn clock_fault_told(&self, now: Moment) -> Option<ClockFault> {
        let lately = |(_, at): &(ClockFault, Moment)| now.since(*at) < CLOCK_TOLD;
        self.clock_fault.filter(lately).map(|(fault, _)| fault)
    }

    /// Does what is due.
    fn step(&mut self, now: Moment) {
        // Before all that goes by the clock.
        self.look_at_clock(now);
        // An error means that the core is gone. The loop learns that from `handle_answer` and need
        // not end here.
        if self.host.limits.has_changed().unwrap_or_default() {
            let facts = *self.host.limits.borrow_and_update();
            self.slowest = facts.slowest;
            // Before the scan below: it would ask about sources under the former limits.
            self.partitions.begin(facts);
            self.due.report = now;
        }
        if now >= self.due.report {
            self.due.report = now.after(REPORT);
            // Once a second is enough: the link reports as often.
            self.host.look_at_members();
            // The escrow never goes back from this: other hosts may rely on the votes that it has
            // given.
            if self.partitions.by_majority() {
                self.escrow.go_by_majority();
            }
            self.report();
        }
        if now >= self.due.look {
            self.look(now);
            self.due.poll = now;
        }
        // What is decided now could be lowered for ever before messages of it go out.
        if now >= self.due.poll && self.served.withholds(now) {
            self.due.poll = now.after(RETRY_INTERVAL);
        }
        if now >= self.due.poll {
            // The scan above may have taken milliseconds, in which leases have ended.
            let now = monotonic();
            let out = self.escrow.poll(now);
            self.due.poll = out.next;
            self.carry_out(now, out);
        }
    }

    /// Looks at what sources send.
    fn look(&mut self, now: Moment) {
        let floor = self.escrow.floor();
        self.served.forget(now, &mut self.escrow);
        // Without a cluster limit nothing has to be scanned. Sources that are still tracked are
        // scanned until they end.
        let limited = self.slowest.is_some();
        let Some(sources) = self.sources.as_mut().filter(|it| limited || !it.is_empty()) else {
            self.due.look = now.after(IDLE_INTERVAL);
            return;
        };
        let bounds = Bounds { floor, slowest: self.slowest.unwrap_or(f64::MAX) };
        let late = now.since(self.due.look);
        let begun = worked();
        sources.room.renew(monotonic(), sources.len());
        // Read before the scan: what the kernel reports during it is left for the next one, and
        // never lost.
        let noticed = self.plane.begun_to_be_limited();
        let seen = if self.host.refused || self.host.left {
            // Grants of this host must not outlive its membership. Without demands the escrow
            // returns them.
            Observation { over: sources.drop_all(), ..Observation::default() }
        } else {
            sources.look(&*self.plane, monotonic(), &noticed, bounds)
        };
        let ended = monotonic();
        self.escrow.keep_half(sources.untracked.is_crowded());
        // The last thing that is told of a bucket, whatever else is: after what was tracked of it until now.
        let untracked = sources.untracked.renew(ended);
        let took = worked().saturating_sub(begun);
        let pause =
            if sources.is_empty() { IDLE_INTERVAL.min(4 * BUSY_INTERVAL) } else { BUSY_INTERVAL };
        // The pause grows with the scan's cost, which keeps the promise of `PART` on any machine.
        let pause = pause.max(took * PART);
        // Where this thread waits for a CPU looks are farther apart: the next one will be as late as this one.
        sources.paused(pause + late);
        self.due.look = now.after(pause);
        for key in seen.gone {
            self.forget(key);
        }
        for (key, bucket) in seen.over {
            self.forget(key);
            // The bucket may live on in the kernel with a grant. An untracked source must not use
            // it to its end.
            self.pending.shares.revoke(bucket, ended);
        }
        if let Some(word) = self.escrow.share_of_untracked(ended) {
            self.pending.shares.grant_untracked(untracked, word);
        }
        for Demand { key, part, limited, limit } in seen.demands {
            self.escrow.demand(ended, key, part, limited);
            if let Some(partition) = self.partitions.of(key, limit.target) {
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
        // It stays set: the escrow says it once, and the state file may not be written yet.
        self.host.left |= out.left;
        self.served.grant(now, &out.grants);
        let (kept, sources) = (self.escrow.kept(), self.sources.as_ref());
        for key in self.pending.take(out, kept, &self.host, sources) {
            self.forget(key);
            if let Some(sources) = &mut self.sources {
                // The bucket was evicted. The source is found anew if it comes back, and then with
                // its present bucket.
                sources.drop(key);
            }
        }
        // Leaving is told only after the messages have gone: the link ends right after it.
        if self.served.withholds(now) || !self.pending.send(&self.host) {
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
            let region = regions.entry(member.region().into()).or_default();
            region.members += 1;
            region.home += self.escrow.home_of(*host).unwrap_or(Share::NONE);
        }
        regions
    }

    /// The home shares that no host has which is there.
    fn absent(&self, regions: &BTreeMap<String, RegionShares>) -> Share {
        let there: Share = regions.values().map(|region| region.home).sum();
        // Shares on their way lie with no host, yet they are not lost.
        Share::WHOLE.without(there + self.escrow.kept().on_the_way())
    }

    /// The same, if that has been so for a while.
    fn missing(&mut self, missing: Share) -> Share {
        let members = self.host.link.members.borrow().len();
        let now = monotonic();
        if missing <= MIN_IDLE
            // A host alone is warned in other words, see `status.rs`.
            || members <= 1
            || self.host.kept.cluster().is_none()
            || self.host.left
        {
            self.idle = None;
            return Share::NONE;
        }
        // The clock starts with the first sign, so that a gap of a moment never shows.
        let since = *self.idle.get_or_insert(now);
        if now.since(since) >= IDLE { missing } else { Share::NONE }
    }

    /// Remembers what members are called, for as long as they are there or lost.
    fn learn_names(&mut self, lost: &[LostHost]) {
        let members = self.host.link.members.borrow();
        let lost: BTreeSet<HostId> = lost.iter().map(|it| it.host).collect();
        self.names.retain(|host, _| lost.contains(host));
        let present = members.iter().map(|(host, member)| (*host, member.name().to_owned()));
        self.names.extend(present);
    }

    fn report(&mut self) {
        // An order is lost where too many wait.
        if let Some(id) = self.host.kept.cluster()
            && self.host.link.report.borrow().cluster.is_none()
            && !self.host.left
        {
            // Without it the link would go on greeting as a host without a cluster, while the file
            // says otherwise.
            self.host.link.order(Command::Belong(id));
        }
        let (keys, limited) = self.sources.as_ref().map_or((0, 0), Sources::count);
        let left_out = self.sources.as_ref().map_or(0, Sources::left_out);
        let untracked = self.sources.as_ref().map_or(0, |sources| sources.untracked.len());
        let regions = self.regions();
        let absent = self.absent(&regions);
        let missing = self.missing(absent);
        let now = monotonic();
        let lost = self.escrow.lost(now);
        self.learn_names(&lost);
        let name = |lost: LostHost| (lost, self.names.get(&lost.host).cloned());
        let lost = lost.into_iter().map(name).collect();
        let (era, until) = self.escrow.home_lease();
        let (kept, loans) = (self.escrow.kept(), self.escrow.count_loans(now));
        // A start takes a moment, and who has nothing needs none.
        let left = until.since(now);
        let unheard = left + UNHEARD < escrow::Timing::default().home_lease;
        let settled = !kept.home.is_none() && now >= self.began.after(IDLE);
        let cut_off = (settled && unheard).then_some(left);
        self.tell.send_replace(ShareReport {
            home: kept.home,
            on_the_way: kept.on_the_way(),
            floor: self.escrow.without_end(monotonic()),
            keys,
            limited,
            left_out,
            untracked,
            served: self.served.len(),
            alone: self.served.alone(),
            grants: self.escrow.count_grants(monotonic()),
            loans: [loans.borrowed, loans.lent],
            regions,
            absent,
            missing,
            lost,
            era,
            cut_off,
            clock: self.clock_fault_told(now).map(|fault| fault.to_string()),
            refused: self.host.refused,
            left: self.host.left,
            doubts: self.escrow.doubts(),
            problem: self.pending.problem.clone(),
            counters: self.escrow.counters(),
            messages: self.pending.sent,
            withheld: self.pending.withheld,
        });
    }
}

/// That a thread which this one needs is gone.
fn ended() -> Failure {
    Failure::new(exit::NEGATIVE, "a thread of the share loop has ended by itself")
}
