//! All runs, in their order: the modes take turns within each of them.

use std::{fs, ops::Range, path::Path, thread::sleep, time::Duration};

use ::tests::machine::median;
use serde::Serialize;

use crate::{
    judge::{Case, Verdict},
    plan::{
        Asked, Asking, CLUSTER_KEYS, Connections, Fault, HOSTS, KEYS, Limit, Load, Mode, Pace,
        TASKS, WIDE,
    },
    sample::{Sample, Speed, moments, now},
    stand::{Stand, VICTIM, Way},
    still::{Still, Watch},
    timeline,
};

/// How long everything takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Rounds of the plain run.
    rounds: usize,
    speed: Duration,
    judged: Duration,
    /// From when on it is judged how much of a limit is used.
    warm: Duration,
    before: Duration,
    fault: Duration,
    after: Duration,
    /// How long packets are sent to each who may keep their limit.
    pub(crate) packets: Duration,
}

impl Times {
    pub(crate) const FULL: Self = Self {
        rounds: 3,
        speed: Duration::from_secs(3),
        judged: Duration::from_secs(8),
        warm: Duration::from_secs(2),
        before: Duration::from_secs(3),
        fault: Duration::from_secs(10),
        after: Duration::from_secs(4),
        packets: Duration::from_secs(8),
    };
    pub(crate) const QUICK: Self = Self {
        rounds: 1,
        speed: Duration::from_secs(1),
        judged: Duration::from_secs(2),
        warm: Duration::from_millis(800),
        before: Duration::from_secs(1),
        fault: Duration::from_secs(2),
        after: Duration::from_secs(2),
        packets: Duration::from_secs(3),
    };
}

/// Until all hosts have read their jobs, and until they also have connections where they need them.
const LEAD: Duration = Duration::from_millis(200);
const CONNECTED_LEAD: Duration = Duration::from_millis(800);

/// How long the first round takes, which is to warm up.
const WARM_UP: Duration = Duration::from_millis(500);

/// How long a decision waits at the least that has waited for a store in vain, ns: most of the time that `limiter-serve`
/// gives the store, which is 20 ms.
const IN_VAIN: u32 = 15_000_000;

/// When answers came in a fault, ms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Answers {
    /// How long a decision took at the most while it lasted.
    pub(crate) max_ms: f64,
    /// From its begin until `on_error` has answered for the first time.
    pub(crate) first_ms: Option<f64>,
    /// From its begin until nobody waited any more for what does not answer.
    pub(crate) at_once_ms: Option<f64>,
    /// From its end until `on_error` has answered for the last time.
    pub(crate) back_ms: Option<f64>,
}

/// What was measured of a mode under a load.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) mode: Mode,
    pub(crate) load: Load,
    pub(crate) fault: Fault,
    /// Whether decisions began at fixed times, or as soon as the last one had ended.
    pub(crate) paced: bool,
    #[serde(flatten)]
    pub(crate) speed: Speed,
    pub(crate) worst_overage: f64,
    /// In any interval, units.
    pub(crate) worst_excess: f64,
    pub(crate) utilisation: f64,
    /// Of the store; messages of the daemons, where these keep the limit.
    pub(crate) calls_per_second: Option<f64>,
    /// In the store; on a host, where that keeps the limit.
    pub(crate) bytes_per_key: Option<f64>,
    /// On a host beside that.
    pub(crate) bytes_per_key_here: Option<f64>,
    /// The part of decisions that `on_error` has answered, and how often that has begun on a host.
    pub(crate) alone: f64,
    pub(crate) episodes: usize,
    pub(crate) answers: Option<Answers>,
    /// While it was judged.
    #[serde(flatten)]
    pub(crate) still: Still,
}

/// What asks the store once a decision, or for a sign of life.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Contender {
    pub(crate) asks: &'static str,
    pub(crate) connections: Connections,
    #[serde(flatten)]
    pub(crate) speed: Speed,
}

/// What is measured, with its name.
pub(crate) const SCRIPT: &str = "script";
pub(crate) const PING: &str = "ping";

/// Everything that is needed for a run.
pub(crate) struct Bench<'a> {
    pub(crate) stand: Stand,
    pub(crate) times: Times,
    pub(crate) pictures: &'a Path,
    run: u32,
}

/// What hosts have answered in a run.
struct Answered {
    samples: Vec<Vec<Sample>>,
    begin: u64,
    calls: f64,
    still: Still,
}

impl<'a> Bench<'a> {
    pub(crate) const fn new(stand: Stand, times: Times, pictures: &'a Path) -> Self {
        Self { stand, times, pictures, run: 0 }
    }

    /// The jobs of the hosts that a load asks.
    fn jobs(
        &mut self,
        load: Load,
        asked: Asked,
        rule: &str,
        length: Duration,
        pace: &Pace,
    ) -> Vec<Asking> {
        self.run += 1;
        let lead = if asked == Asked::Limiter { LEAD } else { CONNECTED_LEAD };
        let begin = now() + lead.as_nanos() as u64;
        let is_judged = matches!(pace, Pace::Open(_));
        let job = |host| Asking {
            asked,
            rule: rule.to_owned(),
            begin,
            length,
            tasks: if host < load.hosts() { TASKS } else { 0 },
            pace: pace.clone(),
            tracked: if is_judged { load.tracked() } else { 0 },
            tracked_part: load.tracked_part(),
            run: self.run,
            others: load.keys(),
            file: self.stand.file(host),
        };
        (0..HOSTS).map(job).collect()
    }

    fn ask(&mut self, mode: Mode, jobs: &[Asking], during: impl FnOnce(&mut Stand)) -> Answered {
        let (begin, length) = (jobs[0].begin, jobs[0].length);
        let count = |stand: &Stand| match mode {
            Mode::Host => 0,
            Mode::Cluster => stand.messages(),
            Mode::Synced | Mode::Strict => stand.calls(),
        };
        let before = count(&self.stand);
        let watch = Watch::start();
        let (samples, ()) = self.stand.ask(jobs, during);
        let still = watch.stop();
        // A store that was killed has counted anew.
        let calls = count(&self.stand).saturating_sub(before) as f64 / length.as_secs_f64();
        Answered { samples, begin, calls, still }
    }

    /// Speed alone.
    fn fast(&mut self, mode: Mode, load: Load, length: Duration) -> (Speed, f64) {
        self.stand.prepare(mode, self.run);
        let jobs = self.jobs(load, Asked::Limiter, &mode.rule(WIDE), length, &Pace::Closed);
        let answered = self.ask(mode, &jobs, |_| {});
        let mut all = answered.samples.concat();
        let alone = part_alone(&all);
        // Whoever answers without the store is fast, and does not keep the limit.
        all.retain(|sample| !sample.alone);
        let admitted = all.iter().filter(|sample| sample.admitted).count() as f64;
        let speed = Speed::new(&all, length);
        eprintln!(
            "{}, {}: {:.0} a second, p99 {:.0} µs, {:.1} % admitted; on_error has answered {:.1} % beside them; {}",
            mode.name(),
            load.name(),
            speed.per_second,
            speed.p99_us,
            100.0 * admitted / all.len().max(1) as f64,
            100.0 * alone,
            answered.still,
        );
        (speed, answered.calls)
    }

    fn contend(&mut self, asked: Asked, length: Duration) -> Speed {
        self.stand.primary().ask("FLUSHALL");
        self.stand.primary().call(&["SET", crate::plan::SINCE, "0"]);
        let rule = Mode::Strict.rule(WIDE);
        let jobs = self.jobs(Load::Steady, asked, &rule, length, &Pace::Closed);
        let answered = self.ask(Mode::Host, &jobs, |_| {});
        let speed = Speed::new(&answered.samples.concat(), length);
        let Speed { per_second, p99_us, .. } = speed;
        eprintln!("{asked:?}: {per_second:.0} a second, p99 {p99_us:.0} µs; {}", answered.still);
        speed
    }

    /// The plain run with its contenders, and one round of all other loads.
    pub(crate) fn plain(&mut self) -> (Vec<Row>, Vec<Contender>) {
        let asked: Vec<_> = Connections::ALL
            .into_iter()
            .flat_map(|connections| {
                [(SCRIPT, Asked::Script(connections)), (PING, Asked::Ping(connections))]
                    .map(|(name, asked)| (name, connections, asked))
            })
            .collect();
        let mut fast = [const { Vec::new() }; Mode::ALL.len()];
        let mut contenders = vec![Vec::new(); asked.len()];
        for round in 0..=self.times.rounds {
            let length = if round == 0 { WARM_UP } else { self.times.speed };
            for (at, mode) in Mode::ALL.into_iter().enumerate() {
                let figures = self.fast(mode, Load::Steady, length);
                if round > 0 {
                    fast[at].push(figures);
                }
            }
            for ((_, _, asked), speeds) in asked.iter().zip(&mut contenders) {
                let speed = self.contend(*asked, length);
                if round > 0 {
                    speeds.push(speed);
                }
            }
        }
        let contenders = asked.iter().zip(&contenders).map(|((asks, connections, _), speeds)| {
            Contender { asks, connections: *connections, speed: middle(speeds) }
        });
        let contenders = contenders.collect();
        let mut rows = Vec::new();
        for load in Load::ALL {
            let plain = |at: usize| {
                let (speeds, calls): (Vec<_>, Vec<_>) = fast[at].iter().copied().unzip();
                (middle(&speeds), median(&calls))
            };
            let figures: Vec<_> = match load {
                Load::Steady => (0..Mode::ALL.len()).map(|at| Some(plain(at))).collect(),
                Load::Step => vec![None; Mode::ALL.len()],
                _ => {
                    let length = self.times.speed;
                    Mode::ALL.map(|mode| Some(self.fast(mode, load, length))).into()
                }
            };
            for (mode, figures) in Mode::ALL.into_iter().zip(figures) {
                rows.push(self.judged(mode, load, figures));
            }
        }
        (rows, contenders)
    }

    /// A mode under a load that goes beyond limits.
    fn judged(&mut self, mode: Mode, load: Load, fast: Option<(Speed, f64)>) -> Row {
        self.stand.prepare(mode, self.run);
        let Times { judged: length, warm, .. } = self.times;
        let most = load.demand() / load.tracked_part();
        let step = length / 3;
        let (steps, from) = match load {
            Load::Step => (vec![(Duration::ZERO, most / 10.0), (step, most)], step + warm),
            _ => (vec![(Duration::ZERO, most)], warm),
        };
        let (limit, pace) = (load.limit(), Pace::Open(steps));
        let jobs = self.jobs(load, Asked::Limiter, &mode.rule(limit), length, &pace);
        let mut bytes = None;
        let shortly_before = jobs[0].begin + (length * 9 / 10).as_nanos() as u64;
        let answered = self.ask(mode, &jobs, |stand| {
            // While keys are in use: the store keeps none that is as good as new.
            sleep(Duration::from_nanos(shortly_before.saturating_sub(now())));
            bytes = stand.bytes_in_store().filter(|_| mode.needs_store());
        });
        let verdict = self.judge(mode, load, limit, &answered, from..length);
        let all = answered.samples.concat();
        let (speed, calls) = fast.unwrap_or_else(|| (Speed::new(&all, length), answered.calls));
        let (bytes_per_key, bytes_per_key_here) = match mode {
            Mode::Host => (Some(self.stand.bytes_here("keys", KEYS)), None),
            Mode::Cluster => (Some(self.stand.bytes_here("cluster", CLUSTER_KEYS)), None),
            Mode::Synced => (bytes, Some(self.stand.bytes_here("cluster", CLUSTER_KEYS))),
            Mode::Strict => (bytes, None),
        };
        let row = Row {
            mode,
            load,
            fault: Fault::None,
            paced: fast.is_none(),
            speed,
            worst_overage: verdict.worst_overage,
            worst_excess: verdict.worst_excess,
            utilisation: verdict.utilisation,
            calls_per_second: (mode != Mode::Host).then_some(calls),
            bytes_per_key,
            bytes_per_key_here,
            alone: part_alone(&all),
            episodes: verdict.episodes,
            answers: None,
            still: answered.still,
        };
        let (mode, load, still) = (mode.name(), load.name(), row.still);
        eprintln!("{mode}, {load}: {verdict:.3?}, {:.4} alone; {still}", row.alone);
        row
    }

    fn judge(
        &self,
        mode: Mode,
        load: Load,
        limit: Limit,
        answered: &Answered,
        within: Range<Duration>,
    ) -> Verdict {
        let at = |time: Duration| answered.begin + time.as_nanos() as u64;
        let (tracked, hosts) = (load.tracked(), load.hosts());
        let (from, to) = (at(within.start), at(within.end));
        let has_floors = self.stand.has_floors;
        Case { mode, limit, has_floors, tracked, hosts, from, to }.judge(&answered.samples)
    }

    /// All faults, of which each mode has those that concern it.
    pub(crate) fn faults(&mut self) -> Vec<Row> {
        let mut rows = Vec::new();
        for fault in [
            Fault::Paused,
            Fault::Killed,
            Fault::Partitioned,
            Fault::Slow,
            Fault::FailedOver,
            Fault::DaemonKilled,
        ] {
            for mode in [Mode::Cluster, Mode::Synced, Mode::Strict] {
                let concerns = match fault {
                    Fault::None => false,
                    Fault::Partitioned => true,
                    Fault::DaemonKilled => mode == Mode::Cluster,
                    _ => mode.needs_store(),
                };
                if concerns {
                    rows.push(self.fault(mode, fault));
                }
            }
        }
        rows
    }

    fn fault(&mut self, mode: Mode, fault: Fault) -> Row {
        self.stand.go(match fault {
            Fault::Slow => Way::Proxy,
            Fault::FailedOver => Way::Sentinels,
            _ => Way::Direct,
        });
        self.stand.prepare(mode, self.run);
        let Times { before, fault: lasts, after, .. } = self.times;
        let (load, length) = (Load::Steady, before + lasts + after);
        let (limit, most) = (load.limit(), load.demand() / load.tracked_part());
        let pace = Pace::Open(vec![(Duration::ZERO, most)]);
        let jobs = self.jobs(load, Asked::Limiter, &mode.rule(limit), length, &pace);
        let begin = jobs[0].begin;
        let until = |time: Duration| {
            let due = begin + time.as_nanos() as u64;
            sleep(Duration::from_nanos(due.saturating_sub(now())));
        };
        let (mut begun, mut ended) = (0, 0);
        let answered = self.ask(mode, &jobs, |stand| {
            until(before);
            begun = now();
            fault.begin(mode, stand);
            if fault != Fault::FailedOver {
                until(before + lasts);
                fault.end(mode, stand);
            }
            ended = now();
        });
        let verdict = self.judge(mode, load, limit, &answered, self.times.warm..length);
        let all = answered.samples.concat();
        let answers = Answers::new(&all, begun, ended);
        let name = format!("{}-{}", mode.name(), fault.name());
        eprintln!("{name}: {verdict:.3?}, {answers:.1?}; {}", answered.still);
        let limits = limit.rate * f64::from(load.tracked());
        let picture = timeline::draw(&name, &moments(&all, begin, length), limits);
        let file = self.pictures.join(format!("{name}.svg"));
        fs::write(&file, picture.expect("a picture can be drawn")).expect("room for a picture");
        Row {
            mode,
            load,
            fault,
            paced: true,
            speed: Speed::new(&all, length),
            worst_overage: verdict.worst_overage,
            worst_excess: verdict.worst_excess,
            utilisation: verdict.utilisation,
            calls_per_second: None,
            bytes_per_key: None,
            bytes_per_key_here: None,
            alone: part_alone(&all),
            episodes: verdict.episodes,
            answers: Some(answers),
            still: answered.still,
        }
    }
}

impl Fault {
    fn begin(self, mode: Mode, stand: &mut Stand) {
        match self {
            Self::None => {}
            Self::Paused => stand.store.pause(),
            Self::Killed => stand.store.kill(),
            Self::FailedOver => {
                stand.sentinels().expect("sentinels").kill_master();
            }
            Self::Slow => stand.proxy.slow(Duration::from_millis(25)),
            Self::Partitioned if mode.needs_store() => stand.hosts.fleet.deafen(VICTIM, &[HOSTS]),
            Self::Partitioned => stand.hosts.fleet.split(&[&[0, 1], &[VICTIM]]),
            Self::DaemonKilled => stand.hosts.kill(VICTIM),
        }
    }

    fn end(self, mode: Mode, stand: &mut Stand) {
        match self {
            Self::None | Self::FailedOver => {}
            Self::Paused => stand.store.resume(),
            Self::Killed => stand.store.restart_empty(),
            Self::Slow => stand.proxy.slow(Duration::ZERO),
            Self::Partitioned if mode.needs_store() => stand.hosts.fleet.deafen(VICTIM, &[]),
            Self::Partitioned => stand.hosts.fleet.split(&[&[0, 1, VICTIM]]),
            Self::DaemonKilled => stand.hosts.restart(VICTIM),
        }
    }
}

impl Answers {
    /// Of decisions, where a fault has begun and ended.
    fn new(samples: &[Sample], begun: u64, ended: u64) -> Self {
        let ms = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
        let overlap = samples.iter().filter(|it| it.begun <= ended && it.ended() >= begun);
        let alone = || samples.iter().filter(|sample| sample.alone);
        let since = || alone().filter(|sample| sample.ended() >= begun);
        let waited = since().filter(|sample| sample.took >= IN_VAIN && sample.begun <= ended);
        let later = alone().map(Sample::ended).filter(|at| *at > ended);
        Self {
            max_ms: overlap.map(|sample| f64::from(sample.took) / 1e6).fold(0.0, f64::max),
            first_ms: since().map(Sample::ended).min().map(|at| ms(begun, at)),
            at_once_ms: waited.map(Sample::ended).max().map(|at| ms(begun, at)),
            back_ms: later.max().map(|at| ms(ended, at)),
        }
    }
}

fn part_alone(samples: &[Sample]) -> f64 {
    samples.iter().filter(|sample| sample.alone).count() as f64 / samples.len().max(1) as f64
}

/// The medians of some rounds.
fn middle(all: &[Speed]) -> Speed {
    let of = |field: fn(&Speed) -> f64| median(&all.iter().map(field).collect::<Vec<_>>());
    Speed {
        per_second: of(|speed| speed.per_second),
        p50_us: of(|speed| speed.p50_us),
        p99_us: of(|speed| speed.p99_us),
        p999_us: of(|speed| speed.p999_us),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_a_fault_are_told_from_those_before_and_after() {
        const MS: u64 = 1_000_000;
        let sample = |begun: u64, took: u64, alone| Sample {
            begun: begun * MS,
            took: (took * MS) as u32,
            key: None,
            admitted: true,
            alone,
        };
        let all = [
            sample(10, 80, false),
            sample(99, 21, true),
            sample(105, 20, true),
            sample(130, 1, true),
            sample(190, 1, true),
            sample(215, 1, true),
            sample(230, 70, false),
        ];
        let expected = Answers {
            max_ms: 21.0,
            first_ms: Some(20.0),
            at_once_ms: Some(25.0),
            back_ms: Some(16.0),
        };
        assert_eq!(Answers::new(&all, 100 * MS, 200 * MS), expected);
        let none = Answers { max_ms: 80.0, first_ms: None, at_once_ms: None, back_ms: None };
        assert_eq!(Answers::new(&all[..1], 50 * MS, 60 * MS), none);
    }
}
