//! Asks all members, and answers them: [`cluster::queries`] with a network and a clock.

mod answer;
mod distinct;
pub(super) mod file_limits;
mod groups;
mod peers;
mod round;
mod source;
mod top;

pub use distinct::distinct;
pub use groups::groups;
pub use peers::peers;
pub use source::source;
pub use top::top;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::link::{Command, monotonic};
use super::{Cluster, Inbox};
use crate::scrape::Clustered;
use cluster::membership::Identity;
use cluster::queries::lag::Lag;
use cluster::queries::{Answer, Asked, Outcome, QueryClient, QueryServer, Question};
use cluster::wire::{Content, Topic};
use cluster::{HostId, Moment};
use model::digest::Percentiles;

/// Questions of this host that wait, at most.
// More are refused at once: an answer that comes after the dashboard has asked again is of no use.
const MAX_WAITING: usize = 16;

/// Questions of others that are worked on at once, and that wait for that, at most.
// Each one may hold the core for milliseconds. Members must not slow down each other by asking.
const AT_ONCE: usize = 4;
const MAX_QUEUED: usize = 64;

/// How often some members are asked whether they are there, and how many of them.
const PINGS: Duration = Duration::from_secs(1);
// A few a second keep the round trips fresh, at a cost that does not grow with the cluster.
const PINGED: usize = 8;

/// Hosts that are gone and still told of, at most, and for how long.
// A fleet that scales up and down leaves hosts behind all day.
const MAX_GONE: usize = 256;
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);

/// What is to be asked.
pub struct Ask {
    question: Question,
    until: Moment,
    reply: oneshot::Sender<Outcome>,
}

/// A host that is not there any more, and since when.
#[derive(Clone, Debug)]
pub(super) struct Gone {
    pub(super) identity: Identity,
    pub(super) since: Moment,
}

/// What is known of others beside what they answer.
#[derive(Default)]
struct Noticed {
    lag: Lag,
    gone: VecDeque<Gone>,
}

/// By which all members are asked; cheap to clone.
#[derive(Clone)]
pub struct Views {
    asks: mpsc::Sender<Ask>,
    noticed: Arc<Mutex<Noticed>>,
}

impl Views {
    /// It, and where its questions come out.
    pub(super) fn new() -> (Self, mpsc::Receiver<Ask>) {
        let (asks, asked) = mpsc::channel(MAX_WAITING);
        (Self { asks, noticed: Arc::default() }, asked)
    }

    /// Asks all members that are there but this host, until then. `None` if there is too much to do.
    async fn ask(&self, question: Question, until: Moment) -> Option<Outcome> {
        let (reply, replied) = oneshot::channel();
        // Without waiting: the time for the answer has begun to run.
        self.asks.try_send(Ask { question, until, reply }).ok()?;
        replied.await.ok()
    }

    /// Round trips of questions of this host.
    pub fn lag(&self) -> Option<Percentiles> {
        self.noticed(|noticed| noticed.lag.percentiles())
    }

    /// What is known, for a moment. What a panic would leave is as good as anything.
    fn noticed<T>(&self, look: impl FnOnce(&mut Noticed) -> T) -> T {
        look(&mut self.noticed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Cluster {
    /// What metrics tell of the cluster.
    pub fn clustered(&self) -> Clustered {
        let (report, shares) = (self.link.report.borrow().clone(), self.shares.borrow().clone());
        let counts = &report.counts;
        let refused = counts.rejections().map(|(why, rejected)| (why.name(), rejected.packets));
        let regions = shares.regions.iter();
        Clustered {
            members: self.link.members.borrow().len(),
            suspects: report.suspects.len(),
            home: shares.home.part(),
            keys: shares.keys,
            left_out: shares.left_out,
            untracked: shares.untracked,
            loans: shares.loans,
            regions: regions
                .map(|(name, its)| (name.clone(), its.members, its.home.part()))
                .collect(),
            lag: self.views.lag(),
            // A frame that nobody took is lost as one that could not be sent.
            frames: [counts.received, counts.sent, counts.unsent + report.lost],
            refused: refused.collect(),
            overage: Arc::clone(&self.overage.borrow()),
        }
    }
}

/// This host's wall clock, ns since 1970.
fn wall() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Asks and answers until the link is gone.
pub(super) async fn serve(cluster: Cluster, mut inbox: Inbox, mut asks: mpsc::Receiver<Ask>) {
    // From a random number on, a late answer to the run before meets no question of this one.
    let first = getrandom::u64().unwrap_or_else(|_| wall());
    let (done, mut worked) = mpsc::channel(MAX_QUEUED);
    let mut members = cluster.link.members.clone();
    let mut exchange = Exchange {
        known: BTreeMap::new(),
        asker: QueryClient::new(first),
        answerer: QueryServer::default(),
        waiting: BTreeMap::new(),
        working: Arc::new(Semaphore::new(AT_ONCE)),
        queued: Arc::new(Semaphore::new(MAX_QUEUED)),
        done,
        pinged: HostId(0),
        cluster,
    };
    let mut pings = interval(PINGS);
    // Missed pings would all go out at once, and measure their own burst.
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    exchange.look_at_members();
    loop {
        let now = monotonic();
        exchange.asker.poll(now);
        exchange.answerer.poll(now);
        // Before the flush, so that whoever waits does not wait for the socket.
        exchange.finish(now);
        exchange.flush();
        let pause = exchange.asker.next().map_or(PINGS, |next| next.since(now));
        tokio::select! {
            came = inbox.recv() => match came {
                Some((from, bytes)) => exchange.handle_packet(from, &bytes),
                None => return,
            },
            Some(ask) = asks.recv() => exchange.ask(ask),
            Some((asked, answer)) = worked.recv() => {
                exchange.answerer.answer(monotonic(), wall(), asked, answer);
            }
            changed = members.changed() => match changed {
                Ok(()) => exchange.look_at_members(),
                Err(_) => return,
            },
            _ = pings.tick() => exchange.ping(),
            // A time that has passed already must not turn the loop without rest.
            () = sleep(pause.max(Duration::from_millis(1))) => {}
        }
    }
}

/// Asks other hosts for those who want to know, and answers them.
struct Exchange {
    cluster: Cluster,
    asker: QueryClient,
    answerer: QueryServer,
    /// Who waits for which question; nobody for a ping.
    waiting: BTreeMap<u64, oneshot::Sender<Outcome>>,
    working: Arc<Semaphore>,
    queued: Arc<Semaphore>,
    done: mpsc::Sender<(Asked, Vec<u8>)>,
    /// Members as they were looked at last.
    known: BTreeMap<HostId, Identity>,
    /// Who was pinged last.
    pinged: HostId,
}

impl Exchange {
    fn others(&self) -> impl Iterator<Item = HostId> + use<> {
        let me = self.cluster.me;
        // Copied, so that the channel is not locked while the caller sends to them.
        let members: Vec<_> = self.cluster.link.members.borrow().keys().copied().collect();
        members.into_iter().filter(move |host| *host != me)
    }

    fn handle_packet(&mut self, from: HostId, bytes: &[u8]) {
        let (now, wall) = (monotonic(), wall());
        // What is nonsense to both is nonsense: its sender has the key, and another version.
        if self.asker.receive(now, wall, from, bytes).is_ok() {
            return;
        }
        match self.answerer.receive(now, wall, from, bytes) {
            Ok(Some((asked, question))) => self.work(asked, &question),
            Ok(None) => {}
            Err(error) => tracing::debug!("a question of another host cannot be read: {error}"),
        }
    }

    /// Answers beside what else is done.
    fn work(&self, asked: Asked, question: &[u8]) {
        let (cluster, done) = (self.cluster.clone(), self.done.clone());
        // Taken here and not in the task: a flood would otherwise make tasks without a bound.
        let queued = Arc::clone(&self.queued).try_acquire_owned();
        let question = Question::read(question);
        let working = Arc::clone(&self.working);
        tokio::spawn(async move {
            let answer = match (question, queued) {
                // An answer all the same: without it the other host would ask again until its time
                // is up.
                (Err(_), _) => Answer::Trouble("it does not know this question".into()),
                (_, Err(_)) => Answer::Trouble("too many questions at once".into()),
                (Ok(question), Ok(_place)) => {
                    // An error means that the semaphore was closed, which nobody does.
                    let _turn = working.acquire().await;
                    answer::answer(&cluster, question).await
                }
            };
            let _ = done.send((asked, answer.bytes())).await;
        });
    }

    fn ask(&mut self, ask: Ask) {
        let Ask { question, until, reply } = ask;
        let ticket = self.asker.ask(monotonic(), self.others(), question.bytes(), until);
        // Who asked hears that nobody was by the end of the channel.
        ticket.map(|ticket| self.waiting.insert(ticket, reply));
    }

    /// Asks some members whether they are there: the next ones after those of the last time.
    fn ping(&mut self) {
        let others: Vec<_> = self.others().collect();
        // By number and not by place, so that a host which comes or goes moves nobody's turn.
        let first = others.partition_point(|host| *host <= self.pinged);
        let next = others.iter().cycle().skip(first).take(PINGED.min(others.len())).copied();
        let next: Vec<_> = next.collect();
        if let Some(last) = next.last() {
            self.pinged = *last;
            let now = monotonic();
            // Its end is the next ping, so pings never pile up.
            self.asker.ask(now, next, Question::Ping.bytes(), now.after(PINGS));
        }
    }

    fn finish(&mut self, now: Moment) {
        while let Some(outcome) = self.asker.outcome(now) {
            let round_trips = outcome.answers.values().map(|answered| answered.round_trip);
            self.cluster.views.noticed(|noticed| {
                round_trips.for_each(|round_trip| noticed.lag.add(round_trip));
            });
            if let Some(reply) = self.waiting.remove(&outcome.ticket) {
                // Whoever asked may have given up by now.
                let _ = reply.send(outcome);
            }
        }
    }

    fn flush(&mut self) {
        let packets = std::iter::from_fn(|| self.asker.outgoing());
        let answers = std::iter::from_fn(|| self.answerer.outgoing());
        for (to, bytes) in packets.chain(answers) {
            let content = Content::Other(Topic::Queries, bytes);
            // What there is no room for is asked for again.
            self.cluster.link.order(Command::Send { to, digest: None, content });
        }
    }

    /// Notes who has gone.
    fn look_at_members(&mut self) {
        let members = Arc::clone(&self.cluster.link.members.borrow());
        let now = monotonic();
        let gone: Vec<_> =
            self.known.iter().filter(|(host, _)| !members.contains_key(host)).collect();
        self.cluster.views.noticed(|noticed| {
            for (host, identity) in &gone {
                // Otherwise a question would wait its whole second for a host that cannot answer.
                self.asker.gone(**host);
                noticed.gone.push_back(Gone { identity: (*identity).clone(), since: now });
            }
            // A host that came back is not gone, under whatever address.
            noticed.gone.retain(|gone| {
                !members.contains_key(&gone.identity.host()) && now.since(gone.since) < REMEMBERED
            });
            let many = noticed.gone.len().saturating_sub(MAX_GONE);
            // The oldest go first: they are in front.
            noticed.gone.drain(..many);
        });
        self.known.clone_from(&members);
    }
}
