//! Many runs at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::judge::Verdict;
use super::members;
use super::nemesis::Broken;
use super::outcome::{Outcome, Series};
use super::progress::{Group, Meter, Progress, order};
use super::regions::Between;
use super::scenario::Scenario;
use super::scheme::{Baseline, EscrowHost, SchemeKind};
use super::world::World;

/// How often it is told how far the runs are.
const TELL: Duration = Duration::from_millis(200);

/// What runs of one scenario under one scheme were like, over all seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The scenario's number in the list.
    pub scenario: usize,
    /// The scheme.
    pub scheme: SchemeKind,
    /// The worst of each figure, and the mean utilisation.
    pub verdict: Verdict,
    /// The seed of the worst overage in a second.
    pub worst_seed: u64,
    /// The least utilisation.
    pub least_utilisation: f64,
    /// The longest way back to 90 %, s; `Some(None)` if a run was never back; `None` if there was no step.
    pub convergence: Option<Option<f64>>,
    /// The median of all of them.
    pub median_convergence: Option<f64>,
    /// The most that a host sent, bytes per second.
    pub bytes: f64,
    /// The most that went between regions; `None` where there is one.
    pub between: Option<Between>,
    /// The most that deciding took on a host, as a part of one core, where it was measured.
    pub cpu: Option<f64>,
    /// The longest time until all hosts knew of each other, s, as `convergence`.
    pub joined: Option<Option<f64>>,
    /// The longest time until all knew of a crash.
    pub detected: Option<Option<f64>>,
    /// Runs.
    pub seeds: usize,
    /// Of the first seed.
    pub series: Series,
    /// What was to be reached and was not; baselines have no goals.
    pub missed: Vec<String>,
}

/// One run.
pub fn run(scenario: &Scenario, scheme: SchemeKind, seed: u64) -> Outcome {
    match scheme {
        SchemeKind::Escrow => {
            World::new(scenario, seed, |birth| EscrowHost::new(birth, None)).run()
        }
        SchemeKind::Flat => World::new(scenario, seed, EscrowHost::flat).run(),
        SchemeKind::Membership => members::run(scenario, seed),
        kind => World::new(scenario, seed, |birth| Baseline::new(kind, birth)).run(),
    }
}

/// Runs all scenarios under all schemes with the seeds from `first` on, on all CPUs. `tell` is called now and
/// then.
pub fn run_all(
    scenarios: &[Scenario],
    schemes: &[SchemeKind],
    first: u64,
    seeds: usize,
    tell: &mut dyn FnMut(&Progress),
) -> Vec<Summary> {
    let of_scenario = |(number, scenario): (usize, &Scenario)| {
        // Without traffic there is no limit that the other schemes could keep.
        let schemes = if scenario.membership { &[SchemeKind::Membership][..] } else { schemes };
        let fits = |scheme: &&SchemeKind| scheme.is_for(scenario);
        schemes.iter().filter(fits).map(|scheme| (number, *scheme)).collect::<Vec<_>>()
    };
    let pairs: Vec<(usize, SchemeKind)> =
        scenarios.iter().enumerate().flat_map(of_scenario).collect();
    let group = |(number, scheme): &(usize, SchemeKind)| {
        let scenario = &scenarios[*number];
        // A scheme to compare with has no goals that chance could miss: of what takes long, one run shows it.
        let once = scenario.is_heavy() && !scheme.has_goals();
        Group::new(scenario, *scheme, if once { 1.min(seeds) } else { scenario.seeds(seeds) })
    };
    let groups: Vec<Group> = pairs.iter().map(group).collect();
    let jobs = order(&groups);
    let next = AtomicUsize::new(0);
    // Outcomes go back by their place, so that the order in which threads end changes nothing.
    let (sender, receiver) = mpsc::channel();
    // Runs share nothing, so all processors can have one each.
    let threads =
        std::thread::available_parallelism().map_or(1, usize::from).min(jobs.len().max(1));
    let mut outcomes: Vec<Vec<Option<Outcome>>> =
        groups.iter().map(|group| vec![None; group.runs]).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, next, pairs, jobs) = (sender.clone(), &next, &pairs, &jobs);
            scope.spawn(move || {
                while let Some(&job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let ((scenario, scheme), number) = (pairs[job.0], job.1);
                    if sender.send((job, Instant::now(), None)).is_err() {
                        return;
                    }
                    let seed = first.wrapping_add(number as u64);
                    let mut outcome = run(&scenarios[scenario], scheme, seed);
                    if number > 0 {
                        // A thousand of them would be much.
                        outcome.series = Series::default();
                    }
                    if sender.send((job, Instant::now(), Some(outcome))).is_err() {
                        return;
                    }
                }
            });
        }
        // The receiver ends with the last sender, and this one is nobody's.
        drop(sender);
        let mut meter = Meter::new(&groups, threads);
        let mut told = Instant::now();
        loop {
            // Not until a run ends: one of many minutes would stop the display.
            match receiver.recv_timeout(TELL) {
                Ok((job, at, None)) => meter.begin(job, at),
                Ok((job, at, Some(outcome))) => {
                    meter.end(job, at);
                    outcomes[job.0][job.1] = Some(outcome);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if told.elapsed() >= TELL {
                told = Instant::now();
                tell(&meter.progress(told));
            }
        }
    });
    let of_group =
        |((scenario, scheme), outcomes): (&(usize, SchemeKind), &Vec<Option<Outcome>>)| {
            summary(*scenario, &scenarios[*scenario], *scheme, first, outcomes.iter().flatten())
        };
    pairs.iter().zip(&outcomes).map(of_group).collect()
}

fn summary<'a>(
    number: usize,
    scenario: &Scenario,
    scheme: SchemeKind,
    first: u64,
    outcomes: impl Iterator<Item = &'a Outcome>,
) -> Summary {
    let mut all = Summary {
        scenario: number,
        scheme,
        verdict: Verdict::default(),
        worst_seed: first,
        least_utilisation: f64::INFINITY,
        convergence: None,
        median_convergence: None,
        bytes: 0.0,
        between: None,
        cpu: None,
        joined: None,
        detected: None,
        seeds: 0,
        series: Series::default(),
        missed: Vec::new(),
    };
    let (mut sum, mut steps) = (0.0, Vec::new());
    for (seed, outcome) in (first..).zip(outcomes) {
        let (found, worst) = (&outcome.verdict, &mut all.verdict);
        if found.worst_overage > worst.worst_overage {
            all.worst_seed = seed;
        }
        worst.worst_overage = worst.worst_overage.max(found.worst_overage);
        worst.bound_excess = worst.bound_excess.max(found.bound_excess);
        worst.share_sum = worst.share_sum.max(found.share_sum);
        worst.lost = worst.lost.max(found.lost);
        all.least_utilisation = all.least_utilisation.min(found.utilisation);
        all.bytes = all.bytes.max(outcome.bytes);
        let worse = |found: Between| found.worse(all.between.unwrap_or_default());
        all.between = outcome.between.map(worse).or(all.between);
        all.cpu = outcome.cpu.map(|cpu| cpu.max(all.cpu.unwrap_or(0.0))).or(all.cpu);
        all.joined = longest(all.joined, outcome.joined);
        all.detected = longest(all.detected, outcome.detected);
        // Never is infinite, so that it counts as the longest.
        steps.extend(outcome.convergence.iter().map(|step| step.unwrap_or(f64::INFINITY)));
        if all.seeds == 0 {
            all.series = outcome.series.clone();
        }
        all.seeds += 1;
        sum += found.utilisation;
    }
    // The mean: chance may slow a single run down. The bounds above are for each run.
    all.verdict.utilisation = sum / all.seeds.max(1) as f64;
    // A step that never came back is infinite here: it sorts last and so is the worst.
    steps.sort_by(f64::total_cmp);
    let finite = |seconds: &f64| seconds.is_finite().then_some(*seconds);
    all.convergence = steps.last().map(finite);
    all.median_convergence = steps.get(steps.len() / 2).and_then(finite);
    if scheme.has_goals() {
        all.missed = missed(scenario, &all);
    }
    all
}

/// The longer of two times, of which one may not have been taken, or have had no end.
fn longest(one: Option<Option<f64>>, other: Option<Option<f64>>) -> Option<Option<f64>> {
    match (one, other) {
        // One that never ended is longer than any.
        (Some(one), Some(other)) => Some(one.zip(other).map(|(one, other)| one.max(other))),
        (one, other) => one.or(other),
    }
}

fn missed(scenario: &Scenario, all: &Summary) -> Vec<String> {
    let goals = &scenario.goals;
    let mut missed = Vec::new();
    let mut goal = |met: bool, text: String| {
        if !met {
            missed.push(text);
        }
    };
    let percent = |part: f64| format!("{:.3} %", 100.0 * part);
    let Verdict { worst_overage, bound_excess, share_sum, lost, utilisation } = all.verdict;
    let promise = scenario.promise();
    goal(worst_overage <= goals.overage.unwrap_or(promise.overage), {
        let seed = all.worst_seed;
        format!("overage {} in a second (seed {seed})", percent(worst_overage))
    });
    goal(
        bound_excess <= promise.excess(),
        format!("{} beyond burst + rate·T", percent(bound_excess)),
    );
    // Apart from what was admitted: shares beyond the whole are a fault also where no source has used them.
    goal(share_sum <= promise.sum(), format!("shares add up to {share_sum:.6}"));
    let most = goals.lost.unwrap_or(promise.lost);
    goal(lost <= most, Broken::Lost(lost, most).to_string());
    if let Some(least) = goals.utilisation {
        goal(utilisation >= least, format!("utilisation {utilisation:.3}, not {least}"));
    }
    if let (Some(most), Some(convergence)) = (goals.convergence, all.convergence) {
        let most = most.seconds();
        let met = convergence.is_some_and(|seconds| seconds <= most + 1e-9);
        let found = convergence.map_or("never".to_owned(), |s| format!("{:.0} ms", s * 1e3));
        goal(met, format!("back to 90 %: {found}, not {:.0} ms", most * 1e3));
    }
    if let Some(most) = goals.bytes {
        goal(all.bytes <= most, format!("{:.0} bytes/s, not {most:.0}", all.bytes));
    }
    if let (Some(most), Some(between)) = (goals.between, all.between) {
        let found = between.bytes_per_second / scenario.hosts as f64;
        goal(found <= most, format!("{found:.0} bytes/s and host between regions, not {most:.0}"));
    }
    // A debug build takes many times as long: it says nothing about the CPU.
    if let (Some(most), Some(cpu), false) = (goals.cpu, all.cpu, cfg!(debug_assertions)) {
        let text = format!("{:.1} % of a core, not {:.1} %", 100.0 * cpu, 100.0 * most);
        goal(cpu <= most, text);
    }
    let times = [
        ("all know of each other", goals.joined, all.joined),
        ("all know of a crash", goals.detected, all.detected),
    ];
    for (what, most, found) in times {
        let (Some(most), Some(found)) = (most, found) else { continue };
        let met = found.is_some_and(|seconds| seconds <= most.seconds());
        let found = found.map_or("never".to_owned(), |s| format!("{s:.1} s"));
        goal(met, format!("{what}: {found}, not {:.1} s", most.seconds()));
    }
    missed
}
