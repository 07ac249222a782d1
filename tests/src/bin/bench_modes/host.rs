//! One host: a process in its namespace, which decides by itself or asks the store, as it is told.

use std::{fmt::Write as _, io, sync::Arc, time::Duration};

use decide::{
    act::{Act, Role},
    central::{Answer, Answers, LAST, Name, Question, SCRIPT},
};
use model::meter;
use redis::{AsyncConnectionConfig, Client, aio::MultiplexedConnection, cmd};
use serve::{Embedded, Verdict};
use tests::model::traffic::Random;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::UnixStream,
    task::{JoinSet, yield_now},
    time::{sleep, timeout},
};

use crate::{
    plan::{Asked, Asking, Connections, DOMAIN, Job, Pace, Setup, WIDE},
    sample::{self, Sample, now},
};

/// How long it may take until those answer who keep the limits.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Answers in a row, and time between them, until that counts.
const SETTLED: u32 = 10;
const SETTLE_PAUSE: Duration = Duration::from_millis(10);

/// What a task that has fallen behind catches up at the most, ns.
const MAX_BEHIND: u64 = 20_000_000;

/// After so many decisions a task lets others go on, as those that are made here wait for nothing.
const TURN: u32 = 16;

/// Does what it is told until nobody tells it anything.
pub(crate) fn serve(setup: &Setup) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let arguments: Vec<_> = setup.arguments.iter().map(String::as_str).collect();
        let limiter = Embedded::start(&arguments).await;
        let limiter = limiter.map_err(|failure| io::Error::other(failure.to_string()))?;
        let (read, mut write) = UnixStream::connect(&setup.jobs).await?.into_split();
        let mut lines = BufReader::new(read).lines();
        while let Some(line) = lines.next_line().await? {
            let done = match serde_json::from_str(&line)? {
                Job::Settle { rule, key } => settle(&limiter, &rule, &key).await,
                Job::Load(asking) => load(&limiter, &setup.store, Arc::new(asking)).await,
            };
            let answer = done.map_or_else(|error| error.to_string(), |()| "done".to_owned());
            write.write_all(format!("{}\n", answer.replace('\n', " ")).as_bytes()).await?;
        }
        Ok(())
    })
}

/// Asks until those answer who keep the limits.
async fn settle(limiter: &Embedded, rule: &str, key: &str) -> io::Result<()> {
    let settling = async {
        let mut row = 0;
        while row < SETTLED {
            let verdict = limiter.ask(DOMAIN, &[(rule, key)]).await.map_err(io::Error::other)?;
            row = if verdict.alone { 0 } else { row + 1 };
            sleep(SETTLE_PAUSE).await;
        }
        Ok(())
    };
    let late =
        || io::Error::other(format!("{rule}: on_error answers still after {SETTLE_TIMEOUT:?}"));
    timeout(SETTLE_TIMEOUT, settling).await.unwrap_or_else(|_| Err(late()))
}

/// Whom a task asks.
#[derive(Clone)]
enum Source {
    Limiter(Embedded),
    /// By the hash of the script.
    Script(MultiplexedConnection, String),
    Ping(MultiplexedConnection),
}

impl Source {
    async fn ask(&mut self, rule: &str, key: &str) -> io::Result<Verdict> {
        match self {
            Self::Limiter(limiter) => {
                limiter.ask(DOMAIN, &[(rule, key)]).await.map_err(io::Error::other)
            }
            Self::Script(connection, hash) => {
                let name = Name::new(DOMAIN, &[(rule, key)]);
                let limit = meter::Limit {
                    burst: Some(WIDE.burst as u64),
                    ..meter::Limit::new(WIDE.rate as u64, Duration::from_secs(1))
                };
                let mut question = Question::new(&name, &limit, Role::Enforced, Act::Take, 1);
                question.set(LAST);
                let mut command = cmd("EVALSHA");
                command.arg(&*hash).arg(2).arg(name.since()).arg(&question.key);
                command.arg(&question.argument[..]);
                let reply: Vec<u8> =
                    command.query_async(connection).await.map_err(io::Error::other)?;
                let answers = Answers::read(&reply, 1).ok_or(io::ErrorKind::InvalidData)?;
                let [Answer::Standing(standing, _)] = answers.all[..] else {
                    return Err(io::ErrorKind::InvalidData.into());
                };
                Ok(Verdict { admitted: standing.admitted, alone: false })
            }
            Self::Ping(connection) => {
                let _pong: String =
                    cmd("PING").query_async(connection).await.map_err(io::Error::other)?;
                Ok(Verdict { admitted: true, alone: false })
            }
        }
    }
}

/// Whom the tasks of a load ask, one for each.
async fn sources(limiter: &Embedded, store: &str, asking: &Asking) -> io::Result<Vec<Source>> {
    let connections = match asking.asked {
        Asked::Limiter => {
            return Ok(vec![Source::Limiter(limiter.clone()); asking.tasks as usize]);
        }
        Asked::Script(connections) | Asked::Ping(connections) => connections,
    };
    let client = Client::open(store).map_err(io::Error::other)?;
    // A busy machine may need longer for an answer than the client waits by default.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let connect = async || {
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        connecting.await.map_err(io::Error::other)
    };
    let mut first = connect().await?;
    let mut load = cmd("SCRIPT");
    let loading = load.arg("LOAD").arg(SCRIPT).query_async(&mut first);
    let hash: String = loading.await.map_err(io::Error::other)?;
    let mut all = Vec::new();
    for _ in 0..asking.tasks {
        let connection = match connections {
            Connections::Shared => first.clone(),
            Connections::Each => connect().await?,
        };
        all.push(match asking.asked {
            Asked::Ping(_) => Source::Ping(connection),
            _ => Source::Script(connection, hash.clone()),
        });
    }
    Ok(all)
}

/// Asks as a load does, and writes down what was answered.
async fn load(limiter: &Embedded, store: &str, asking: Arc<Asking>) -> io::Result<()> {
    let (mut tasks, mut all) = (JoinSet::new(), Vec::new());
    for (number, source) in (0..).zip(sources(limiter, store, &asking).await?) {
        let task = Task { asking: Arc::clone(&asking), source, number };
        tasks.spawn(async move {
            match task.asking.pace {
                Pace::Closed => task.closed().await,
                Pace::Open(_) => task.open().await,
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        all.append(&mut done.map_err(io::Error::other)??);
    }
    sample::write(&asking.file, &all)
}

/// One of those that have a decision in flight.
struct Task {
    asking: Arc<Asking>,
    source: Source,
    number: u32,
}

impl Task {
    fn end(&self) -> u64 {
        self.asking.begin + self.asking.length.as_nanos() as u64
    }

    fn random(&self) -> Random {
        // Another sequence in each run, and on each host.
        let host = u64::from(std::process::id()) << 32;
        Random(host ^ (u64::from(self.asking.run) << 16) ^ u64::from(self.number))
    }

    /// A key at random: its number if it is judged, and its text.
    fn choose(&self, random: &mut Random, text: &mut String) -> Option<u16> {
        let Asking { tracked, tracked_part, run, others, .. } = *self.asking;
        text.clear();
        let is_tracked =
            tracked > 0 && (random.below(1 << 20) as f64) < tracked_part * f64::from(1 << 20);
        let key = if is_tracked { random.below(u64::from(tracked)) } else { random.below(others) };
        let written = match is_tracked {
            true => write!(text, "t{run}-{key}"),
            false => write!(text, "k{key}"),
        };
        written.expect("text has room");
        is_tracked.then_some(key as u16)
    }

    async fn closed(mut self) -> io::Result<Vec<Sample>> {
        let (mut all, mut random, mut text) = (Vec::new(), self.random(), String::new());
        let end = self.end();
        sleep(Duration::from_nanos(self.asking.begin.saturating_sub(now()))).await;
        let (mut begun, mut turn) = (now(), 0);
        while begun < end {
            let key = self.choose(&mut random, &mut text);
            let Verdict { admitted, alone } = self.source.ask(&self.asking.rule, &text).await?;
            let ended = now();
            all.push(Sample { begun, took: took(begun, ended), key, admitted, alone });
            turn += 1;
            begun = ended;
            if turn == TURN {
                turn = 0;
                yield_now().await;
                begun = now();
            }
        }
        Ok(all)
    }

    /// Decisions of this task a second, ns after the begin, and when that changes.
    fn rate(&self, after: u64) -> (f64, u64) {
        let Pace::Open(steps) = &self.asking.pace else { return (0.0, u64::MAX) };
        let from = |step: &(Duration, f64)| step.0.as_nanos() as u64;
        let next = steps.iter().find(|step| from(step) > after).map_or(u64::MAX, from);
        let rate = steps.iter().rfind(|step| from(step) <= after).map_or(0.0, |step| step.1);
        (rate / f64::from(self.asking.tasks), next)
    }

    async fn open(mut self) -> io::Result<Vec<Sample>> {
        let (mut all, mut random, mut text) = (Vec::new(), self.random(), String::new());
        let (begin, end) = (self.asking.begin, self.end());
        // Not all tasks at once.
        let part = f64::from(self.number) / f64::from(self.asking.tasks);
        let mut due = begin as f64 + pause(self.rate(0).0) * part;
        loop {
            let (rate, next) = self.rate((due as u64).saturating_sub(begin));
            if rate == 0.0 {
                // A part again, so that they begin at different times here, too.
                due = begin.saturating_add(next) as f64 + pause(self.rate(next).0) * part;
            }
            if due >= end as f64 {
                return Ok(all);
            }
            if rate == 0.0 {
                continue;
            }
            sleep(Duration::from_nanos((due as u64).saturating_sub(now()))).await;
            let begun = now();
            let key = self.choose(&mut random, &mut text);
            let Verdict { admitted, alone } = self.source.ask(&self.asking.rule, &text).await?;
            let ended = now();
            all.push(Sample { begun, took: took(begun, ended), key, admitted, alone });
            due = due.max(ended.saturating_sub(MAX_BEHIND) as f64) + pause(rate);
        }
    }
}

/// The time between decisions, ns; none where there are none.
fn pause(rate: f64) -> f64 {
    if rate > 0.0 { 1e9 / rate } else { 0.0 }
}

/// 4 s at the most.
fn took(begun: u64, ended: u64) -> u32 {
    u32::try_from(ended - begun).unwrap_or(u32::MAX)
}
